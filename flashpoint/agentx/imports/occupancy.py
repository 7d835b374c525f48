"""How many intervals are open over time: the harness's `effective_*concurrency` figures.

Time-weighted: each number of open intervals counts by the seconds it lasted in the span. A percentile is the
smallest number that the span's stated share of time does not exceed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

Interval = tuple[float, float]

PERCENTILES = (50, 90, 95, 99)


def occupancy(intervals: Sequence[Interval], span: Interval) -> dict[str, float]:
    """Statistics of the number of open intervals within `span` (seconds); empty where the span is."""
    length = span[1] - span[0]
    if length <= 0:
        return {}
    seconds: defaultdict[int, float] = defaultdict(float)
    opened, since = 0, span[0]
    for moment, step in sorted(event for a, b in intervals for event in ((a, 1), (b, -1))):
        within = min(max(moment, span[0]), span[1])
        seconds[opened] += within - since
        opened, since = opened + step, within
    seconds[opened] += span[1] - since
    shares = {number: lasted / length for number, lasted in sorted(seconds.items()) if lasted > 0}
    average = sum(number * share for number, share in shares.items())
    variance = sum(share * (number - average) ** 2 for number, share in shares.items())
    figures = {"avg": average, "std": variance**0.5, "min": min(shares), "max": max(shares)}
    return figures | {f"p{p}": _percentile(shares, p / 100) for p in PERCENTILES}


def _percentile(shares: dict[int, float], wanted: float) -> float:
    reached = 0.0
    for number, share in shares.items():
        reached += share
        if reached >= wanted:
            return number
    return max(shares)
