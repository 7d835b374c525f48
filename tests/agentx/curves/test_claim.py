"""Claims: the shipped one by arithmetic, and contradictions made on purpose."""

import json

import pytest
from typer.testing import CliRunner

from flashpoint.agentx.curves.claim import check_claim, load_claim, parse_amount
from flashpoint.cli import app
from flashpoint.errors import InvalidValue


def texts(claim, kind):
    return [s for s in check_claim(claim) if s.kind == kind]


def test_the_vera_rubin_sentence():
    claim = load_claim("vera-rubin-58x")
    follows = {s.text: s.value for s in texts(claim, "follows")}

    def value(part):
        (found,) = [v for text, v in follows.items() if part in text]
        return found

    assert value("GB300 NVL72 at 387 must be 29.3K") == pytest.approx(1.7e6 / 58)
    assert value("Vera Rubin NVL72, 1.7M at 387: load") == pytest.approx(1.7e6 / 387)
    assert value("GB300 NVL72, 954K at 196: about 33 requests") == pytest.approx(33.1, abs=0.1)
    assert value("Vera Rubin NVL72, 1.7M at 387: about 30 requests") == pytest.approx(29.8, abs=0.1)
    assert value("29.3K at 387: about 0.51 requests") == pytest.approx(0.514, abs=0.01)
    assert value("one session alone: 2.19x") == pytest.approx(1810 / 826)
    assert value("differ by 0.902x in load: 1.78x the throughput at 1.97x") == pytest.approx(
        (1.7e6 / 387) / (954e3 / 196)
    )
    assert value("would fall from 954K at 196") == pytest.approx(954e3 / (1.7e6 / 58))
    (wrong,) = texts(claim, "inconsistent")
    assert "at most 2.64x, not 2.7x" in wrong.text
    assert len(texts(claim, "missing")) >= 12


@pytest.mark.parametrize(
    ("text", "value", "rounding"),
    [
        ("1.7M", 1.7e6, 5e4),
        ("954K", 954e3, 500),
        ("58", 58, 0.5),
        ("2.52M", 2.52e6, 5e3),
        ("1,810", 1810, 0.5),
    ],
)
def test_amounts_know_their_rounding(text, value, rounding):
    amount = parse_amount(text)
    assert (amount.value, amount.rounding) == (pytest.approx(value), pytest.approx(rounding))


@pytest.mark.parametrize("text", ["", "fast", "-3", "0", 58, "1.7 million", "9" * 400, None])
def test_what_is_no_amount(text):
    with pytest.raises(ValueError, match="an amount"):
        parse_amount(text)


def claim_file(tmp_path, **changes):
    point = {"p90_interactivity": "100", "total_per_accelerator": "500K", "source": "made"}
    slow = {"p90_interactivity": "50", "total_per_accelerator": "900K", "source": "made"}
    data = {
        "format": "flashpoint-claim", "format_version": 1, "sentence": "A beats B",
        "systems": [
            {"name": "A", "points": [point, slow]},
            {"name": "B", "points": [point | {"total_per_accelerator": "100K"}]},
        ],
        "ratios": [{"a": "A", "b": "B", "at": "100", "ratio": "5", "source": "made"}],
    }  # fmt: skip
    path = tmp_path / "claim.json"
    path.write_text(json.dumps(data | changes))
    return str(path)


def test_a_claim_that_holds_together(tmp_path):
    assert not texts(load_claim(claim_file(tmp_path)), "inconsistent")


def test_contradictions_are_found(tmp_path):
    def wrong(**changes):
        return [s.text for s in texts(load_claim(claim_file(tmp_path, **changes)), "inconsistent")]

    ratio = {"a": "A", "b": "B", "at": "100", "ratio": "7", "source": "made"}
    assert any("the ratio there is 5x, not 7x" in text for text in wrong(ratios=[ratio]))
    point = {"p90_interactivity": "100", "total_per_accelerator": "500K", "source": "made"}
    rising = [point, {"p90_interactivity": "50", "total_per_accelerator": "100K", "source": "made"}]
    assert any("dominated" in text for text in wrong(systems=[{"name": "A", "points": rising}], ratios=[]))
    single = {"tokens_per_second": "80", "source": "made"}
    assert any(
        "alone is slower" in text
        for text in wrong(systems=[{"name": "A", "points": [point], "single_session": single}], ratios=[])
    )
    peak = {"total_per_accelerator": "400K", "source": "made"}
    assert any(
        "the peak 400K is below" in text
        for text in wrong(systems=[{"name": "A", "points": [point], "peak": peak}], ratios=[])
    )
    other = {
        "name": "B",
        "points": [{"p90_interactivity": "60", "total_per_accelerator": "50K", "source": "made"}],
    }
    assert any(
        "does not lie on a falling curve" in text
        for text in wrong(systems=[{"name": "A", "points": [point]}, other])
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"systems": []}, "systems"),
        ({"surprise": 1}, "surprise"),
        ({"ratios": [{"a": "A", "b": "C", "at": "1", "ratio": "2", "source": "x"}]}, "ratios.0.b"),
        ({"ratios": [{"a": "A", "b": "A", "at": "1", "ratio": "2", "source": "x"}]}, "another system"),
        ({"stated": {"colour": "red"}}, "stated"),
        ({"systems": [{"name": "A"}, {"name": "A"}], "ratios": []}, "every system once"),
    ],
)
def test_bad_claims(tmp_path, changes, message):
    with pytest.raises(InvalidValue, match=message):
        load_claim(claim_file(tmp_path, **changes))


def test_the_command():
    shown = CliRunner().invoke(app, ["claim", "vera-rubin-58x"])
    assert shown.exit_code == 0 and "what is inconsistent:" in shown.output and "29.3K" in shown.output
    data = json.loads(CliRunner().invoke(app, ["claim", "vera-rubin-58x", "--json"]).output)
    assert data["consistent"] is False and data["statements"]
