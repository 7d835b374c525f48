"""Comparisons: of curve files and of archives."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from flashpoint.agentx.curves.bootstrap import level_intervals
from flashpoint.agentx.curves.compare import compare
from flashpoint.agentx.curves.compare_config import CompareConfig
from flashpoint.agentx.curves.curve import Curve, Point, load_curve
from flashpoint.agentx.metrics import interactivity
from flashpoint.cli import app
from flashpoint.errors import InvalidValue
from tests.agentx.made_records import made_archive, made_record


def curve(name, *points, **fields):
    return Curve(name, tuple(Point("made", y, {"p90": x}, **fields) for x, y in points))


FAST = curve("fast", (50, 1000), (100, 800), (200, 400), (400, 100))
SLOW = curve("slow", (40, 500), (100, 300), (210, 40))


@st.composite
def curves(draw):
    xs = sorted(draw(st.lists(st.integers(10, 400), min_size=2, max_size=8, unique=True)))
    ys = sorted(draw(st.lists(st.integers(1, 10_000), min_size=len(xs), max_size=len(xs), unique=True)))
    return curve("c", *zip(map(float, xs), map(float, reversed(ys)), strict=True))


@given(curves(), curves(), st.floats(10, 400))
def test_the_ratio_and_its_inverse(a, b, at):
    there, back = (compare(p, q, CompareConfig(at=at)) for p, q in ((a, b), (b, a)))
    if there.ratio is None:
        assert back.ratio is None and there.reasons and back.reasons
    else:
        assert there.ratio * back.ratio == pytest.approx(1)
        low, high = there.holds
        assert low <= at <= high
    if there.at_peak:
        assert there.at_peak * back.at_peak == pytest.approx(1)


def test_at_a_knot():
    found = compare(FAST, SLOW, CompareConfig(at=100))
    assert found.ratio == pytest.approx(800 / 300)
    assert found.at_peak == 2
    assert found.a.reading.where == found.b.reading.where == "knot"
    assert found.a.load == 8
    # SLOW has a load of 8 at 40 < x < 100; its throughput there is 8 x.
    x = next(x for x in np.arange(40, 100, 0.001) if SLOW.interpolation("p90").read(x).value <= 8 * x)
    assert found.at_equal_load == pytest.approx(800 / (8 * x), rel=1e-3)


def test_a_ratio_exists_only_where_both_were_measured():
    beyond = compare(FAST, SLOW, CompareConfig(at=300))
    assert beyond.ratio is None and beyond.holds is None
    assert beyond.reasons == (
        "B (slow) was not measured at this speed: faster than its fastest point (210): not reached",
    )
    below = compare(FAST, SLOW, CompareConfig(at=45))
    assert below.ratio is None and "A (fast) was not measured" in below.reasons[0]
    assert below.a.reading.value == 1000  # the nearest end is shown, marked
    assert any("no ratio is" in note for note in below.a.notes)


def test_gaps_and_ends_are_named():
    found = compare(FAST, SLOW, CompareConfig(at=205))
    assert any("interpolated across a gap: knots at 200 and 400" in note for note in found.a.notes)
    assert any("last stretch" in note for note in found.b.notes)
    end = compare(FAST, SLOW, CompareConfig(at=210))
    assert any("at its fast end" in note for note in end.b.notes)


def test_prices_are_applied_to_the_interpolated_throughput():
    plain = compare(FAST, SLOW, CompareConfig(at=100))
    paid = compare(FAST, SLOW, CompareConfig(at=100, per_dollar=True, dollars_a=6, dollars_b=3))
    watt = compare(FAST, SLOW, CompareConfig(at=100, per_watt=True, kw_a=3.3, kw_b=2.2))
    assert paid.ratio == pytest.approx(plain.ratio / 2)
    assert watt.ratio == pytest.approx(plain.ratio / 1.5)


def test_at_a_throughput():
    found = compare(FAST, SLOW, CompareConfig(at_throughput=300))
    speed = found.ratio * 100
    assert FAST.interpolation("p90").read(speed).value == pytest.approx(300)
    assert compare(FAST, SLOW, CompareConfig(at_throughput=900)).ratio is None


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "at, at_throughput"),
        ({"at": 1, "at_throughput": 1}, "at, at_throughput"),
        ({"at": -1}, "at"),
        ({"at": 1, "per_dollar": True, "dollars_a": 3}, "dollars_a, dollars_b"),
        ({"at": 1, "per_watt": True}, "kw_a, kw_b"),
        ({"at": 1, "per_watt": True, "per_dollar": True}, "per_dollar, per_watt"),
        ({"at": 1, "dollars_a": 3}, "dollars_a"),
        ({"at_throughput": 1, "per_watt": True, "kw_a": 3, "kw_b": 2}, "at_throughput"),
    ],
)
def test_bad_options(values, field):
    with pytest.raises(InvalidValue) as caught:
        CompareConfig(**values)
    assert caught.value.field == field


def level(latency, tokens, count=40, seed=0):
    """Requests of 20 sessions at about `latency` seconds per token."""
    rng = np.random.default_rng(seed)
    records = []
    for i in range(count):
        gap = latency * rng.uniform(0.8, 1.2)
        arrivals = tuple(0.2 + gap * k for k in range(10))
        records.append(
            made_record(
                i * 0.5, arrivals, session=f"s{i % 20}", prompt_tokens=tokens, cached_tokens=tokens // 2
            )
        )
    return records


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    folder = tmp_path_factory.mktemp("archives")
    a = made_archive(
        folder / "a", {1: level(0.005, 1000), 4: level(0.01, 4000, 80), 8: level(0.02, 5000, 160)}
    )
    b = made_archive(
        folder / "b",
        {1: level(0.006, 800, 40, 1), 4: level(0.013, 2000, 80, 1), 8: level(0.03, 2500, 160, 1)},
    )
    return a, b


def test_archives_have_intervals(archives):
    a, b = archives
    found = compare(load_curve(str(a.path)), load_curve(str(b.path)), CompareConfig(at=80))
    spread = found.ratio_interval
    assert found.ratio and spread
    assert spread.low < found.ratio < spread.high and spread.resamples > 150
    assert found.uncached_ratio and found.output_ratio
    assert found.a.hit_share == pytest.approx(0.5, abs=0.01)


def test_more_sessions_narrow_the_interval():
    widths = []
    for count in (40, 640):
        records = level(0.01, 1000, count)
        for i, record in enumerate(records):
            object.__setattr__(record, "session", f"s{i}")
        spread = level_intervals(records, 1)["interactivity_p90"]
        speed = interactivity(records, 90)
        assert speed and spread.low <= speed <= spread.high
        widths.append((spread.high - spread.low) / speed)
    assert widths[1] < widths[0]


def test_the_command(archives):
    a, b = archives
    shown = CliRunner().invoke(app, ["compare", str(a.path), str(b.path), "--at", "80"])
    assert shown.exit_code == 0, shown.output
    for text in (
        "A / B = ",
        "resamples of sessions",
        "of it uncached prompt",
        "at the peak",
        "stays within 2x",
    ):
        assert text in shown.output
    as_json = json.loads(
        CliRunner().invoke(app, ["compare", str(a.path), str(b.path), "--at", "80", "--json"]).output
    )
    assert as_json["ratio"] > 1 and as_json["a"]["reading"]["where"] == "interpolated"
    missing = CliRunner().invoke(app, ["compare", str(a.path), str(b.path), "--at", "5000"])
    assert missing.exit_code == 1 and "no ratio at 5000" in missing.output


def test_curve_files(tmp_path):
    file = tmp_path / "c.json"
    data = {"format": "flashpoint-curve", "format_version": 1, "name": "published", "points": [
        {"p90_interactivity": 155, "total_per_accelerator": 144000, "source": "post of 2026-10-07"},
        {"p90_interactivity": 196, "total_per_accelerator": 954000, "source": "news"},
    ]}  # fmt: skip
    file.write_text(json.dumps(data))
    loaded = load_curve(str(file))
    assert [p.total for p in loaded.knots("p90")] == [954000]  # the older point is dominated
    found = compare(loaded, loaded, CompareConfig(at=196))
    assert found.ratio == 1 and found.ratio_interval is None
    for change, message in (
        ({"points": []}, "points"),
        ({"extra": 1}, "extra"),
        (
            {"points": [{"p90_interactivity": -1, "total_per_accelerator": 1, "source": "x"}]},
            "p90_interactivity",
        ),
    ):
        file.write_text(json.dumps(data | change))
        with pytest.raises(InvalidValue, match=message):
            load_curve(str(file))
