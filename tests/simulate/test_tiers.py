"""A host tier in virtual time: the real cache moves blocks out and back, and bytes take their time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flashpoint.cache.transfer import Tier
from flashpoint.errors import InvalidValue
from flashpoint.hardware.machine import load_machine
from flashpoint.hardware.virtual_clock import VirtualClock
from flashpoint.simulate.config import DeploymentConfig
from flashpoint.simulate.deployment import Deployment
from flashpoint.simulate.fleet import Job
from tests.cache.memory import check

MACHINE = load_machine("gb300-nvl72")
SESSIONS, TURNS, FIRST, MORE, ANSWER = 4, 5, 8192, 1024, 30
SMALL = 16_384
"""Tokens of a cache that holds one session and a part of another."""


def play(machine=MACHINE, together=1, **options):
    """Sessions take turns; `together` of them ask at once. Returns (hit tokens, seconds, engines)."""
    clock = VirtualClock()
    config = DeploymentConfig(**{"layout": "TP4", "sequences": 8, "cache_tokens": SMALL, **options})
    fleet, cores = Deployment(config, machine).fleet(clock, 1)
    hits = 0
    for turn in range(TURNS):
        for first in range(0, SESSIONS, together):
            for session in range(first, first + together):
                prompt = FIRST + turn * MORE
                names = np.arange(prompt // 64, dtype=np.int32) + 10_000 * (session + 1)
                fleet.arrive(Job(f"{session}-{turn}", f"s{session}", prompt, names, 64, ANSWER, b""))
            fleet.settle()
            ended = 0
            while (moment := fleet.next_event()) is not None:
                clock.wait_until(moment)
                for delivery in fleet.advance():
                    assert delivery.event.error is None
                    if delivery.event.finish is not None:
                        ended += 1
                        hits += delivery.event.cached_tokens
                fleet.settle()
            assert ended == together
    return hits, clock.now(), cores


@pytest.mark.parametrize("together", [1, 2])
def test_what_left_the_device_comes_back_from_host_memory(together):
    small, small_seconds, _ = play(together=together)
    tiered, tiered_seconds, (core,) = play(together=together, host_memory=2**30)
    large, large_seconds, _ = play(together=together, cache_tokens=1_000_000)
    assert small < 0.2 * large
    assert tiered >= 0.95 * large
    assert large_seconds < tiered_seconds < small_seconds
    assert core.stats().cached_tokens_by_tier[1] > 0.5 * tiered
    assert core.stats().running == core.stats().waiting == 0
    assert core.stats().free_blocks == core.stats().total_blocks, "cached blocks count as free"


def test_bytes_take_the_time_of_the_link():
    seconds = []
    for bandwidth in (MACHINE.host_bandwidth, MACHINE.host_bandwidth / 100):
        slower = replace(MACHINE, host_bandwidth=bandwidth)
        with_tier, without = play(slower, host_memory=2**30)[1], play(slower, cache_tokens=1_000_000)[1]
        seconds.append(with_tier - without)
    # Engram rows go over the same link in both runs; what is left are the blocks.
    assert seconds[1] > 10 * seconds[0] > 0


def test_a_run_with_tiers_repeats_to_the_bit():
    first, second = (play(together=2, host_memory=2**30) for _ in range(2))
    assert first[:2] == second[:2]


def test_decode_engines_get_their_caches_from_prefill_engines():
    split = {"prefill_layout": "TP4", "prefill_replicas": 1}
    _, small_seconds, _ = play(**split)
    _, seconds, (decode, prefill) = play(host_memory=2**30, **split)
    assert decode.stats().cached_tokens_by_tier[Tier.HOST] == 0
    assert prefill.stats().cached_tokens_by_tier[Tier.HOST] > 10_000
    assert seconds < small_seconds


def burst(host_bandwidth, aborted=()):
    """A session returns whose blocks are in host memory, while another one decodes."""
    clock = VirtualClock()
    config = DeploymentConfig(layout="TP4", sequences=8, cache_tokens=8 * SMALL, host_memory=2**30)
    fleet, (core,) = Deployment(config, replace(MACHINE, host_bandwidth=host_bandwidth)).fleet(clock, 1)
    steps = []
    core.add_observer(steps.append)

    def arrive(name, session, prompt, answer):
        names = np.arange(prompt // 64, dtype=np.int32) + 10_000 * session
        fleet.arrive(Job(name, f"s{session}", prompt, names, 64, answer, b""))

    def until_idle(before=float("inf")):
        ends = {}
        fleet.settle()
        while (moment := fleet.next_event()) is not None and moment < before:
            clock.wait_until(moment)
            for delivery in fleet.advance():
                ends.setdefault(delivery.event.request_id, clock.now())
            fleet.settle()
        return ends

    arrive("first", 1, 65_536, 1)
    until_idle()
    arrive("other", 2, 98_304, 1)
    until_idle()
    del steps[:]
    began = clock.now()
    arrive("long", 3, 64, 3000)
    arrive("again", 1, 65_536, 1)
    if aborted:
        until_idle(began + 0.02)
        for name in aborted:
            fleet.abort(name)
    ends = until_idle()
    return core, steps, ends.get("again", began) - began


def test_who_waits_for_blocks_holds_up_nobody_and_costs_no_planning():
    """Half of 65,536 tokens leave and come back, 890 bytes each at 180 MB/s; meanwhile the other session
    decodes. While blocks leave, each one that it takes has another one leave, so its steps are planned
    singly; while they come back, a plan may stand for many steps."""
    core, steps, waited = burst(1.8e8)
    _, _, at_once = burst(1e20)
    assert waited > 0.35 > 0.1 > at_once
    assert core.stats().cached_tokens_by_tier[Tier.HOST] > 30_000
    assert max(s.steps for s in steps if s.waiting) >= 10
    assert sum(s.sampled_tokens for s in steps) == 3001


@pytest.mark.parametrize("aborted", [["again"], ["long"], ["again", "long"]])
def test_who_hangs_up_while_blocks_move_leaves_none_behind(aborted):
    core, _, _ = burst(1.8e8, aborted)
    stats = core.stats()
    assert stats.running == stats.waiting == 0
    assert stats.free_blocks == stats.total_blocks and stats.free_slots == stats.total_slots
    check(core._scheduler._cache, [])
    assert stats.finished["abort"] == len(aborted)


def test_sizes_that_cannot_be():
    with pytest.raises(InvalidValue, match="one block"):
        Deployment(DeploymentConfig(layout="TP4", host_memory=100))
    with pytest.raises(InvalidValue, match="host_memory"):
        DeploymentConfig(layout="TP4", host_memory=-1)
