"""`flashpoint report`: runs as one self-contained HTML page, computed from their archives."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import orjson
from markupsafe import Markup

from flashpoint.agentx import chart
from flashpoint.agentx.archive import Archive, read_archive
from flashpoint.agentx.files import whole_file
from flashpoint.agentx.metrics import DEFINITIONS
from flashpoint.agentx.summary import LevelSummary, RunSummary, summarize
from flashpoint.agentx.table import ABSENT, milliseconds, number, share
from flashpoint.errors import FlashpointError, InvalidValue

X_TITLE = "P90 interactivity, tokens/s per user"
Y_TITLE = "total tokens/s per accelerator"
ERRORS_SHOWN = 10

Cell = Callable[[LevelSummary], str]

HEADLINE: tuple[tuple[str, Cell], ...] = (
    ("Total tok/s", lambda level: number(level.total_throughput)),
    ("Output tok/s", lambda level: number(level.output_throughput)),
    ("P50 inter­activity", lambda level: number(level.interactivity_p50)),
    ("P90 inter­activity", lambda level: number(level.interactivity_p90)),
    ("TTFT P50 ms", lambda level: milliseconds(level.ttft_p50)),
    ("TTFT P90 ms", lambda level: milliseconds(level.ttft_p90)),
    ("Cache hit", lambda level: share(level.cache_hit_share)),
    ("Errors", lambda level: str(level.errors)),
)

FIGURES: tuple[tuple[str, str, Cell], ...] = (
    ("Total throughput", "tok/s per accelerator", lambda level: number(level.total_throughput)),
    ("Output throughput", "tok/s per accelerator", lambda level: number(level.output_throughput)),
    ("Uncached input", "tok/s per accelerator", lambda level: number(level.uncached_input_throughput)),
    ("Interactivity P50", "tok/s per user", lambda level: number(level.interactivity_p50)),
    ("Interactivity P90", "tok/s per user", lambda level: number(level.interactivity_p90)),
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
    ("Prompt tokens", "", lambda level: _count(level.prompt_tokens)),
    ("of them cached", "", lambda level: _count(level.cached_tokens)),
    ("Output tokens", "", lambda level: _count(level.output_tokens)),
    ("Mean requests in flight", "", lambda level: number(level.mean_in_flight)),
    ("Window", "s", lambda level: number(level.window_seconds)),
    ("Sessions started", "", lambda level: _count(level.sessions_started)),
    ("Requests ok", "", lambda level: _count(level.ok)),
    ("Requests failed", "", lambda level: _count(level.errors)),
    ("Requests cut at the end", "", lambda level: _count(level.cancelled)),
    ("Client lag P90", "ms", lambda level: milliseconds(level.client_lag_p90)),
)


@dataclass(frozen=True)
class RunView:
    """What the template shows of one run."""

    name: str
    summary: RunSummary
    key: Markup
    points: tuple[chart.Point, ...]
    headline: str
    facts: tuple[tuple[str, str], ...]
    errors: tuple[tuple[str, int], ...]


def write_report(run_paths: Sequence[str | Path], out_path: str | Path) -> None:
    """Write one page about the runs in `run_paths`; no file is left where it cannot be written whole."""
    paths = [Path(path) for path in run_paths]
    if not paths:
        raise InvalidValue("runs", [], "at least one run archive")
    if len({path.resolve() for path in paths}) < len(paths):
        raise InvalidValue("runs", [str(path) for path in paths], "every run archive once")
    page = render_report([read_archive(path) for path in paths])
    out = Path(out_path)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(out) as file:
            file.write(page.encode())
    except OSError as error:
        raise FlashpointError(f"{out}: the report cannot be written ({error.strerror})") from error


def render_report(archives: Sequence[Archive]) -> str:
    """The page as HTML text."""
    short_names = Counter(archive.path.name for archive in archives)
    views = [
        _view(
            series,
            archive,
            archive.path.name if short_names[archive.path.name] == 1 else str(archive.path),
        )
        for series, archive in enumerate(archives)
    ]
    curves = [view.points for view in views]
    charts = (
        [chart.draw(curves, size, X_TITLE, Y_TITLE) for size in (chart.WIDE, chart.NARROW)]
        if any(curves)
        else []
    )
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.jinja").render(
        views=views,
        charts=charts,
        headline_columns=HEADLINE,
        figures=FIGURES,
        definitions=[(title, _definition(function)) for title, function in DEFINITIONS],
        data=_script_json([view.summary.as_dict() for view in views]),
        series_colours=chart.SERIES_COLOURS,
    )


def _view(series: int, archive: Archive, name: str) -> RunView:
    summary = summarize(archive)
    failures = Counter(record.error or "" for record in archive.records if record.status == "error")
    points = tuple(
        chart.Point(
            level.interactivity_p90,
            level.total_throughput,
            f"c={level.concurrency}",
            f"{name}, concurrency {level.concurrency}\n"
            f"{number(level.total_throughput)} tok/s in total, {number(level.output_throughput)} output\n"
            f"interactivity P90 {number(level.interactivity_p90)} tok/s, "
            f"P50 {number(level.interactivity_p50)} tok/s\n"
            f"TTFT P50 {milliseconds(level.ttft_p50)}, P90 {milliseconds(level.ttft_p90)} ms\n"
            f"cache hit {share(level.cache_hit_share)}, {level.errors} errors",
        )
        for level in sorted(summary.levels, key=lambda level: level.concurrency)
        if level.interactivity_p90 is not None and level.total_throughput is not None
    )
    return RunView(
        name=name,
        summary=summary,
        key=chart.legend_key(series),
        points=points,
        headline=_headline(summary),
        facts=_facts(summary),
        errors=tuple(failures.most_common(ERRORS_SHOWN)),
    )


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
    return (
        ("Status", run.status + (f": {run.status_detail}" if run.status_detail else "")),
        ("Model", run.server.model),
        ("Server", run.server.url),
        ("Accelerators", str(run.accelerators)),
        ("Started", run.started),
        ("Finished", run.finished or ABSENT),
        (
            "Client machine",
            f"{machine.get('cpu')}, {machine.get('cores')} cores, {machine.get('memory_gib')} GiB",
        ),
        ("Client platform", str(machine.get("platform"))),
        ("Versions", ", ".join(f"{name} {version}" for name, version in run.versions.items())),
        ("Sessions", f"{run.corpus.path}: {run.corpus.sessions or ABSENT} sessions"),
        ("Sessions SHA-256", run.corpus.sha256 or ABSENT),
        ("Settings", ", ".join(f"{name} {value}" for name, value in run.config.items())),
        ("Command", " ".join(run.command)),
        ("Archive", str(summary.path)),
    )


def _count(value: int | None) -> str:
    return ABSENT if value is None else f"{value:,}"


def _definition(function: Callable[..., object]) -> str:
    return inspect.getdoc(function) or ""


def _script_json(data: object) -> Markup:
    """JSON that cannot end the script element it stands in."""
    text = orjson.dumps(data).decode()
    return Markup(text.replace("<", "\\u003c"))
