"""A fleet of toy engines with lanes on it."""

from __future__ import annotations

import itertools
from fractions import Fraction

from flashpoint.agentx.run_levels import LevelContext
from flashpoint.agentx.schedule.lanes import Lanes, ScheduleConfig
from flashpoint.agentx.traces.recipe import Recipe, generate_session
from flashpoint.agentx.traces.streams import build_session
from flashpoint.hardware.replica import Replica
from flashpoint.hardware.virtual_clock import VirtualClock
from flashpoint.parallel.router import Router
from flashpoint.simulate.fleet import EnginePool, Fleet
from flashpoint.simulate.front_end import FrontEnd, FrontEndCost
from flashpoint.simulate.level import VirtualLevel
from tests.hardware.toy import ToyWork, toy_cores, toy_time

RECIPE = Recipe(sessions=12, seed=5, scale=Fraction(1, 16), max_turns=40)


def toy_pool(clock, policy="session_sticky", replicas=1, ranks=1, token_times=True, **options):
    """(pool, cores)"""
    made = []
    for _ in range(replicas):
        pairs = toy_cores(clock, ranks=ranks, **options)
        replica = Replica(clock, pairs, toy_time, ToyWork().load, token_times=token_times)
        made.append((replica, [core for core, _ in pairs]))
    pool = EnginePool(made, Router(policy, replicas * ranks))
    return pool, [core for _, _, core in pool.engines]


def play(
    lanes=4,
    duration=300.0,
    *,
    seed=42,
    split=False,
    front_end_cores=0,
    patch=lambda core: None,
    token_times=True,
    **options,
):
    """A level, played; the fleet; its cores."""
    clock = VirtualClock()
    pool, cores = toy_pool(clock, token_times=token_times, **options)
    prefill, more = toy_pool(clock, token_times=token_times, **options) if split else (None, [])
    fleet = Fleet(
        clock,
        pool,
        prefill,
        FrontEnd(front_end_cores, FrontEndCost(1e-3, 7e-8, 2e-5)),
        lambda tokens: 1e-3 + 1e-7 * tokens,
    )
    for core in [*cores, *more]:
        patch(core)
    sessions = [build_session(generate_session(RECIPE, i)) for i in range(RECIPE.sessions)]
    schedule = Lanes(
        ScheduleConfig(lanes, seed, warmup_requests=2), itertools.cycle(sessions).__next__, "run"
    )
    context = LevelContext(schedule, 0, "r", 0.0, clock, lambda record: None)
    level = VirtualLevel(fleet, [*cores, *more], context, token_times=token_times)
    level.run(duration, 10_000.0, lambda: None)
    return level, fleet, [*cores, *more]


def facts(level):
    """What a client can see of a level."""
    return [
        (r.stream, r.play, r.turn, r.start, r.end, r.ttft, r.cached_tokens, r.output_tokens, r.status)
        for r in level.records
    ]
