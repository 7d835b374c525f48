"""Builds small safetensors files by hand, so that damaged ones can be built too."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from flashpoint.checkpoint.folder import INDEX_NAME


def raw_file(path: Path, header: dict[str, Any] | bytes, data: bytes) -> Path:
    """Write a safetensors file with exactly this header and data."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write_index(folder: Path, weight_map: dict[str, str], total_size: int = 0) -> None:
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    (folder / INDEX_NAME).write_text(json.dumps(index))
