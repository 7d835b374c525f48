"""One concurrency level against a server: the schedule's requests over the network, each written down."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from flashpoint.agentx.client import Answer, ChatRequest
from flashpoint.agentx.prompts.body import chat_body
from flashpoint.agentx.prompts.prompter import Prompter
from flashpoint.agentx.recording import INTERRUPTED, SERVER_LOST, TIME_UP, Cut, make_record
from flashpoint.agentx.records import RequestRecord
from flashpoint.agentx.schedule.lanes import Lanes, Send
from flashpoint.agentx.watch import ServerWatch

LEAST_RECORDS_TO_JUDGE = 10


class Transport(Protocol):
    """Sends a request and fills its answer until the response ends; a failure is in the answer."""

    async def stream(self, request: ChatRequest, answer: Answer) -> None:
        """See `client.ChatClient.stream`."""
        ...


@dataclass(frozen=True)
class LevelConfig:
    """What every request of a level asks for, and when the level ends. Seconds and shares of 1."""

    model: str
    duration: float
    warmup_grace: float
    failed_threshold: float
    legacy_max_tokens: bool


class Level:
    """Runs one level and collects its records; times are seconds since `origin` on the monotonic clock."""

    def __init__(
        self,
        transport: Transport,
        watch: ServerWatch,
        prompter: Prompter,
        lanes: Lanes,
        config: LevelConfig,
        *,
        number: int,
        run_id: str,
        origin: float,
        on_record: Callable[[RequestRecord], None],
    ) -> None:
        self._transport = transport
        self._watch = watch
        self._prompter = prompter
        self._lanes = lanes
        self._config = config
        self._number = number
        self._run_id = run_id
        self._origin = origin
        self._on_record = on_record
        self._request_number = itertools.count()
        self._wake = asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        self._broken: list[BaseException] = []
        """What requests raised: errors of this program, as a server's are in the records."""
        self._judged = self._failed = 0
        self.records: list[RequestRecord] = []
        self.lateness: list[float] = []
        """Seconds by which requests of the measured phase were sent after they were due."""
        self.cut: Cut | None = None

    async def prepare(self, interrupt: asyncio.Event, on_progress: Callable[[int, int], None]) -> None:
        """Read the first sessions and make the first prompts; tells how many of how many are made."""
        first = await asyncio.to_thread(self._lanes.prepare)
        for play, stream, turn in first:
            self._prompter.prefetch(play, stream, turn)
        for done, (play, stream, turn) in enumerate(first):
            if interrupt.is_set():
                return
            on_progress(done, len(first))
            await self._prompter.prompt(play, stream, turn)

    async def run(self, interrupt: asyncio.Event) -> None:
        """Play until the duration is over, `interrupt` is set, the server is lost or too much fails."""
        stops = [
            asyncio.create_task(self._stop_on(interrupt, INTERRUPTED)),
            asyncio.create_task(self._stop_on(self._watch.lost, SERVER_LOST)),
        ]
        self._lanes.start(time.monotonic())
        started = time.monotonic()
        try:
            while self.cut is None and not self._broken:
                now = time.monotonic()
                end = self._end(started)
                if now >= end:
                    self.cut = self._time_up()
                    break
                for send in self._lanes.take(now):
                    task = asyncio.create_task(self._request(send))
                    self._open.add(task)
                    task.add_done_callback(self._request_over)
                due = self._lanes.next_due()
                await self._sleep(min(end, end if due is None else due) - time.monotonic())
        finally:
            for task in (*stops, *self._open):
                task.cancel()
            results = await asyncio.gather(*stops, *self._open, return_exceptions=True)
        for result in (*self._broken, *results):
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result
        if self.cut is TIME_UP and not await self._watch.alive():
            self.cut = SERVER_LOST  # lost just before the end, and noticed only now

    def _request_over(self, task: asyncio.Task[None]) -> None:
        """Let go of a request; one that raised ends the level, as its lane would wait for it for ever."""
        self._open.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken.append(error)
            self._wake.set()

    def _end(self, started: float) -> float:
        if self._lanes.measured_from is None:
            return started + self._config.warmup_grace
        return self._lanes.measured_from + self._config.duration

    def _time_up(self) -> Cut:
        if self._lanes.measured_from is not None:
            return TIME_UP
        text = f"the warm-up was not over after {self._config.warmup_grace:g} s"
        return Cut("stopped", "cancelled", text)

    async def _sleep(self, seconds: float) -> None:
        """Wait until `seconds` are over, or an end or a stop wakes us."""
        timer = asyncio.get_running_loop().call_later(max(0.0, seconds), self._wake.set)
        await self._wake.wait()
        timer.cancel()
        self._wake.clear()

    async def _stop_on(self, event: asyncio.Event, cut: Cut) -> None:
        await event.wait()
        self._stop(cut)

    def _stop(self, cut: Cut) -> None:
        self.cut = self.cut or cut
        self._wake.set()

    async def _request(self, send: Send) -> None:
        prompt = await self._prompter.prompt(send.play, send.stream, send.turn)
        request = ChatRequest(
            request_id=f"{self._run_id}-{self._number}-{next(self._request_number)}",
            correlation_id=f"{self._run_id}-{self._number}-{send.play.number}-{send.conversation_id}",
            body=chat_body(
                prompt.messages,
                self._config.model,
                send.max_tokens,
                legacy_max_tokens=self._config.legacy_max_tokens,
            ),
        )
        answer = Answer()
        try:
            await self._transport.stream(request, answer)
        except asyncio.CancelledError:
            self._record(send, request, answer, self.cut or INTERRUPTED)
            raise
        self._record(send, request, answer, None)
        if answer.connection_failed:
            self._watch.suspect()
            if not await self._watch.alive():
                return  # `run` cuts the level
        self._ended(send, answer)

    def _ended(self, send: Send, answer: Answer) -> None:
        outcome: Literal["ok", "error", "overflow"] = "ok"
        if answer.error is not None:
            outcome = "overflow" if answer.overflow else "error"
        self._lanes.ended(send, answer.end, outcome)
        for stream in send.play.live():
            state = send.play.streams[stream]
            if state.state != "flying" and (stream == send.stream or not state.next):
                self._prompter.prefetch(send.play, stream, state.next)
        if self._lanes.failed_primer is send:
            self._stop(Cut("stopped", "cancelled", f"a primer failed: {answer.error}"))
        self._judge(outcome == "error")
        self._wake.set()

    def _judge(self, failed: bool) -> None:
        """Stop when more than the threshold failed, once there is enough to judge by (spec section 5)."""
        self._judged += 1
        self._failed += failed
        enough = self._judged >= max(self._lanes.config.lanes, LEAST_RECORDS_TO_JUDGE)
        if enough and self._failed > self._config.failed_threshold * self._judged:
            text = f"{self._failed} of {self._judged} requests failed"
            self._stop(Cut("stopped", "cancelled", text))

    def _record(self, send: Send, request: ChatRequest, answer: Answer, cut: Cut | None) -> None:
        if not answer.start:
            answer.start = answer.end = time.monotonic()
        if send.stage == "measured":
            self.lateness.append(max(0.0, answer.start - send.due))
        record = make_record(
            send,
            answer,
            level=self._number,
            concurrency=self._lanes.config.lanes,
            request_id=request.request_id,
            correlation_id=request.correlation_id,
            origin=self._origin,
            cut=cut,
        )
        self.records.append(record)
        self._on_record(record)

    def facts(self) -> dict[str, Any]:
        """What the archive says about the level beside its records."""
        measured_from = self._lanes.measured_from
        return {
            "sessions_started": self._lanes.sessions_started,
            "measured_from": None if measured_from is None else measured_from - self._origin,
            "idle_skipped": self._lanes.idle_skipped,
            "broken_waits": self._lanes.broken_waits,
        }
