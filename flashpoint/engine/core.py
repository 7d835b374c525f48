"""The step loop's body: plan, execute, apply, count. Knows neither threads nor asyncio.

The same object drives the real and the virtual executor; only the clock and the executor differ.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from flashpoint.engine.clock import Clock
from flashpoint.engine.events import TokenEvent
from flashpoint.engine.executor import Executor
from flashpoint.engine.plan import StepCounts, StepPlan, StepResult
from flashpoint.engine.request import Request
from flashpoint.engine.scheduler import Scheduler
from flashpoint.engine.stats import EngineStats

log = logging.getLogger(__name__)


class StepRecord(NamedTuple):
    """What one step did, for histograms and run archives.

    start, seconds: when it began on the engine's clock, and how long it took, scheduling included.
    steps: how many equal steps these are (`StepPlan.repeat_blocks`); rows are those of one.
    prefill_rows: computed rows at prompt positions; decode_rows: at answer positions (those computed
        again after a preemption and drafts included).
    replay_rows: of both, rows that only refill windows after a cache hit.
    sampled_tokens: answer tokens accepted.
    running, waiting, free_blocks: counts after the step.  preemptions: how many this step caused.
    failed: the executor raised; the step's requests ended with an error.
    counts: what all `steps` asked of the machine, where the executor counts.
    """

    step: int
    start: float
    seconds: float
    prefill_rows: int
    decode_rows: int
    replay_rows: int
    sampled_tokens: int
    running: int
    waiting: int
    free_blocks: int
    preemptions: int
    failed: bool
    steps: int = 1
    counts: StepCounts | None = None


class EngineCore:
    """One scheduler, one executor, one clock. Not thread safe: one caller."""

    def __init__(self, scheduler: Scheduler, executor: Executor, clock: Clock) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._observers: list[Callable[[StepRecord], None]] = []
        self._steps = 0
        self._step_seconds = 0.0
        self._prompt_tokens = 0
        self._computed_prompt_tokens = 0
        self._replayed_tokens = 0
        self._generated_tokens = 0
        self._finished: Counter[str] = Counter()
        self._begun: tuple[StepPlan, float, int] | None = None

    @property
    def max_context(self) -> int:
        """Tokens that one sequence can have, prompt and answer."""
        return self._scheduler.context_limit

    @property
    def has_work(self) -> bool:
        """True while a request is not finished."""
        return self._scheduler.has_work

    def add_observer(self, observer: Callable[[StepRecord], None]) -> None:
        """Call `observer` with each step's record, on the caller's thread; it must not raise."""
        self._observers.append(observer)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises as `Scheduler.submit`."""
        self._scheduler.submit(request)
        self._prompt_tokens += request.prompt_tokens

    def cached_tokens(self, request: Request) -> int:
        """Tokens of a request's prompt that the cache holds on the device now; nothing is held for it."""
        return self._scheduler.cached_tokens(request)

    def abort(self, request_id: str) -> list[TokenEvent]:
        """End a request in any state; empty when the id is unknown or finished."""
        event = self._scheduler.abort(request_id)
        return self._counted([] if event is None else [event])

    def step(self) -> list[TokenEvent]:
        """Run one step and return its events; empty when there is nothing to compute.

        An executor that raises, or answers another plan than it got, costs the step's requests only (INV-9).
        """
        plan = self.begin()
        if plan is None:
            return []
        try:
            result = self._executor.execute(plan)
            check_result(plan, result)
        except Exception as error:
            log.exception("step %d failed", plan.step)
            events = self._scheduler.fail(f"{type(error).__name__}: {error}")
            return self._over(events, 1, None, failed=True)
        return self.finish(result)

    def begin(self) -> StepPlan | None:
        """Plan a step that the caller runs and whose result `finish` gets; None: nothing to compute."""
        begun = self._clock.now(), self._scheduler.preemptions
        plan = self._scheduler.plan()
        self._begun = None if plan is None else (plan, *begun)
        return plan

    def finish(self, result: StepResult) -> list[TokenEvent]:
        """Commit the result of the step that `begin` planned, now, and return its events."""
        return self._over(self._scheduler.apply(result), result.steps, result.counts, failed=False)

    def close(self) -> None:
        """Let the executor give back what it holds. No step may follow."""
        self._executor.close()

    def stats(self) -> EngineStats:
        """Counters and gauges now; `seconds_since_progress` is left to whoever watches from outside."""
        scheduler = self._scheduler
        return EngineStats(
            waiting=scheduler.waiting_count,
            running=scheduler.running_count,
            free_blocks=scheduler.free_blocks,
            cached_blocks=scheduler.cached_blocks,
            total_blocks=self._executor.capacity.blocks,
            free_slots=scheduler.free_slots,
            total_slots=self._executor.capacity.slots,
            steps=self._steps,
            step_seconds=self._step_seconds,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=sum(scheduler.hit_tokens),
            cached_tokens_by_tier=scheduler.hit_tokens,
            computed_prompt_tokens=self._computed_prompt_tokens,
            replayed_tokens=self._replayed_tokens,
            generated_tokens=self._generated_tokens,
            preemptions=scheduler.preemptions,
            failed_transfers=scheduler.failed_transfers,
            finished=dict(self._finished),
        )

    def _over(
        self, events: list[TokenEvent], steps: int, counts: StepCounts | None, *, failed: bool
    ) -> list[TokenEvent]:
        if self._begun is None:
            raise RuntimeError("no step was begun")
        (plan, start, preemptions), self._begun = self._begun, None
        if plan.chunks:
            caused = self._scheduler.preemptions - preemptions
            self._record(plan, start, events, caused, steps, counts, failed)
        return self._counted(events)

    def _counted(self, events: list[TokenEvent]) -> list[TokenEvent]:
        for event in events:
            self._generated_tokens += len(event.tokens)
            if event.finish is not None:
                self._finished[event.finish] += 1
        return events

    def _record(
        self,
        plan: StepPlan,
        start: float,
        events: list[TokenEvent],
        preemptions: int,
        steps: int,
        counts: StepCounts | None,
        failed: bool,
    ) -> None:
        rows = prefill_rows = replay_rows = 0
        for chunk in plan.chunks:
            first, end = chunk.start, len(chunk.history)
            rows += end - first + chunk.draft_tokens
            if first < chunk.prompt_tokens:
                prefill_rows += min(end, chunk.prompt_tokens) - first
            if first < chunk.write_from:
                replay_rows += min(end, chunk.write_from) - first
        seconds = self._clock.now() - start
        self._steps += steps
        self._step_seconds += seconds
        if not failed:
            self._computed_prompt_tokens += prefill_rows
            self._replayed_tokens += replay_rows
        record = StepRecord(
            step=plan.step,
            steps=steps,
            start=start,
            seconds=seconds,
            prefill_rows=prefill_rows,
            decode_rows=rows - prefill_rows,
            replay_rows=replay_rows,
            sampled_tokens=sum(len(event.tokens) for event in events),
            running=self._scheduler.running_count,
            waiting=self._scheduler.waiting_count,
            free_blocks=self._scheduler.free_blocks,
            preemptions=preemptions,
            failed=failed,
            counts=counts,
        )
        for observer in self._observers:
            observer(record)


def check_result(plan: StepPlan, result: StepResult) -> None:
    """ValueError when `result` does not answer `plan`.

    It must hold, for each chunk that samples, one Sampled with tokens or an error.
    """
    if result.step != plan.step:
        raise ValueError(f"the executor answered step {result.step}, not {plan.step}")
    asked = sorted(chunk.request_id for chunk in plan.chunks if chunk.sampling is not None)
    answered = sorted(item.request_id for item in result.sampled)
    if asked != answered:
        raise ValueError(f"the executor sampled for {answered}, not for {asked}")
    for item in result.sampled:
        if item.error is None and not item.tokens:
            raise ValueError(f"the executor gave request {item.request_id} neither a token nor an error")
