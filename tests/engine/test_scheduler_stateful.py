"""Random walks through submit, abort, plan, apply and failing steps, on pools as small as they come."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flashpoint.engine.config import EngineConfig
from flashpoint.engine.events import FinishReason, TokenEvent
from flashpoint.engine.plan import StepPlan
from flashpoint.engine.request import Request
from flashpoint.engine.sampling import SamplingParams
from flashpoint.engine.scheduler import Scheduler
from flashpoint.errors import QueueFull, RequestTooLong
from tests.cache.memory import check
from tests.engine.fake_executor import FakeExecutor, make_capacity, reference_tokens

VOCAB = 13


def _raise(plan: StepPlan) -> None:
    raise RuntimeError("out of luck")


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        blocks=st.integers(1, 12),
        block_tokens=st.integers(1, 5),
        slots=st.integers(1, 4),
        max_running=st.integers(1, 4),
        spare_budget=st.integers(0, 8),
        max_context=st.integers(2, 40),
        tokens_per_sample=st.sampled_from([1, 1, 1, 3]),
        window=st.sampled_from([0, 0, 2, 5]),
        prefix_cache=st.booleans(),
        semantics=st.sampled_from(["replay", "full"]),
        slower=st.sampled_from([(0, 0), (0, 0), (4, 0), (4, 20), (30, 0)]),
    )
    def start(
        self,
        blocks: int,
        block_tokens: int,
        slots: int,
        max_running: int,
        spare_budget: int,
        max_context: int,
        tokens_per_sample: int,
        window: int,
        prefix_cache: bool,
        semantics: Literal["replay", "full"],
        slower: tuple[int, int],
    ) -> None:
        self.capacity = make_capacity(
            blocks, block_tokens, slots, max_context, VOCAB, window, slower[0], slower[1]
        )
        budget = max_running + spare_budget + window
        self.config = EngineConfig(
            max_step_tokens=budget,
            max_running=max_running,
            max_waiting=6,
            prefix_cache=prefix_cache,
            semantics=semantics,
        )
        self.scheduler = Scheduler(self.config, self.capacity)
        self.tokens_per_sample = tokens_per_sample
        self.executor = FakeExecutor(
            self.capacity,
            max_step_tokens=budget,
            tokens_per_sample=tokens_per_sample,
            transfer_steps=1 + max_context % 3,
        )
        self.submitted: dict[str, Request] = {}
        self.prompts: dict[str, np.ndarray] = {}
        self.tokens: dict[str, list[int]] = {}
        self.finishes: dict[str, list[FinishReason]] = {}
        self.plan: StepPlan | None = None

    @rule(
        family=st.integers(0, 1),
        kept=st.integers(0, 20),
        more=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8),
        max_tokens=st.integers(1, 12),
        stop_ids=st.frozensets(st.integers(0, VOCAB - 1), max_size=2),
        min_tokens=st.integers(0, 3),
        seed=st.integers(0, 3),
        greedy=st.booleans(),
    )
    def submit(
        self,
        family: int,
        kept: int,
        more: list[int],
        max_tokens: int,
        stop_ids: frozenset[int],
        min_tokens: int,
        seed: int,
        greedy: bool,
    ) -> None:
        name = f"r{len(self.submitted)}"
        prompt = [(position * 5 + family) % VOCAB for position in range(kept)] + more
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0 if greedy else 1.0,
            seed=seed,
            stop_ids=stop_ids,
            min_tokens=min(min_tokens, max_tokens),
        )
        request = Request(name, np.array(prompt, dtype=np.int32), sampling)
        limit = min(self.capacity.max_context, self.capacity.blocks * self.capacity.block_tokens)
        try:
            self.scheduler.submit(request)
        except RequestTooLong:
            assert len(prompt) >= limit
            return
        except QueueFull:
            assert self.scheduler.waiting_count >= self.config.max_waiting
            return
        assert len(prompt) < limit
        self.submitted[name] = request
        self.prompts[name] = np.array(prompt, dtype=np.int32)
        self.tokens[name] = []
        self.finishes[name] = []

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.submitted)))
        event = self.scheduler.abort(name)
        assert (event is None) == bool(self.finishes[name])
        self.hear([] if event is None else [event])

    @precondition(lambda self: self.plan is None)
    @rule()
    def decide(self) -> None:
        oldest = next(iter(self.scheduler._running), None)
        self.plan = self.scheduler.plan()
        # INV-6: whatever is not finished can be worked on, and the oldest always is.
        assert (self.plan is None) == (not self.scheduler.has_work)
        waits = self.capacity.host_blocks > 0  # for blocks on their way out
        if oldest is not None and self.tokens_per_sample == 1 and not waits:
            assert oldest.request_id in {chunk.request_id for chunk in self.plan.chunks}

    @precondition(lambda self: self.plan is not None)
    @rule(poison=st.sampled_from([False, False, False, True]))
    def execute(self, poison: bool) -> None:
        if poison and self.plan.chunks:
            self.executor.poison.add(self.plan.chunks[-1].request_id)
        self.hear(self.scheduler.apply(self.executor.execute(self.plan)))
        self.plan = None

    @precondition(lambda self: self.plan is not None)
    @rule()
    def fail(self) -> None:
        alive = {c.request_id for c in self.plan.chunks if not self.finishes[c.request_id]}
        self.executor.on_step = _raise
        with pytest.raises(RuntimeError):
            self.executor.execute(self.plan)
        self.executor.on_step = None
        events = self.scheduler.fail("out of luck")
        assert {event.request_id for event in events} == alive
        assert all(event.finish is FinishReason.ERROR and event.error == "out of luck" for event in events)
        self.hear(events)
        self.plan = None

    def hear(self, events: list[TokenEvent]) -> None:
        for event in events:
            assert not self.finishes[event.request_id], "an event after the end"
            self.tokens[event.request_id] += event.tokens
            if event.finish is not None:
                self.finishes[event.request_id].append(event.finish)

    @invariant()
    def blocks_and_slots_are_conserved(self) -> None:
        """INV-1, INV-2: every block has one place, and every slot is free or held by one admitted request."""
        holders = [request for request in self.submitted.values() if request.slot is not None]
        slots = [request.slot for request in holders] + self.scheduler._free_slots
        assert sorted(slots) == list(range(self.capacity.slots))
        check(self.scheduler._cache, [request.lease for request in holders])

    @invariant()
    def requests_are_conserved(self) -> None:
        """INV-3: each is waiting, running or finished, and finishing is told once."""
        finished = sum(len(finishes) for finishes in self.finishes.values())
        assert all(len(finishes) <= 1 for finishes in self.finishes.values())
        counted = self.scheduler.waiting_count + self.scheduler.running_count + finished
        assert counted == len(self.submitted)

    @invariant()
    def whoever_runs_came_before_whoever_waits(self) -> None:
        """INV-6."""
        order = {name: index for index, name in enumerate(self.submitted)}
        queue = [*self.scheduler._running, *self.scheduler._waiting.values()]
        positions = [order[request.request_id] for request in queue]
        assert positions == sorted(positions)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        # Each step computes a row or admits; a resumed request recomputes at most its length once per
        # preemption, and every preemption lets an older request take a block.
        for _ in range(10_000):
            if self.plan is not None:
                self.execute(poison=False)
            if not self.scheduler.has_work:
                break
            self.decide()
        assert not self.scheduler.has_work, "some request never ends"
        assert self.scheduler.free_blocks == self.capacity.blocks
        assert self.scheduler.free_slots == self.capacity.slots
        for name, request in self.submitted.items():
            (finish,) = self.finishes[name]
            want, reason = reference_tokens(self.prompts[name], request.sampling, self.capacity)
            got = tuple(self.tokens[name])
            if finish in (FinishReason.ABORT, FinishReason.ERROR):
                assert got == want[: len(got)]
            else:
                assert (got, finish) == (want, reason)  # INV-7: as if it had run alone


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
