"""Every figure that another tool reports, beside the same figure computed here from its records.

Equal means: within 1e-6 of the reported value, or within the resolution of its clock where the official
harness takes differences of epoch nanoseconds as doubles (their step is 256 ns). A figure that cannot be
computed from the records stays in the list with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flashpoint.agentx import metrics
from flashpoint.agentx.imports import figures
from flashpoint.agentx.imports.imported import PHASE_SECONDS, POINT, Imported
from flashpoint.agentx.imports.occupancy import occupancy

TOLERANCE = 1e-6
CLOCK_STEPS = 512e-9
"""Two roundings of an epoch time in ns to a double. Unit: s."""
NOT_OF_POINT = "not a figure of the request records, or InferenceX does not say how it is made"


@dataclass(frozen=True)
class Finding:
    """One official figure and what became of it."""

    figure: str
    unit: str
    official: float
    recomputed: float | None
    reason: str | None = None
    """Why there is no recomputed value."""
    resolution: float = 0.0
    """Difference that the official clock alone can make, in the figure's unit."""

    @property
    def difference(self) -> float | None:
        """|recomputed - official| / |official|; 0 where both are equal."""
        if self.recomputed is None:
            return None
        apart = abs(self.recomputed - self.official)
        return apart / abs(self.official) if self.official else (math.inf if apart else 0.0)

    @property
    def equal(self) -> bool | None:
        """Whether both values agree; None where there is nothing to compare."""
        if self.recomputed is None or self.difference is None:
            return None
        return self.difference <= TOLERANCE or abs(self.recomputed - self.official) <= self.resolution


def crosscheck(imported: Imported) -> list[Finding]:
    """Compare every reported figure, in the order of the source; none where there are no records."""
    if not imported.records:
        return []
    ours = _Recomputed(imported)
    reported = imported.levels[0].reported
    return [ours.finding(name, value) for name, value in reported.items() if name != PHASE_SECONDS]


class _Recomputed:
    """All figures that the records of a run give, by the harness's name."""

    def __init__(self, imported: Imported) -> None:
        self._records = imported.records
        self._distributions = self._all_distributions(imported)
        self._occupancies = _occupancies(imported)
        # A run that was stopped has no phase of a known length: the harness falls back to the window.
        stopped = imported.levels[0].status == "stopped"
        done = metrics.successful(imported.records)
        ends = [r.start + imported.last_response[r.request_id] for r in done]
        self._until_last_response = max(ends) - min(r.start for r in done) if done else None
        self._accelerators = imported.run.accelerators
        self._observed = (
            metrics.window_seconds(imported.records)
            if stopped
            else imported.levels[0].reported.get(PHASE_SECONDS)
        )

    def _all_distributions(self, imported: Imported) -> dict[str, tuple[str, list[float], float]]:
        """Unit, values and resolution of every distribution."""
        done = metrics.successful(imported.records)
        measured = [r for r in imported.records if r.phase == "measured" and r.due is not None]
        found = {
            name: (unit, [v for v in map(value, done) if v is not None], 0.0)
            for name, (unit, value) in figures.PER_REQUEST.items()
        }
        gaps = [
            b - a for r in done if r.chunks == r.output_tokens for a, b in pairwise(r.token_offsets.tolist())
        ]
        whole = all(r.chunks == r.output_tokens for r in done)
        found["inter_chunk_latency"] = ("s", gaps if whole else [], 0.0)
        waits = [r.start - r.due for r in measured if r.due is not None]
        visible = imported.without_reasoning
        found["output_token_count"] = (
            "tokens",
            [float(visible[r.request_id]) for r in done if r.request_id in visible],
            0.0,
        )
        ends = imported.last_response
        seen = [r.start + ends[r.request_id] - r.due for r in measured if r.due is not None]
        found["credit_to_start_latency"] = ("s", waits, CLOCK_STEPS)
        found["effective_latency"] = ("s", seen, CLOCK_STEPS)
        return found

    def finding(self, figure: str, official: float) -> Finding:
        """Compare one official figure."""
        if figure.startswith(POINT):
            unit, value = self._of_point(figure.removeprefix(POINT))
            return Finding(figure, unit, official, value, NOT_OF_POINT if value is None else None)
        if figure == "total_output_tokens":
            return replace(self.finding("output_token_count_sum", official), figure=figure)
        if figure in figures.SCALARS:
            unit, function = figures.SCALARS[figure]
            value = function(self._records)
            return Finding(figure, unit, official, value, _absent(value))
        if figure in figures.RATES:
            unit, numerator = figures.RATES[figure]
            total, seconds = numerator(self._records), self._observed
            rate = total / seconds if total is not None and seconds else None
            return Finding(figure, unit, official, rate, _absent(rate))
        metric, _, statistic = figure.rpartition("_")
        if metric in self._occupancies:
            value = self._occupancies[metric].get(statistic)
            why = "the file does not tell when the measured phase ended" if value is None else None
            return Finding(figure, "requests", official, value, why)
        if metric in self._distributions:
            unit, values, resolution = self._distributions[metric]
            value = statistics(values, statistic)
            if statistic == "sum":
                resolution *= len(values)
            return Finding(figure, unit, official, value, _absent(value), resolution)
        reason = next(
            (why for start, why in figures.REASONS if figure.startswith(start)), "no figure of ours"
        )
        return Finding(figure, "", official, None, reason)

    def _of_point(self, figure: str) -> tuple[str, float | None]:
        """Unit and value of a figure as InferenceX defines it."""
        metric, _, statistic = figure.rpartition("_")
        if figure in ("request_count", "theoretical_prefix_cache_hit"):
            return "", float(len(metrics.successful(self._records))) if figure == "request_count" else None
        if figure == "benchmark_duration":
            return "s", self._until_last_response
        rate, per, _ = figure.partition("_per_accelerator")
        if rate in figures.RATES:
            unit, numerator = figures.RATES[rate]
            total, seconds = numerator(self._records), self._until_last_response
            share = self._accelerators if per else 1
            return unit, total / seconds / share if total is not None and seconds else None
        if statistic == "std":  # of n or n - 1: InferenceX does not say
            return "", None
        if metric in figures.POINT_INVERSES:
            slowest = statistics(self._values(figures.POINT_INVERSES[metric]), statistic)
            return "tok/s", 1 / slowest if slowest else None
        if metric in figures.POINT_PER_REQUEST:
            unit, value = figures.POINT_PER_REQUEST[metric]
            return unit, statistics(self._values(value), statistic)
        return "", None

    def _values(self, of: figures.PerRequest) -> list[float]:
        each = map(of, metrics.successful(self._records))
        return [value for value in each if value is not None]


def _absent(value: float | None) -> str | None:
    return "the records do not hold what it is made of" if value is None else None


def statistics(values: Sequence[float], name: str) -> float | None:
    """A statistic by the harness's name: avg, std, sum, count, min, max, or p and a number."""
    if not len(values):
        return None
    simple: Mapping[str, Callable[[Sequence[float]], float | None]] = {
        "avg": metrics.mean,
        "std": metrics.standard_deviation,
        "sum": lambda v: float(sum(v)),
        "count": lambda v: float(len(v)),
        "min": min,
        "max": max,
    }
    return simple[name](values) if name in simple else metrics.percentile(values, float(name[1:]))


def _occupancies(imported: Imported) -> dict[str, dict[str, float]]:
    """Open requests over the measured phase: all of each request, its prefill, its decode."""
    span = _phase(imported)
    whole, prefill, decode = [], [], []
    for record in imported.records:
        if record.phase == "measured":
            end = record.start + imported.last_response[record.request_id]
            whole.append((record.start, end))
            if record.ttft is not None:
                prefill.append((record.start, record.start + record.ttft))
                decode.append((record.start + record.ttft, end))
    each = {
        "effective_concurrency": whole,
        "effective_prefill_concurrency": prefill,
        "effective_decode_concurrency": decode,
    }
    return {name: occupancy(intervals, span) if span else {} for name, intervals in each.items()}


def _phase(imported: Imported) -> tuple[float, float] | None:
    """The span over which the harness averages: the measured phase, cut at the last response if stopped."""
    begun, seconds = imported.levels[0].measured_from, imported.levels[0].reported.get(PHASE_SECONDS)
    measured = [r for r in imported.records if r.phase == "measured"]
    if begun is None or not measured:
        return None
    if imported.levels[0].status == "stopped":
        return begun, max(r.start + imported.last_response[r.request_id] for r in measured)
    return (begun, begun + seconds) if seconds is not None else None
