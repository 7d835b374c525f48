from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from flashpoint.agentx import chart
from flashpoint.agentx.archive import Archive, ArchiveError, ServerInfo
from flashpoint.agentx.report import FIGURES, write_report
from flashpoint.agentx.summary import summarize
from flashpoint.agentx.table import number, render_table
from flashpoint.errors import FlashpointError, InvalidValue
from tests.agentx.made_records import failed_record, made_archive, made_record

NASTY = "</script><script>alert(1)</script>&\"'{{ 7*7 }}"


class Page(HTMLParser):
    """The page's texts, attributes, tables and data, as a browser's parser would see them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.rows: list[list[str]] = []
        self.text: list[str] = []
        self.scripts: list[str] = []
        self._in_script = self._in_cell = False
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True
        if tag == "script":
            self._in_script = True
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._in_script = False
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data
            return
        self.text.append(data)
        if self._in_cell:
            self.rows[-1][-1] += data.strip()

    @property
    def data(self) -> list[dict]:
        return json.loads(self.scripts[0])

    def row(self, title: str) -> list[str]:
        return next(row for row in self.rows if row and row[0].startswith(title))


def two_levels(path: Path, **fields: object) -> Archive:
    return made_archive(
        path,
        {
            1: [made_record(0.0), made_record(1.0, (0.2, 0.25, 0.31))],
            4: [made_record(3.0, prompt_tokens=4000), made_record(3.1), failed_record(3.2)],
        },
        **fields,  # type: ignore[arg-type]
    )


def test_the_page_is_self_contained_and_its_numbers_are_the_archives(tmp_path: Path) -> None:
    archive = two_levels(tmp_path / "run-a", accelerators=2)
    write_report([tmp_path / "run-a"], tmp_path / "report.html")
    page = Page(tmp_path / "report.html")
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    assert not [value for name, value in page.attributes if name in ("src", "href", "xlink:href", "action")]
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", page.source)
    summary = summarize(archive)
    assert page.data == json.loads(json.dumps([summary.as_dict()]))
    for title, _unit, cell in FIGURES:
        assert page.row(title)[1:] == [cell(level) for level in summary.levels]
    for level in summary.levels:
        assert number(level.total_throughput) in page.row("run-a") + page.rows[2]
    assert "1 × HTTP 500: broken" in "".join(page.text)
    assert "c=4: 1 of 3 requests failed and are not in the figures" in "".join(page.text)
    assert not list(tmp_path.glob("*.partial"))


def test_points_lie_where_the_numbers_say(tmp_path: Path) -> None:
    archive = two_levels(tmp_path / "run-a")
    write_report([tmp_path / "run-a"], tmp_path / "report.html")
    source = (tmp_path / "report.html").read_text()
    wide = source[source.index('<svg class="chart"') :]
    wide = wide[: wide.index('<div class="narrow">')]
    places = re.findall(r'class="hit" cx="([\d.]+)" cy="([\d.]+)"', wide)
    xs = re.findall(r'<text x="([\d.]+)" y="409" text-anchor="middle">([\d.]+)<', wide)
    ys = re.findall(r'<text x="53" y="([\d.]+)" text-anchor="end">([\d.k]+)<', wide)
    assert len(places) == 2 and len(xs) > 3 and len(ys) > 3

    def value(at: float, ticks: list[tuple[str, str]], shift: float) -> float:
        (p0, v0), (p1, v1) = (
            (float(p) - shift, float(v.removesuffix("k")) * (1000 if v.endswith("k") else 1))
            for p, v in (ticks[0], ticks[-1])
        )
        return v0 + (at - p0) / (p1 - p0) * (v1 - v0)

    for (x, y), level in zip(places, summarize(archive).levels, strict=True):
        assert value(float(x), xs, 0) == pytest.approx(level.interactivity_p90, rel=0.01)
        assert value(float(y), ys, 4) == pytest.approx(level.total_throughput, rel=0.01)


def test_texts_of_users_and_servers_cannot_become_markup(tmp_path: Path) -> None:
    server = ServerInfo(url=f"http://{NASTY}", model=NASTY, models_answer=NASTY)
    made_archive(
        tmp_path / "<b>x",
        {1: [made_record(), failed_record(error=NASTY)]},
        server=server,
        command=["flashpoint", NASTY],
        status=("interrupted"),
    )
    write_report([tmp_path / "<b>x"], tmp_path / "report.html")
    page = Page(tmp_path / "report.html")
    assert page.tags.count("script") == 2 and "b" not in page.tags
    assert page.data[0]["model"] == NASTY
    assert f"1 × {NASTY}" in "".join(page.text)
    assert "49" not in [row[0] for row in page.rows if row]


def test_several_runs_are_overlaid_with_a_legend(tmp_path: Path) -> None:
    for name in ("a/run", "b/run", "c"):
        two_levels(tmp_path / name)
    write_report([tmp_path / name for name in ("a/run", "b/run", "c")], tmp_path / "report.html")
    page = Page(tmp_path / "report.html")
    text = "".join(page.text)
    # Runs of one name are told apart by their paths.
    assert str(tmp_path / "a/run") in text and str(tmp_path / "b/run") in text
    assert len(page.data) == 3
    assert page.source.count('class="point"') == 2 * 2 * 3


def test_a_run_without_a_success_says_so_and_shows_no_nan(tmp_path: Path) -> None:
    archive = made_archive(tmp_path / "run", {1: [failed_record()], 2: []}, status="server_lost")
    write_report([tmp_path / "run"], tmp_path / "report.html")
    page = Page(tmp_path / "report.html")
    text = "".join(page.text)
    assert "There is no point to draw" in text and "no request succeeded" in text.lower()
    assert "nan" not in text.lower().split() and "None" not in [cell for row in page.rows for cell in row]
    assert page.row("Total throughput")[1:] == ["–", "–"]
    console = Console(record=True, width=100, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render_table(summarize(archive)))
    printed = console.export_text()
    assert "no request succeeded, so there is nothing to measure" in printed
    assert "run server_lost" in printed and "nan" not in printed


def test_a_run_that_died_before_its_first_level(tmp_path: Path) -> None:
    made_archive(tmp_path / "run", {}, status="running")
    write_report([tmp_path / "run"], tmp_path / "report.html")
    assert "no level was finished" in "".join(Page(tmp_path / "report.html").text)


def test_bad_arguments_and_archives(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="at least one run archive"):
        write_report([], tmp_path / "r.html")
    two_levels(tmp_path / "run")
    with pytest.raises(InvalidValue, match="every run archive once"):
        write_report([tmp_path / "run", tmp_path / "x" / ".." / "run"], tmp_path / "r.html")
    with pytest.raises(ArchiveError, match="not a folder"):
        write_report([tmp_path / "none"], tmp_path / "r.html")
    (tmp_path / "file").write_text("")
    with pytest.raises(FlashpointError, match="the report cannot be written"):
        write_report([tmp_path / "run"], tmp_path / "file" / "r.html")


def test_the_table_shows_the_figures(tmp_path: Path) -> None:
    summary = summarize(two_levels(tmp_path / "run"))
    console = Console(record=True, width=80, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render_table(summary))
    lines = console.export_text().splitlines()
    for level in summary.levels:
        cells = next(line.split() for line in lines if line.split()[:1] == [str(level.concurrency)])
        assert cells[1] == number(level.total_throughput)
        assert cells[4] == number(level.interactivity_p90)
        assert cells[-1] == str(level.errors)
    assert any("c=4: 1 of 3 requests failed" in line for line in lines)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "–"), (0.0, "0.00"), (0.456, "0.46"), (12.34, "12.3"), (123.4, "123"), (1234567.8, "1,234,568")],
)
def test_numbers_have_about_three_digits(value: float | None, shown: str) -> None:
    assert number(value) == shown


@given(st.floats(1e-6, 1e9), st.integers(3, 9))
def test_ticks_are_round_and_reach_the_top(top: float, count: int) -> None:
    ticks = chart.ticks(top, count)
    assert ticks[0] == 0 and ticks[-1] >= top * (1 - 1e-9)
    assert ticks[-2] < top
    assert 2 <= len(ticks) <= count + 2


def test_runs_differ_in_more_than_colour() -> None:
    looks = {str(chart.legend_key(series)) for series in range(36)}
    assert len(looks) == 36
    shapes = {re.findall(r'd="(M[^"]*Z)"', str(chart.legend_key(series)))[0] for series in range(6)}
    assert len(shapes) == 6
