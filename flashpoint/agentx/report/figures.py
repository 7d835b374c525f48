"""The tables of the page: which figure stands in which row, with its unit."""

from __future__ import annotations

from collections.abc import Callable

from flashpoint.agentx.summary import LevelSummary
from flashpoint.agentx.table import ABSENT, milliseconds, number, share

Cell = Callable[[LevelSummary], str]


def count(value: int | None) -> str:
    """A whole number with separators; a dash where there is none."""
    return ABSENT if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    """A number per second, with three digits and a letter: 12.3G, 1.5T; a dash where there is none."""
    if value is None:
        return ABSENT
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _interval(level: LevelSummary, name: str) -> str:
    found = level.intervals.get(name)
    return ABSENT if found is None else f"{number(found.low)} … {number(found.high)}"


HEADLINE: tuple[tuple[str, Cell], ...] = (
    ("Total tok/s", lambda level: number(level.total_throughput)),
    ("Output tok/s", lambda level: number(level.output_throughput)),
    ("Uncached prefill tok/s", lambda level: number(level.uncached_input_throughput)),
    ("P90 inter­activity (slow tail)", lambda level: number(level.interactivity_p90)),
    ("TTFT P50 ms", lambda level: milliseconds(level.ttft_p50)),
    ("TTFT P90 ms", lambda level: milliseconds(level.ttft_p90)),
    ("Cache hit", lambda level: share(level.cache_hit_share)),
    ("Errors", lambda level: str(level.errors)),
)

FIGURES: tuple[tuple[str, str, Cell], ...] = (
    ("Total throughput", "tok/s per accelerator", lambda level: number(level.total_throughput)),
    ("its 95 % interval", "resampled sessions", lambda level: _interval(level, "total_throughput")),
    ("Output throughput", "tok/s per accelerator", lambda level: number(level.output_throughput)),
    ("Uncached input", "tok/s per accelerator", lambda level: number(level.uncached_input_throughput)),
    ("Interactivity P50", "tok/s per user", lambda level: number(level.interactivity_p50)),
    ("Interactivity P90", "tok/s per user, slow tail", lambda level: number(level.interactivity_p90)),
    ("its 95 % interval", "resampled sessions", lambda level: _interval(level, "interactivity_p90")),
    (
        "E2E-normalised interactivity P90",
        "tok/s per user, slow tail",
        lambda level: number(level.e2e_normalised_interactivity_p90),
    ),
    ("ITL P50", "ms", lambda level: milliseconds(level.itl_p50)),
    ("ITL P90", "ms", lambda level: milliseconds(level.itl_p90)),
    ("Pooled ITL P50", "ms", lambda level: milliseconds(level.pooled_itl_p50)),
    ("Pooled ITL P90", "ms", lambda level: milliseconds(level.pooled_itl_p90)),
    ("TTFT P50", "ms", lambda level: milliseconds(level.ttft_p50)),
    ("TTFT P90", "ms", lambda level: milliseconds(level.ttft_p90)),
    ("First answer token P50", "ms", lambda level: milliseconds(level.ttft_answer_p50)),
    ("First answer token P90", "ms", lambda level: milliseconds(level.ttft_answer_p90)),
    ("End-to-end P50", "ms", lambda level: milliseconds(level.e2e_p50)),
    ("End-to-end P90", "ms", lambda level: milliseconds(level.e2e_p90)),
    ("Cache hit share", "", lambda level: share(level.cache_hit_share)),
    ("Theoretical hit share", "", lambda level: share(level.theoretical_hit_share)),
    ("Prompt tokens", "", lambda level: count(level.prompt_tokens)),
    ("of them cached", "", lambda level: count(level.cached_tokens)),
    ("Output tokens", "", lambda level: count(level.output_tokens)),
    ("Mean requests in flight", "", lambda level: number(level.mean_in_flight)),
    ("Window", "s", lambda level: number(level.window_seconds)),
    ("Sessions started", "", lambda level: count(level.sessions_started)),
    ("Requests ok", "", lambda level: count(level.ok)),
    ("Requests failed", "", lambda level: count(level.errors)),
    ("Prompts beyond the context window", "", lambda level: count(level.overflows)),
    ("Requests cut at the end", "", lambda level: count(level.cancelled)),
    ("Client lag P90", "ms", lambda level: milliseconds(level.client_lag_p90)),
)
