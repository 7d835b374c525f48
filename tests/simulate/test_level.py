"""A level in virtual time, on toy engines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.agentx.metrics import cache_hit_share
from flashpoint.cache.transfer import Tier
from flashpoint.engine.sampling import SamplingParams
from flashpoint.hardware.named_request import FreshNames, NamedRequest
from flashpoint.hardware.virtual_rank import PlannedSteps
from tests.cache.memory import check
from tests.hardware.toy import STEP, toy_replica
from tests.simulate.harness import facts, play

SHAPES = {
    "one engine": {},
    "DP ranks in lockstep": {"ranks": 3},
    "replicas": {"replicas": 3},
    "split": {"split": True},
    "front end": {"front_end_cores": 1},
    "little memory": {"blocks": 220, "lanes": 8},
    "no drafts": {"mean": 1, "drafts": 0},
    "host memory": {"blocks": 500, "lanes": 8, "host_blocks": 4000},
    "slow host memory": {"blocks": 500, "lanes": 8, "host_blocks": 4000, "block_seconds": 2e-3},
    "little host memory": {"blocks": 300, "lanes": 8, "host_blocks": 500},
    "host memory of ranks in lockstep": {
        "blocks": 250,
        "lanes": 8,
        "ranks": 3,
        "host_blocks": 4000,
        "block_seconds": 1e-3,
    },
}


def one_by_one(monkeypatch):
    monkeypatch.setattr(PlannedSteps, "most", 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_skipping_steps_changes_nothing(monkeypatch, shape):
    """INV-15: steps taken at once are those taken one by one: the same plans, hits, order, nearly times."""
    options = {"duration": 120.0, **SHAPES[shape]}
    fast, _, fast_cores = play(**options)
    one_by_one(monkeypatch)
    slow, _, slow_cores = play(**options)
    assert len(fast.records) > 30
    for a, b in zip(facts(fast), facts(slow), strict=True):
        assert a[:3] + a[6:] == b[:3] + b[6:]
        assert a[3:5] == pytest.approx(b[3:5], abs=1e-6)
    for a, b in zip(fast.records, slow.records, strict=True):
        np.testing.assert_allclose(a.token_offsets, b.token_offsets, atol=1e-6)
    for a, b in zip(fast_cores, slow_cores, strict=True):
        assert a.stats().steps == b.stats().steps
        assert a.stats().generated_tokens == b.stats().generated_tokens
        assert a.stats().preemptions == b.stats().preemptions
        assert a.stats().cached_tokens_by_tier == b.stats().cached_tokens_by_tier
    assert fast.steps().num_rows < slow.steps().num_rows
    # A step of the toy has one kernel, and a row holds what all its steps counted.
    for level in (fast, slow):
        for row in level.steps().to_pylist():
            assert row["kernels"] == pytest.approx(row["steps"])
    read = [np.sum(level.steps()["memory_bytes"].to_numpy()) for level in (fast, slow)]
    assert read[0] == pytest.approx(read[1], rel=1e-4)


@given(
    lanes=st.sampled_from([2, 5, 12]),
    blocks=st.sampled_from([200, 300, 500, 2000]),
    host_blocks=st.sampled_from([0, 0, 60, 4000]),
    block_seconds=st.sampled_from([0.0, 1e-4, 2e-3, 1e-2]),
    ranks=st.sampled_from([1, 1, 3]),
    slots=st.sampled_from([3, 64]),
    policy=st.sampled_from(["session_sticky", "round_robin", "prefix_aware"]),
    split=st.booleans(),
    seed=st.integers(0, 999),
)
@settings(max_examples=15, deadline=None)
def test_skipping_steps_evicts_the_same_blocks(**options):
    """INV-15 where blocks are scarce: each eviction, preemption and transfer comes as one by one."""

    def play_once():
        level, _, cores = play(duration=60.0, **options)
        counts = [(s.cached_tokens_by_tier, s.preemptions, s.steps) for s in (c.stats() for c in cores)]
        return counts, [fact[:3] + fact[6:] for fact in facts(level)]

    fast = play_once()
    with pytest.MonkeyPatch.context() as patch:
        one_by_one(patch)
        assert play_once() == fast


def test_requests_that_are_taken_at_once_hold_the_blocks_of_their_last_step():
    """A case in which they did not: drafts of the last step had a block that nobody was evicted for."""
    options = {"lanes": 5, "blocks": 300, "slots": 3, "duration": 60.0, "seed": 380}
    fast, _, _ = play(**options)
    with pytest.MonkeyPatch.context() as patch:
        one_by_one(patch)
        slow, _, _ = play(**options)
    assert [r.cached_tokens for r in fast.records] == [r.cached_tokens for r in slow.records]


def test_who_arrives_between_two_steps_is_planned_with_the_next():
    """Where one rank's request ends, its answer may bring a request to another rank at that moment."""
    clock, replica, _ = toy_replica(ranks=2)
    fresh = FreshNames()

    def request(name, answer):
        sampling = SamplingParams(max_tokens=answer, min_tokens=answer, temperature=0.0)
        return NamedRequest(name, 64, np.empty(0, np.int32), 64, sampling, b"", fresh)

    replica.submit(0, request("long", 1000))
    replica.submit(1, request("short", 40))
    tokens, ended, first = 0, None, None
    replica.begin()
    while (end := replica.next_end) is not None:
        clock.wait_until(end)
        for delivery in replica.advance():
            event = delivery.event
            tokens += len(event.tokens)
            if event.request_id == "short" and event.finish is not None:
                ended = clock.now()
                replica.submit(0, request("next", 5))
            if event.request_id == "next" and first is None:
                first = clock.now()
        replica.begin()
    assert first - ended < 1.5 * STEP
    assert tokens == 1045


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_lost(shape):
    level, _, cores = play(**SHAPES[shape])
    done = [r for r in level.records if r.status == "ok"]
    assert len(done) > 30
    assert {r.status for r in level.records} <= {"ok", "cancelled"}
    assert all(r.output_tokens == r.max_tokens for r in done)
    assert all(len(r.token_offsets) == r.output_tokens for r in done)
    assert all((np.diff(r.token_offsets) >= 0).all() for r in done)
    assert all(r.due <= r.start + 1e-9 for r in level.records)
    for core in cores:
        stats = core.stats()
        assert stats.running == stats.waiting == 0
        # A step that the end of the run cut off keeps its blocks (INV-4), and nothing else keeps any.
        in_flight = core._scheduler._in_flight
        leases = [] if in_flight is None else [r.lease for r in in_flight[1] if r.lease is not None]
        check(core._scheduler._cache, leases)
        assert leases or stats.free_blocks == stats.total_blocks
    if "host_blocks" in SHAPES[shape]:
        assert sum(core.stats().cached_tokens_by_tier[Tier.HOST] for core in cores) > 10_000


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_seed_is_the_same_run_to_the_bit(shape):
    assert facts(play(duration=60.0, **SHAPES[shape])[0]) == facts(play(duration=60.0, **SHAPES[shape])[0])


def test_hits_are_those_of_the_trace():
    level, _, _ = play(lanes=2)
    done = [r for r in level.records if r.phase == "measured" and r.status == "ok"]
    theoretical = sum(r.hit_blocks for r in done) / sum(r.total_blocks for r in done)
    share = cache_hit_share(done)
    assert theoretical - 0.1 < share <= theoretical


def test_little_memory_preempts_and_forgets():
    level, _, cores = play(lanes=8, blocks=220)
    ample, _, _ = play(lanes=8)
    assert sum(core.stats().preemptions for core in cores) > 0
    assert cache_hit_share(level.records) < cache_hit_share(ample.records)


def test_without_token_times_only_the_gaps_are_missing():
    kept, _, _ = play()
    short, _, _ = play(token_times=False)
    assert facts(kept) == facts(short)
    assert [r.last_token for r in kept.records] == [r.last_token for r in short.records]
    assert all(len(r.token_offsets) == 0 for r in short.records)


def test_a_handed_over_request_is_prefilled_once():
    level, fleet, cores = play(split=True)
    decode, prefill = cores[0].stats(), cores[1].stats()
    done = [r for r in level.records if r.status == "ok"]
    assert prefill.generated_tokens >= len(done)
    # What a decode engine computes of a prompt is its last token.
    assert decode.computed_prompt_tokens <= len(level.records)
    assert 0 < fleet.handed_over_tokens < sum(r.prompt_tokens for r in level.records)


def test_sticky_routing_finds_more_than_round_robin():
    sticky, _, _ = play(lanes=6, replicas=3)
    spread, _, _ = play(lanes=6, replicas=3, policy="round_robin")
    aware, _, _ = play(lanes=6, replicas=3, policy="prefix_aware")
    assert cache_hit_share(sticky.records) > cache_hit_share(spread.records) + 0.1
    assert cache_hit_share(aware.records) > cache_hit_share(spread.records) + 0.1


@pytest.mark.parametrize("seed", range(5))
def test_sticky_routing_never_finds_less(seed):
    ten = {"lanes": 10, "replicas": 4, "duration": 60.0, "token_times": False, "seed": seed}
    sticky, _, _ = play(**ten)
    spread, _, _ = play(policy="round_robin", **ten)
    assert cache_hit_share(sticky.records) >= cache_hit_share(spread.records)


def test_a_busy_front_end_delays_first_tokens():
    free, _, _ = play(lanes=8, duration=60.0)
    busy, _, _ = play(lanes=8, duration=60.0, front_end_cores=1)

    def mean_ttft(level):
        return np.mean([r.ttft for r in level.records if r.ttft is not None])

    assert mean_ttft(busy) > mean_ttft(free) + 0.5e-3
