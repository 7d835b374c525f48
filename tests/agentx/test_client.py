"""The client against the mock over a real socket. Bounds on times are one-sided: a busy machine is late."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from flashpoint.agentx.client import Answer, ChatClient, ChatRequest
from flashpoint.agentx.lag import LagProbe
from flashpoint.agentx.prompts.body import chat_body
from flashpoint.agentx.sse import SseError
from tests.agentx.mock_server import Behaviour, MockServer


def request(**fields: Any) -> ChatRequest:
    values: dict[str, Any] = {
        "request_id": "r1",
        "correlation_id": "s1",
        "body": chat_body(b'[{"role":"user","content":"hello"}]', "mock", 8),
    }
    return ChatRequest(**(values | fields))


def ask(url: str, sent: ChatRequest | None = None, *, total: float = 30.0, stall: float = 30.0) -> Answer:
    async def run() -> Answer:
        answer = Answer()
        async with ChatClient(url, request_timeout=total, stall_timeout=stall) as client:
            await client.stream(sent or request(), answer)
        return answer

    return asyncio.run(run())


def answered(**behaviour: Any) -> Answer:
    with MockServer(Behaviour(**behaviour)) as server:
        return ask(server.url)


def test_what_is_sent() -> None:
    with MockServer() as server:
        ask(server.url)
        legacy = chat_body(b"[]", "mock", 3, legacy_max_tokens=True)
        ask(server.url, request(body=legacy))
    assert server.bodies[0] == {
        "model": "mock",
        "messages": [{"role": "user", "content": "hello"}],
        "max_completion_tokens": 8,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert server.bodies[1]["max_tokens"] == 3 and "max_completion_tokens" not in server.bodies[1]
    assert server.headers[0]["X-Request-ID"] == "r1"
    assert server.headers[0]["X-Correlation-ID"] == "s1"


def test_times_are_those_of_the_server() -> None:
    answer = answered(ttft=0.1, gap=0.02)
    offsets = answer.token_times() - answer.start
    assert len(offsets) == 8
    # The role chunk comes at once and carries no token: it must not count as the first.
    assert offsets[0] >= 0.1
    assert offsets[-1] - offsets[0] >= 7 * 0.02
    assert answer.end - answer.start >= offsets[-1]
    # Late by less than the waits themselves even on a busy machine.
    assert offsets[0] < 0.1 + 1.0
    assert answer.error is None and answer.finish_reason == "length" and answer.http_status == 200


def test_usage() -> None:
    answer = answered()
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.output_tokens, answer.usage.cached_tokens) == (5, 8, 0)


def test_without_usage_counts_stay_unknown() -> None:
    answer = answered(usage=False, tokens_per_chunk=4)
    assert answer.error is None and answer.usage is None
    assert len(answer.token_times()) == 2  # one per chunk


def test_several_tokens_in_a_chunk() -> None:
    # Chunks of 3, 3 and 2 tokens. Told by the server, exactly; not told, one and then evenly.
    told = answered(tokens_per_chunk=3, running_usage=True, gap=0.01)
    untold = answered(tokens_per_chunk=3, gap=0.01)
    assert np.unique(told.token_times(), return_counts=True)[1].tolist() == [3, 3, 2]
    assert np.unique(untold.token_times(), return_counts=True)[1].tolist() == [1, 3, 4]


def test_reasoning_is_counted_and_kept_apart() -> None:
    answer = answered(reasoning_tokens=3, gap=0.01)
    assert len(answer.token_times()) == 8
    assert answer.first_answer_time is not None
    assert answer.first_answer_time > answer.chunk_times[2]


def test_an_answer_of_reasoning_alone_still_has_tokens() -> None:
    answer = answered(reasoning_tokens=100)
    assert answer.error is None
    assert answer.usage is not None and answer.usage.output_tokens == 8
    assert len(answer.token_times()) == 8
    assert answer.first_answer_time is None


@pytest.mark.parametrize(
    ("fault", "message", "connection"),
    [
        ("http_500", "HTTP 500: the engine is down", False),
        ("http_429", "HTTP 429: slow down", False),
        ("cut", "connection lost before the answer was complete", True),
        ("error_event", "bad stream: an error from the server: out of memory", False),
        ("not_json", "bad stream: an event that is not JSON", False),
        ("no_finish", "bad stream: the stream ended without a finish reason", False),
        ("bad_usage", "bad stream: usage.prompt_tokens is -1, not a count", False),
        ("stall", "no data for 0.3 s (stall timeout)", False),
    ],
)
def test_faults_are_named(fault: str, message: str, connection: bool) -> None:
    with MockServer(Behaviour(fault_always=fault)) as server:
        answer = ask(server.url, stall=0.3)
    assert answer.error is not None and answer.error.startswith(message)
    assert answer.connection_failed is connection
    assert answer.end > answer.start


def test_a_request_that_takes_too_long() -> None:
    with MockServer(Behaviour(gap=0.2)) as server:
        answer = ask(
            server.url, request(body=chat_body(b'[{"role":"user","content":"x"}]', "mock", 100)), total=0.5
        )
    assert answer.error == "not finished within 0.5 s (request timeout)"
    assert answer.chunk_times  # what had come is kept


def test_a_prompt_too_long_for_the_server_is_told_apart() -> None:
    with MockServer(Behaviour(fault_always="overflow")) as server:
        answer = ask(server.url)
    assert answer.overflow and answer.error == "HTTP 400: This model's maximum context length is 7 tokens"


def test_the_session_header() -> None:
    async def run(url: str) -> None:
        async with ChatClient(
            url, request_timeout=9, stall_timeout=9, session_header="X-Session-ID"
        ) as client:
            await client.stream(request(correlation_id="a::sa:b/é"), Answer())

    with MockServer() as server:
        asyncio.run(run(server.url))
    assert server.headers[0]["X-Session-ID"] == server.headers[0]["X-Correlation-ID"] == "a::sa:b/%C3%A9"


def test_no_server() -> None:
    with MockServer() as server:
        url = server.url
    answer = ask(url)
    assert answer.error == "connection refused"
    assert answer.connection_failed


@pytest.mark.parametrize(
    "event",
    [
        b"[]",
        b'{"choices": 5}',
        b'{"choices": [5]}',
        b'{"choices": [{"delta": {"content": 5}}]}',
        b'{"usage": []}',
        b'{"usage": {"completion_tokens": 1.5}}',
        b'{"usage": {"completion_tokens": 1000000000000}}',
        b'{"choices": [{"delta": {}, "finish_reason": 5}]}',
        b'{"usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 6}}}',
        b'{"error": "boom"}',
        b"\xff",
    ],
)
def test_events_that_are_no_chat_chunks(event: bytes) -> None:
    with pytest.raises(SseError):
        Answer().read_event(event, 1.0)


def test_tool_calls_are_tokens_too() -> None:
    answer = Answer()
    answer.read_event(b'{"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}', 1.0)
    assert answer.chunk_times == [1.0] and answer.first_answer_time == 1.0


def test_lag_probe_sees_a_blocked_loop() -> None:
    async def run() -> tuple[list[float], list[float]]:
        with LagProbe() as probe:
            await asyncio.sleep(0.1)
            before = probe.take()
            import time

            time.sleep(0.2)
            await asyncio.sleep(0.1)
            return before, probe.take()

    before, during = asyncio.run(run())
    assert before and min(before) >= 0
    assert max(during) > 0.1
