"""One concurrency level: N lanes, each of which always plays one session, closed loop.

A lane sends a turn, waits for the whole answer, puts it into the conversation, waits the turn's think time
and sends the next; at the session's end it takes the next session of the list. Without a duration every
session is played equally often: once, or, where the list is shorter than N, in as many passes as give every
lane one. With a duration the list is played over and over until time is up; requests open at that moment
are cut and left out of the metrics.

Every play of a session starts with a marker of its own (`[rid:<12 hex>]` in front of the first message), so
no play finds its prompt in the server's cache from an earlier play, level or run: the cache hits measured
are those of a first visit.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flashpoint.agentx.client import Answer, ChatClient, ChatRequest, Message
from flashpoint.agentx.records import RequestRecord, Status
from flashpoint.agentx.sessions import Session
from flashpoint.agentx.watch import ServerWatch

# After a failure a lane waits, so that a server that refuses everything is not flooded.
PAUSE_AFTER_ERROR_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Sampling:
    """What every request of a run asks for, whatever its session."""

    model: str
    temperature: float
    seed: int
    force_length: bool


@dataclass(frozen=True, slots=True)
class Cut:
    """Why a level ended before its sessions did, and what becomes of the requests then open."""

    reason: Literal["duration", "interrupted", "server_lost"]
    status: Status
    text: str


TIME_UP = Cut("duration", "cancelled", "open when the level's duration was over")
INTERRUPTED = Cut("interrupted", "cancelled", "open when the run was interrupted")
SERVER_LOST = Cut("server_lost", "error", "open when the server was lost")


def first_message_marker(cache_bust: str, level: int, play: int, session_id: str) -> str:
    """The line that keeps one play of a session from hitting the cached prompt of another."""
    digest = hashlib.sha256(f"{cache_bust}/{level}/{play}/{session_id}".encode()).hexdigest()
    return f"[rid:{digest[:12]}]\n\n"


def plays(sessions: Sequence[Session], concurrency: int, *, endless: bool) -> Iterator[tuple[int, Session]]:
    """The sessions in the order in which lanes take them, each with the number of its pass."""
    passes = itertools.count() if endless else range(-(-concurrency // len(sessions)))
    return ((number, session) for number in passes for session in sessions)


class Level:
    """Runs one level and collects its records; times are seconds since `origin` on the monotonic clock."""

    def __init__(
        self,
        client: ChatClient,
        watch: ServerWatch,
        sessions: Sequence[Session],
        sampling: Sampling,
        *,
        number: int,
        concurrency: int,
        duration: float | None,
        cache_bust: str,
        origin: float,
        on_record: Callable[[RequestRecord], None],
    ) -> None:
        self._client = client
        self._watch = watch
        self._sampling = sampling
        self._number = number
        self._concurrency = concurrency
        self._duration = duration
        self._cache_bust = cache_bust
        self._origin = origin
        self._on_record = on_record
        self._plays = plays(sessions, concurrency, endless=duration is not None)
        self._request_number = itertools.count()
        self.records: list[RequestRecord] = []
        self.sessions_started = 0
        self.load_dropped_at: float | None = None
        self.cut: Cut | None = None

    async def run(self, interrupt: asyncio.Event) -> None:
        """Play until sessions or duration are over, `interrupt` is set or the server is lost."""
        lanes = [asyncio.create_task(self._lane(lane)) for lane in range(self._concurrency)]
        everything = asyncio.create_task(asyncio.wait(lanes, return_when=asyncio.FIRST_EXCEPTION))
        stops: dict[asyncio.Future[Any], Cut] = {
            asyncio.create_task(interrupt.wait()): INTERRUPTED,
            asyncio.create_task(self._watch.lost.wait()): SERVER_LOST,
        }
        try:
            done, _ = await asyncio.wait(
                {everything, *stops}, timeout=self._duration, return_when=asyncio.FIRST_COMPLETED
            )
            if everything not in done:
                self.cut = next((cut for stop, cut in stops.items() if stop in done), TIME_UP)
        finally:
            for task in (*lanes, *stops, everything):
                task.cancel()
            results = await asyncio.gather(*lanes, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    async def _lane(self, lane: int) -> None:
        for play, session in self._plays:
            self.sessions_started += 1
            if not await self._play(lane, play, session):
                if not await self._watch.alive():
                    await asyncio.Event().wait()  # `run` cuts every lane when the server is lost
                await asyncio.sleep(PAUSE_AFTER_ERROR_SECONDS)
        if self.load_dropped_at is None:
            self.load_dropped_at = self._now()

    async def _play(self, lane: int, play: int, session: Session) -> bool:
        """Play one session to its end, or to its first failed request (False)."""
        marker = first_message_marker(self._cache_bust, self._number, play, session.id)
        messages: list[Message] = []
        if session.system:
            messages.append({"role": "system", "content": marker + session.system})
            marker = ""
        for number, turn in enumerate(session.turns):
            await asyncio.sleep(turn.think_seconds)
            messages.append({"role": "user", "content": marker + turn.user})
            marker = ""
            request = ChatRequest(
                request_id=f"{self._cache_bust}-{self._number}-{next(self._request_number)}",
                session_id=f"{self._cache_bust}-{self._number}-{play}-{session.id}",
                model=self._sampling.model,
                messages=messages,
                max_tokens=turn.max_tokens,
                temperature=self._sampling.temperature,
                seed=self._sampling.seed,
                force_length=self._sampling.force_length,
            )
            answer = Answer()
            try:
                await self._client.stream(request, answer)
            except asyncio.CancelledError:
                self._record(lane, play, session, number, request, answer, self.cut or INTERRUPTED)
                raise
            self._record(lane, play, session, number, request, answer, None)
            if answer.error is not None:
                if answer.connection_failed:
                    self._watch.suspect()
                return False
            messages.append(answer.as_message())
        return True

    def _record(
        self,
        lane: int,
        play: int,
        session: Session,
        turn: int,
        request: ChatRequest,
        answer: Answer,
        cut: Cut | None,
    ) -> None:
        status: Status = "error" if answer.error is not None else "ok"
        first = answer.chunk_times[0] - answer.start if answer.chunk_times else None
        last = answer.chunk_times[-1] - answer.start if answer.chunk_times else None
        record = RequestRecord(
            level=self._number,
            concurrency=self._concurrency,
            lane=lane,
            session=session.id,
            play=play,
            turn=turn,
            request_id=request.request_id,
            max_tokens=request.max_tokens,
            start=answer.start - self._origin,
            end=answer.end - self._origin,
            status=cut.status if cut else status,
            ttft=first,
            ttft_answer=answer.first_answer_time - answer.start if answer.first_answer_time else None,
            last_token=last,
            token_offsets=answer.token_times() - answer.start,
            chunks=len(answer.chunk_times),
            prompt_tokens=answer.usage.prompt_tokens if answer.usage else None,
            cached_tokens=answer.usage.cached_tokens if answer.usage else None,
            output_tokens=answer.usage.output_tokens if answer.usage else None,
            http_status=answer.http_status,
            finish_reason=answer.finish_reason,
            error=cut.text if cut else answer.error,
        )
        self.records.append(record)
        self._on_record(record)

    def _now(self) -> float:
        return time.monotonic() - self._origin
