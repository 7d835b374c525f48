"""The statistics of traces, on traces small enough to count by hand and on those with published figures."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from flashpoint.agentx.traces.corpus import open_corpus
from flashpoint.agentx.traces.format import Call, SubAgent, Trace
from flashpoint.agentx.traces.recipe import Recipe, generate_session
from flashpoint.agentx.traces.statistics import corpus_statistics, distribution
from flashpoint.cli import app

SMOKE = Path(__file__).parent.parent / "data" / "smoke"
SHARED = Path("/work/shared/traces")


def call(t, ids, *, out=10, took=1.0, tail=0):
    blocks = np.array(ids, dtype=np.int64)
    return Call(t, "m", 64 * len(blocks) + tail, out, blocks, api_time=took)


def by_hand():
    """Three root calls and a sub-agent of two between the second and the third."""
    agent = SubAgent(5.0, "a", (call(5.0, [1, 2, 30]), call(8.0, [1, 2, 30, 31], took=2.0)), duration=5.0)
    return Trace(
        "t",
        (call(0.0, [1, 2, 3]), call(4.0, [1, 2, 3, 4], out=0), agent, call(11.5, [1, 2, 3, 4, 30], tail=7)),
    )


def test_a_trace_counted_by_hand():
    found = corpus_statistics([by_hand()])
    assert (found.sessions, found.requests, found.root_requests) == (1, 5, 3)
    assert (found.input_tokens, found.output_tokens) == (64 * 19 + 7, 40)
    assert (found.sessions_with_subagents, found.subagent_groups) == (1, 1)
    shapes = found.distributions
    # 0-1, then 4-5, then 11.5: waits of 3 and 6.5 s; in the sub-agent 5-6, then 8: 2 s.
    assert shapes["think time, s"].count == 3
    assert shapes["think time, s"].mean == pytest.approx((3 + 6.5 + 2) / 3)
    assert shapes["group duration, s"].percentiles[50] == 5.0
    for name, value in {
        "turns per session": 3,
        "entries per session": 4,
        "requests per session": 5,
        "groups per session with sub-agents": 1,
        "calls per group": 2,
    }.items():
        assert (shapes[name].count, shapes[name].mean) == (1, value)


def test_only_leading_blocks_seen_before_are_hits():
    # In order of start: 0 of 3; 3 of 4; 2 of 3; 3 of 4; then 4 and, as 30 was in the sub-agent's, 5 of 5.
    found = corpus_statistics([by_hand()])
    assert (found.theoretical_hit_blocks, found.theoretical_blocks) == (0 + 3 + 2 + 3 + 5, 19)
    # A known block behind an unknown one is no hit, and sessions share nothing.
    gap = Trace("g", (call(0.0, [1, 2, 3]), call(2.0, [1, 9, 3])))
    found = corpus_statistics([gap, gap])
    assert (found.theoretical_hit_blocks, found.theoretical_blocks) == (2, 12)


def test_the_order_of_starts_counts_not_that_of_entries():
    agent = SubAgent(1.5, "a", (call(1.5, [1, 2]), call(9.0, [1, 2, 7, 8])))
    trace = Trace("t", (call(0.0, [1]), agent, call(4.0, [1, 2, 7, 8, 9])))
    found = corpus_statistics([trace])
    # 0; 1 of 2; the root's at 4 s knows 1 and 2; the sub-agent's at 9 s knows all four.
    assert (found.theoretical_hit_blocks, found.theoretical_blocks) == (0 + 1 + 2 + 4, 12)


def test_ids_of_any_size_are_compared():
    low, high = -(2**63), 2**63 - 1
    found = corpus_statistics([Trace("t", (call(0.0, [low, high]), call(2.0, [low, high, 0])))])
    assert (found.theoretical_hit_blocks, found.theoretical_blocks) == (2, 5)


def test_percentiles_interpolate_between_order_statistics():
    shape = distribution([10, 0, 20, 30])
    assert (shape.count, shape.mean, shape.minimum, shape.maximum) == (4, 15.0, 0.0, 30.0)
    assert shape.percentiles[50] == 15.0
    assert shape.percentiles[90] == pytest.approx(27.0)
    assert distribution([]) is None


def test_nothing_is_none_and_not_zero():
    found = corpus_statistics([Trace("t", (call(0.0, []),))])
    assert found.theoretical_hit is None
    assert found.distributions["calls per group"] is None
    assert found.distributions["think time, s"] is None
    assert found.as_json()["distributions"]["group duration, s"] is None


def test_traces_are_held_one_at_a_time():
    alive = 0

    class Counted(Trace):
        def __del__(self):
            nonlocal alive
            alive -= 1

    def traces():
        nonlocal alive
        for number in range(5):
            made = generate_session(Recipe(max_turns=5), number)
            alive += 1
            trace = Counted(made.id, made.entries)
            del made
            yield trace
            del trace
            assert alive <= 1

    assert corpus_statistics(traces()).sessions == 5


# The project's own traces as its notes describe them (agentx-official-harness.md section 10).
def check_table(folder, sessions, calls, p50, p90, most, output, with_agents, hit):
    found = corpus_statistics(open_corpus(folder))
    lengths = found.distributions["input tokens"]
    assert (found.sessions, found.requests, found.sessions_with_subagents) == (sessions, calls, with_agents)
    assert (lengths.percentiles[50], lengths.percentiles[90]) == pytest.approx((p50, p90), rel=0.01)
    assert lengths.maximum == pytest.approx(most, rel=0.01)
    assert found.distributions["output tokens"].percentiles[50] == output
    assert found.theoretical_hit == pytest.approx(hit, abs=0.0005)


def test_the_smoke_traces():
    check_table(SMOKE, 4, 90, 3_120, 5_175, 6_796, 24, 4, 0.902)
    groups = corpus_statistics(open_corpus(SMOKE)).distributions["groups per session with sub-agents"]
    assert (groups.minimum, groups.maximum) == (2, 2)


@pytest.mark.skipif(not (SHARED / "scaled16").is_dir(), reason="the shared traces are not on this machine")
def test_the_scaled_traces():
    check_table(SHARED / "scaled16", 16, 1_066, 5_120, 12_544, 23_232, 29, 6, 0.961)


def test_the_command_prints_the_same_figures():
    expected = corpus_statistics(open_corpus(SMOKE))
    as_json = CliRunner().invoke(app, ["sessions", "stats", str(SMOKE), "--json"])
    assert json.loads(as_json.stdout) == expected.as_json()
    table = CliRunner().invoke(app, ["sessions", "stats", str(SMOKE)]).stdout
    assert "theoretical prefix hit 90.24%: 4,107 of 4,551 blocks" in table
    assert "4 of 4 sessions (100.0%) have sub-agents, in 8 groups" in table
