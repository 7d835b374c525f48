"""Every figure that the official harness reports, beside the same figure computed here from its records.

Equal means: within 1e-6 of the official value, or within the resolution of its clock where the harness takes
differences of epoch nanoseconds as doubles (their step is 256 ns). A figure that cannot be computed from the
records stays in the list with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flashpoint.agentx import metrics
from flashpoint.agentx.imports.imported import Imported
from flashpoint.agentx.imports.occupancy import occupancy
from flashpoint.agentx.imports.official import PHASE_SECONDS
from flashpoint.agentx.records import RequestRecord

TOLERANCE = 1e-6
CLOCK_STEPS = 512e-9
"""Two roundings of an epoch time in ns to a double. Unit: s."""


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
    """Compare every reported figure of an official run, in the order of the harness's file."""
    ours = _Recomputed(imported)
    return [ours.finding(name, value) for name, value in imported.level.reported.items() if name != PHASE_SECONDS]


PerRequest = Callable[[RequestRecord], float | None]
Scalar = Callable[[Sequence[RequestRecord]], float | None]


def _inverse(of: PerRequest) -> PerRequest:
    def inverse(record: RequestRecord) -> float | None:
        value = of(record)
        return 1 / value if value else None

    return inverse


def _decode(record: RequestRecord) -> float | None:
    return None if record.last_token is None or record.ttft is None else record.last_token - record.ttft


def _full_decode(record: RequestRecord) -> float | None:
    return None if record.ttft is None else record.end - record.start - record.ttft


def _total_tokens(record: RequestRecord) -> float | None:
    known = record.prompt_tokens is not None and record.output_tokens is not None
    return (record.prompt_tokens or 0) + (record.output_tokens or 0) if known else None


def _prefill_rate(record: RequestRecord) -> float | None:
    return record.prompt_tokens / record.ttft if record.ttft and record.prompt_tokens is not None else None


def _e2e_rate(record: RequestRecord) -> float | None:
    return record.output_tokens / record.last_token if record.last_token and record.output_tokens else None


PER_REQUEST: dict[str, tuple[str, PerRequest]] = {
    "request_latency": ("s", lambda r: r.last_token),
    "time_to_first_token": ("s", lambda r: r.ttft),
    "time_to_first_output_token": ("s", lambda r: r.ttft_answer),
    "time_to_second_token": ("s", metrics.time_to_second_token),
    "inter_token_latency": ("s", metrics.inter_token_latency),
    "full_response_inter_token_latency": ("s", metrics.full_response_itl),
    "output_token_throughput_per_user": ("tok/s", _inverse(metrics.inter_token_latency)),
    "full_response_output_token_throughput_per_user": ("tok/s", _inverse(metrics.full_response_itl)),
    "e2e_output_token_throughput": ("tok/s", _e2e_rate),
    "prefill_throughput_per_user": ("tok/s", _prefill_rate),
    "decode_duration": ("s", _decode),
    "full_decode_duration": ("s", _full_decode),
    "input_sequence_length": ("tokens", lambda r: r.prompt_tokens),
    "output_sequence_length": ("tokens", lambda r: r.output_tokens),
    "usage_prompt_tokens": ("tokens", lambda r: r.prompt_tokens),
    "usage_completion_tokens": ("tokens", lambda r: r.output_tokens),
    "usage_total_tokens": ("tokens", _total_tokens),
    "usage_prompt_cache_read_tokens": ("tokens", lambda r: r.cached_tokens),
    "osl_mismatch_diff_pct": ("share", metrics.output_length_mismatch),
}
"""Distributions over the successful requests: unit and the value of one request."""

SCALARS: dict[str, tuple[str, Scalar]] = {
    "request_count": ("requests", lambda records: len(metrics.successful(records))),
    "error_request_count": ("requests", lambda records: _ended(records, "error")),
    "context_overflow_count": ("requests", lambda records: _ended(records, "overflow")),
    "completed_request_count": ("requests", lambda records: _ended(records, "ok", "error")),
    "request_error_rate": (
        "share",
        lambda records: _ended(records, "error") / _ended(records, "ok", "error"),
    ),
    "benchmark_duration": ("s", metrics.window_seconds),
    "request_throughput": ("requests/s", metrics.request_throughput),
    "output_token_throughput": ("tok/s", lambda records: metrics.output_throughput(records, 1)),
    "input_token_throughput": ("tok/s", lambda records: metrics.input_throughput(records, 1)),
    "total_token_throughput": ("tok/s", lambda records: metrics.total_throughput(records, 1)),
    "total_output_tokens": ("tokens", metrics.output_tokens),
    "total_isl": ("tokens", metrics.prompt_tokens),
    "total_osl": ("tokens", metrics.output_tokens),
    "total_usage_prompt_tokens": ("tokens", metrics.prompt_tokens),
    "total_usage_completion_tokens": ("tokens", metrics.output_tokens),
    "total_usage_total_tokens": (
        "tokens",
        lambda records: (metrics.prompt_tokens(records) or 0) + (metrics.output_tokens(records) or 0),
    ),
    "total_usage_prompt_cache_read_tokens": ("tokens", metrics.cached_tokens),
    "overall_usage_prompt_cache_read_pct": ("share", metrics.cache_hit_share),
    "osl_mismatch_count": (
        "requests",
        lambda records: sum(map(bool, map(metrics.is_output_length_mismatch, metrics.successful(records)))),
    ),
}
"""Figures of the whole run: unit and the function of its records."""

REASONS: tuple[tuple[str, str], ...] = (
    ("theoretical_prefix_cache_hit", "needs the traces: the records do not name the blocks of a prompt"),
    ("output_token_count", "answer tokens without reasoning: the archive counts both together"),
    ("http_req_", "timings inside the HTTP client, which the archive does not keep"),
    ("adj_", "counts a failed request as infinitely slow, by nearest rank; no figure of ours does"),
    ("effective_", "a rate spread over each request's time; no figure of ours"),
    ("active_", "a rate over the busy time alone; no figure of ours"),
    ("tokens_in_flight", "tokens held by open requests, modelled by the harness; no figure of ours"),
)
"""Why a figure is not computed, by the start of its name; the first that fits."""


def _ended(records: Sequence[RequestRecord], *statuses: str) -> int:
    return sum(r.phase == "measured" and r.status in statuses for r in records)


class _Recomputed:
    """All figures that the records of a run give, by the harness's name."""

    def __init__(self, imported: Imported) -> None:
        self._records = imported.records
        self._distributions = self._all_distributions(imported)
        self._occupancies = _occupancies(imported)

    def _all_distributions(self, imported: Imported) -> dict[str, tuple[str, list[float], float]]:
        """Unit, values and resolution of every distribution."""
        done = metrics.successful(imported.records)
        measured = [r for r in imported.records if r.phase == "measured" and r.due is not None]
        found = {
            name: (unit, [v for v in map(value, done) if v is not None], 0.0)
            for name, (unit, value) in PER_REQUEST.items()
        }
        gaps = [b - a for r in done if r.chunks == r.output_tokens for a, b in _pairs(r.token_offsets)]
        whole = all(r.chunks == r.output_tokens for r in done)
        found["inter_chunk_latency"] = ("s", gaps if whole else [], 0.0)
        waits = [r.start - r.due for r in measured if r.due is not None]
        ends = imported.last_response
        seen = [r.start + ends[r.request_id] - r.due for r in measured if r.due is not None]
        found["credit_to_start_latency"] = ("s", waits, CLOCK_STEPS)
        found["effective_latency"] = ("s", seen, CLOCK_STEPS)
        return found

    def finding(self, figure: str, official: float) -> Finding:
        """Compare one official figure."""
        if figure in SCALARS:
            unit, function = SCALARS[figure]
            return Finding(figure, unit, official, function(self._records), _absent(function(self._records)))
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
        reason = next((why for start, why in REASONS if figure.startswith(start)), "no figure of ours")
        return Finding(figure, "", official, None, reason)


def _absent(value: float | None) -> str | None:
    return "the records do not hold what it is made of" if value is None else None


def _pairs(times: Sequence[float]) -> list[tuple[float, float]]:
    return list(zip(times[:-1], times[1:], strict=True))


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
    begun, seconds = imported.level.measured_from, imported.level.reported.get(PHASE_SECONDS)
    measured = [r for r in imported.records if r.phase == "measured"]
    if begun is None or not measured:
        return None
    if imported.level.status == "stopped":
        return begun, max(r.start + imported.last_response[r.request_id] for r in measured)
    return (begun, begun + seconds) if seconds is not None else None
