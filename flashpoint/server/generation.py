"""One prompt's way through the engine: submitted, turned into text, counted, timed, logged."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from flashpoint.engine.events import FinishReason, TokenEvent
from flashpoint.engine.plan import TokenLogprob
from flashpoint.engine.sampling import SamplingParams
from flashpoint.server.answer_text import AnswerText
from flashpoint.server.context import ServerContext
from flashpoint.server.errors import ApiError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt to answer. reasoning_end: the id that ends the reasoning the answer starts in, if any."""

    prompt: npt.NDArray[np.int32]
    sampling: SamplingParams
    stops: tuple[str, ...] = ()
    reasoning_end: int | None = None


@dataclass(slots=True)
class Delta:
    """What one or more engine steps added to an answer. `finish` is OpenAI's finish_reason."""

    reasoning: str = ""
    content: str = ""
    reasoning_logprobs: list[TokenLogprob] = field(default_factory=list)
    content_logprobs: list[TokenLogprob] = field(default_factory=list)
    in_reasoning: bool = False
    finish: str | None = None


class Generation:
    """An engine request and the text made of its tokens.

    Submitting happens in the constructor, which raises what the engine raises. `close` must be called
    once the caller is done, whatever happened; it aborts what has not finished.
    """

    def __init__(self, context: ServerContext, request_id: str, job: Job, arrived: float) -> None:
        self._context = context
        self._metrics = context.metrics
        self.request_id = request_id
        self._events = context.engine.submit(request_id, job.prompt, job.sampling)
        self._text = AnswerText(
            context.tokenizer.stream(), job.stops, job.sampling.min_tokens, job.reasoning_end
        )
        self._arrived = arrived
        self._last_token: float | None = None
        self._ttft: float | None = None
        self._state = "waiting"
        self._metrics.in_flight.labels(self._state).inc()
        self._closed = False
        self._finish: str | None = None
        self.prompt_tokens = len(job.prompt)
        self.cached_tokens = 0
        self.completion_tokens = 0
        self.reasoning_tokens = 0

    async def deltas(self) -> AsyncIterator[Delta]:
        """The answer as it comes; the last delta has `finish`. Raises ApiError when the engine fails."""
        async for events in self._events:
            delta = self._absorb(events)
            if delta.finish is not None:
                self._finish = delta.finish
                self.close()
            yield delta
            if delta.finish is not None:
                return
        raise ApiError(500, "the engine stopped before the answer was complete", code="engine_stopped")

    def close(self) -> None:
        """End the engine request if it still runs; count and log. Further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        self._context.engine.abort(self.request_id)
        self._metrics.in_flight.labels(self._state).dec()
        reason = self._finish or "abort"
        seconds = time.perf_counter() - self._arrived
        self._metrics.finished.labels(reason).inc()
        self._metrics.duration.observe(seconds)
        for kind in ("prompt", "cached", "completion"):
            self._metrics.usage.labels(kind).inc(getattr(self, f"{kind}_tokens"))
        log.info(
            "request id=%s prompt=%d cached=%d output=%d ttft_ms=%s seconds=%.3f finish=%s",
            self.request_id,
            self.prompt_tokens,
            self.cached_tokens,
            self.completion_tokens,
            "-" if self._ttft is None else f"{1000 * self._ttft:.1f}",
            seconds,
            reason,
        )

    def _absorb(self, events: list[TokenEvent]) -> Delta:
        delta = Delta()
        counted = self.completion_tokens
        for event in events:
            self.cached_tokens = max(self.cached_tokens, event.cached_tokens)
            self._add_tokens(event, delta)
            if self._text.stopped:
                delta.finish = "stop"
                break
            if event.finish is not None:
                self._add_end(event, delta)
        delta.in_reasoning = self._text.in_reasoning
        self._time_tokens(self.completion_tokens - counted)
        return delta

    def _add_tokens(self, event: TokenEvent, delta: Delta) -> None:
        for index, token in enumerate(event.tokens):
            in_reasoning = self._text.in_reasoning
            reasoning, content = self._text.push(token)
            delta.reasoning += reasoning
            delta.content += content
            self.completion_tokens += 1
            self.reasoning_tokens += in_reasoning
            if event.logprobs:
                target = delta.reasoning_logprobs if in_reasoning else delta.content_logprobs
                target.append(event.logprobs[index])
            if self._text.stopped:
                return

    def _add_end(self, event: TokenEvent, delta: Delta) -> None:
        if event.finish is FinishReason.ERROR:
            self._finish = "error"
            raise ApiError(500, f"the engine failed on this request: {event.error}", code="engine_error")
        if event.finish is FinishReason.ABORT:
            raise ApiError(503, "the request was aborted: the server is shutting down", code="aborted")
        reasoning, content = self._text.finish()
        delta.reasoning += reasoning
        delta.content += content
        delta.finish = str(event.finish)

    def _time_tokens(self, tokens: int) -> None:
        if not tokens:
            return
        now = time.perf_counter()
        if self._last_token is None:
            self._ttft = now - self._arrived
            self._metrics.ttft.observe(self._ttft)
            self._metrics.in_flight.labels(self._state).dec()
            self._state = "streaming"
            self._metrics.in_flight.labels(self._state).inc()
            tokens -= 1
            self._last_token = now
        for _ in range(tokens):
            # Tokens that came together share the gap: their sum is the time that passed.
            self._metrics.itl.observe((now - self._last_token) / tokens)
        self._last_token = now
