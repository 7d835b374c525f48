"""The table that `flashpoint replay` prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from flashpoint.agentx.summary import LevelSummary, RunSummary
from flashpoint.agentx.validity import failed

ABSENT = "–"


def number(value: float | None) -> str:
    """A figure with about three digits; a dash where there is none."""
    if value is None:
        return ABSENT
    if abs(value) >= 1e6:
        return f"{value / 1e6:.3g}M"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds with about three digits."""
    return number(None if seconds is None else seconds * 1e3)


HEADLINES: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "total_throughput": ("total", number),
    "interactivity_p90": ("P90 interactivity", number),
    "ttft_p90": ("P90 TTFT ms", milliseconds),
}


def share(value: float | None) -> str:
    """A share of 1 in per cent."""
    return ABSENT if value is None else f"{value:.1%}"


def render_table(summary: RunSummary) -> Group:
    """The run as something rich prints: the table, then what a reader must know to trust it."""
    run = summary.run
    per = f"; throughput per accelerator of {run.accelerators}" if run.accelerators > 1 else ""
    table = Table(
        title=Text(f"{run.server.model} at {run.server.url}{per}"),
        title_justify="left",
        caption="total: prompt (cached too) and output; uncached: prompt really computed; "
        "interactivity: tok/s of one user, P90 the slow tail",
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for heading in (
        "concur-\nrency",
        "total\ntok/s",
        "output\ntok/s",
        "uncached\ntok/s",
        "interac-\ntivity\nP50",
        "interac-\ntivity\nP90",
        "TTFT\nP50\nms",
        "TTFT\nP90\nms",
        "cache\nhit",
        "theor.\nhit",
        "ok",
        "errors",
    ):
        table.add_column(heading, justify="right")
    for level in summary.levels:
        table.add_row(
            str(level.concurrency),
            number(level.total_throughput),
            number(level.output_throughput),
            number(level.uncached_input_throughput),
            number(level.interactivity_p50),
            number(level.interactivity_p90),
            milliseconds(level.ttft_p50),
            milliseconds(level.ttft_p90),
            share(level.cache_hit_share),
            share(level.theoretical_hit_share),
            str(level.ok),
            str(level.errors),
        )
    notes = [f"c={level.concurrency}: {text}" for level in summary.levels for text in level.warnings]
    if run.status != "complete":
        notes.insert(0, f"run {run.status}" + (f": {run.status_detail}" if run.status_detail else ""))
    if not any(level.ok for level in summary.levels) and any(level.requests for level in summary.levels):
        notes.insert(0, "no request succeeded, so there is nothing to measure; the archive holds the errors")
    return Group(table, *(Text(note) for note in _intervals(summary) + notes + _broken_rules(summary)))


def _intervals(summary: RunSummary) -> list[str]:
    """How much of the headline figures is chance: by resampled sessions, and by repeats where there are."""
    lines = []
    for level in summary.levels:
        shown = [
            f"{title} {shape(found.low)} … {shape(found.high)}"
            for name, (title, shape) in HEADLINES.items()
            if (found := level.intervals.get(name)) is not None
        ]
        if shown:
            lines.append(f"c={level.concurrency}: 95 % of resampled sessions: {'; '.join(shown)}")
    for concurrency in dict.fromkeys(level.concurrency for level in summary.levels):
        repeats = [level for level in summary.levels if level.concurrency == concurrency]
        if len(repeats) > 1:
            spread = "; ".join(_spread(repeats, name) for name in HEADLINES)
            lines.append(f"c={concurrency}: {len(repeats)} repeats: {spread}")
    return lines


def _spread(levels: Sequence[LevelSummary], name: str) -> str:
    title, shape = HEADLINES[name]
    values = [value for level in levels if (value := getattr(level, name)) is not None]
    return f"{title} {shape(min(values))} … {shape(max(values))}" if values else f"{title} {ABSENT}"


def _broken_rules(summary: RunSummary) -> list[str]:
    """The rules of the benchmark that do not hold, levels with the same ones in one line."""
    concurrencies: dict[str, list[int]] = {}
    for level, findings in zip(summary.levels, summary.validity, strict=True):
        if rules := ", ".join(finding.rule for finding in failed(findings)):
            concurrencies.setdefault(rules, []).append(level.concurrency)
    return [
        f"AgentX rules that do not hold, c={', '.join(map(str, levels))}: {rules}"
        for rules, levels in concurrencies.items()
    ]
