from __future__ import annotations

import hashlib
import zlib

import numpy as np
import pytest

from flashpoint.engine.config import EngineConfig
from flashpoint.engine.events import FinishReason, TokenEvent
from flashpoint.engine.plan import Sampled, StepPlan, StepResult, TokenLogprob
from flashpoint.engine.request import Request
from flashpoint.engine.sampling import SamplingParams
from flashpoint.engine.scheduler import Scheduler
from flashpoint.errors import InvalidValue, QueueFull, RequestTooLong
from tests.engine.fake_executor import FakeExecutor, make_capacity, reference_tokens


def make_request(name: str, tokens: int, max_tokens: int = 8, **sampling: object) -> Request:
    prompt = (np.arange(tokens, dtype=np.int32) * 7 + zlib.crc32(name.encode()) % 50) % 100
    return Request(name, prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0, **sampling))


def answer(plan: StepPlan, token: int = 1) -> StepResult:
    return StepResult(
        plan.step, tuple(Sampled(c.request_id, (token,)) for c in plan.chunks if c.sampling is not None)
    )


def shape(plan: StepPlan | None) -> list[tuple[str, int, int]]:
    assert plan is not None
    return [(chunk.request_id, chunk.start, len(chunk.history)) for chunk in plan.chunks]


def run(scheduler: Scheduler, executor: FakeExecutor) -> tuple[dict[str, list[TokenEvent]], list[StepPlan]]:
    """Step until nothing is left; events per request and the plans."""
    events: dict[str, list[TokenEvent]] = {}
    plans = []
    while scheduler.has_work:
        plan = scheduler.plan()
        assert plan is not None
        plans.append(plan)
        for event in scheduler.apply(executor.execute(plan)):
            events.setdefault(event.request_id, []).append(event)
    return events, plans


def text(events: list[TokenEvent]) -> tuple[tuple[int, ...], str | None]:
    return tuple(token for event in events for token in event.tokens), events[-1].finish


def test_budget_goes_to_decodes_then_running_prefills_then_admissions() -> None:
    scheduler = Scheduler(EngineConfig(max_step_tokens=8, max_running=4), make_capacity())
    scheduler.submit(make_request("a", 3))
    scheduler.submit(make_request("b", 12))
    plan = scheduler.plan()
    assert shape(plan) == [("a", 0, 3), ("b", 0, 5)]
    assert [chunk.sampling is not None for chunk in plan.chunks] == [True, False]
    scheduler.submit(make_request("c", 9))
    scheduler.apply(answer(plan))
    plan = scheduler.plan()
    assert shape(plan) == [("a", 3, 4), ("b", 5, 12)]
    scheduler.apply(answer(plan))
    plan = scheduler.plan()
    assert shape(plan) == [("a", 4, 5), ("b", 12, 13), ("c", 0, 6)]


def test_nothing_passes_the_head_of_the_queue() -> None:
    scheduler = Scheduler(EngineConfig(max_step_tokens=64, max_running=4), make_capacity(blocks=8))
    for name, tokens in (("a", 15), ("big", 20), ("small", 2)):
        scheduler.submit(make_request(name, tokens))
    assert shape(scheduler.plan()) == [("a", 0, 15)]
    assert scheduler.waiting_count == 2


def test_admission_takes_the_blocks_of_the_whole_prefill_and_one_token() -> None:
    scheduler = Scheduler(EngineConfig(max_step_tokens=4, max_running=4), make_capacity(blocks=8))
    scheduler.submit(make_request("a", 16))
    plan = scheduler.plan()
    assert scheduler.free_blocks == 8 - 5
    assert [len(chunk.blocks) for chunk in plan.chunks] == [1]


@pytest.mark.parametrize(("max_running", "slots"), [(2, 4), (4, 2)])
def test_running_is_bounded_by_config_and_slots(max_running: int, slots: int) -> None:
    config = EngineConfig(max_step_tokens=64, max_running=max_running)
    scheduler = Scheduler(config, make_capacity(slots=slots))
    for name in "abcd":
        scheduler.submit(make_request(name, 3))
    assert [name for name, *_ in shape(scheduler.plan())] == ["a", "b"]


def test_the_youngest_is_preempted_and_resumes_first_with_the_same_tokens() -> None:
    """INV-7 in one readable case; the stateful test covers the rest."""
    capacity = make_capacity(blocks=8, block_tokens=2, slots=3)
    config = EngineConfig(max_step_tokens=16, max_running=3)
    scheduler, executor = Scheduler(config, capacity), FakeExecutor(capacity, max_step_tokens=16)
    requests = [make_request(name, 3, max_tokens=8) for name in "abc"]
    for request in requests:
        scheduler.submit(request)
    events, plans = run(scheduler, executor)
    assert scheduler.preemptions > 0
    starts = [chunk.request_id for plan in plans for chunk in plan.chunks if chunk.start == 0]
    assert starts[:3] == ["a", "b", "c"] and starts.count("a") == 1
    for request in requests:
        want = reference_tokens(request.history(3), request.sampling, capacity)
        assert text(events[request.request_id]) == want


def test_alone_a_request_may_fill_the_whole_pool() -> None:
    capacity = make_capacity(blocks=3, block_tokens=4, max_context=1000)
    scheduler = Scheduler(EngineConfig(max_step_tokens=16), capacity)
    scheduler.submit(make_request("a", 2, max_tokens=100))
    events, _ = run(scheduler, FakeExecutor(capacity))
    tokens, finish = text(events["a"])
    assert (len(tokens), finish) == (10, FinishReason.LENGTH)


@pytest.mark.parametrize(("blocks", "what"), [(64, "the model's context"), (2, "the whole cache")])
def test_a_prompt_that_leaves_no_room_is_refused_with_both_numbers(blocks: int, what: str) -> None:
    capacity = make_capacity(blocks=blocks, max_context=20)
    scheduler = Scheduler(EngineConfig(), capacity)
    limit = scheduler.context_limit
    scheduler.submit(make_request("fits", limit - 1))
    with pytest.raises(RequestTooLong, match=what) as caught:
        scheduler.submit(make_request("long", limit))
    assert (caught.value.needed, caught.value.limit) == (limit + 1, limit)
    events, _ = run(scheduler, FakeExecutor(capacity))
    tokens, finish = text(events["fits"])
    assert (len(tokens), finish) == (1, FinishReason.LENGTH)


@pytest.mark.parametrize("ids", [[], [5, -1], [1000]])
def test_prompts_that_no_model_could_read_are_refused(ids: list[int]) -> None:
    scheduler = Scheduler(EngineConfig(), make_capacity())
    with pytest.raises(InvalidValue, match=r"^prompt: got"):
        scheduler.submit(Request("a", np.array(ids, dtype=np.int32), SamplingParams()))
    assert not scheduler.has_work


@pytest.mark.parametrize("field", ["stop_ids", "logit_bias"])
def test_ids_outside_the_vocabulary_are_refused_before_they_can_fail_a_step(field: str) -> None:
    scheduler = Scheduler(EngineConfig(), make_capacity())
    value = frozenset({1000}) if field == "stop_ids" else {1000: 1.0}
    with pytest.raises(InvalidValue, match=f"^{field}: got 1000"):
        scheduler.submit(make_request("a", 3, **{field: value}))


def test_the_queue_is_bounded_and_ids_are_unique() -> None:
    scheduler = Scheduler(EngineConfig(max_waiting=2), make_capacity())
    scheduler.submit(make_request("a", 3))
    with pytest.raises(InvalidValue, match="request_id"):
        scheduler.submit(make_request("a", 3))
    scheduler.submit(make_request("b", 3))
    with pytest.raises(QueueFull, match="2 requests are waiting"):
        scheduler.submit(make_request("c", 3))
    scheduler.plan()
    scheduler.submit(make_request("c", 3))


@pytest.mark.parametrize("field", ["blocks", "slots"])
def test_a_capacity_in_which_nothing_runs_is_refused(field: str) -> None:
    with pytest.raises(InvalidValue, match=rf"^capacity\.{field}"):
        Scheduler(EngineConfig(), make_capacity(**{field: 0}))


def test_memory_of_a_request_aborted_in_flight_is_held_until_apply() -> None:
    """INV-4: the executor may still write there; then it is freed once, and the result is dropped."""
    scheduler = Scheduler(EngineConfig(max_step_tokens=64), make_capacity())
    for name in "ab":
        scheduler.submit(make_request(name, 6))
    plan = scheduler.plan()
    free = (scheduler.free_blocks, scheduler.free_slots)
    assert scheduler.abort("a") == TokenEvent("a", finish=FinishReason.ABORT)
    assert scheduler.abort("a") is None
    assert (scheduler.free_blocks, scheduler.free_slots) == free
    scheduler.submit(make_request("a", 5))  # the id may be used again at once
    assert [event.request_id for event in scheduler.apply(answer(plan))] == ["b"]
    assert (scheduler.free_blocks, scheduler.free_slots) == (free[0] + 2, free[1] + 1)
    assert shape(scheduler.plan()) == [("b", 6, 7), ("a", 0, 5)]


def test_one_plan_at_a_time_is_in_flight() -> None:
    scheduler = Scheduler(EngineConfig(), make_capacity())
    with pytest.raises(RuntimeError, match="no step is in flight"):
        scheduler.apply(StepResult(0))
    scheduler.submit(make_request("a", 3))
    scheduler.plan()
    with pytest.raises(RuntimeError, match="step 0 is in flight"):
        scheduler.plan()


def commit(sampled: Sampled, **sampling: object) -> TokenEvent:
    scheduler = Scheduler(EngineConfig(), make_capacity(max_context=12))
    scheduler.submit(make_request("a", 6, **sampling))
    plan = scheduler.plan()
    (event,) = scheduler.apply(StepResult(plan.step, (sampled,)))
    assert scheduler.has_work == (event.finish is None)
    return event


STOP = {"stop_ids": frozenset({9})}


@pytest.mark.parametrize(
    ("tokens", "sampling", "want"),
    [
        ((5, 6), {}, ((5, 6), None, None)),
        ((9,), STOP, ((), "stop", 9)),
        ((5, 9, 6), STOP, ((5,), "stop", 9)),
        ((5, 9, 6), {**STOP, "min_tokens": 2}, ((5, 9, 6), None, None)),
        ((5, 6, 9), {**STOP, "min_tokens": 2}, ((5, 6), "stop", 9)),
        ((9,), {**STOP, "min_tokens": 1, "max_tokens": 1}, ((9,), "length", None)),
        ((5, 6, 7), {"max_tokens": 2}, ((5, 6), "length", None)),
        ((5, 6, 9), {**STOP, "max_tokens": 2}, ((5, 6), "length", None)),
        ((1, 2, 3, 4, 5, 6, 7), {"max_tokens": 50}, ((1, 2, 3, 4, 5, 6), "length", None)),
    ],
)
def test_stop_rules_cut_at_the_first_stop(
    tokens: tuple[int, ...], sampling: dict[str, object], want: tuple[object, ...]
) -> None:
    logprobs = tuple(TokenLogprob(token, -1.0) for token in tokens)
    event = commit(Sampled("a", tokens, logprobs), **sampling)
    assert (event.tokens, event.finish, event.stop_id) == want
    assert [entry.token for entry in event.logprobs] == list(event.tokens)


def test_an_error_in_one_chunk_ends_that_request_only() -> None:
    capacity = make_capacity()
    scheduler, executor = Scheduler(EngineConfig(), capacity), FakeExecutor(capacity)
    executor.poison.add("a")
    good = make_request("b", 5)
    scheduler.submit(make_request("a", 5))
    scheduler.submit(good)
    events, _ = run(scheduler, executor)
    assert events["a"] == [TokenEvent("a", finish=FinishReason.ERROR, error="logits are not finite")]
    assert text(events["b"]) == reference_tokens(good.history(5), good.sampling, capacity)
    assert scheduler.free_blocks == capacity.blocks


@pytest.mark.parametrize(
    "prefix_cache, expected", [(False, "11c0f1b0bf9ae915"), (True, "6479015ffbbca3e8")], ids=["off", "on"]
)
def test_plans_of_a_fixed_trace_are_unchanged(prefix_cache: bool, expected: str) -> None:
    """INV-8. A refactor must leave these hashes alone; a change of policy updates one and says so."""
    capacity = make_capacity(blocks=20, block_tokens=4, slots=4, max_context=64)
    config = EngineConfig(max_step_tokens=12, max_running=4, prefix_cache=prefix_cache)
    scheduler, executor = Scheduler(config, capacity), FakeExecutor(capacity, max_step_tokens=12)
    digest = hashlib.sha256()
    for step in range(400):
        if step < 24:
            scheduler.submit(make_request(f"r{step}", 1 + step * 5 % 23, max_tokens=1 + step * 7 % 19))
        if step % 11 == 10:
            scheduler.abort(f"r{step // 2}")
        plan = scheduler.plan()
        if plan is None:
            break
        for chunk in plan.chunks:
            digest.update(
                f"{plan.step} {chunk.request_id} {chunk.slot} {chunk.start} {chunk.history.tolist()} "
                f"{chunk.blocks.tolist()} {chunk.sampling is not None};".encode()
            )
        scheduler.apply(executor.execute(plan))
    assert not scheduler.has_work and scheduler.preemptions > 0
    assert digest.hexdigest()[:16] == expected
