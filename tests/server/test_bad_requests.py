"""Every wrong request gets an error that names the field, the value and what would be right."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from flashpoint.server.config import ServerConfig
from tests.engine.fake_executor import FakeExecutor
from tests.server.harness import CONTEXT, Harness, RunningServer, capacity

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
LIMIT = 100_000


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with Harness(config=ServerConfig(port=0, max_body_bytes=LIMIT, request_seconds=2.0)).start() as running:
        yield running


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "messages", "missing"),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": "hi"}, "messages", "got 'hi'; expected a valid list"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "'user'"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "a string or a list"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "may be null for the assistant only"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "the id of the call"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "missing",
        ),
        ({"messages": HELLO, "temperature": 3}, "temperature", "got 3.0; expected a number from 0 to 2"),
        ({"messages": HELLO, "temperature": "hot"}, "temperature", "got 'hot'; expected a valid number"),
        ({"messages": HELLO, "top_p": 0}, "top_p", "above 0"),
        ({"messages": HELLO, "top_k": -1}, "top_k", "0 (off)"),
        ({"messages": HELLO, "min_p": 2}, "min_p", "from 0 to 1"),
        ({"messages": HELLO, "presence_penalty": 3}, "presence_penalty", "from -2 to 2"),
        ({"messages": HELLO, "frequency_penalty": -3}, "frequency_penalty", "from -2 to 2"),
        ({"messages": HELLO, "repetition_penalty": 0}, "repetition_penalty", "0.01 to 10"),
        ({"messages": HELLO, "seed": 2**63}, "seed", "64-bit"),
        ({"messages": HELLO, "seed": 1.5}, "seed", "integer"),
        ({"messages": HELLO, "max_tokens": 0}, "max_tokens", "at least 1"),
        ({"messages": HELLO, "max_tokens": True}, "max_tokens", "integer"),
        ({"messages": HELLO, "max_completion_tokens": 0}, "max_completion_tokens", "at least 1"),
        ({"messages": HELLO, "max_completion_tokens": 3, "max_tokens": 4}, "max_tokens", "the same"),
        ({"messages": HELLO, "min_tokens": 9, "max_tokens": 4}, "min_tokens", "up to max_tokens"),
        ({"messages": HELLO, "n": 2}, "n", "got 2; expected 1; other values are not supported"),
        ({"messages": HELLO, "stop": ["a"] * 5}, "stop", "at most 4"),
        ({"messages": HELLO, "stop": [""]}, "stop", "not empty"),
        ({"messages": HELLO, "stop": 5}, "stop", "string"),
        ({"messages": HELLO, "stop_token_ids": [512]}, "stop_token_ids", "0 to 511"),
        ({"messages": HELLO, "logit_bias": {"x": 1}}, "logit_bias", "decimal strings"),
        ({"messages": HELLO, "logit_bias": {"512": 1}}, "logit_bias", "0 to 511"),
        ({"messages": HELLO, "logit_bias": {"9" * 400: 1}}, "logit_bias", "0 to 511"),
        ({"messages": HELLO, "logit_bias": {"0" * 5000: 1}}, "logit_bias", "0 to 511"),
        (
            {"messages": [{"role": "assistant", "content": "a", "prefix": True}, *HELLO]},
            "messages[0].prefix",
            "last message",
        ),
        ({"messages": HELLO, "logit_bias": {"5": 101}}, "logit_bias[5]", "-100 to 100"),
        ({"messages": HELLO, "logprobs": 3}, "logprobs", "boolean"),
        ({"messages": HELLO, "top_logprobs": 3}, "top_logprobs", "null unless logprobs is true"),
        ({"messages": HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs", "0 to 20"),
        ({"messages": HELLO, "stream": "yes"}, "stream", "boolean"),
        (
            {"messages": HELLO, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
            "boolean",
        ),
        ({"messages": HELLO, "response_format": {"type": "json_object"}}, "response_format", "not supported"),
        ({"messages": HELLO, "tool_choice": "required"}, "tool_choice", "'auto' or 'none'"),
        ({"messages": HELLO, "tools": [{"type": "web_search"}]}, "tools[0].type", "'function'"),
        ({"messages": HELLO, "tools": [{"type": "function"}]}, "tools[0].function", "missing"),
        ({"messages": HELLO, "functions": [{}]}, "functions", "null"),
        ({"messages": HELLO, "reasoning_effort": "lots"}, "reasoning_effort", "'high'"),
        ({"messages": HELLO, "thinking": {"type": "maybe"}}, "thinking.type", "'enabled'"),
    ],
)
def test_chat_fields(server: RunningServer, fields: dict[str, Any], param: str, words: str) -> None:
    error = error_of(server.post(CHAT, fields), 400)
    assert error["param"] == param
    assert error["message"].startswith(param)
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("prompt", "param", "words"),
    [
        (None, "prompt", "a string, a list of strings"),
        ("", "prompt", "token"),
        ([], "prompt", "at least one token"),
        ([[]], "prompt", "token"),
        (7, "prompt", "a string, a list of strings"),
        ([1, 512], "prompt[1]", "got 512; expected a token id from 0 to 511"),
        ([1, -1], "prompt[1]", "got -1"),
        ([1, 2**62], "prompt[1]", "0 to 511"),
        ([1, "a"], "prompt[1]", "a token id"),
        ([1, True], "prompt[1]", "a token id"),
        (["a", [1, 999]], "prompt[1][1]", "got 999"),
        (["a", None], "prompt[1]", "a string, a list of strings"),
        (["a"] * 65, "prompt", "got '65 prompts'; expected at most 64"),
    ],
)
def test_prompts(server: RunningServer, prompt: Any, param: str, words: str) -> None:
    error = error_of(server.post(COMPLETIONS, {"prompt": prompt}), 400)
    assert error["param"] == param
    assert words in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_completion_fields(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    assert error_of(server.post(COMPLETIONS, {"prompt": "x", **fields}), 400)["param"] == param
    harmless = {"echo": False, "suffix": None, "best_of": 1, "n": 1}
    assert server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1, **harmless}).status_code == 200


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_images_are_refused_by_place(server: RunningServer, kind: str) -> None:
    content = [{"type": "text", "text": "see"}, {"type": kind, kind: {"url": "data:,x"}}]
    error = error_of(server.post(CHAT, {"messages": [*HELLO, {"role": "user", "content": content}]}), 400)
    assert error["param"] == "messages[1].content[1]"
    assert kind in error["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_unknown_model(server: RunningServer, path: str) -> None:
    error = error_of(server.post(path, {"model": "gpt-9", "messages": HELLO, "prompt": "x"}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'gpt-9'" in error["message"] and "'tiny'" in error["message"]


def test_too_long(server: RunningServer) -> None:
    error = error_of(server.post(COMPLETIONS, {"prompt": [5] * 4000, "max_tokens": 200}), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert "4200" in error["message"] and str(CONTEXT) in error["message"]
    long = [{"role": "user", "content": "z" * 3 * CONTEXT}]
    error = error_of(server.post(CHAT, {"messages": long}), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert str(CONTEXT) in error["message"]
    # Far too long is refused before it is tokenised.
    started = time.perf_counter()
    error = error_of(server.post(CHAT, {"messages": [{"role": "user", "content": "z" * (LIMIT - 500)}]}), 400)
    assert error["code"] == "context_length_exceeded"
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'"x"', "invalid_json"),
        (b'{"prompt": NaN}', "invalid_json"),
        (b'{"prompt": "\\ud800"}', "invalid_json"),
        (b"[" * 50_000, "invalid_json"),
        (b'{"prompt": "\xff\xfe"}', "invalid_utf8"),
    ],
)
def test_bodies_that_are_no_json_object(server: RunningServer, body: bytes, code: str) -> None:
    error = error_of(httpx.post(f"{server.url}{COMPLETIONS}", content=body), 400)
    assert error["code"] == code


def test_wrong_method_and_path(server: RunningServer) -> None:
    response = httpx.get(f"{server.url}{CHAT}")
    assert error_of(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"
    assert error_of(httpx.post(f"{server.url}/health"), 405)["code"] == "method_not_allowed"
    assert error_of(httpx.get(f"{server.url}/v1/embeddings"), 404)["code"] == "not_found"


def test_announced_size_is_refused_before_the_body(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
        sock.sendall(
            b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 52428800\r\n\r\n" % COMPLETIONS.encode()
        )
        answer = sock.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"52428800" in answer and str(LIMIT).encode() in answer


def test_50_megabytes_are_refused_while_others_are_served(server: RunningServer) -> None:
    body = b'{"prompt": "' + b"x" * 50_000_000 + b'"}'

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(body), 65536):
            yield body[start : start + 65536]
            if start % (100 * 65536) == 0:
                began = time.perf_counter()
                assert httpx.get(f"{server.url}/health").status_code == 200
                waits.append(time.perf_counter() - began)

    waits: list[float] = []
    for content in (body, chunks()):
        response = httpx.post(f"{server.url}{COMPLETIONS}", content=content, timeout=30)
        assert error_of(response, 413)["code"] == "body_too_large"
        assert str(LIMIT) in response.text
    assert max(waits) < 3


def test_slow_body_times_out(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        assert sock.recv(65536).startswith(b"HTTP/1.1 408")


def test_connection_without_a_header_is_closed(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
        sock.sendall(b"POST /v1/compl")
        assert sock.recv(10) == b""


def test_full_queue_says_when_to_retry() -> None:
    harness = Harness(executor=FakeExecutor(capacity(), seconds=0.05), max_running=1, max_waiting=1)
    with harness.start() as server:
        body = {"prompt": ["a"] * 8, "max_tokens": 50}
        response = server.post(COMPLETIONS, body)
        assert error_of(response, 429)["code"] == "queue_full"
        assert response.headers["retry-after"] == "1"
        deadline = time.monotonic() + 10
        while server.engine.stats().running + server.engine.stats().waiting:
            assert time.monotonic() < deadline, "the prompts submitted before the refusal still run"
            time.sleep(0.02)


def test_refused_requests_are_counted(server: RunningServer) -> None:
    before = server.metric("flashpoint_requests_refused_total", code="invalid_utf8")
    httpx.post(f"{server.url}{COMPLETIONS}", content=b"\xff")
    assert server.metric("flashpoint_requests_refused_total", code="invalid_utf8") == before + 1


def test_fields_without_effect_are_logged_once(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        for _ in range(2):
            body = {"messages": HELLO, "max_tokens": 1, "vendor_thing": 1, "thinking": {"type": "enabled"}}
            assert server.post(CHAT, body).status_code == 200
    for name in ("vendor_thing", "thinking"):
        assert sum(f"'{name}' has no effect" in record.getMessage() for record in caplog.records) == 1


def test_large_ids_in_errors_are_shortened(server: RunningServer) -> None:
    body = orjson.dumps({"model": "m" * 50_000, "prompt": "x"})
    assert len(httpx.post(f"{server.url}{COMPLETIONS}", content=body).content) < 500
