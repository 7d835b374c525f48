"""How one replica of a model is spread over accelerators: TP4, DEP8, TP4/EP4."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flashpoint.errors import InvalidValue

_NAME = re.compile(r"(?P<kind>TP|DEP)(?P<size>[1-9]\d*)(?:/EP(?P<ep>[1-9]\d*))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Layout:
    """Ranks of one replica.

    tp: ranks that share each sequence's attention (heads split, KV replicated).
    dp: groups of such ranks, each with sequences of its own (DP attention).
    ep: ranks over which whole experts are spread; 1: each expert's width is split over `tp` instead.
    """

    tp: int = 1
    dp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "dp", "ep"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidValue(f"layout.{name}", value, "an integer of at least 1")
        if self.dp > 1 and self.tp > 1:
            raise InvalidValue("layout", str(self), "DP attention with TP 1 (spec 13.1)")
        if self.ep not in (1, self.ranks) or (self.dp > 1 and self.ep != self.ranks):
            raise InvalidValue("layout.ep", self.ep, f"{self.ranks}, all ranks of the replica")

    @property
    def ranks(self) -> int:
        """Accelerators of one replica."""
        return self.tp * self.dp

    def __str__(self) -> str:
        if self.dp > 1:
            return f"DEP{self.dp}"
        return f"TP{self.tp}/EP{self.ep}" if self.ep > 1 else f"TP{self.tp}"


def parse_layout(text: str) -> Layout:
    """A layout from its usual name: TP4, TP4/EP4, DEP8. Raises InvalidValue naming `layout`."""
    match = _NAME.fullmatch(text.strip())
    if match is None:
        raise InvalidValue("layout", text, "TPn, TPn/EPn or DEPn")
    size, ep = int(match["size"]), int(match["ep"] or 1)
    if match["kind"].upper() == "TP":
        return Layout(tp=size, ep=ep)
    if ep not in (1, size):
        raise InvalidValue("layout", text, f"DEP{size}: its experts are spread over all {size} ranks")
    return Layout(dp=size, ep=size)
