from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flashpoint.engine.config import EngineConfig
from flashpoint.engine.core import EngineCore, StepRecord, check_result
from flashpoint.engine.events import FinishReason, TokenEvent
from flashpoint.engine.plan import Chunk, Sampled, StepPlan, StepResult
from flashpoint.engine.request import Request
from flashpoint.engine.sampling import SamplingParams
from flashpoint.engine.scheduler import Scheduler
from tests.engine.fake_executor import FakeExecutor, make_capacity, reference_tokens


class StepClock:
    """A clock that the test's executor advances."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time


def make_core(
    executor: FakeExecutor, clock: StepClock | None = None, **config: Any
) -> tuple[EngineCore, list[StepRecord]]:
    settings = EngineConfig(**{"max_step_tokens": 8, "max_running": 4, **config})
    core = EngineCore(Scheduler(settings, executor.capacity), executor, clock or StepClock())
    records: list[StepRecord] = []
    core.add_observer(records.append)
    return core, records


def make_request(name: str, tokens: int, max_tokens: int) -> Request:
    prompt = np.arange(1, tokens + 1, dtype=np.int32)
    return Request(name, prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0))


def drain(core: EngineCore) -> list[TokenEvent]:
    events = []
    while core.has_work:
        events += core.step()
    return events


def test_an_idle_engine_steps_to_nothing() -> None:
    core, records = make_core(FakeExecutor())
    assert core.step() == [] and records == []


def test_each_step_is_recorded_and_counted() -> None:
    clock = StepClock()

    def tick(plan: StepPlan) -> None:
        clock.time += 0.25

    core, records = make_core(FakeExecutor(on_step=tick), clock)
    core.submit(make_request("a", 10, max_tokens=2))
    core.submit(make_request("b", 3, max_tokens=1))
    drain(core)
    assert records == [
        StepRecord(
            0, 100.0, 0.25, 8, 0, 0, 0, running=1, waiting=1, free_blocks=61, preemptions=0, failed=False
        ),
        StepRecord(
            1, 100.25, 0.25, 5, 0, 0, 2, running=1, waiting=0, free_blocks=61, preemptions=0, failed=False
        ),
        StepRecord(
            2, 100.5, 0.25, 0, 1, 0, 1, running=0, waiting=0, free_blocks=64, preemptions=0, failed=False
        ),
    ]
    stats = core.stats()
    assert (stats.steps, stats.step_seconds) == (3, 0.75)
    assert (stats.prompt_tokens, stats.computed_prompt_tokens, stats.generated_tokens) == (13, 13, 3)
    assert (stats.waiting, stats.running, stats.finished) == (0, 0, {"length": 2})
    assert (stats.free_blocks, stats.total_blocks, stats.free_slots, stats.total_slots) == (64, 64, 4, 4)


def test_recomputed_prompt_rows_are_counted_as_work() -> None:
    executor = FakeExecutor(make_capacity(blocks=8, block_tokens=2, slots=3))
    core, records = make_core(executor, prefix_cache=False)
    for name in "abc":
        core.submit(make_request(name, 3, max_tokens=8))
    drain(core)
    stats = core.stats()
    assert stats.preemptions == sum(record.preemptions for record in records) > 0
    assert stats.computed_prompt_tokens > stats.prompt_tokens == 9
    rows = sum(record.prefill_rows + record.decode_rows for record in records)
    assert rows > stats.computed_prompt_tokens == sum(record.prefill_rows for record in records)


def test_cache_hits_and_replayed_rows_are_counted() -> None:
    core, records = make_core(FakeExecutor(make_capacity(window=3)), max_step_tokens=16)
    core.submit(make_request("a", 12, max_tokens=1))
    drain(core)
    core.submit(make_request("b", 14, max_tokens=1))
    (event,) = drain(core)
    assert event.cached_tokens == 12
    stats = core.stats()
    assert (stats.cached_tokens, stats.cached_tokens_by_tier) == (12, (12, 0, 0))
    assert stats.computed_prompt_tokens == 12 + 3 + 2 and stats.replayed_tokens == 3
    assert records[-1].replay_rows == 3 and records[-1].prefill_rows == 5
    assert (stats.free_blocks, stats.cached_blocks) == (64, 3)


def test_an_executor_exception_costs_only_the_requests_of_that_step() -> None:
    """INV-9."""

    def explode(plan: StepPlan) -> None:
        if plan.step == 1:
            raise RuntimeError("device lost")

    executor = FakeExecutor(on_step=explode)
    core, records = make_core(executor, max_running=1)
    bad, good = make_request("bad", 5, max_tokens=4), make_request("good", 5, max_tokens=4)
    core.submit(bad)
    core.submit(good)
    events = drain(core)
    (error,) = [event for event in events if event.finish is FinishReason.ERROR]
    assert (error.request_id, error.error) == ("bad", "RuntimeError: device lost")
    answer = tuple(token for event in events if event.request_id == "good" for token in event.tokens)
    assert answer == reference_tokens(good.history(5), good.sampling, executor.capacity)[0]
    assert [record.failed for record in records] == [False, True, False, False, False, False]
    assert core.stats().finished == {"error": 1, "length": 1}
    assert core.stats().free_blocks == executor.capacity.blocks


def test_abort_tells_once() -> None:
    core, _ = make_core(FakeExecutor())
    core.submit(make_request("a", 5, max_tokens=4))
    assert core.abort("nobody") == []
    assert core.abort("a") == [TokenEvent("a", finish=FinishReason.ABORT)]
    assert core.abort("a") == []
    assert core.stats().finished == {"abort": 1} and not core.has_work


def plan_for(*names: str) -> StepPlan:
    one = np.ones(1, dtype=np.int32)
    return StepPlan(3, tuple(Chunk(name, 0, 0, one, one, 1, SamplingParams()) for name in names))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (StepResult(2, (Sampled("a", (1,)), Sampled("b", (1,)))), "answered step 2, not 3"),
        (StepResult(3, (Sampled("a", (1,)),)), r"sampled for \['a'\]"),
        (StepResult(3, (Sampled("a", (1,)), Sampled("a", (1,)))), r"sampled for \['a', 'a'\]"),
        (StepResult(3, (Sampled("a", (1,)), Sampled("b"))), "b neither a token nor an error"),
    ],
)
def test_results_that_do_not_answer_the_plan_are_refused(result: StepResult, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_result(plan_for("a", "b"), result)


def test_a_wrong_result_fails_its_step_and_nothing_else() -> None:
    class Forgetful(FakeExecutor):
        def execute(self, plan: StepPlan) -> StepResult:
            result = super().execute(plan)
            return StepResult(result.step) if plan.step == 0 else result

    core, _ = make_core(Forgetful(), max_running=1)
    core.submit(make_request("a", 5, max_tokens=4))
    core.submit(make_request("b", 5, max_tokens=4))
    finishes = [(event.request_id, event.finish) for event in drain(core) if event.finish]
    assert finishes == [("a", "error"), ("b", "length")]
