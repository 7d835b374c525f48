"""The report page in a real browser, opened from disk."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashpoint.agentx.archive import ArchiveWriter
from flashpoint.agentx.report import write_report
from tests.agentx.browser import Browser, find_browser
from tests.agentx.made_records import (
    failed_record,
    made_archive,
    made_level_info,
    made_record,
    made_run_info,
    made_steps,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if find_browser() is None:
        pytest.fail("no browser found; this test needs Chromium: apt-get install -y chromium")
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def session(c: int, slow: float) -> list[Any]:
    """`c` sessions at once, each with a sub-agent; slower where more run."""
    records = []
    for lane in range(c):
        for turn in range(4):
            child = turn == 2
            start = lane * 0.01 + turn * 2.0
            arrivals = tuple(0.1 * slow + i * (0.02 + c / 100) * slow for i in range(6))
            records.append(
                made_record(
                    start, arrivals, session=f"s{lane}", lane=lane, turn=turn, due=start - 0.05,
                    stream=f"s{lane}::sa:a" if child else f"s{lane}", depth=int(child),
                    prompt_tokens=1000 + 100 * turn, cached_tokens=800, hit_blocks=14, total_blocks=16,
                )
            )  # fmt: skip
    return [*records, failed_record(8.0, session="s0", stream="s0", turn=4)]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    for run, slow in (("first", 1.0), ("second", 0.7)):
        made_archive(folder / run, {c: session(c, slow) for c in (1, 2, 4, 8)})
    write_report([folder / "first", folder / "second"], folder / "report.html")
    return folder / "report.html"


def opened(browser: Browser, page: Path, width: int = 1200, **options: Any) -> None:
    browser.open(page, width, **options)
    browser.wait_for("document.querySelectorAll('.request').length > 0")


def steffen(xs: list[float], ys: list[float], x: float) -> float:
    """Steffen's monotone cubic, written from the paper's formulas and independent of the page's code."""
    h = np.diff(xs)
    s = np.diff(ys) / h
    d = np.zeros(len(xs))
    if len(xs) == 2:
        d[:] = s[0]
    else:
        for i in range(1, len(xs) - 1):
            p = (s[i - 1] * h[i] + s[i] * h[i - 1]) / (h[i - 1] + h[i])
            if s[i - 1] * s[i] > 0:
                d[i] = np.sign(s[i]) * min(abs(s[i - 1]), abs(s[i]), abs(p) / 2) * 2
        # One-sided slopes at the ends, as d3's curveMonotoneX takes them.
        d[0], d[-1] = (3 * s[0] - d[1]) / 2, (3 * s[-1] - d[-2]) / 2
    i = min(int(np.searchsorted(xs, x, side="right")) - 1, len(h) - 1)
    t = x - xs[i]
    a = (d[i] + d[i + 1] - 2 * s[i]) / h[i] ** 2
    b = (3 * s[i] - 2 * d[i] - d[i + 1]) / h[i]
    return float(np.clip(((a * t + b) * t + d[i]) * t + ys[i], min(ys), max(ys)))


def non_dominated(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points with x > 0 that no other point reaches on both axes, by comparing all pairs."""
    able = {p for p in points if p[0] > 0}
    return sorted(p for p in able if not any(o != p and o[0] >= p[0] and o[1] >= p[1] for o in able))


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_and_nothing_complains(browser: Browser, page: Path, width: int, dark: bool) -> None:
    opened(browser, page, width, dark=dark)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    # Every chart is drawn: the curve, two distributions, two over time (no server series), the lanes.
    assert browser.evaluate("document.querySelectorAll('.plot svg').length") == 5
    assert browser.evaluate("document.querySelectorAll('.point').length") == 8
    assert browser.evaluate(
        "[...document.querySelectorAll('.plot svg, .lanes svg')].every((s) => s.clientWidth > 90)"
    )
    assert browser.evaluate("performance.getEntriesByType('resource').length") == 0
    assert browser.problems == []


def test_dark_mode_has_its_own_colours(browser: Browser, page: Path) -> None:
    colours = []
    for dark in (False, True):
        opened(browser, page, dark=dark)
        colours.append(
            browser.evaluate(
                "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,"
                " getComputedStyle(document.querySelector('.line.frontier')).stroke]"
            )
        )
    assert all(light != dark for light, dark in zip(*colours, strict=True))


def test_a_point_speaks_on_focus_and_hover_and_opens_its_level(browser: Browser, page: Path) -> None:
    opened(browser, page)
    tip = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"
    browser.evaluate("document.querySelector('.point').focus()")
    assert browser.evaluate(tip).startswith("first, c=1 (1 live sessions)\n")
    browser.press("Escape")
    assert browser.evaluate(tip) == ""
    browser.hover(".point:nth-last-child(1) .hit")
    assert browser.evaluate(tip).startswith("second, c=8")
    browser.evaluate("document.querySelector('.point:nth-last-child(2)').focus()")
    browser.press("Enter")
    assert browser.evaluate(
        "[document.getElementById('run').value, document.getElementById('level').value]"
    ) == ["1", "2"]


@pytest.mark.parametrize("x_axis", [0, 1])
@pytest.mark.parametrize("y_axis", [0, 1, 2])
def test_readings_at_the_same_speed(browser: Browser, page: Path, x_axis: int, y_axis: int) -> None:
    opened(browser, page)
    for name, value in (("x-axis", x_axis), ("y-axis", y_axis)):
        browser.evaluate(
            f"(() => {{ const s = document.getElementById('{name}'); s.value = {value};"
            "s.dispatchEvent(new Event('change')); })()"
        )
    runs = browser.evaluate("JSON.parse(document.getElementById('charts').textContent).runs")
    frontiers = []
    for run in runs:
        able = [(p["x"][x_axis], p["y"][y_axis]) for p in run["points"]]
        frontiers.append(non_dominated(able))
    low, high = (
        float(browser.evaluate(f"document.getElementById('matched-x').{end}")) for end in ("min", "max")
    )
    assert low == pytest.approx(min(frontier[0][0] for frontier in frontiers))
    assert high == pytest.approx(max(frontier[-1][0] for frontier in frontiers))
    kinds = set()
    for x in np.linspace(low, high, 41):
        values, words, ratio, x = browser.evaluate(
            f"(() => {{ const s = document.getElementById('matched-x'); s.value = {x};"
            "s.dispatchEvent(new Event('input'));"
            "const rows = [...document.querySelectorAll('#readings tbody tr')];"
            "return [rows.map((r) => r.cells[1].dataset.value), rows.map((r) => r.cells[2].textContent),"
            " document.getElementById('ratio').dataset.value, Number(s.value)]; })()"
        )
        expected: list[float | None] = []
        for frontier, value, how in zip(frontiers, values, words, strict=True):
            xs, ys = [p[0] for p in frontier], [p[1] for p in frontier]
            if x < xs[0]:
                assert how.startswith("clamped low") and float(value) == pytest.approx(ys[0])
                expected.append(None)
            elif x > xs[-1]:
                assert how.startswith("unreachable") and value == ""
                expected.append(None)
            else:
                expected.append(steffen(xs, ys, x))
                assert float(value) == pytest.approx(expected[-1], rel=1e-6)
            kinds.add(how.split(":")[0].split(" ")[0])
        if None in expected:
            assert ratio == ""
        else:
            assert float(ratio) == pytest.approx(expected[1] / expected[0], rel=1e-6)
    assert {"clamped", "unreachable", "between"} <= kinds


def test_the_frontier_and_the_reading_on_made_up_knots(browser: Browser, page: Path) -> None:
    opened(browser, page)
    rng = np.random.default_rng(3)
    for _ in range(60):
        points = [(float(x), float(y)) for x, y in rng.integers(-2, 12, (rng.integers(1, 9), 2))]
        js = [{"x": x, "y": y, "label": ""} for x, y in points]
        found = browser.evaluate(f"frontier({js}).map((p) => [p.x, p.y])")
        expected = non_dominated(points)
        assert [tuple(p) for p in found] == expected
        if len(expected) > 1:
            x = float(rng.uniform(expected[0][0], expected[-1][0]))
            xs, ys = [p[0] for p in expected], [p[1] for p in expected]
            value = browser.evaluate(f"reading(frontier({js}), {x}).value")
            assert value == pytest.approx(steffen(xs, ys, x), rel=1e-9)
        if len(expected) == 1:
            (x, y), one = expected[0], f"frontier({js})"
            assert browser.evaluate(f"reading({one}, {x}).value") == y
            assert browser.evaluate(f"reading({one}, {x + 1}).value") is None


def test_the_slider_by_keyboard_changes_the_ratio(browser: Browser, page: Path) -> None:
    opened(browser, page)
    browser.evaluate("document.getElementById('matched-x').focus()")
    texts, spoken = [], []
    for _ in range(3):
        texts.append(browser.evaluate("document.getElementById('ratio').textContent"))
        spoken.append(browser.evaluate("document.getElementById('matched-x').getAttribute('aria-valuetext')"))
        browser.press("ArrowLeft", 40)
    assert len(set(texts)) == len(set(spoken)) == 3
    assert re.fullmatch(r"= \d+\.\d\d ×", texts[0])
    outline = browser.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    browser.press("End")
    assert "unreachable" in browser.evaluate("document.getElementById('ratio').textContent")


def test_the_lanes_of_a_chosen_session(browser: Browser, page: Path) -> None:
    opened(browser, page)
    browser.evaluate(
        "showLevel(0, 3); document.getElementById('find').value = 'S3';"
        "document.getElementById('find').dispatchEvent(new Event('input'))"
    )
    browser.wait_for("document.getElementById('session-words').textContent.startsWith('s3')")
    assert browser.evaluate("document.getElementById('session').options.length") == 1
    assert (
        browser.evaluate("document.getElementById('session-words').textContent")
        == "s3: 4 requests in 2 conversations."
    )
    assert browser.evaluate("[...document.querySelectorAll('.lane-names div')].map((d) => d.title)") == [
        "s3",
        "s3::sa:a",
    ]
    assert browser.evaluate(
        "['wait', 'prefill', 'decode'].map((k) => document.querySelectorAll(`.lanes rect.${k}`).length)"
    ) == [4, 4, 4]
    # The bars lie where the times say: wait 0.05 s, prefill 0.1 s, decode 5 · 0.1 s.
    widths = browser.evaluate(
        "[...document.querySelector('.request').querySelectorAll('rect:not(.hit)')]"
        ".map((r) => Number(r.getAttribute('width')))"
    )
    assert widths[1] / widths[0] == pytest.approx(2, rel=0.05) and widths[2] / widths[1] == pytest.approx(
        5, rel=0.05
    )
    browser.evaluate("document.querySelector('.request').focus()")
    browser.press("ArrowRight")
    label = "document.activeElement.getAttribute('aria-label')"
    assert browser.evaluate(label).startswith(
        "s3, turn 1: ok\nprompt 1,100 tokens, 800 cached; output 6\nTTFT 100 ms"
    )
    browser.press("ArrowDown")
    assert browser.evaluate(label).startswith("s3::sa:a, turn 2: ok")
    browser.evaluate(
        "document.getElementById('find').value = 'nothing like it';"
        "document.getElementById('find').dispatchEvent(new Event('input'))"
    )
    browser.wait_for("document.querySelectorAll('.request').length === 0")
    assert browser.problems == []


def test_a_failed_request_is_crossed_out(browser: Browser, page: Path) -> None:
    opened(browser, page)
    assert browser.evaluate("document.querySelectorAll('.lanes .cross').length") == 1
    assert "turn 4: failed" in browser.evaluate(
        "document.querySelector('.request:has(.cross)').getAttribute('aria-label')"
    )


def test_charts_over_time_and_distributions_by_keyboard(browser: Browser, page: Path) -> None:
    opened(browser, page)
    browser.evaluate("document.querySelector('#ttft-chart svg').focus()")
    browser.press("End")
    tip = "document.getElementById('tip').textContent"
    assert browser.evaluate(tip) == "100.0 % of 4 requests: TTFT at most 100 ms"
    browser.evaluate("document.querySelector('#time-charts svg').focus()")
    assert browser.evaluate(tip) == "0 ms to 100 ms of the level\nactual –\ntheoretical –"
    browser.press("ArrowRight")
    assert browser.evaluate(tip) == "100 ms to 200 ms of the level\nactual 80.0 %\ntheoretical 87.5 %"


@pytest.mark.parametrize("known", [True, False], ids=["a machine", "no machine"])
def test_shares_of_machine_limits_by_keyboard(browser: Browser, tmp_path: Path, known: bool) -> None:
    counts = {"flops": 3e13, "memory_bytes": 4e9, "link_bytes": 0.0, "host_bytes": 1e6}
    shares = {"memory_share": 0.5, "math_share": 0.25, "link_share": 0.0, "host_share": 0.01}
    steps = made_steps({"seconds": 2.0, "decode_tokens": 1, **counts, **(shares if known else {})})
    records = session(1, 1.0)
    writer = ArchiveWriter(tmp_path / "run", made_run_info())
    writer.add_level(made_level_info(records), records, steps=steps)
    writer.finish("complete", None, None)
    write_report([tmp_path / "run"], tmp_path / "report.html")
    opened(browser, tmp_path / "report.html", 390)
    titles = browser.evaluate(
        "[...document.querySelectorAll('#time-charts .axis-title')].map(n => n.textContent)"
    )
    assert len(titles) == (3 if known else 4)
    browser.evaluate("document.querySelectorAll('#time-charts .plot svg')[2].focus()")
    label = "document.activeElement.getAttribute('aria-label')"
    if known:
        assert titles[2].endswith("memory (solid line), math (dashed line), host (dash-dotted line)")
        assert browser.evaluate(label).endswith("memory 50.0 %\nmath 25.0 %\nhost 1.0 %")
    else:
        assert browser.evaluate(label).endswith("FLOP/s 15T")
    browser.press("End")
    assert browser.evaluate(label).endswith("–")
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    assert browser.problems == []


def test_everything_is_reached_by_tab(browser: Browser, page: Path) -> None:
    opened(browser, page, 390)
    seen = set()
    for _ in range(60):
        browser.press("Tab")
        seen.add(
            browser.evaluate(
                "(({ activeElement: a }) => a.id || a.getAttribute('class') || a.tagName)(document)"
            )
        )
    assert {
        "x-axis",
        "y-axis",
        "matched-x",
        "ratio-of",
        "ratio-to",
        "run",
        "level",
        "find",
        "session",
        "zoom",
    } <= seen
    assert {"scroll", "request"} <= seen and any(name.startswith("point") for name in seen)


def test_printing(browser: Browser, page: Path) -> None:
    opened(browser, page, dark=True)
    pdf = browser.pdf()
    assert pdf.startswith(b"%PDF-") and len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 4
    # Streams decompress: the file is whole and holds more than empty pages.
    streams = re.findall(rb"stream\r?\n(.*?)endstream", pdf, re.S)
    assert sum(len(zlib.decompressobj().decompress(part)) for part in streams if part[:1] == b"x") > 50_000
    browser.send(
        "Emulation.setEmulatedMedia",
        media="print",
        features=[{"name": "prefers-color-scheme", "value": "dark"}],
    )
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.send("Emulation.setEmulatedMedia", media="")


def test_odd_runs_open_without_complaint(browser: Browser, tmp_path: Path) -> None:
    made_archive(tmp_path / "died", {}, status="running")
    made_archive(tmp_path / "failed", {1: [failed_record()], 2: []}, status="server_lost")
    made_archive(tmp_path / "one", {1: [made_record()]})
    writer = ArchiveWriter(tmp_path / "reported", made_run_info(source="inferencex"))
    reported = {"inter_token_latency_p90": 0.1, "total_token_throughput_per_accelerator": 123.0}
    writer.add_level(made_level_info([], reported=reported, concurrency=16), [])
    writer.finish("complete", None, "2026-01-01T00:00:00+00:00")
    names = ("died", "failed", "one", "reported")
    for chosen in (*((name,) for name in names), names):
        write_report([tmp_path / name for name in chosen], tmp_path / "report.html")
        browser.open(tmp_path / "report.html", 390)
        if chosen != ("died",):
            browser.wait_for("document.getElementById('session-words').textContent !== ''")
        assert browser.problems == []
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
        assert "NaN" not in browser.evaluate("document.querySelector('main').innerHTML")
    assert browser.evaluate("document.querySelectorAll('.point.hollow').length") == 1


def test_a_run_of_100000_requests_opens_fast(browser: Browser, tmp_path: Path) -> None:
    from benchmarks.report_open import measure

    found = measure(tmp_path, 100_000)
    print(found)
    assert found["MB of page"] < 15
    assert found["seconds to the load event"] < 3
    assert found["seconds to the first chart"] < 3
    assert found["seconds to the swim lanes"] < 10
