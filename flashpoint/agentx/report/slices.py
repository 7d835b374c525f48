"""Time slices of a level, shared by everything that is drawn over time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flashpoint.agentx.archive import LevelInfo
from flashpoint.agentx.report.columns import Floats, Integers

MOST_SLICES = 120
SHORTEST_SECONDS = 0.1


@dataclass(frozen=True)
class Slices:
    """`count` slices of `width` seconds from `begin`, seconds since the start of the run, to `end`."""

    begin: float
    end: float
    width: float
    count: int

    def position(self, times: Floats) -> Integers:
        """The slice of each time; times outside fall into the first or last slice."""
        found = np.floor((times - self.begin) / self.width)
        positions: Integers = np.clip(found, 0, self.count - 1).astype(np.int64)
        return positions

    def sums(self, times: Floats, values: Floats) -> Floats:
        """Sum of the values in each slice."""
        sums: Floats = np.bincount(self.position(times), weights=values, minlength=self.count).astype(
            np.float64
        )
        return sums

    def lengths(self) -> Floats:
        """Seconds of the level in each slice; the last one may be shorter."""
        edges = self.begin + self.width * np.arange(self.count + 1)
        lengths: Floats = np.diff(np.minimum(edges, self.end))
        return lengths


def slices_of(info: LevelInfo) -> Slices | None:
    """At most `MOST_SLICES` slices of a round width over the level; None for a level of no length."""
    seconds = info.end - info.start
    if seconds <= 0:
        return None
    least = max(seconds / MOST_SLICES, SHORTEST_SECONDS)
    step: float = 10.0 ** math.floor(math.log10(least))
    width = next(step * factor for factor in (1, 2, 5, 10) if step * factor >= least * (1 - 1e-9))
    return Slices(info.start, info.end, width, max(1, math.ceil(seconds / width - 1e-9)))
