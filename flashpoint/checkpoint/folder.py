"""A checkpoint folder: which tensor lies where, read through memory maps."""

from __future__ import annotations

import json
import mmap
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashpoint.checkpoint.header import TORCH_DTYPES, TensorEntry, read_header
from flashpoint.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


@dataclass(frozen=True, slots=True)
class CheckpointIndex:
    """`model.safetensors.index.json`: tensor name -> shard file name, and the stated sum of tensor bytes."""

    weight_map: dict[str, str]
    total_size: int | None

    @property
    def shards(self) -> list[str]:
        """File names, each once, in order of name."""
        return sorted(set(self.weight_map.values()))


def read_index(folder: Path) -> CheckpointIndex:
    """Read the index alone; no shard needs to exist.

    Raises CheckpointError when it is absent, not JSON, or maps anything but names to plain file names.
    """
    path = folder / INDEX_NAME
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(folder, [f"{INDEX_NAME}: missing"]) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(folder, [f"{INDEX_NAME}: cannot be read as JSON ({error})"]) from None
    weight_map = raw.get("weight_map") if isinstance(raw, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(folder, [f"{INDEX_NAME}: has no weight_map"])
    problems = [
        f"{INDEX_NAME}: weight_map[{name}]: got {shard!r}; expected a file name without a folder"
        for name, shard in weight_map.items()
        if not isinstance(shard, str) or shard in ("", ".", "..") or Path(shard).name != shard
    ]
    if problems:
        raise CheckpointError(folder, problems)
    metadata = raw.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return CheckpointIndex(weight_map, total if isinstance(total, int) else None)


class CheckpointFolder:
    """An opened checkpoint. Tensors are views of read-only memory maps: nothing is read until touched.

    `entries` holds name, dtype code, shape and place of every tensor; `index` is None for a lone
    `model.safetensors`. Tensors from `tensor` must not be written to.
    """

    def __init__(self, path: Path, entries: dict[str, TensorEntry], index: CheckpointIndex | None) -> None:
        self.path = path
        self.entries = entries
        self.index = index
        self._maps: dict[str, mmap.mmap] = {}

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.nbytes for entry in self.entries.values())

    def tensor(self, name: str) -> Tensor:
        """The stored tensor, in its stored dtype and shape, on the CPU. KeyError when there is none."""
        entry = self.entries[name]
        dtype = TORCH_DTYPES[entry.dtype]
        if entry.nbytes == 0:
            return torch.empty(entry.shape, dtype=dtype)
        raw = np.frombuffer(self._map(entry.shard), np.uint8, entry.nbytes, entry.begin)
        if entry.begin % dtype.itemsize:
            raw = raw.copy()  # torch views need alignment, which the format does not promise
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            data = torch.from_numpy(raw)
        return data.view(dtype).view(entry.shape)

    def release(self, name: str) -> None:
        """Tell the system that a tensor's pages are not needed soon, so that they leave resident memory."""
        entry = self.entries[name]
        first = -(-entry.begin // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (entry.begin + entry.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0:
            self._map(entry.shard).madvise(mmap.MADV_DONTNEED, first, length)

    def _map(self, shard: str) -> mmap.mmap:
        if shard not in self._maps:
            with (self.path / shard).open("rb") as file:
                self._maps[shard] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[shard]


def open_checkpoint(path: Path) -> CheckpointFolder:
    """Open a folder by its index, or by a lone `model.safetensors`, and check every shard's header.

    Raises CheckpointError listing every fault: missing shards, damaged headers, data that does not fit its
    file, and tensors that index and shards do not agree on.
    """
    if not path.is_dir():
        raise CheckpointError(path, ["not a folder"])
    if (path / INDEX_NAME).is_file():
        index = read_index(path)
        shards = index.shards
    elif (path / SINGLE_NAME).is_file():
        index, shards = None, [SINGLE_NAME]
    else:
        raise CheckpointError(path, [f"holds neither {INDEX_NAME} nor {SINGLE_NAME}"])

    entries: dict[str, TensorEntry] = {}
    problems: list[str] = []
    unread: set[str] = set()
    for shard in shards:
        found, faults = _read_shard(path / shard, index)
        problems += faults
        if faults:
            unread.add(shard)
        for name, entry in found.items():
            if index is None or index.weight_map.get(name) == shard:
                entries[name] = entry
            else:
                where = index.weight_map.get(name)
                told = f"the index places it in {where}" if where else "the index does not name it"
                problems.append(f"{shard}: holds {name}, but {told}")
    if index is not None:
        problems += [
            f"{shard}: lacks {name}, which the index places there"
            for name, shard in index.weight_map.items()
            if name not in entries and shard not in unread
        ]
    if problems:
        raise CheckpointError(path, problems)
    return CheckpointFolder(path, entries, index)


def _read_shard(file: Path, index: CheckpointIndex | None) -> tuple[dict[str, TensorEntry], list[str]]:
    try:
        return read_header(file)
    except FileNotFoundError:
        named = sum(shard == file.name for shard in index.weight_map.values()) if index else 0
        return {}, [f"{file.name}: missing; the index places {named} tensor(s) in it"]
    except OSError as error:
        return {}, [f"{file.name}: cannot be read ({error.strerror})"]
