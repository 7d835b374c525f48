"""The frontier of a sweep: the points that no other point beats in both throughput and speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

P = TypeVar("P")


def frontier(points: Sequence[P], x: Callable[[P], float | None], y: Callable[[P], float | None]) -> list[P]:
    """The non-dominated points, x rising (more of both is better; spec agentx.md section 7.3).

    Of points with the same x only the one with the highest y stays. A point without x or y, or with an x of
    0 or less, is never on it.
    """
    placed = [(px, py, p) for p in points if (px := x(p)) is not None and (py := y(p)) is not None and px > 0]
    best: list[P] = []
    highest: float | None = None
    for _, py, point in sorted(placed, key=lambda item: (-item[0], -item[1])):
        if highest is None or py > highest:
            best.append(point)
            highest = py
    return best[::-1]
