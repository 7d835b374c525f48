"""Fits numbers to measured times.

Errors count as log(predicted / measured), so that 3 us weigh as much as 3 ms, and large ones by their size
and not its square: a benchmark on a shared machine has outliers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

Floats = npt.NDArray[np.float64]
_SOFT = 0.1
"""Relative errors above this count by their size."""


@dataclass(frozen=True, slots=True)
class Range:
    """Where a fit begins, and between what it stays; all above 0. Of several beginnings the best counts."""

    start: float | tuple[float, ...]
    low: float
    high: float

    @property
    def starts(self) -> tuple[float, ...]:
        """All beginnings."""
        return self.start if isinstance(self.start, tuple) else (self.start,)


@dataclass(frozen=True, slots=True)
class Residual:
    """How far a fit is off: median of predicted / measured - 1, and what 90 % of its sizes stay below."""

    what: str
    points: int
    median: float
    p90: float


def fit(
    predict: Callable[[dict[str, float]], Floats], measured: Floats, ranges: Mapping[str, Range]
) -> dict[str, float]:
    """The numbers, each in its range, whose predicted times are nearest to `measured` (seconds, above 0)."""
    names = list(ranges)
    low, high = (np.log([getattr(ranges[name], end) for name in names]) for end in ("low", "high"))

    def numbers(x: Floats) -> dict[str, float]:
        return dict(zip(names, np.exp(x).tolist(), strict=True))

    def errors(x: Floats) -> Floats:
        return np.log(predict(numbers(x)) / measured)

    ends = [
        least_squares(errors, np.log(start), bounds=(low, high), loss="soft_l1", f_scale=_SOFT, max_nfev=100)
        for start in itertools.product(*(ranges[name].starts for name in names))
    ]
    return numbers(min(ends, key=lambda end: end.cost).x)


def residual(what: str, predicted: Floats, measured: Floats) -> Residual:
    """How far `predicted` is from `measured`."""
    off = predicted / measured - 1
    return Residual(what, len(off), float(np.median(off)), float(np.quantile(np.abs(off), 0.9)))
