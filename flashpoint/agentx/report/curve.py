"""The curve's points: every level of every run on each axis that can be chosen (spec agentx.md section 7).

The frontier and the reading at a matched interactivity depend on the axes the reader picks, so the page
computes them (frontier.js).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flashpoint.agentx.archive import LevelInfo
from flashpoint.agentx.report.encode import rounded
from flashpoint.agentx.summary import LevelSummary, RunSummary
from flashpoint.agentx.table import milliseconds, number, share
from flashpoint.agentx.validity import doubtful

DIGITS = 9
"""The slider's readings must not suffer from rounding, and there are few points."""


@dataclass(frozen=True)
class Axis:
    """One choice for an axis; `title` is complete on the axis, `short` in a sentence and in the selection."""

    short: str
    title: str
    value: Callable[[LevelSummary], float | None]
    reported: Callable[[dict[str, float]], float | None]
    """From the figures of another tool, for a level that has no requests (spec inferencex.md section 1)."""


X_AXES = (
    Axis(
        "P90 interactivity",
        "P90 interactivity (slow tail), tokens/s per user",
        lambda level: level.interactivity_p90,
        lambda figures: _inverse(figures.get("inter_token_latency_p90")) or figures.get("interactivity_p90"),
    ),
    Axis(
        "P90 E2E-normalised interactivity",
        "1 / P90(E2E latency / output tokens) (slow tail), tokens/s per user",
        lambda level: level.e2e_normalised_interactivity_p90,
        lambda figures: figures.get("e2e_normalised_interactivity_p90"),
    ),
)
Y_AXES = (
    Axis(
        "total rate",
        "total tokens/s per accelerator, cached prompt included",
        lambda level: level.total_throughput,
        lambda figures: figures.get("total_token_throughput_per_accelerator"),
    ),
    Axis(
        "output rate",
        "output tokens/s per accelerator",
        lambda level: level.output_throughput,
        lambda figures: figures.get("output_token_throughput_per_accelerator"),
    ),
    Axis(
        "uncached prefill rate",
        "uncached prompt tokens/s per accelerator",
        lambda level: level.uncached_input_throughput,
        lambda figures: None,
    ),
)


def _inverse(latency: float | None) -> float | None:
    return 1 / latency if latency else None


def axes() -> dict[str, list[dict[str, str]]]:
    """What the page offers as axes."""
    return {
        name: [{"short": axis.short, "title": axis.title} for axis in choices]
        for name, choices in (("x", X_AXES), ("y", Y_AXES))
    }


def level_name(info: LevelInfo) -> str:
    """`c=4`, or `c=4 #2` for the second run of the same concurrency."""
    return f"c={info.concurrency}" + (f" #{info.repeat + 1}" if info.repeat else "")


def points(name: str, summary: RunSummary) -> list[dict[str, Any]]:
    """The run's levels in order of concurrency; an axis value that cannot be given is None."""
    order = sorted(range(len(summary.levels)), key=lambda i: (summary.levels[i].concurrency, i))
    return [_point(name, summary, i) for i in order]


def _point(name: str, summary: RunSummary, i: int) -> dict[str, Any]:
    level, info = summary.levels[i], summary.run.levels[i]
    if info.reported and not info.requests:
        values = [axis.reported(info.reported) for axis in (*X_AXES, *Y_AXES)]
        doubts = ["reported, not recomputed"]
        text = _reported_text(name, info, summary.run.source, values)
    else:
        values = [axis.value(level) for axis in (*X_AXES, *Y_AXES)]
        doubts = [finding.rule for finding in doubtful(summary.validity[i])]
        text = _text(name, info, level, doubts)
    shown = [rounded(value, DIGITS) for value in values]
    return {
        "level": i,
        "label": level_name(info),
        "x": shown[: len(X_AXES)],
        "y": shown[len(X_AXES) :],
        "doubts": doubts,
        "text": text,
    }


def _reported_text(name: str, info: LevelInfo, source: str, values: list[float | None]) -> str:
    figures = [
        f"{axis.short} {number(value)}" for axis, value in zip((*X_AXES, *Y_AXES), values, strict=True)
    ]
    return "\n".join(
        [
            f"{name}, {level_name(info)} ({info.concurrency} live sessions)",
            *figures,
            f"as {source} reported it, not recomputed: there are no request records",
        ]
    )


def _text(name: str, info: LevelInfo, level: LevelSummary, doubts: list[str]) -> str:
    """The point's details, a line each."""
    lines = [
        f"{name}, {level_name(info)} ({info.concurrency} live sessions)",
        f"{number(level.total_throughput)} tok/s in total, {number(level.output_throughput)} output, "
        f"{number(level.uncached_input_throughput)} uncached prefill",
        f"interactivity P90 (slow tail) {number(level.interactivity_p90)} tok/s, "
        f"P50 {number(level.interactivity_p50)} tok/s",
        f"E2E-normalised P90 (slow tail) {number(level.e2e_normalised_interactivity_p90)} tok/s",
        f"TTFT P50 {milliseconds(level.ttft_p50)}, P90 {milliseconds(level.ttft_p90)} ms",
        f"cache hit {share(level.cache_hit_share)}, {level.ok} requests ok, {level.errors} errors",
    ]
    if doubts:
        lines.append(f"in doubt: {', '.join(doubts)}")
    return "\n".join(lines)
