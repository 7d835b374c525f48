"""The engine behind a thread, for asyncio callers: submit, stream events, abort, drain.

`EngineClient` is the boundary the HTTP server codes against, `EngineService` its implementation.

Two threads meet here and share nothing but an inbox (loop to engine), callbacks (engine to loop, one per
step) and an immutable snapshot of the counters. Request ids and streams belong to the loop's thread, the
scheduler to the engine's.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from flashpoint.engine.clock import Clock, WallClock
from flashpoint.engine.config import EngineConfig
from flashpoint.engine.core import EngineCore, StepRecord
from flashpoint.engine.events import FinishReason, TokenEvent
from flashpoint.engine.executor import Executor
from flashpoint.engine.request import Request
from flashpoint.engine.sampling import SamplingParams
from flashpoint.engine.scheduler import Scheduler
from flashpoint.engine.stats import EngineStats
from flashpoint.errors import EngineStopped, FlashpointError, InvalidValue, QueueFull

__all__ = ["EngineClient", "EngineService", "EngineStats", "EventStream", "RequestStream"]

log = logging.getLogger(__name__)


class EventStream(Protocol):
    """The events of one request; each item holds every event not yet taken, so slow readers coalesce."""

    def __aiter__(self) -> AsyncIterator[list[TokenEvent]]: ...

    def __anext__(self) -> Awaitable[list[TokenEvent]]: ...

    def aclose(self) -> Awaitable[None]:
        """Abort the request unless it has ended; further events are dropped."""
        ...


class EngineClient(Protocol):
    """What the server needs of an engine. All methods are called on the event loop's thread."""

    max_context: int
    vocab_size: int

    def submit(self, request_id: str, prompt: npt.NDArray[np.int32], sampling: SamplingParams) -> EventStream:
        """Queue a request and return its event stream; each item holds every event not yet taken.

        Raises at once: InvalidValue (`prompt` empty, an id out of range, a `request_id` in use),
        RequestTooLong, QueueFull, EngineStopped (draining or dead). Closing the stream before its end, or
        cancelling a task that waits for its next item, aborts the request.
        """
        ...

    def abort(self, request_id: str) -> None:
        """Stop a request in any state; unknown and finished ids are ignored."""
        ...

    def stats(self) -> EngineStats:
        """Counters and gauges now."""
        ...

    @property
    def alive(self) -> bool:
        """False once the engine's thread has died."""
        ...


class RequestStream:
    """The loop's end of one request: events pushed by the service, taken by one reader."""

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort = abort
        self._events: list[TokenEvent] = []
        self._wake = asyncio.Event()
        self._finished = False
        self._closed = False

    def push(self, event: TokenEvent) -> None:
        """Add an event and wake the reader; ignored once closed."""
        self._finished = event.finish is not None
        if not self._closed:
            self._events.append(event)
            self._wake.set()

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> list[TokenEvent]:
        if not self._closed and (self._events or not self._finished):
            try:
                await self._wake.wait()
            except asyncio.CancelledError:
                self._close()
                raise
        if not self._events:
            raise StopAsyncIteration
        self._wake.clear()
        events, self._events = self._events, []
        return events

    async def aclose(self) -> None:
        """Abort the request unless it has ended; further events are dropped."""
        self._close()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._events = []
        self._wake.set()  # a reader that still waits ends
        if not self._finished:
            self._abort()


class EngineService:
    """Runs an EngineCore on its own thread. Implements EngineClient.

    max_context: tokens one sequence can have, prompt and answer.  vocab_size: valid ids are below it.
    A request id is taken from `submit` until its finishing event (INV-3: there is exactly one).
    """

    def __init__(self, executor: Executor, config: EngineConfig, clock: Clock | None = None) -> None:
        self._scheduler = Scheduler(config, executor.capacity, executor.stored)
        self._clock = clock or WallClock()
        self._core = EngineCore(self._scheduler, executor, self._clock)
        self._max_waiting = config.max_waiting
        self.max_context = self._scheduler.context_limit
        self.vocab_size = executor.capacity.vocab_size
        # A command runs on the engine's thread and returns events; None ends the thread.
        self._inbox: queue.SimpleQueue[Callable[[], list[TokenEvent]] | None] = queue.SimpleQueue()
        self._streams: dict[str, RequestStream] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._exited = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._refusal: str | None = "it has not been started"
        self._snapshot = self._core.stats()
        self._progress_at = 0.0  # clock time of the last step's end, written by the engine's thread
        self._busy_since = 0.0

    # On the loop's thread

    def add_observer(self, observer: Callable[[StepRecord], None]) -> None:
        """Call `observer` with each step's record on the engine's thread; add before `start`."""
        self._core.add_observer(observer)

    def start(self) -> None:
        """Start the engine's thread; call once, inside the running event loop."""
        if self._thread is not None:
            raise RuntimeError("the engine was started before")
        self._refusal = None
        self._thread = threading.Thread(
            target=self._run, args=(asyncio.get_running_loop(),), name="flashpoint-engine", daemon=True
        )
        self._thread.start()

    async def stop(self, drain_seconds: float = 0.0, grace_seconds: float = 10.0) -> None:
        """Refuse new requests, let the open ones finish for `drain_seconds`, abort the rest, end the thread.

        Every open request gets a finishing event. A step that does not return within `grace_seconds` is
        left behind with its (daemon) thread.
        """
        self._refusal = self._refusal or "it is shutting down"
        if self.alive:
            await _wait(self._idle, drain_seconds)  # returns at once when there is nothing to drain
            for request_id in list(self._streams):
                self.abort(request_id)
            self._inbox.put(None)
            await _wait(self._exited, grace_seconds)
        self._finish_all(FinishReason.ABORT, None)

    def submit(
        self, request_id: str, prompt: npt.NDArray[np.int32], sampling: SamplingParams
    ) -> RequestStream:
        """See EngineClient.submit."""
        if self._refusal is not None:
            raise EngineStopped(self._refusal)
        if request_id in self._streams:
            raise InvalidValue("request_id", request_id, "an id that no unfinished request has")
        request = Request(request_id, prompt, sampling)
        self._scheduler.validate(request)
        if len(self._streams) - self._snapshot.running >= self._max_waiting:
            raise QueueFull(self._max_waiting)
        if not self._streams:
            self._busy_since = self._clock.now()
            self._idle.clear()
        stream = self._streams[request_id] = RequestStream(partial(self.abort, request_id))
        self._inbox.put(partial(self._accept, request))
        return stream

    def abort(self, request_id: str) -> None:
        """Stop a request in any state, after the step in flight; unknown and finished ids are ignored."""
        if request_id in self._streams:
            self._inbox.put(partial(self._core.abort, request_id))

    def stats(self) -> EngineStats:
        """Counters and gauges as of the last step; `waiting` includes what the engine has not seen yet."""
        snapshot = self._snapshot
        if not self._streams:
            return snapshot
        progress = max(self._progress_at, self._busy_since)
        return replace(
            snapshot,
            waiting=max(0, len(self._streams) - snapshot.running),
            seconds_since_progress=max(0.0, self._clock.now() - progress),
        )

    @property
    def alive(self) -> bool:
        """True from `start` until the thread ends, by `stop` or by an error (INV-10)."""
        return self._thread is not None and self._thread.is_alive() and not self._exited.is_set()

    def _deliver(self, events: list[TokenEvent]) -> None:
        for event in events:
            stream = self._streams.get(event.request_id)
            if stream is None:
                continue  # `stop` gave up on a hung step, and it came back after all
            stream.push(event)
            if event.finish is not None:
                del self._streams[event.request_id]
        if not self._streams:
            self._idle.set()

    def _finish_all(self, reason: FinishReason, error: str | None) -> None:
        self._deliver([TokenEvent(request_id, finish=reason, error=error) for request_id in self._streams])

    def _on_exit(self, failure: str | None) -> None:
        self._exited.set()
        if failure is not None:
            self._refusal = failure
            self._finish_all(FinishReason.ERROR, failure)

    # On the engine's thread

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        failure = None
        try:
            while self._obey(loop):
                self._publish(loop, self._core.step())
        except BaseException as error:
            log.exception("the engine's thread died")
            failure = f"its thread died of {type(error).__name__}: {error}"
        try:
            self._core.close()
        except Exception:
            log.exception("the executor did not close")
        with suppress(RuntimeError):  # the loop may be closed already
            loop.call_soon_threadsafe(self._on_exit, failure)

    def _obey(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Run the commands in the inbox; sleeps there while there is no work. False: the thread shall end."""
        events: list[TokenEvent] = []
        block, running = not self._core.has_work, True
        with suppress(queue.Empty):
            while running:
                command = self._inbox.get(block)
                block = False
                if command is None:
                    running = False
                else:
                    events += command()
        self._publish(loop, events)
        return running

    def _accept(self, request: Request) -> list[TokenEvent]:
        # `submit` has checked everything, but the queue's length only against the last snapshot.
        try:
            self._core.submit(request)
        except FlashpointError as error:
            return [TokenEvent(request.request_id, finish=FinishReason.ERROR, error=str(error))]
        return []

    def _publish(self, loop: asyncio.AbstractEventLoop, events: list[TokenEvent]) -> None:
        stats = self._core.stats()
        if stats.steps > self._snapshot.steps:
            self._progress_at = self._clock.now()
        self._snapshot = stats
        if events:
            loop.call_soon_threadsafe(self._deliver, events)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for `event`, at most `seconds`."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
