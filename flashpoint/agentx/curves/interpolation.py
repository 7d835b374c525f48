"""Reading a curve between its knots, and never beyond them.

Source: the project's spec, agentx.md sections 7.5 to 7.7. Monotone cubic Hermite interpolation with Steffen's
slopes (M. Steffen, "A simple method for monotonic interpolation in one dimension", 1990), in linear axes:
exact at the knots, monotone between neighbours, no overshoot. Below the first knot a reading is the first
knot's value, marked as clamped; above the last one there is none: nothing measured says that the system
reaches that speed.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Where = Literal["knot", "interpolated", "clamped_low", "unreachable"]


@dataclass(frozen=True, slots=True)
class Reading:
    """A value read off a curve, and what it rests on."""

    value: float | None
    where: Where
    left: int
    """The knot at or before the reading."""
    right: int
    """The knot at or behind it; the same as `left` where the reading is a knot, or lies outside."""


class Interpolation:
    """y over x through knots. `xs` strictly rising, as many `ys`, at least one of each."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        if not xs or len(xs) != len(ys) or any(a >= b for a, b in pairwise(xs)):
            raise ValueError(f"knots must rise strictly in x, with a y each: {xs}, {ys}")
        self.xs = list(xs)
        self.ys = list(ys)
        self._slopes = steffen_slopes(self.xs, self.ys)

    def read(self, x: float) -> Reading:
        """The reading at `x`."""
        last = len(self.xs) - 1
        if x < self.xs[0]:
            return Reading(self.ys[0], "clamped_low", 0, 0)
        if x > self.xs[last]:
            return Reading(None, "unreachable", last, last)
        right = bisect.bisect_left(self.xs, x)
        if self.xs[right] == x:
            return Reading(self.ys[right], "knot", right, right)
        value = min(max(self._between(right - 1, x), min(self.ys)), max(self.ys))
        return Reading(value, "interpolated", right - 1, right)

    def _between(self, i: int, x: float) -> float:
        width = self.xs[i + 1] - self.xs[i]
        t = (x - self.xs[i]) / width
        rest = 1 - t
        return (
            self.ys[i] * (1 + 2 * t) * rest * rest
            + self._slopes[i] * width * t * rest * rest
            + self.ys[i + 1] * t * t * (3 - 2 * t)
            - self._slopes[i + 1] * width * t * t * rest
        )


def steffen_slopes(xs: Sequence[float], ys: Sequence[float]) -> list[float]:
    """Slopes at the knots that keep the curve monotone between neighbours.

    Inside, with neighbouring slopes s and t and their weighted mean p: 0 where s and t differ in sign, else
    the smallest of 2|s|, 2|t| and |p|. At the ends (3 s - slope of the neighbour) / 2. Two knots: a line.
    """
    count = len(xs)
    if count == 1:
        return [0.0]
    widths = [b - a for a, b in pairwise(xs)]
    steps = [(ys[i + 1] - ys[i]) / widths[i] for i in range(count - 1)]
    if count == 2:
        return [steps[0], steps[0]]
    inner = []
    for i in range(1, count - 1):
        before, after = steps[i - 1], steps[i]
        mean = (before * widths[i] + after * widths[i - 1]) / (widths[i - 1] + widths[i])
        signs = _sign(before) + _sign(after)
        inner.append(signs * min(abs(before), abs(after), 0.5 * abs(mean)))
    first = (3 * steps[0] - inner[0]) / 2
    last = (3 * steps[-1] - inner[-1]) / 2
    return [first, *inner, last]


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
