"""`simulate`, `plan`, `validate` and `hardware` as a user calls them."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import pairwise

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from flashpoint.agentx.archive import read_archive
from flashpoint.agentx.replay_config import LoadConfig
from flashpoint.agentx.step_rows import LIMITS
from flashpoint.cli import app
from flashpoint.errors import InvalidValue
from flashpoint.hardware.cost import Limits
from flashpoint.hardware.machine import load_machine, write_machine
from flashpoint.models.deepseek_v41.init import init_checkpoint
from flashpoint.simulate.config import DeploymentConfig, PlanConfig
from flashpoint.simulate.plan import Target, best, pareto
from flashpoint.simulate.published import choose, load_fits, load_points
from flashpoint.simulate.run import run_simulation
from flashpoint.simulate.run_plan import within_budget
from flashpoint.simulate.validate import between, with_numbers
from tests.simulate.made_outcomes import made_outcome, made_planned


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.json"
    call("sessions", "generate", "--sessions", "6", "--seed", "2", "--scale", "1/16", "--out", str(path))
    return path


def call(*arguments, code=0):
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == code, done.output
    return done.output


def simulate(corpus, out, *options):
    quick = ["--concurrency", "2,4", "--duration", "60", "--warmup-requests", "1", "--layout", "TP4"]
    return call("simulate", "--corpus", str(corpus), "--out", str(out), *quick, *options)


def test_a_simulation_is_an_archive_like_any(corpus, tmp_path):
    simulate(corpus, tmp_path / "run", "--token-times")
    archive = read_archive(tmp_path / "run")
    assert archive.run.accelerators == 4
    assert archive.run.server.url == "virtual GB300 NVL72"
    machine = archive.run.config["machine"]
    assert machine["numbers"]["fp8"]["source"]
    assert [level.concurrency for level in archive.run.levels] == [2, 4]
    steps = pq.read_table(tmp_path / "run" / "steps.parquet")
    assert max(steps["steps"].to_pylist()) > 5
    out = tmp_path / "report.html"
    call("report", str(tmp_path / "run"), "-o", str(out))
    assert "virtual GB300 NVL72" in out.read_text()
    rows = json.loads(call("query", str(tmp_path / "run"), "select count(*) n from requests", "--json"))
    assert rows[0]["n"] == len(archive.records)


@pytest.mark.parametrize("layout", [["--layout", "TP4"], ["--layout", "DEP8", "--skew", "1.2"]])
def test_no_step_beats_the_machine(corpus, tmp_path, layout):
    simulate(corpus, tmp_path / "run", *layout)
    steps = read_archive(tmp_path / "run").steps().to_pylist()
    for row in steps:
        assert row["flops"] > 0 and row["memory_bytes"] > 0 and row["kernels"] > 0
        assert all(0 <= row[f"{limit}_share"] < 1 for limit in LIMITS)
        assert row["memory_share"] > 0 and row["link_share"] > 0


def test_a_real_run_says_what_its_steps_asked_of_the_machine(tmp_path):
    init_checkpoint("nano", tmp_path / "nano")
    corpus = tmp_path / "corpus.json"
    call("sessions", "generate", "--sessions", "2", "--seed", "2", "--scale", "1/256", "--out", str(corpus))
    machine = with_numbers(load_machine("h100"), {"memory_bandwidth": 2e10, "fp32": 5e11})
    write_machine(machine, tmp_path / "cpu.json")
    options = [
        str(tmp_path / "nano"), "--corpus", str(corpus), "--duration", "3", "--warmup-requests", "0",
        "--threads", "1", "--concurrency", "2",
    ]  # fmt: skip
    known, plain = tmp_path / "known", tmp_path / "plain"
    call("replay-engine", *options, "--out", str(known), "--hardware", str(tmp_path / "cpu.json"))
    call("replay-engine", *options, "--out", str(plain))
    assert read_archive(known).run.config["machine"]["name"] == machine.name
    for row in read_archive(known).steps().to_pylist():
        assert row["math_share"] == pytest.approx(row["flops"] / 5e11 / row["seconds"])
        assert row["memory_share"] == pytest.approx(row["memory_bytes"] / 2e10 / row["seconds"])
        assert row["flops"] == row["flops_fp32"] > 0 and row["link_bytes"] == 0
    for row in read_archive(plain).steps().to_pylist():
        assert row["flops"] > 0 and row["math_share"] is None
    call("report", str(known), str(plain), "-o", str(tmp_path / "report.html"))
    assert f"peak of {machine.name}" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("number", ["memory_bandwidth", "host_bandwidth"])
def test_a_machine_that_moves_nothing_is_refused(number):
    machine = with_numbers(load_machine("h100"), {number: 0.0})
    with pytest.raises(InvalidValue, match=rf"{number}: got 0\.0; expected bytes/s, above 0"):
        Limits(machine)


def test_the_same_options_are_the_same_run_to_the_bit(corpus, tmp_path):
    for name in ("a", "b"):
        simulate(corpus, tmp_path / name, "--acceptance-rule", "sampled")
    tables = [pq.read_table(tmp_path / name / "requests.parquet") for name in ("a", "b")]
    assert tables[0].equals(tables[1])
    assert pq.read_table(tmp_path / "a" / "steps.parquet").equals(
        pq.read_table(tmp_path / "b" / "steps.parquet")
    )


@pytest.mark.parametrize(
    ("load", "deployment", "said"),
    [
        ({"accelerators": 3}, {}, "accelerators"),
        ({}, {"layout": "DEP5"}, "divides 384"),
        ({}, {"hardware": "gb999"}, "hardware"),
        ({}, {"cache_tokens": 10}, "cache_tokens"),
        ({}, {"cache_tokens": 10**11}, "all that fits"),
        ({}, {"acceptance": Fraction(9)}, "acceptance"),
    ],
)
def test_bad_options_leave_nothing_behind(corpus, tmp_path, load, deployment, said):
    with pytest.raises(InvalidValue, match=said):
        run_simulation(
            LoadConfig(corpus=corpus, out=tmp_path / "run", duration=1.0, **load),
            DeploymentConfig(**{"layout": "TP4", **deployment}),
        )
    assert not (tmp_path / "run").exists()


def test_progress_is_told_in_the_units_of_levels(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("flashpoint.agentx.progress.EVENT_EVERY_SECONDS", 0.0)
    printed = simulate(corpus, tmp_path / "run", "--json")
    events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert any(e["event"] == "warmup" for e in events)
    for lanes in (2, 4):
        of_level = [e for e in events if e.get("concurrency") == lanes]
        told = [e for e in of_level if e["event"] == "progress"]
        assert all(a["measured_seconds"] <= b["measured_seconds"] for a, b in pairwise(told))
        (ended,) = (e for e in of_level if e["event"] == "level_ended")
        assert told[-1]["tokens_per_s"] == pytest.approx(ended["tokens_per_s"], rel=0.1)
        assert told[-1]["interactivity_p90"] == pytest.approx(ended["interactivity_p90"], rel=0.1)


def test_json_is_a_stream_of_events(corpus, tmp_path):
    printed = simulate(corpus, tmp_path / "run", "--json")
    events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert [e["event"] for e in events if e["event"] not in ("warmup", "progress", "note")] == [
        "level_started", "level_ended", "level_started", "level_ended", "result",
    ]  # fmt: skip
    ended = [e for e in events if e["event"] == "level_ended"]
    assert [e["concurrency"] for e in ended] == [2, 4]
    assert [e["tokens_per_s"] for e in ended] == [x["total_throughput"] for x in events[-1]["levels"]]


def test_a_plan(corpus):
    options = ["--corpus", str(corpus), "--accelerators", "2", "--duration", "20", "--max-sessions", "4"]
    result = json.loads(call("plan", *options, "--json").splitlines()[-1])
    speeds = [point["interactivity_p90"] for point in result["pareto"]]
    totals = [point["total"] for point in result["pareto"]]
    assert speeds == sorted(speeds, reverse=True) and totals == sorted(totals)
    assert result["best"]["total"] == max(totals)
    assert {point["deployment"] for point in result["pareto"]} <= {"TP2", "DEP2"}
    assert result["event"] == "result"
    assert all(0 < point["limit_share"] < 1 for point in result["pareto"])
    call("plan", *options, "--interactivity", "100000", code=1)


def test_a_budget_buys_what_it_pays_for(tmp_path):
    plan = PlanConfig(corpus=tmp_path, accelerators=8, kilowatts=10.0)
    assert within_budget(plan, watts=2120, price=2.31) == 4
    assert within_budget(PlanConfig(corpus=tmp_path, accelerators=8, dollars=7.0), 2120, 2.31) == 3
    with pytest.raises(InvalidValue, match="kilowatts"):
        within_budget(PlanConfig(corpus=tmp_path, accelerators=8, kilowatts=1.0), 2120, 2.31)


def test_the_pareto_set_and_the_best():
    found = [made_planned(total, speed) for total, speed in [(10, 5), (8, 9), (7, 8), (12, 3), (9, 5)]]
    assert [(p.outcome.total, p.outcome.interactivity_p90) for p in pareto(found)] == [
        (8, 9),
        (10, 5),
        (12, 3),
    ]
    assert best(found, Target(interactivity=4)).outcome.total == 10
    assert best(found, Target(interactivity=50)) is None
    assert pareto(pareto(found)) == pareto(found)


def test_throughput_between_two_levels():
    fast, slow = made_outcome(100.0, 200.0), made_outcome(300.0, 100.0)
    assert between(fast, slow, 150.0) == pytest.approx(200.0)
    assert between(fast, slow, 200.0) == 100.0


def test_published_points_are_whole():
    points = load_points()
    assert len({point.id for point in points}) == len(points)
    assert {point.use for point in points} == {"fit", "check", "check-immature", "headline"}
    for point in points:
        assert point.source and point.configs()
        assert any(value is not None for value in point.published.model_dump().values())
    # What was fitted was fitted on points marked so, and on nothing else.
    uses = {point.id: point.use for point in points}
    for fit in load_fits().values():
        assert {uses[name] for name in fit.points} == {"fit"}
    with pytest.raises(InvalidValue, match="points"):
        choose(points, ("fit",), "no such point")


def test_validation_of_one_point(corpus):
    rows = json.loads(
        call(
            "validate", "--uses", "check", "--points", "vllm-2026-09-15-c2", "--corpus", str(corpus),
            "--duration", "30", "--json",
        ).splitlines()[-1]
    )  # fmt: skip
    assert {row["figure"] for row in rows} == {"total", "output", "interactivity_mean", "ttft_mean"}
    assert all(row["ratio"] > 0 and row["source"] for row in rows)


def test_machines_are_listed_and_shown():
    machines = json.loads(call("hardware", "list", "--json"))
    assert "gb300-nvl72" in machines
    shown = json.loads(call("hardware", "show", "gb300-nvl72", "--json"))
    assert shown == machines["gb300-nvl72"]
    assert "284,208 MiB" in call("hardware", "show", "gb300-nvl72")
