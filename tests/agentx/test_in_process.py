"""A level in this process: on an engine with a fake model, in virtual time."""

import itertools

import pytest

from flashpoint.agentx.in_process import InProcessLevel
from flashpoint.agentx.metrics import interactivity, ttft_percentile
from flashpoint.agentx.prompts.prompter import Prompter
from flashpoint.agentx.prompts.source import TokenSource
from flashpoint.agentx.prompts.text import agent_text
from flashpoint.agentx.prompts.tokenizer import standard_tokenizer
from flashpoint.agentx.run_levels import LevelContext
from flashpoint.agentx.schedule.lanes import Lanes, ScheduleConfig
from flashpoint.agentx.traces.recipe import generate_session
from flashpoint.agentx.traces.streams import build_session
from flashpoint.engine.config import EngineConfig
from flashpoint.engine.core import EngineCore
from flashpoint.engine.scheduler import Scheduler
from flashpoint.hardware.virtual_clock import VirtualClock
from tests.agentx.small_corpus import SMALL
from tests.engine.fake_executor import FakeExecutor, make_capacity

TOKENIZER = standard_tokenizer()
STEP = 0.02
CONFIG = EngineConfig(max_step_tokens=512, max_running=8, block_tokens=64, cache_tokens=64 * 512)


class TimedExecutor:
    """The fake executor; a step takes `STEP` seconds of virtual time."""

    def __init__(self, executor, clock):
        self.executor, self.clock = executor, clock

    def __getattr__(self, name):
        return getattr(self.executor, name)

    def execute(self, plan):
        self.clock.wait_until(self.clock.now() + STEP)
        return self.executor.execute(plan)


def play(lanes=3, duration=120.0, max_context=8192, seed=42):
    clock = VirtualClock()
    capacity = make_capacity(512, 64, 8, max_context, 130_000)
    executor = TimedExecutor(FakeExecutor(capacity), clock)
    core = EngineCore(Scheduler(CONFIG, capacity, executor.stored), executor, clock)
    sessions = [build_session(generate_session(SMALL, i)) for i in range(SMALL.sessions)]
    prompter = Prompter(TokenSource(TOKENIZER.encode(agent_text(0, 50_000)), seed), TOKENIZER)
    schedule = Lanes(
        ScheduleConfig(lanes, seed, warmup_requests=2), itertools.cycle(sessions).__next__, "run"
    )
    level = InProcessLevel(
        core, prompter, LevelContext(schedule, 0, "r", 0.0, clock, on_record=lambda record: None)
    )
    level.run(duration, 1000.0, lambda: None)
    level.close()
    return level, core, schedule


def test_a_level_in_virtual_time():
    level, core, schedule = play()
    assert level.cut and level.cut.reason == "duration"
    measured = [r for r in level.records if r.phase == "measured"]
    done = [r for r in measured if r.status == "ok"]
    assert len(done) > 20
    assert all(r.output_tokens == r.max_tokens == len(r.token_offsets) for r in done)
    # A step lasts 20 ms and a decoding request gets a token in each: nobody is faster than the steps.
    assert interactivity(done, 90) == pytest.approx(1 / STEP)
    assert (ttft_percentile(done, 50) or 0) >= 0.999 * STEP
    assert all(r.prompt_tokens == r.recorded_input for r in done)
    assert all(r.due <= r.start for r in measured)
    assert core.stats().waiting == core.stats().running == 0
    steps = level.steps().to_pylist()
    assert sum(s["seconds"] for s in steps) == pytest.approx(STEP * len(steps))
    assert sum(s["sampled_tokens"] for s in steps) >= sum(r.output_tokens for r in done)
    assert schedule.measured_from is not None


def test_cached_prefixes_are_found():
    level, _, _ = play()
    done = [r for r in level.records if r.phase == "measured" and r.status == "ok"]
    cached, prompt = sum(r.cached_tokens for r in done), sum(r.prompt_tokens for r in done)
    theoretical = sum(r.hit_blocks for r in done) / sum(r.total_blocks for r in done)
    assert theoretical - 0.1 < cached / prompt <= theoretical


def test_the_same_seed_is_the_same_run():
    def facts(level):
        return [(r.stream, r.turn, r.start, r.end, r.cached_tokens, r.status) for r in level.records]

    assert facts(play()[0]) == facts(play()[0])


def test_prompts_beyond_the_window_are_overflows():
    level, _, _ = play(max_context=1536)
    statuses = {r.status for r in level.records if r.phase == "measured"}
    assert "error" not in statuses
    assert any(r.status == "overflow" for r in level.records)
