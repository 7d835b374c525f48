"""What `flashpoint import` prints under the summary table: the cross-check, short."""

from __future__ import annotations

from collections import Counter

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from flashpoint.agentx.imports.crosscheck import TOLERANCE, Finding
from flashpoint.agentx.imports.run import ImportResult
from flashpoint.agentx.table import ABSENT, render_table

SHOWN = (
    "request_count",
    "benchmark_duration",
    "time_to_first_token_p50",
    "time_to_first_token_p90",
    "inter_token_latency_p50",
    "inter_token_latency_p90",
    "full_response_inter_token_latency_p90",
    "request_latency_p90",
    "total_isl",
    "total_osl",
    "request_throughput",
    "output_token_throughput",
    "total_token_throughput",
    "e2e_output_token_throughput_p50",
    "overall_usage_prompt_cache_read_pct",
    "osl_mismatch_count",
    "effective_concurrency_avg",
)
"""Figures shown even where they agree; all are in `--json`. Every figure that differs is shown."""


def render_import(result: ImportResult) -> Group:
    """The summary table, then whether our figures are the reported ones."""
    parts = [render_table(result.summary)]
    if not result.findings:
        parts.append(Group(*_reported(result)))
        return Group(*parts)
    compared = [finding for finding in result.findings if finding.equal is not None]
    different = [finding for finding in compared if not finding.equal]
    table = Table(
        title=Text("reported figures, recomputed from the requests"),
        title_justify="left",
        caption="times in s, shares of 1, rates per s",
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("figure", no_wrap=True)
    for heading in ("reported", "recomputed", "apart", "same"):
        table.add_column(heading, justify="right", no_wrap=True)
    for finding in result.findings:
        if finding.figure in SHOWN or finding in different:
            table.add_row(*_row(finding))
    verdict = (
        f"all {len(compared)} recomputed figures equal the reported ones (to {TOLERANCE:g})"
        if not different
        else f"{len(different)} of {len(compared)} recomputed figures DIFFER from the reported ones"
    )
    missing = Counter(finding.reason for finding in result.findings if finding.equal is None)
    reasons = [Text(f"{count} not recomputed: {reason}") for reason, count in missing.most_common()]
    return Group(*parts, table, Text(verdict), *reasons)


def _row(finding: Finding) -> tuple[str, ...]:
    return (
        finding.figure,
        f"{finding.official:.6g}",
        ABSENT if finding.recomputed is None else f"{finding.recomputed:.6g}",
        ABSENT if finding.difference is None else f"{finding.difference:.1e}",
        {True: "yes", False: "NO", None: ABSENT}[finding.equal],
    )


def _reported(result: ImportResult) -> list[Text]:
    lines = [Text("the source holds no requests: nothing can be recomputed; it reports")]
    for level in result.summary.run.levels:
        figures = level.reported
        shown = [f"{name} {figures[name]:.6g}" for name in _headline(figures)]
        lines.append(Text(f"  c={level.concurrency}: {', '.join(shown)} ({len(figures)} figures in all)"))
    return lines


def _headline(figures: dict[str, float]) -> list[str]:
    wanted = (
        "total_token_throughput_per_accelerator",
        "full_response_interactivity_p90",
        "interactivity_p90",
        "time_to_first_token_p90",
    )
    return [name for name in wanted if name in figures]
