"""A streaming chat client that writes down when every chunk arrived.

The stamp of a chunk is the monotonic time at which the event loop handed over its bytes, taken before
anything is parsed. Chunks that arrive in one read share one stamp. How late the loop itself ran is measured
beside it (`agentx.lag`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import quote

import aiohttp
import numpy as np
import numpy.typing as npt
import orjson

from flashpoint.agentx.http_stream import CONNECT_SECONDS, HttpFailure, HttpPool
from flashpoint.agentx.records import spread_tokens
from flashpoint.agentx.sse import SseError, SseParser

ERROR_TEXT_LIMIT = 500
ERROR_BODY_LIMIT = 2**16
CHARACTERS_OF_IDS = "#:/@ "
MOST_TOKENS = 2**24
"""A larger count in `usage` is none: an arrival is kept for each output token, and no context is as long."""
OVERFLOW_PHRASES = ("context length", "maximum context", "context_length_exceeded", "prompt is too long")
"""What servers say when a prompt exceeds their context window (spec section 3.6)."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What is sent: the body of `POST /v1/chat/completions`, and the ids in its headers."""

    request_id: str
    correlation_id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts as the server reports them; None where it reports none."""

    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None


@dataclass(slots=True)
class Answer:
    """What has arrived of one answer; filled while it streams, so a cut request keeps what it got."""

    start: float = 0.0
    end: float = 0.0
    http_status: int | None = None
    chunk_times: list[float] = field(default_factory=list)
    chunk_totals: list[int | None] = field(default_factory=list)
    """Output tokens so far, where a chunk says so."""
    first_answer_time: float | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    error: str | None = None
    overflow: bool = False
    """The server refused the prompt as longer than its context window."""
    connection_failed: bool = False
    """The failure was of the connection, so the server may be gone."""

    @property
    def first_chunk(self) -> float | None:
        """When the first content came."""
        return self.chunk_times[0] if self.chunk_times else None

    @property
    def last_chunk(self) -> float | None:
        """When the last content came."""
        return self.chunk_times[-1] if self.chunk_times else None

    @property
    def chunks(self) -> int:
        """How many chunks with content came."""
        return len(self.chunk_times)

    def token_times(self) -> npt.NDArray[np.float64]:
        """One arrival time per output token; one per chunk while the total is unknown.

        Tokens per chunk are the server's own where every chunk carries a running `usage`, and
        `spread_tokens` of the final total otherwise.
        """
        total = self.usage.output_tokens if self.usage else None
        times = np.asarray(self.chunk_times, dtype=np.float64)
        if total is None or not len(times):
            return times
        running = [count for count in self.chunk_totals if count is not None]
        if len(running) == len(times) and running == sorted(running) and running[-1] <= total:
            counts = np.diff([0, *running[:-1], total])
        else:
            counts = np.asarray(spread_tokens(total, len(times)))
        return np.repeat(times, counts)

    def read_event(self, data: bytes, now: float) -> None:
        """Take in one event of the stream that arrived at `now`."""
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise SseError(f"an event that is not JSON ({error}): {_shorten(data)}") from error
        if not isinstance(event, dict):
            raise SseError(f"an event that is not an object: {_shorten(data)}")
        if event.get("error"):
            raise SseError(f"an error from the server: {_error_message(event, data)}")
        if event.get("usage") is not None:
            self.usage = _read_usage(event["usage"])
        choices = event.get("choices")
        if not choices:
            return
        try:
            choice = choices[0]
            delta = choice.get("delta") or {}
            text = delta.get("content") or ""
            reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
            tool_calls = delta.get("tool_calls")
            finish_reason = choice.get("finish_reason")
        except (AttributeError, LookupError, TypeError) as error:
            raise SseError(f"an event that is not a chat completion chunk: {_shorten(data)}") from error
        if not isinstance(text, str) or not isinstance(reasoning, str):
            raise SseError(f"a delta whose content is not text: {_shorten(data)}")
        if finish_reason is not None and not isinstance(finish_reason, str):
            raise SseError(f"a finish reason that is not text: {_shorten(data)}")
        self.finish_reason = finish_reason or self.finish_reason
        if not (text or reasoning or tool_calls):
            return
        self.chunk_times.append(now)
        self.chunk_totals.append(self.usage.output_tokens if self.usage and event.get("usage") else None)
        if self.first_answer_time is None and (text or tool_calls):
            self.first_answer_time = now


class ChatClient:
    """Streams chat completions from one OpenAI-compatible server; as many at once as are asked for."""

    def __init__(
        self, url: str, *, request_timeout: float, stall_timeout: float, session_header: str | None = None
    ) -> None:
        """`url` is the server's root, without `/v1`; the timeouts are seconds (whole request, silence).

        `session_header` is one more header that carries the correlation id, for a router that needs it.
        """
        self.url = url
        self._session_header = session_header
        self._pool = HttpPool(url, request_timeout=request_timeout, stall_timeout=stall_timeout)
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=CONNECT_SECONDS))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.close()
        await self._http.close()

    async def models(self) -> tuple[int, Any]:
        """HTTP status and JSON of `GET /v1/models`; JSON is None where the answer is not JSON."""
        async with self._http.get(f"{self.url}/v1/models") as response:
            body = await response.read()
            try:
                return response.status, orjson.loads(body)
            except orjson.JSONDecodeError:
                return response.status, None

    async def answers(self) -> bool:
        """Whether the server answers HTTP at all, whatever it says."""
        try:
            async with self._http.get(f"{self.url}/v1/models"):
                return True
        except (aiohttp.ClientError, OSError):
            return False

    async def stream(self, request: ChatRequest, answer: Answer) -> None:
        """Send `request` and fill `answer` until the response ends.

        A failure is written to `answer.error` and not raised. When the surrounding task is cancelled,
        `answer` keeps what had arrived and the cancellation goes on.
        """
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "X-Request-ID": request.request_id,
            # An id may hold what no header may.
            "X-Correlation-ID": quote(request.correlation_id, safe=CHARACTERS_OF_IDS),
        }
        if self._session_header:
            headers[self._session_header] = headers["X-Correlation-ID"]
        reader = _ResponseReader(answer)
        answer.start = time.monotonic()
        try:
            answer.http_status = await self._pool.post(
                "/v1/chat/completions", headers, request.body, reader.take
            )
            answer.end = time.monotonic()
            reader.close()
        except SseError as error:
            answer.error = f"bad stream: {error}"
        except HttpFailure as error:
            answer.error = str(error)
            answer.connection_failed = not error.slow
        finally:
            answer.http_status = answer.http_status or reader.status
            answer.end = answer.end or time.monotonic()


class _ResponseReader:
    """Takes the bytes of one response as they come."""

    def __init__(self, answer: Answer) -> None:
        self.status: int | None = None
        self._answer = answer
        self._parser = SseParser()
        self._body = b""

    def take(self, status: int, data: bytes, now: float) -> None:
        """Bytes of a response with `status` that arrived at `now`."""
        self.status = status
        if status != 200:
            self._body = (self._body + data)[:ERROR_BODY_LIMIT]
            return
        for event in self._parser.feed(data):
            if event != b"[DONE]":
                self._answer.read_event(event, now)

    def close(self) -> None:
        """The response is complete. Raises SseError where a stream lacks its end."""
        answer = self._answer
        if answer.http_status != 200:
            message = _error_text(self._body)
            answer.error = f"HTTP {answer.http_status}: {message}"
            answer.overflow = any(phrase in message.lower() for phrase in OVERFLOW_PHRASES)
        elif answer.finish_reason is None:
            raise SseError("the stream ended without a finish reason")
        elif not answer.chunk_times:
            raise SseError("the answer has no text")


def _error_text(body: bytes) -> str:
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        return _shorten(body) or "no reason given"
    return _error_message(data, body)


def _error_message(data: Any, body: bytes) -> str:
    """The message of an OpenAI-shaped error, or the body itself."""
    error = data.get("error") if isinstance(data, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message[:ERROR_TEXT_LIMIT] if isinstance(message, str) else _shorten(body)


def _shorten(data: bytes) -> str:
    return data[:ERROR_TEXT_LIMIT].decode("utf-8", "replace").strip()


def _read_usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        raise SseError(f"usage is not an object: {usage!r}")
    details = usage.get("prompt_tokens_details")
    prompt = _count(usage, "prompt_tokens")
    cached = _count(details, "cached_tokens") if isinstance(details, dict) else None
    if prompt is not None and cached is not None and cached > prompt:
        raise SseError(f"usage counts {cached} cached tokens in a prompt of {prompt}")
    return Usage(prompt, _count(usage, "completion_tokens"), cached)


def _count(counts: dict[str, Any], key: str) -> int | None:
    value = counts.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_TOKENS:
        raise SseError(f"usage.{key} is {value!r}, not a count of tokens from 0 to {MOST_TOKENS}")
    return value
