"""Corpus statistics and findings as something rich prints."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from flashpoint.agentx.traces.statistics import PERCENTILES, CorpusStatistics


def render_statistics(found: CorpusStatistics) -> Group:
    """The table of the spec's section 8, for one corpus."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for heading in ("count", "mean", "min", *(f"p{p}" for p in PERCENTILES), "max"):
        table.add_column(heading, justify="right")
    for name, shape in found.distributions.items():
        if shape is None:
            table.add_row(name, "0")
            continue
        values = (shape.mean, shape.minimum, *shape.percentiles.values(), shape.maximum)
        table.add_row(name, f"{shape.count:,}", *map(_number, values))
    agents = found.sessions_with_subagents
    lines = [
        f"{found.sessions:,} sessions, {found.requests:,} requests, {found.root_requests:,} their own",
        f"{found.input_tokens:,} input and {found.output_tokens:,} output tokens, "
        f"{found.input_tokens / max(found.output_tokens, 1):.0f} to 1",
        f"{agents} of {found.sessions} sessions ({agents / max(found.sessions, 1):.1%}) have sub-agents, "
        f"in {found.subagent_groups:,} groups",
        f"theoretical prefix hit {_share(found.theoretical_hit)}: {found.theoretical_hit_blocks:,} of "
        f"{found.theoretical_blocks:,} blocks",
    ]
    return Group(*(Text(line) for line in lines), table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}"
