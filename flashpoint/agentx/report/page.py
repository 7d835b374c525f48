"""`flashpoint report`: runs as one self-contained HTML page, computed from their archives."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import jinja2
from markupsafe import Markup

from flashpoint.agentx.archive import Archive, read_archive
from flashpoint.agentx.files import whole_file
from flashpoint.agentx.metrics import DEFINITIONS
from flashpoint.agentx.report import curve
from flashpoint.agentx.report.encode import script_json
from flashpoint.agentx.report.figures import FIGURES, HEADLINE, rate
from flashpoint.agentx.report.view import view_run
from flashpoint.agentx.step_rows import LIMITS
from flashpoint.agentx.table import number, share
from flashpoint.errors import FlashpointError, InvalidValue

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = (
    "draw.js",
    "frontier.js",
    "curve.js",
    "matched.js",
    "sessions.js",
    "distributions.js",
    "lanes.js",
    "over_time.js",
    "start.js",
)
STYLES = ("page.css", "charts.css")


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
    """The page as HTML text; the archives must be on disk."""
    short_names = Counter(archive.path.name for archive in archives)
    views = [
        view_run(
            series,
            archive,
            archive.path.name if short_names[archive.path.name] == 1 else str(archive.path),
        )
        for series, archive in enumerate(archives)
    ]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.jinja").render(
        views=views,
        headline_columns=HEADLINE,
        figures=FIGURES,
        definitions=[(title, _definition(function)) for title, function in DEFINITIONS],
        axes=curve.axes(),
        data=script_json([view.summary.as_dict() for view in views]),
        charts=script_json({"axes": curve.axes(), "runs": [view.chart for view in views]}),
        style=_source(STYLES),
        script=_source(SCRIPTS),
        number=number,
        rate=rate,
        limits=LIMITS,
        share=share,
    )


def _source(names: Sequence[str]) -> Markup:
    """Our own CSS or JavaScript, file after file."""
    return Markup("\n".join((TEMPLATES / name).read_text(encoding="utf-8") for name in names))


def _definition(function: Callable[..., object]) -> str:
    return inspect.getdoc(function) or ""
