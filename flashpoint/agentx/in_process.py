"""A level played straight into an engine of this process: no HTTP, no event loop.

The same schedule as over HTTP. The loop is the engine's: what is due is submitted, one step runs, its tokens
are written down, ends go back to the schedule. What keeps plays apart in the cache is a namespace of their
own, not the marker in the text: prompts are exactly as long as recorded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from flashpoint.agentx.client import Answer, Usage
from flashpoint.agentx.prompts.prompter import Prompter
from flashpoint.agentx.recording import TIME_UP, Cut, make_record
from flashpoint.agentx.records import RequestRecord
from flashpoint.agentx.run_levels import LevelContext
from flashpoint.agentx.schedule.lanes import Outcome, Send
from flashpoint.agentx.step_rows import Floors, steps_table
from flashpoint.engine.core import EngineCore, StepRecord
from flashpoint.engine.events import FinishReason, TokenEvent
from flashpoint.engine.request import Request
from flashpoint.engine.sampling import SamplingParams
from flashpoint.errors import FlashpointError, RequestTooLong


@dataclass(slots=True)
class _Open:
    send: Send
    answer: Answer
    request: Request


class InProcessLevel:
    """One concurrency level on an engine; the counterpart of `level.Level`."""

    def __init__(
        self, core: EngineCore, prompter: Prompter, context: LevelContext, floors: Floors | None = None
    ) -> None:
        """`core` and `prompter` are the level's own from here on; `close` closes them.
        floors: of the machine that computes, where it is known."""
        self._core = core
        self._prompter = prompter
        self._floors = floors
        self._clock = context.clock
        self._lanes = context.lanes
        self._number = context.number
        self._run_id = context.run_id
        self._origin = context.origin
        self._on_record = context.on_record
        self._numbers = itertools.count()
        self._open: dict[str, _Open] = {}
        self._steps: list[StepRecord] = []
        self.records: list[RequestRecord] = []
        self.lateness: list[float] = []
        self.cut: Cut | None = None
        core.add_observer(self._steps.append)

    def run(self, duration: float, warmup_grace: float, interrupted: Callable[[], Cut | None]) -> None:
        """Play until `duration` seconds are measured, or `interrupted` says why to stop earlier."""
        started = self._clock.now()
        self._lanes.prepare()
        self._lanes.start(self._clock.now())
        while self.cut is None:
            now = self._clock.now()
            measured_from = self._lanes.measured_from
            end = started + warmup_grace if measured_from is None else measured_from + duration
            if now >= end:
                late = Cut("stopped", "cancelled", f"the warm-up was not over after {warmup_grace:g} s")
                self.cut = late if measured_from is None else TIME_UP
                break
            self.cut = interrupted()
            for send in self._lanes.take(now):
                self._submit(send, now)
            if self._core.has_work:
                self._deliver(self._core.step())
            else:
                due = self._lanes.next_due()
                self._clock.wait_until(min(end, end if due is None else due))
        for request_id, opened in list(self._open.items()):
            self._core.abort(request_id)
            opened.answer.end = self._clock.now()
            self._record(opened, self.cut)

    def close(self) -> None:
        """Close the engine."""
        self._prompter.close()
        self._core.close()

    def steps(self) -> pa.Table:
        """The engine's steps as `STEPS_SCHEMA`."""
        return steps_table(self._steps, level=self._number, rank=0, origin=self._origin, floors=self._floors)

    def _submit(self, send: Send, now: float) -> None:
        if send.stage == "measured":
            self.lateness.append(max(0.0, now - send.due))
        tokens = self._prompter.tokens(send.play, send.stream, send.turn)
        sampling = SamplingParams(max_tokens=send.max_tokens, min_tokens=send.max_tokens, temperature=0.0)
        request_id = f"{self._run_id}-{self._number}-{next(self._numbers)}"
        request = Request(request_id, tokens, sampling, namespace=send.play.marker.encode())
        opened = _Open(send, Answer(start=now), request)
        try:
            self._core.submit(request)
        except FlashpointError as error:
            opened.answer.error, opened.answer.overflow = str(error), isinstance(error, RequestTooLong)
            self._ended(opened)
            return
        self._open[request.request_id] = opened

    def _deliver(self, events: list[TokenEvent]) -> None:
        now = self._clock.now()
        for event in events:
            opened = self._open.get(event.request_id)
            if opened is None:
                continue
            answer = opened.answer
            if event.tokens:
                before = answer.usage.output_tokens or 0 if answer.usage else 0
                total = before + len(event.tokens)
                answer.chunk_times.append(now)
                answer.chunk_totals.append(total)
                answer.first_answer_time = answer.first_answer_time or now
                answer.usage = Usage(opened.request.prompt_tokens, total, event.cached_tokens)
            if event.finish is not None:
                answer.finish_reason = event.finish.value
                if event.finish is FinishReason.ERROR:
                    answer.error = event.error or "the engine gave no reason"
                del self._open[event.request_id]
                self._ended(opened)

    def _ended(self, opened: _Open) -> None:
        answer = opened.answer
        answer.end = self._clock.now()
        self._record(opened, None)
        outcome: Outcome = "ok" if answer.error is None else "overflow" if answer.overflow else "error"
        self._lanes.ended(opened.send, answer.end, outcome)
        if self._lanes.failed_primer is opened.send:
            self.cut = Cut("stopped", "cancelled", f"a primer failed: {answer.error}")

    def _record(self, opened: _Open, cut: Cut | None) -> None:
        send = opened.send
        record = make_record(
            send,
            opened.answer,
            level=self._number,
            concurrency=self._lanes.config.lanes,
            request_id=opened.request.request_id,
            correlation_id=f"{self._run_id}-{self._number}-{send.play.number}-{send.conversation_id}",
            origin=self._origin,
            cut=cut,
        )
        self.records.append(record)
        self._on_record(record)
