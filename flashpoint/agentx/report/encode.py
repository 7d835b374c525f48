"""How data travels inside the page: JSON in a script element, and columns as compressed bytes."""

from __future__ import annotations

import base64
import gzip
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from markupsafe import Markup

GZIP_LEVEL = 6


def script_json(data: object) -> Markup:
    """JSON that cannot end the script element it stands in."""
    text = orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY).decode()
    return Markup(text.replace("<", "\\u003c"))


def pack(header: Mapping[str, Any], columns: Mapping[str, npt.NDArray[np.unsignedinteger[Any]]]) -> str:
    """Columns of unsigned integers with a header, as base64 of gzip; `unpack` in sessions.js reads it.

    Layout before compression: length of the header (4 bytes, little endian), the header as JSON with
    `columns` = [[name, bytes per value, number of values], …] added, zeros up to a multiple of 4, then the
    columns one after the other, little endian, each padded to a multiple of 4 bytes.
    """
    parts, layout = [], []
    for name, column in columns.items():
        width = column.dtype.itemsize
        if column.dtype.kind != "u" or width > 4:
            raise TypeError(f"{name}: {column.dtype}; only u1, u2 and u4 can be packed")
        layout.append([name, width, len(column)])
        parts.append(_padded(column.astype(f"<u{width}").tobytes()))
    head = orjson.dumps({**header, "columns": layout})
    content = len(head).to_bytes(4, "little") + head
    # A fixed time stamp: the same archive gives the same page.
    return base64.b64encode(gzip.compress(_padded(content) + b"".join(parts), GZIP_LEVEL, mtime=0)).decode(
        "ascii"
    )


def rounded(value: float | None, digits: int = 5) -> float | None:
    """A number with `digits` significant digits, to keep the page small; None for what is not a number."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def rounded_list(values: npt.NDArray[np.float64], digits: int = 5) -> list[float | None]:
    """`rounded`, for each value."""
    return [rounded(value, digits) for value in values.tolist()]


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 4)
