"""One concurrency level in virtual time; the counterpart of `agentx.in_process` and `agentx.level`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flashpoint.agentx.client import Usage
from flashpoint.agentx.recording import TIME_UP, Cut, make_record
from flashpoint.agentx.records import RequestRecord
from flashpoint.agentx.run_levels import LevelContext
from flashpoint.agentx.schedule.lanes import Outcome, Send
from flashpoint.agentx.step_rows import Floors, steps_table
from flashpoint.engine.core import EngineCore, StepRecord
from flashpoint.errors import InvalidValue, RequestTooLong
from flashpoint.hardware.replica import Delivery
from flashpoint.simulate.fleet import Fleet, Job


@dataclass(slots=True)
class VirtualAnswer:
    """What came back so far; see `recording.Heard`."""

    start: float
    prompt_tokens: int
    end: float = 0.0
    first_chunk: float | None = None
    last_chunk: float | None = None
    chunks: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    http_status: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    overflow: bool = False
    times: list[npt.NDArray[np.float64]] = field(default_factory=list)

    @property
    def first_answer_time(self) -> float | None:
        """Nothing is reasoning here."""
        return self.first_chunk

    @property
    def usage(self) -> Usage | None:
        """As a server would report it."""
        if self.first_chunk is None:
            return None
        return Usage(self.prompt_tokens, self.output_tokens, self.cached_tokens)

    def token_times(self) -> npt.NDArray[np.float64]:
        """One time per token, where they are kept."""
        return np.concatenate(self.times) if self.times else np.empty(0)

    def hear(self, delivery: Delivery, *, keep_times: bool) -> None:
        """Take in an event."""
        event = delivery.event
        if event.tokens:
            if self.first_chunk is None:
                self.first_chunk = float(delivery.ends[0])
                self.cached_tokens = event.cached_tokens
            self.last_chunk = float(delivery.ends[-1])
            self.chunks += delivery.steps
            self.output_tokens += len(event.tokens)
            if keep_times:
                self.times.append(np.repeat(delivery.ends, np.diff([0, *delivery.totals])))
        if event.finish is not None:
            self.finish_reason = event.finish.value
            self.error = event.error


@dataclass(slots=True)
class _Open:
    send: Send
    answer: VirtualAnswer


class VirtualLevel:
    """Lanes played into a fleet."""

    def __init__(
        self,
        fleet: Fleet,
        cores: Sequence[EngineCore],
        context: LevelContext,
        *,
        token_times: bool,
        floors: Floors | None = None,
        on_time: Callable[[float], None] = lambda now: None,
        check_every: int = 1024,
    ) -> None:
        """`cores`: the engines of the fleet, whose steps are archived.  floors: of the machine they run on.
        on_time: told how far time is, every `check_every` rounds; as often it is asked whether the user wants
        to stop."""
        self._fleet = fleet
        self._clock = context.clock
        self._lanes = context.lanes
        self._context = context
        self._token_times = token_times
        self._floors = floors
        self._on_time = on_time
        self._check_every = check_every
        self._numbers = itertools.count()
        self._open: dict[str, _Open] = {}
        self._steps: list[list[StepRecord]] = []
        for core in cores:
            records: list[StepRecord] = []
            core.add_observer(records.append)
            self._steps.append(records)
        self.records: list[RequestRecord] = []
        self.lateness: list[float] = []
        self.cut: Cut | None = None

    def run(self, duration: float, warmup_grace: float, interrupted: Callable[[], Cut | None]) -> None:
        """Play until `duration` virtual seconds are measured, or `interrupted` says why to stop earlier."""
        started = self._clock.now()
        self._lanes.prepare()
        self._lanes.start(started)
        for number in itertools.count():
            if number % self._check_every == 0:
                self._on_time(self._clock.now())
                self.cut = self.cut or interrupted()
            measured_from = self._lanes.measured_from
            end = started + warmup_grace if measured_from is None else measured_from + duration
            if self._clock.now() >= end and self.cut is None:
                late = Cut("stopped", "cancelled", f"the warm-up was not over after {warmup_grace:g} s")
                self.cut = late if measured_from is None else TIME_UP
            if self.cut is not None:
                break
            for delivery in self._fleet.advance():
                self._hear(delivery)
            for send in self._lanes.take(self._clock.now()):
                self._send(send)
            self._fleet.settle()
            moments = [m for m in (self._fleet.next_event(), self._lanes.next_due()) if m is not None]
            self._clock.wait_until(min([*moments, end]))
        for delivery in self._fleet.halt():
            if delivery.event.finish is None:
                self._hear(delivery)
        for request_id, opened in list(self._open.items()):
            self._fleet.abort(request_id)
            opened.answer.end = self._clock.now()
            self._record(request_id, opened, self.cut)

    def close(self) -> None:
        """Nothing outlives the level."""

    def steps(self) -> pa.Table:
        """The engines' steps as `STEPS_SCHEMA`."""
        return pa.concat_tables(
            steps_table(
                records,
                level=self._context.number,
                rank=rank,
                origin=self._context.origin,
                floors=self._floors,
            )
            for rank, records in enumerate(self._steps)
        )

    def _send(self, send: Send) -> None:
        now = self._clock.now()
        if send.stage == "measured":
            self.lateness.append(max(0.0, now - send.due))
        call, trace = send.recorded.call, send.play.session.trace
        whole = call.input_tokens // trace.block_size
        names = call.hash_ids[:whole]
        if len(names) and not 0 <= int(names.max()) < 2**31:
            raise InvalidValue(f"{trace.id}, hash_ids", int(names.max()), "ids from 0 to 2^31 - 1")
        job = Job(
            request_id=f"{self._context.run_id}-{self._context.number}-{next(self._numbers)}",
            session=f"{send.play.number}-{send.conversation_id}",
            prompt_tokens=call.input_tokens,
            names=names.astype(np.int32),
            token_share=trace.block_size,
            max_tokens=send.max_tokens,
            namespace=send.play.marker.encode(),
        )
        opened = _Open(send, VirtualAnswer(now, call.input_tokens))
        try:
            self._fleet.arrive(job)
        except RequestTooLong as error:
            opened.answer.error, opened.answer.overflow = str(error), True
            self._ended(job.request_id, opened)
            return
        self._open[job.request_id] = opened

    def _hear(self, delivery: Delivery) -> None:
        opened = self._open.get(delivery.event.request_id)
        if opened is None:
            return
        opened.answer.hear(delivery, keep_times=self._token_times)
        if delivery.event.finish is not None:
            del self._open[delivery.event.request_id]
            self._ended(delivery.event.request_id, opened)

    def _ended(self, request_id: str, opened: _Open) -> None:
        answer = opened.answer
        answer.end = self._clock.now()
        self._record(request_id, opened, None)
        outcome: Outcome = "ok" if answer.error is None else "overflow" if answer.overflow else "error"
        self._lanes.ended(opened.send, answer.end, outcome)
        if self._lanes.failed_primer is opened.send:
            self.cut = Cut("stopped", "cancelled", f"a primer failed: {answer.error}")

    def _record(self, request_id: str, opened: _Open, cut: Cut | None) -> None:
        send = opened.send
        record = make_record(
            send,
            opened.answer,
            level=self._context.number,
            concurrency=self._lanes.config.lanes,
            request_id=request_id,
            correlation_id=f"{self._context.run_id}-{self._context.number}-"
            f"{send.play.number}-{send.conversation_id}",
            origin=self._context.origin,
            cut=cut,
        )
        self.records.append(record)
        self._context.on_record(record)
