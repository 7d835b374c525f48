"""INV-14: real and virtual runs of one trace plan the same steps.

A real model computes real tokens in wall time; the same sessions are played in virtual time. Without recorded
waits a schedule depends on the order of steps alone, so every step must hold the same rows, find the same
hits and preempt the same requests.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest

from flashpoint.agentx.in_process import InProcessLevel
from flashpoint.agentx.prompts.prompter import Prompter
from flashpoint.agentx.prompts.source import TokenSource
from flashpoint.agentx.prompts.text import agent_text
from flashpoint.agentx.prompts.tokenizer import load_tokenizer
from flashpoint.agentx.recording import INTERRUPTED
from flashpoint.agentx.run_levels import LevelContext
from flashpoint.agentx.schedule.lanes import Lanes, ScheduleConfig
from flashpoint.agentx.traces.recipe import Recipe, generate_session
from flashpoint.agentx.traces.streams import build_session
from flashpoint.cache.config import TierConfig
from flashpoint.cache.transfer import Tier
from flashpoint.engine.clock import WallClock
from flashpoint.engine.config import EngineConfig
from flashpoint.engine.plan import StepCounts
from flashpoint.executor.build import build_core, load_for_engine
from flashpoint.executor.config import ExecutorConfig
from flashpoint.executor.mover import Mover
from flashpoint.hardware.machine import load_machine
from flashpoint.hardware.virtual_clock import VirtualClock
from flashpoint.hardware.virtual_rank import PlannedSteps
from flashpoint.models.deepseek_v41.init import init_checkpoint
from flashpoint.simulate.config import DeploymentConfig
from flashpoint.simulate.deployment import Deployment
from flashpoint.simulate.level import VirtualLevel

RECIPE = Recipe(sessions=16, seed=11, scale=Fraction(1, 64), max_turns=16)
LANES, REQUESTS = 4, 60
COLUMNS = (
    "prefill_tokens", "decode_tokens", "replay_tokens", "sampled_tokens", "running", "waiting", "preemptions",
)  # fmt: skip


def lanes():
    """Nothing in them depends on time: no primers, no sub-agents that start some seconds after another."""
    sessions = [build_session(generate_session(RECIPE, i)) for i in range(RECIPE.sessions)]
    sessions = [session for session in sessions if len(session.streams) == 1]
    assert len(sessions) >= LANES
    config = ScheduleConfig(
        LANES, 3, (0.0, 0.0), warmup_requests=1, session_idle_cap=0.0, system_idle_cap=0.0
    )
    return Lanes(config, itertools.cycle(sessions).__next__, "identity")


def enough(level):
    """Stop both runs after the same number of requests."""
    return lambda: INTERRUPTED if len(level.records) >= REQUESTS else None


def steps(level):
    """Step by step, however many a row stands for."""
    rows = []
    for row in level.steps().to_pylist():
        if row["steps"] == 1:
            rows.append(tuple(row[name] for name in COLUMNS))
        else:
            # Each running sequence decodes a row and gets a token; whoever ends, ends with the last step.
            each = {**row, "sampled_tokens": row["decode_tokens"], "running": row["decode_tokens"]}
            before = {**each, "preemptions": 0}
            rows += [tuple(before[name] for name in COLUMNS)] * (row["steps"] - 1)
            rows.append(tuple({**each, "running": row["running"]}[name] for name in COLUMNS))
    return rows


def served(level):
    names = ("stream", "play", "turn", "prompt_tokens", "cached_tokens", "output_tokens")
    return [tuple(getattr(record, name) for name in names) for record in level.records]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("checkpoint") / "nano"
    init_checkpoint("nano", made)
    return made


def counted(level):
    """(steps, counts) of each row."""
    rows = level.steps().to_pylist()
    return [(row["steps"], [row[name] for name in ("flops", *StepCounts._fields)]) for row in rows]


def land_at_once(monkeypatch):
    """Real transfers are over with the step that orders them: when threads end them is chance otherwise."""
    start, landed = Mover.start, Mover.landed
    moving: dict[int, int] = {}

    def start_counted(mover, transfers):
        moving[id(mover)] = moving.get(id(mover), 0) + len(transfers)
        start(mover, transfers)

    def landed_all(mover, wait=False):
        over = []
        while len(over) < moving[id(mover)]:
            over += landed(mover, wait=True)
        moving[id(mover)] = 0
        return tuple(over)

    monkeypatch.setattr(Mover, "start", start_counted)
    monkeypatch.setattr(Mover, "landed", landed_all)


@pytest.mark.parametrize(
    ("cache_tokens", "host_memory"),
    [(65_536, 0), (2_048, 0), (2_048, 2**26)],
    ids=["ample cache", "small cache", "host memory"],
)
def test_real_and_virtual_runs_plan_the_same_steps(folder, cache_tokens, host_memory, monkeypatch):
    tiers = TierConfig(host_memory=host_memory)
    land_at_once(monkeypatch)
    engine = EngineConfig(
        max_step_tokens=512, max_running=8, block_tokens=64, cache_tokens=cache_tokens, max_waiting=100
    )
    loaded, sized = load_for_engine(folder, engine, ExecutorConfig(threads=1), tiers)
    clock = WallClock()
    tokenizer = load_tokenizer(folder)
    prompter = Prompter(TokenSource(tokenizer.encode(agent_text(0, 200_000)), 3), tokenizer)
    context = LevelContext(lanes(), 0, "real", clock.now(), clock, lambda record: None)
    core = build_core(loaded, sized, tiers, clock)
    real = InProcessLevel(core, prompter, context)
    real.run(600.0, 600.0, enough(real))
    real.close()

    config = DeploymentConfig(
        model=str(folder), formats="float32", layout="TP1", step_tokens=512, sequences=8, drafts=0,
        cache_tokens=cache_tokens, host_memory=host_memory, skew=1.0, fused_reductions=False,
        shared_in_routed=False, early_loads=False,
    )  # fmt: skip
    machine = load_machine("h100")
    if host_memory:
        machine = replace(machine, host_bandwidth=1e20)  # as at once as can be
    deployment = Deployment(config, machine)

    def play_virtually():
        virtual_clock = VirtualClock()
        fleet, cores = deployment.fleet(virtual_clock, 3)
        context = LevelContext(lanes(), 0, "virtual", 0.0, virtual_clock, lambda record: None)
        level = VirtualLevel(
            fleet, cores, context, token_times=False, floors=deployment.limits, check_every=1
        )
        level.run(600.0, 600.0, enough(level))
        return level

    virtual = play_virtually()

    count = min(len(steps(real)), len(steps(virtual)))
    assert count > 200
    assert steps(real)[:count] == steps(virtual)[:count]
    done = min(REQUESTS, len(real.records), len(virtual.records))
    assert served(real)[:done] == served(virtual)[:done]
    if cache_tokens == 2_048:
        assert sum(row[-1] for row in steps(real)[:count]) > 0
    assert (core.stats().cached_tokens_by_tier[Tier.HOST] > 1_000) == bool(host_memory)

    # What was counted of a row is what was counted of the real steps it stands for, nearly: positions between
    # a row's first and last step are taken to move on evenly.
    expected = iter(counted(real))
    for number, counts in counted(virtual):
        each = [values for _, values in itertools.islice(expected, number)]
        if len(each) < number:
            break
        assert counts == pytest.approx([math.fsum(values) for values in zip(*each, strict=True)], rel=2e-3)
    for row in virtual.steps().to_pylist():
        assert all(0 < row[f"{name}_share"] < 1 for name in ("memory", "math", "host"))
        assert row["link_share"] == 0

    monkeypatch.setattr(PlannedSteps, "most", 1)
    single = counted(play_virtually())
    count = min(len(single), len(counted(real)))
    assert count > 200
    assert single[:count] == counted(real)[:count]
