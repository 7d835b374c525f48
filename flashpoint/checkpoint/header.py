"""The header of one safetensors file, checked against the file itself.

Layout: 8 bytes little-endian header length, the header (JSON: name -> dtype, shape, data_offsets relative to
the header's end), then the tensors back to back without gaps.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000

TORCH_DTYPES: dict[str, torch.dtype] = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}
"""Safetensors dtype code -> torch dtype. A code that is not here is refused."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies: `nbytes` bytes at absolute offset `begin` of `shard` (a file name)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: str
    begin: int
    nbytes: int


def tensor_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of a known dtype code."""
    return math.prod(shape) * TORCH_DTYPES[dtype].itemsize


def read_header(path: Path) -> tuple[dict[str, TensorEntry], list[str]]:
    """Entries of one file and every fault found in it; a faulty tensor is left out of the entries.

    Raises OSError only when the file cannot be opened or read at all.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(LENGTH_BYTES)
        if len(prefix) < LENGTH_BYTES:
            return {}, [f"{path.name}: {size} bytes long; too short for a safetensors file"]
        (length,) = struct.unpack("<Q", prefix)
        if length > MAX_HEADER_BYTES:
            return {}, [
                f"{path.name}: states a header of {length} bytes; expected at most {MAX_HEADER_BYTES}"
            ]
        if LENGTH_BYTES + length > size:
            return {}, [
                f"{path.name}: states a header of {length} bytes, but the file has {size} (truncated?)"
            ]
        raw = file.read(length)
    repeated: list[str] = []
    try:
        header = json.loads(raw, object_pairs_hook=lambda pairs: _unique(pairs, repeated))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        return {}, [f"{path.name}: header is not valid JSON ({error})"]
    if not isinstance(header, dict):
        return {}, [f"{path.name}: header is not a JSON object"]
    header.pop("__metadata__", None)

    entries: dict[str, TensorEntry] = {}
    problems = [f"{path.name}: header lists {name} twice" for name in repeated]
    data_start = LENGTH_BYTES + length
    for name, fields in header.items():
        entry, fault = _entry(name, fields, path.name, data_start)
        if entry is None:
            problems.append(f"{path.name}: {name}: {fault}")
        else:
            entries[name] = entry
    if len(entries) == len(header):
        problems += _layout_problems(path.name, entries, data_start, size)
    return entries, problems


def _unique(pairs: list[tuple[str, Any]], repeated: list[str]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        repeated += sorted({name for name in names if names.count(name) > 1})
    return result


def _entry(name: str, fields: Any, shard: str, data_start: int) -> tuple[TensorEntry | None, str]:
    if not isinstance(fields, dict) or not {"dtype", "shape", "data_offsets"} <= fields.keys():
        return None, "expected an object with dtype, shape and data_offsets"
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in TORCH_DTYPES:
        return None, f"dtype {dtype!r} is not known; expected one of {', '.join(TORCH_DTYPES)}"
    if not _naturals(shape):
        return None, f"shape {shape!r} is not a list of sizes"
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        return None, f"data_offsets {offsets!r} are not [begin, end]"
    begin, end = offsets
    nbytes = tensor_bytes(dtype, tuple(shape))
    if end - begin != nbytes:
        return None, f"{dtype} {shape} needs {nbytes} bytes, but data_offsets span {end - begin}"
    return TensorEntry(name, dtype, tuple(shape), shard, data_start + begin, nbytes), ""


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(x) is int and x >= 0 for x in value)


def _layout_problems(shard: str, entries: dict[str, TensorEntry], start: int, size: int) -> list[str]:
    """Overlaps, gaps, and data that ends before or after the file does."""
    problems = []
    position = start
    previous = "the header"
    for entry in sorted(entries.values(), key=lambda e: (e.begin, e.nbytes)):
        if entry.begin < position:
            problems.append(f"{shard}: {entry.name}: overlaps {previous}")
        elif entry.begin > position:
            problems.append(f"{shard}: {entry.begin - position} unused bytes before {entry.name}")
        if entry.begin + entry.nbytes >= position:
            position, previous = entry.begin + entry.nbytes, entry.name
    cut = sorted((e for e in entries.values() if e.begin + e.nbytes > size), key=lambda e: e.begin)
    if cut:
        # One fault, however many tensors it costs: a released shard holds thousands.
        first, others = cut[0], f"; {len(cut) - 1} more tensors lie beyond" if len(cut) > 1 else ""
        problems.append(
            f"{shard}: {first.name}: ends at byte {first.begin + first.nbytes}, but the file has {size} "
            f"(truncated?){others}"
        )
    if position < size:
        problems.append(f"{shard}: {size - position} unused bytes after the last tensor")
    return problems
