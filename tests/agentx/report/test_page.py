from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from flashpoint.agentx.archive import Archive, ArchiveError, ArchiveWriter, ServerInfo
from flashpoint.agentx.report import marks, write_report
from flashpoint.agentx.report.figures import FIGURES
from flashpoint.agentx.summary import summarize
from flashpoint.agentx.table import number, render_table
from flashpoint.errors import FlashpointError, InvalidValue
from tests.agentx.made_records import (
    failed_record,
    made_archive,
    made_level_info,
    made_record,
    made_run_info,
    made_steps,
)

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

    @property
    def charts(self) -> dict:
        return json.loads(self.scripts[1])

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
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttpRequest|import\(", page.source)
    summary = summarize(archive)
    assert page.data == json.loads(json.dumps([summary.as_dict()]))
    for title, _unit, cell in FIGURES:
        assert page.row(title)[1:] == [cell(level) for level in summary.levels]
    headline = [row for row in page.rows if row and row[0] == "run-a"]
    assert [row[2] for row in headline] == [number(level.total_throughput) for level in summary.levels]
    assert "1 × HTTP 500: broken" in "".join(page.text)
    assert "c=4: 1 of 3 requests failed and are not in the figures" in "".join(page.text)
    assert not list(tmp_path.glob("*.partial"))


def test_the_charts_have_the_points_of_the_archives(tmp_path: Path) -> None:
    archive = two_levels(tmp_path / "run-a")
    write_report([tmp_path / "run-a"], tmp_path / "report.html")
    (run,) = Page(tmp_path / "report.html").charts["runs"]
    for point, level in zip(run["points"], summarize(archive).levels, strict=True):
        assert point["x"] == pytest.approx(
            [level.interactivity_p90, level.e2e_normalised_interactivity_p90], rel=1e-8
        )
        assert point["y"] == pytest.approx(
            [level.total_throughput, level.output_throughput, level.uncached_input_throughput], rel=1e-8
        )
    # Three of ten ended requests failed is judged from ten on; these levels are only no submission.
    assert [point["doubts"] for point in run["points"]] == [[], []]


def test_a_level_that_another_tool_reported_has_a_hollow_point(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path / "run", made_run_info(source="inferencex"))
    reported = {
        "inter_token_latency_p90": 0.02,
        "interactivity_p90": 999.0,
        "total_token_throughput_per_accelerator": 1234.5,
    }
    writer.add_level(made_level_info([], reported=reported, concurrency=16, sessions_started=None), [])
    writer.finish("complete", None, "2026-01-01T00:00:00+00:00")
    write_report([tmp_path / "run"], tmp_path / "report.html")
    page = Page(tmp_path / "report.html")
    (point,) = page.charts["runs"][0]["points"]
    # Interactivity is derived from the latency; what the data do not say stays unknown.
    assert (point["x"], point["y"]) == ([50.0, None], [1234.5, None, None])
    assert point["doubts"] == ["reported, not recomputed"]
    assert "inferencex reported it" in "".join(page.text)


def test_rules_and_their_reasons_are_shown(tmp_path: Path) -> None:
    two_levels(tmp_path / "run")
    write_report([tmp_path / "run"], tmp_path / "report.html")
    page = Page(tmp_path / "report.html")
    assert page.row("corpus")[1:] == ["✗fails", "✗fails"]
    assert page.row("completions")[1:] == ["✓holds", "✓holds"]
    assert page.row("coverage")[1:] == ["–not judged", "–not judged"]
    assert ", c=1, c=4: not a submission: corpus is a local corpus" in "".join(page.text)


def steps_page(folder: Path, *rows: dict, **run: object) -> Page:
    records = [made_record()]
    writer = ArchiveWriter(folder / "run", made_run_info(**run))
    writer.add_level(made_level_info(records, end=1.0), records, steps=made_steps(*rows))
    writer.finish("complete", None, "2026-01-01T00:00:00+00:00")
    write_report([folder / "run"], folder / "report.html")
    return Page(folder / "report.html")


PREFILL = {"seconds": 0.2, "prefill_tokens": 100, "decode_tokens": 1}
DECODE = {"step": 1, "start": 0.2, "seconds": 0.2, "decode_tokens": 2, "steps": 2}
COUNTS = {"flops": 3e9, "memory_bytes": 4e6, "link_bytes": 0.0, "host_bytes": 10.0}


def test_steps_of_a_build_that_did_not_count(tmp_path: Path) -> None:
    page = steps_page(tmp_path, PREFILL, DECODE)
    rows = [row for row in page.rows if row and row[0] == "c=1"]
    assert rows[-2] == ["c=1", "with prefill", "1", "0.20", "20.0%", "100", "1", "101", "101"]
    assert rows[-1] == ["c=1", "decode only", "2", "0.20", "20.0%", "0", "4", "2.00", "2.00"]
    assert "a build that did not count" in "".join(page.text)
    assert page.charts["runs"][0]["levels"][0]["time"]["steps"] is None


def test_without_a_machine_there_are_rates(tmp_path: Path) -> None:
    page = steps_page(tmp_path, PREFILL | COUNTS, DECODE | COUNTS)
    assert page.rows[-1] == ["c=1", "all", "15G", "20M", "0", "50"]
    text = "".join(page.text)
    assert "replay-engine --hardware" in text and "Step share of machine limits" not in text


def test_step_share_of_machine_limits(tmp_path: Path) -> None:
    shares = {"memory_share": 0.1, "math_share": 0.4, "link_share": 0.0, "host_share": 0.01}
    page = steps_page(
        tmp_path,
        PREFILL | COUNTS | shares,
        DECODE | COUNTS | shares | {"memory_share": 0.5},
        config={"machine": {"name": "a machine"}},
    )
    assert page.rows[-1] == [
        "c=1", "all", "15G", "20M", "0", "50", "30.0%", "40.0%", "0.0%", "1.0%", "memory 50.0%, math 50.0%",
    ]  # fmt: skip
    text = "".join(page.text)
    assert "Step share of machine limits" in text and "peak of a machine," in text
    label = "Nearest limit, share of the steps' time: memory 50.0%, math 50.0%, link 0.0%, host 0.0%"
    assert ("aria-label", label) in page.attributes
    lines = page.charts["runs"][0]["levels"][0]["time"]["steps"]["lines"]
    assert {value for value in lines["math"] if value is not None} == {0.4}


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
    assert page.tags.count("script") == 4 and "b" not in page.tags
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
    assert [len(run["points"]) for run in page.charts["runs"]] == [2, 2, 2]
    looks = [(run["shape"], run["dash"]) for run in page.charts["runs"]]
    assert len({shape for shape, _ in looks}) == len({dash for _, dash in looks}) == 3


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
        assert cells[5] == number(level.interactivity_p90)
        assert cells[-1] == str(level.errors)
    assert any("c=4: 1 of 3 requests failed" in line for line in lines)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0.0, "0.00"),
        (0.456, "0.46"),
        (12.34, "12.3"),
        (123.4, "123"),
        (1234567.8, "1.23M"),
        (123456.7, "123,457"),
    ],
)
def test_numbers_have_about_three_digits(value: float | None, shown: str) -> None:
    assert number(value) == shown


def test_runs_differ_in_more_than_colour() -> None:
    looks = {str(marks.legend_key(series)) for series in range(36)}
    assert len(looks) == 36
    assert len({marks.look(series)["shape"] for series in range(6)}) == 6
