"""Amounts of memory as people write them."""

from __future__ import annotations

import re

from flashpoint.errors import InvalidValue

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(I?)B?", re.IGNORECASE)


def parse_size(field: str, text: str) -> int:
    """Bytes of `8GiB`, `900MB`, `1.5G` or a plain number; a unit with a B and no i is decimal, else binary.

    Raises InvalidValue naming `field`.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidValue(field, text, "a size such as 8GiB, 900MB or a number of bytes")
    number, unit, binary = match.groups()
    decimal = unit and not binary and text.strip().upper().endswith("B")
    return int(float(number) * (1000 if decimal else 1024) ** _POWERS[unit.upper()])


def format_size(size: float) -> str:
    """`size` bytes with three digits and a binary unit: 8.00 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
