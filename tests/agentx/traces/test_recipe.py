"""Synthetic sessions: always the same, like the published corpus, of one shape at every scale."""

import hashlib
import itertools
import json
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.agentx.traces.draws import Draws
from flashpoint.agentx.traces.format import SubAgent, parse_trace, trace_json
from flashpoint.agentx.traces.recipe import Recipe, generate_session
from flashpoint.agentx.traces.statistics import corpus_statistics
from flashpoint.agentx.traces.streams import build_session

SMALL = Recipe(sessions=6, seed=7, scale=Fraction(1, 64), max_turns=60)

recipes = st.builds(
    Recipe,
    sessions=st.just(1000),
    seed=st.integers(0, 2**63 - 1),
    scale=st.fractions(Fraction(1, 2000), 1, max_denominator=2000),
    max_turns=st.integers(1, 50),
)
numbers = st.integers(0, 999)


def all_sessions(recipe):
    return (generate_session(recipe, number) for number in range(recipe.sessions))


def streams(trace):
    """The calls of the session itself, then those of each sub-agent."""
    return [trace.root_calls, *(agent.calls for agent in trace.subagents)]


@pytest.fixture(scope="module")
def published_size():
    """Statistics of a corpus of the published one's size, at full length."""
    return corpus_statistics(all_sessions(Recipe(sessions=393, seed=0)))


def test_sessions_are_the_same_on_every_machine():
    """Golden. A change of these is another corpus, so it needs another format version of corpus files."""
    digests = [hashlib.sha256(trace_json(trace)).hexdigest()[:16] for trace in all_sessions(SMALL)]
    assert digests == [
        "8b8a9ba46791c195",
        "1f43784da122ac91",
        "ea46bd45cc7226a7",
        "ecd84288ef075b4b",
        "fab35d4f4de07131",
        "23e632cec151a1f6",
    ]


def test_the_numbers_under_the_sessions():
    """PCG64 seeded by a SeedSequence, as numpy promises to keep them; the rest is arithmetic."""
    raw = np.random.PCG64(np.random.SeedSequence([7, 3])).random_raw(2).tolist()
    draws = Draws(7, 3)
    assert [draws.uniform(), draws.uniform()] == [((bits >> 12) + 0.5) / 2**52 for bits in raw]


def test_draws_have_the_distributions_they_say():
    draws = Draws(1)
    uniform = np.array([draws.uniform() for _ in range(20_000)])
    normal = np.log([draws.lognormal(10.0, 2.0) / 10.0 for _ in range(20_000)]) / 2.0
    whole = np.bincount([draws.integer(2, 5) for _ in range(20_000)], minlength=6)
    assert np.percentile(uniform, [10, 50, 90]) == pytest.approx([0.1, 0.5, 0.9], abs=0.012)
    assert np.percentile(normal, [2.3, 15.9, 50, 84.1, 97.7]) == pytest.approx([-2, -1, 0, 1, 2], abs=0.08)
    assert whole[[0, 1, 5]].sum() == 0
    assert whole[2:5] / 20_000 == pytest.approx([1 / 3] * 3, abs=0.015)


def test_a_session_needs_no_other():
    alone = trace_json(generate_session(SMALL, 5))
    assert alone == trace_json(list(all_sessions(SMALL))[5])
    more = Recipe(sessions=5000, seed=7, scale=Fraction(1, 64), max_turns=60)
    assert alone == trace_json(generate_session(more, 5))


def test_seeds_and_numbers_make_other_sessions():
    texts = {
        trace_json(generate_session(Recipe(seed=seed), n))[40:4000] for seed in (0, 1, 2) for n in (0, 1, 2)
    }
    assert len(texts) == 9


# Published figures of the 393 sessions (agentx.md section 8); the widths are the sampling error of as many.
@pytest.mark.parametrize(
    ("name", "figure", "published", "tolerance"),
    [
        ("input tokens", 50, 142_016, 0.15),
        ("input tokens", 90, 549_504, 0.15),
        ("output tokens", 50, 444, 0.10),
        ("turns per session", 50, 43, 0.15),
        ("groups per session with sub-agents", 50, 4, 0.26),
        ("calls per group", 50, 16, 0.15),
        ("think time, s", 50, 2.3, 0.15),
        ("group duration, s", 95, 18.5 * 60, 0.15),
    ],
)
def test_percentiles_are_those_of_the_published_corpus(published_size, name, figure, published, tolerance):
    found = published_size.distributions[name].percentiles[figure]
    assert found == pytest.approx(published, rel=tolerance)


def test_totals_are_those_of_the_published_corpus(published_size):
    found = published_size
    assert found.sessions_with_subagents / found.sessions == pytest.approx(0.445, abs=0.08)
    assert found.distributions["groups per session with sub-agents"].mean == pytest.approx(9.7, rel=0.25)
    assert found.distributions["calls per group"].mean == pytest.approx(24.8, rel=0.15)
    assert found.requests == pytest.approx(98_827, rel=0.15)
    assert found.root_requests == pytest.approx(56_798, rel=0.25)
    assert found.input_tokens == pytest.approx(21.6e9, rel=0.20)
    assert 0.96 < found.theoretical_hit < 0.99
    assert found.distributions["input tokens"].maximum <= 990_000


def test_scale_changes_lengths_and_nothing_else():
    full, small = Recipe(sessions=12, seed=2), Recipe(sessions=12, seed=2, scale=Fraction(1, 64))
    for large, little in zip(all_sessions(full), all_sessions(small), strict=True):
        assert [call.t for call in large.calls()] == [call.t for call in little.calls()]
        assert [(a.t, a.duration, len(a.calls)) for a in large.subagents] == [
            (a.t, a.duration, len(a.calls)) for a in little.subagents
        ]
        for a, b in zip(large.calls(), little.calls(), strict=True):
            assert abs(a.input_tokens / 64 - b.input_tokens) <= 0.5
            assert b.output_tokens == max(1, round(Fraction(a.output_tokens, 64)))


@given(recipes, numbers)
@settings(max_examples=60, deadline=None)
def test_what_holds_for_every_session(recipe, number):
    trace = generate_session(recipe, number)
    assert 1 <= len(trace.root_calls) <= recipe.max_turns
    starts = [entry.t for entry in trace.entries]
    assert starts == sorted(starts)
    for calls in streams(trace):
        for call in calls:
            assert len(call.hash_ids) == call.input_tokens // 64 >= 1
            assert call.output_tokens >= 1
        for before, after in itertools.pairwise(calls):
            assert after.t >= before.end - 1e-6
            # A prompt continues the one before, or falls back to where both began.
            shared = min(len(before.hash_ids), len(after.hash_ids))
            same = int((before.hash_ids[:shared] == after.hash_ids[:shared]).sum())
            assert np.array_equal(before.hash_ids[:same], after.hash_ids[:same])
            assert same == len(before.hash_ids) or after.input_tokens < before.input_tokens
    used = np.unique(np.concatenate([call.hash_ids for call in trace.calls()]))
    assert np.array_equal(used, np.arange(1, len(used) + 1))


@given(recipes, numbers)
@settings(max_examples=60, deadline=None)
def test_sub_agents_start_together_and_are_waited_for(recipe, number):
    trace = generate_session(recipe, number)
    root = trace.root_calls
    for agent in trace.subagents:
        before = [call for call in root if call.t < agent.t]
        after = [call for call in root if call.t >= agent.t]
        assert len(before) > 3
        assert agent.t == before[-1].end
        assert agent.calls[0].t == agent.t
        assert agent.calls[-1].end == pytest.approx(agent.end, abs=1e-6)
        assert after[0].t >= agent.end - 1e-6
        # 8,000 tokens at full size, where the prompts are that long, and nothing behind them.
        shared = int(8000 * recipe.scale) // 64 or 1
        first, parent = agent.calls[0].hash_ids, before[-1].hash_ids
        expected = min(shared, len(first))
        assert np.array_equal(first[:expected], parent[:expected])
        assert not set(first[shared:].tolist()) & set(parent.tolist())
    for _, together in itertools.groupby(trace.entries, key=lambda entry: isinstance(entry, SubAgent)):
        agents = [entry for entry in together if isinstance(entry, SubAgent)]
        assert len(agents) <= 4
        assert len({agent.t for agent in agents}) <= 1


@given(recipes, numbers)
@settings(max_examples=40, deadline=None)
def test_a_session_is_a_trace_that_reads_back(recipe, number):
    text = trace_json(generate_session(recipe, number))
    assert trace_json(parse_trace(text, "made")) == text
    assert json.loads(text)["hash_id_scope"] == "local"


def test_a_replay_finds_the_structure_that_was_made():
    """Streams are found again from hashes and times; a compaction is no new agent, no call is left over."""
    agents = 0
    for trace in all_sessions(Recipe(sessions=60, seed=1, scale=Fraction(1, 64))):
        session = build_session(trace)
        agents += len(trace.subagents)
        assert not session.dropped
        found = [len(stream.turns) for stream in session.streams]
        assert found == [len(calls) for calls in streams(trace)]
        assert all(branch.joined_by == branch.spawned_by + 1 for branch in session.branches)
    assert agents > 100


def test_a_long_session_shares_its_ids():
    """Prompts of a session are views of few arrays: 3,052 of them as copies would be hundreds of MB."""
    recipe = Recipe(sessions=4000, seed=0)
    number = next(n for n in range(4000) if len(generate_session(recipe, n).root_calls) > 1000)
    calls = generate_session(recipe, number).root_calls
    arrays = {id(call.hash_ids.base): call.hash_ids.base.nbytes for call in calls}
    assert sum(arrays.values()) < 0.05 * sum(call.hash_ids.nbytes for call in calls)


def test_a_session_takes_milliseconds():
    recipe = Recipe(sessions=40, seed=0, max_turns=43)
    taken = []
    for number in range(40):
        began = time.process_time()
        generate_session(recipe, number)
        taken.append(time.process_time() - began)
    assert np.median(taken) < 0.05
