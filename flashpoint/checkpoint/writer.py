"""Writes a checkpoint folder shard by shard: all of it appears at once, or nothing does."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from flashpoint.checkpoint.folder import INDEX_NAME
from flashpoint.checkpoint.header import TORCH_DTYPES, tensor_bytes
from flashpoint.checkpoint.progress import ByteProgress
from flashpoint.errors import CheckpointError

_HEADER_ALIGNMENT = 8
# Room for headers, index and small files beside the tensors.
_SPARE_BYTES = 16 << 20


class StoredTensor(Protocol):
    """What the writer must know of a tensor before it is made: safetensors dtype code and shape."""

    @property
    def dtype(self) -> str: ...  # noqa: D102
    @property
    def shape(self) -> tuple[int, ...]: ...  # noqa: D102


def write_checkpoint(
    out: Path,
    layout: Mapping[str, StoredTensor],
    pieces: Callable[[str], Iterable[Tensor]],
    files: Mapping[str, bytes],
    shards: int,
    progress: ByteProgress | None = None,
) -> None:
    """Write `layout`'s tensors in `shards` files with their index, and `files` (name -> content) beside them.

    pieces(name) yields the tensor's elements in order, in one or more tensors, so that a large one need never
    be whole in memory; it is called once per name, in layout order within each shard.

    Everything goes to a temporary folder beside `out`, is flushed to disk, then renamed. On any failure that
    folder is removed. Raises CheckpointError when `out` exists and is not an empty folder, or the disk is
    full.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise CheckpointError(out, ["already exists; expected a new or empty folder"])
    total = sum(tensor_bytes(t.dtype, t.shape) for t in layout.values())
    partial = out.parent / f".{out.name}.partial-{os.getpid()}"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(out.parent).free
        if free < total + _SPARE_BYTES:
            raise _disk_full(out, total, free)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        _write_folder(partial, layout, pieces, files, shards, _Counter(total, progress))
        partial.replace(out)  # also over an empty folder
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full(out, total, shutil.disk_usage(out.parent).free) from None
        raise CheckpointError(out, [f"cannot be written: {error}"]) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _disk_full(out: Path, needed: int, free: int) -> CheckpointError:
    return CheckpointError(
        out, [f"the disk is full: {needed} bytes are needed, {free} are free; nothing is kept"]
    )


class _Counter:
    """Adds up written bytes and reports them."""

    def __init__(self, total: int, progress: ByteProgress | None) -> None:
        self._done = 0
        self._total = total
        self._progress = progress

    def add(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)


def _write_folder(
    folder: Path,
    layout: Mapping[str, StoredTensor],
    pieces: Callable[[str], Iterable[Tensor]],
    files: Mapping[str, bytes],
    shards: int,
    counter: _Counter,
) -> None:
    weight_map: dict[str, str] = {}
    groups = _split(layout, shards)
    for number, names in enumerate(groups, start=1):
        shard = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        weight_map |= dict.fromkeys(names, shard)
        _write_shard(folder / shard, {name: layout[name] for name in names}, pieces, counter)
    total = sum(tensor_bytes(t.dtype, t.shape) for t in layout.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    for name, content in {INDEX_NAME: json.dumps(index, indent=1).encode(), **files}.items():
        with (folder / name).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def _split(layout: Mapping[str, StoredTensor], shards: int) -> list[list[str]]:
    """Names in `shards` runs of about equal bytes (fewer when there are too few tensors)."""
    total = sum(tensor_bytes(t.dtype, t.shape) for t in layout.values())
    groups: list[list[str]] = [[]]
    done = 0
    for name, tensor in layout.items():
        if groups[-1] and done >= total * len(groups) / shards:
            groups.append([])
        groups[-1].append(name)
        done += tensor_bytes(tensor.dtype, tensor.shape)
    return groups


def _write_shard(
    path: Path,
    layout: Mapping[str, StoredTensor],
    pieces: Callable[[str], Iterable[Tensor]],
    counter: _Counter,
) -> None:
    # Wide elements first keep every tensor aligned for readers that map the file.
    names = sorted(layout, key=lambda name: -TORCH_DTYPES[layout[name].dtype].itemsize)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name in names:
        tensor = layout[name]
        end = position + tensor_bytes(tensor.dtype, tensor.shape)
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % _HEADER_ALIGNMENT)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for name in names:
            for piece in pieces(name):
                raw = piece.contiguous().view(-1).view(torch.uint8).numpy()
                file.write(raw.data)
                counter.add(raw.nbytes)
        file.flush()
        if file.tell() != 8 + len(encoded) + position:
            raise ValueError(f"{path.name}: the pieces of its tensors do not add up to the layout")
        os.fsync(file.fileno())
