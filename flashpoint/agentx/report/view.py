"""What the page shows of one run: texts for the templates, and data for the charts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from flashpoint.agentx.archive import Archive, RunInfo
from flashpoint.agentx.report import curve, marks
from flashpoint.agentx.report.columns import read_columns
from flashpoint.agentx.report.distributions import distributions
from flashpoint.agentx.report.hit_shares import hit_shares
from flashpoint.agentx.report.server_series import server_series
from flashpoint.agentx.report.slices import slices_of
from flashpoint.agentx.report.steps import LevelSteps, level_steps, step_series
from flashpoint.agentx.report.swim_lanes import pack_sessions
from flashpoint.agentx.summary import RunSummary, summarize
from flashpoint.agentx.table import ABSENT, number
from flashpoint.agentx.validity import doubtful, failed

ERRORS_SHOWN = 10

Reason = tuple[str, str, str]
"""Rule, levels, detail."""


@dataclass(frozen=True)
class RunView:
    """One run as the templates need it."""

    name: str
    summary: RunSummary
    key: Markup
    level_names: tuple[str, ...]
    headline: str
    facts: tuple[tuple[str, str], ...]
    errors: tuple[tuple[str, int], ...]
    rules: tuple[RuleView, ...]
    failures: tuple[Reason, ...]
    passes: tuple[Reason, ...]
    verdicts: tuple[str, ...]
    """The validity of each level in a few words."""
    steps: tuple[LevelSteps, ...]
    machine: str | None
    """Whose limits the steps' shares are of."""
    has_point: bool
    chart: dict[str, Any]
    """The run's part of the chart data."""
    packed: str
    """The run's requests (see swim_lanes)."""


@dataclass(frozen=True)
class RuleView:
    """One rule over the levels of a run."""

    name: str
    marks: tuple[tuple[str, str], ...]
    """Sign and word for each level."""


def view_run(series: int, archive: Archive, name: str) -> RunView:
    """Everything about run number `series` of the page."""
    summary = summarize(archive)
    run = summary.run
    names = tuple(curve.level_name(info) for info in run.levels)
    failures = Counter(record.error or "" for record in archive.records if record.status == "error")
    points = curve.points(name, summary)
    columns = read_columns(archive)
    series_table, steps_table = archive.series(), archive.steps()
    steps = [level_steps(steps_table, info) for info in run.levels]
    levels = []
    for info in run.levels:
        rows = columns.take(columns.level == info.level)
        slices = slices_of(info)
        time = None
        if slices is not None:
            time = {
                "width": slices.width,
                "count": slices.count,
                "seconds": info.end - info.start,
                "measuredFrom": None if info.measured_from is None else info.measured_from - info.start,
                **hit_shares(rows, slices),
                "server": server_series(series_table, info.level, slices),
                "steps": step_series(steps_table, info, slices),
            }
        levels.append({"name": names[info.level], "start": info.start, "time": time, **distributions(rows)})
    return RunView(
        name=name,
        summary=summary,
        key=marks.legend_key(series),
        level_names=names,
        headline=_headline(summary),
        facts=_facts(summary),
        errors=tuple(failures.most_common(ERRORS_SHOWN)),
        rules=_rules(summary),
        failures=_reasons(summary, names, fails=True),
        passes=_reasons(summary, names, fails=False),
        verdicts=tuple(_verdict(summary, number) for number in range(len(run.levels))),
        steps=tuple(found for found in steps if found is not None),
        machine=_machine(run),
        has_point=any(None not in (point["x"][0], point["y"][0]) for point in points),
        chart={"name": name, **marks.look(series), "points": points, "levels": levels},
        packed=pack_sessions(columns),
    )


def _rules(summary: RunSummary) -> tuple[RuleView, ...]:
    words = {True: ("✓", "holds"), False: ("✗", "fails"), None: ("–", "not judged")}
    return tuple(
        RuleView(each[0].rule, tuple(words[finding.ok] for finding in each))
        for each in zip(*summary.validity, strict=True)
    )


def _reasons(summary: RunSummary, names: tuple[str, ...], *, fails: bool) -> tuple[Reason, ...]:
    """Why rules fail, or why the others do not; levels with the same reason together."""
    levels: dict[tuple[str, str], list[str]] = {}
    for each in zip(*summary.validity, strict=True):
        for name, finding in zip(names, each, strict=True):
            if (finding.ok is False) == fails:
                levels.setdefault((finding.rule, finding.detail), []).append(name)
    return tuple((rule, ", ".join(found), detail) for (rule, detail), found in levels.items())


def _verdict(summary: RunSummary, level: int) -> str:
    findings = summary.validity[level]
    if doubtful(findings):
        return "in doubt: " + ", ".join(finding.rule for finding in doubtful(findings))
    return "not a submission" if failed(findings) else "holds"


def _headline(summary: RunSummary) -> str:
    rated = [
        (level.total_throughput, level.concurrency) for level in summary.levels if level.total_throughput
    ]
    if not rated:
        ok = sum(level.ok for level in summary.levels)
        return "no throughput could be measured" if ok else "no request succeeded"
    best, concurrency = max(rated)
    return f"peak {number(best)} tok/s per accelerator at c={concurrency}"


def _facts(summary: RunSummary) -> tuple[tuple[str, str], ...]:
    run = summary.run
    machine = run.client_machine
    sessions = f"{run.corpus.path or ABSENT}: {run.corpus.sessions or ABSENT} sessions"
    if run.corpus.dropped:
        sessions += f", {run.corpus.dropped} left out as longer than the context window"
    return (
        ("Status", run.status + (f": {run.status_detail}" if run.status_detail else "")),
        ("Made by", "flashpoint replay" if run.source == "flashpoint" else f"imported from {run.source}"),
        ("Model", run.server.model),
        ("Server", run.server.url),
        ("Server description", _pairs(run.server.description)),
        ("Accelerators", str(run.accelerators)),
        ("Started", run.started),
        ("Finished", run.finished or ABSENT),
        (
            "Client machine",
            f"{machine.get('cpu') or ABSENT}, {machine.get('cores') or ABSENT} cores, "
            f"{machine.get('memory_gib') or ABSENT} GiB",
        ),
        ("Client platform", str(machine.get("platform") or ABSENT)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in run.versions.items())),
        ("Sessions", sessions),
        ("Sessions SHA-256", run.corpus.sha256 or ABSENT),
        ("Tokenizer SHA-256", run.tokenizer or ABSENT),
        ("Prompt text SHA-256", run.prompt_text or ABSENT),
        ("Settings", _pairs(run.config)),
        ("Command", " ".join(run.command) or ABSENT),
        ("Archive", str(summary.path)),
    )


def _machine(run: RunInfo) -> str | None:
    machine = run.config.get("machine")
    return str(machine["name"]) if isinstance(machine, dict) and "name" in machine else None


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or ABSENT
