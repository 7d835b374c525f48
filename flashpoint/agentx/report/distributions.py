"""TTFT and ITL of one level as empirical distribution functions with their P50, P90 and P99."""

from __future__ import annotations

from typing import Any

import numpy as np

from flashpoint.agentx.metrics import percentile
from flashpoint.agentx.report.columns import Columns, Floats
from flashpoint.agentx.report.encode import rounded, rounded_list

MARKED = (50, 90, 99)
MOST_VALUES = 400


def distributions(level: Columns) -> dict[str, Any]:
    """`ttft` and `itl` of the successful requests of the measured phase; None where no request has one.

    Unit: s. ITL is that of a request, (last chunk - first chunk) / (output tokens - 1).
    """
    counted = level.take(level.counted)
    with np.errstate(invalid="ignore", divide="ignore"):
        itl = (counted.last_token - counted.ttft) / (counted.output_tokens - 1)
    return {"ttft": _distribution(counted.ttft), "itl": _distribution(itl[counted.output_tokens >= 2])}


def _distribution(values: Floats) -> dict[str, Any] | None:
    """Every value where there are few; evenly spaced order statistics, both ends included, where many."""
    ordered = np.sort(values[~np.isnan(values)])
    count = len(ordered)
    if not count:
        return None
    shown = np.unique(np.linspace(0, count - 1, min(count, MOST_VALUES)).round().astype(np.int64))
    return {
        "count": count,
        "values": rounded_list(ordered[shown]),
        "shares": rounded_list((shown + 1) / count),
        "marked": {f"P{p}": rounded(percentile(ordered, p)) for p in MARKED},
    }
