"""What the endpoints answer when the request is good, streamed and whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from flashpoint.engine.sampling import SamplingParams
from tests.engine.fake_executor import FakeExecutor, reference_tokens
from tests.server.harness import CONTEXT, MODEL, Harness, RunningServer, capacity, decoded, scripted
from tests.server.tokenizers_for_tests import v41_tokenizer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with Harness().start() as running:
        yield running


@pytest.fixture(scope="module")
def abc() -> Iterator[RunningServer]:
    """Answers `abcdefgh` and then ends, one token a character."""
    with Harness(executor=scripted(tokens_of("abcdefgh"))).start() as running:
        yield running


def tokens_of(text: str) -> list[int]:
    tokenizer = Harness().tokenizer
    return [tokenizer.token_id(character) for character in text]


def text_of(events: list[dict[str, Any]], key: str = "content") -> str:
    return "".join(event["choices"][0]["delta"].get(key, "") for event in events if event["choices"])


def test_completion_is_the_engines_answer(server: RunningServer) -> None:
    prompt = [5, 6, 7]
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, "seed": 3, "ignore_eos": True, "logprobs": 0}
    response = server.post(COMPLETIONS, body).json()
    sampling = SamplingParams(max_tokens=8, seed=3)
    expected, _ = reference_tokens(np.array(prompt, dtype=np.int32), sampling, capacity())
    tokenizer = server.context.tokenizer
    choice = response["choices"][0]
    assert choice["logprobs"]["tokens"] == [
        tokenizer.token_bytes(t).decode(errors="replace") for t in expected
    ]
    assert choice["text"] == decoded(tokenizer, expected)
    assert choice["finish_reason"] == "length"
    assert response["usage"]["prompt_tokens"] == 3
    assert response["usage"]["completion_tokens"] == 8
    assert response["usage"]["total_tokens"] == 11
    assert response["id"].startswith("cmpl-") and response["object"] == "text_completion"


def test_same_seed_same_answer_and_no_seed_another(server: RunningServer) -> None:
    def text(**options: Any) -> str:
        return server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 20, **options}).json()["choices"][0][
            "text"
        ]

    assert text(seed=1) == text(seed=1)
    assert len({text() for _ in range(4)}) > 1


def test_every_form_of_prompt(server: RunningServer) -> None:
    greedy = {"temperature": 0, "max_tokens": 6}
    ids = server.context.tokenizer.encode("hello").tolist()

    def choices(prompt: Any) -> list[str]:
        answer = server.post(COMPLETIONS, {"prompt": prompt, **greedy}).json()
        assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
        return [choice["text"] for choice in answer["choices"]]

    one, other = choices("hello"), choices("there")
    assert choices(ids) == one
    assert choices(["hello", "there"]) == one + other
    assert choices([ids, "there"]) == one + other


def test_streams_of_several_prompts_are_told_apart(server: RunningServer) -> None:
    body = {"prompt": ["hello", "there"], "temperature": 0, "max_tokens": 6}
    whole = server.post(COMPLETIONS, body).json()
    texts = ["", ""]
    for event in server.stream(COMPLETIONS, body):
        choice = event["choices"][0]
        texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]


def test_stream_equals_whole(server: RunningServer) -> None:
    body = {"messages": HELLO, "temperature": 0, "max_tokens": 30, "stream_options": {"include_usage": True}}
    whole = server.post(CHAT, {**body, "stream_options": None}).json()
    events = server.stream(CHAT, body)
    assert text_of(events) == whole["choices"][0]["message"]["content"]
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert all(event["usage"] is None for event in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert events[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert {event["id"] for event in events} == {events[0]["id"]}
    assert events[0]["object"] == "chat.completion.chunk" and whole["object"] == "chat.completion"


def test_no_usage_unless_asked_for(server: RunningServer) -> None:
    for event in server.stream(CHAT, {"messages": HELLO, "max_tokens": 3}):
        assert "usage" not in event


def test_one_chunk_per_step() -> None:
    executor = scripted(tokens_of("abcdefgh"), seconds=0.02)
    with Harness(executor=executor).start() as server:
        events = server.stream(CHAT, {"messages": HELLO})
    deltas = [event["choices"][0]["delta"]["content"] for event in events]
    assert deltas == [*"abcdefgh", ""]


def test_end_of_text_is_no_text(abc: RunningServer) -> None:
    answer = abc.post(CHAT, {"messages": HELLO}).json()
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "abcdefgh"}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 8


def test_ignore_eos_goes_on(abc: RunningServer) -> None:
    answer = abc.post(COMPLETIONS, {"prompt": "x", "max_tokens": 12, "ignore_eos": True}).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("options", "text", "tokens"),
    [
        ({"stop": "cd"}, "ab", 4),
        ({"stop": ["zz", "ef", "de"]}, "abc", 5),
        ({"stop": "h!"}, "abcdefgh", 8),
        ({"stop": "a", "min_tokens": 3}, "abcdefgh", 8),
        ({"stop": "d", "min_tokens": 3}, "abc", 4),
        ({"stop_token_ids": tokens_of("c")}, "ab", 2),
    ],
)
def test_stops(abc: RunningServer, path: str, options: dict[str, Any], text: str, tokens: int) -> None:
    body = {"messages": HELLO, "prompt": "x", "max_tokens": 100, **options}
    answer = abc.post(path, body).json()
    choice = answer["choices"][0]
    assert (choice["message"]["content"] if path == CHAT else choice["text"]) == text
    assert choice["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == tokens
    streamed = abc.stream(path, body)
    pieces = [event["choices"][0] for event in streamed]
    assert "".join(p["delta"]["content"] if path == CHAT else p["text"] for p in pieces) == text


def test_max_completion_tokens(abc: RunningServer) -> None:
    answer = abc.post(CHAT, {"messages": HELLO, "max_completion_tokens": 2}).json()
    assert answer["choices"][0]["message"]["content"] == "ab"
    assert answer["choices"][0]["finish_reason"] == "length"


def test_chat_goes_on_to_the_end_of_the_context_and_completions_for_16_tokens(server: RunningServer) -> None:
    endless = {"temperature": 0, "ignore_eos": True}
    prompt = [7] * (CONTEXT - 40)
    assert server.post(COMPLETIONS, {"prompt": prompt, **endless}).json()["usage"]["completion_tokens"] == 16
    usage = server.post(CHAT, {"messages": [{"role": "user", "content": "a" * 4000}], **endless}).json()[
        "usage"
    ]
    assert usage["total_tokens"] == CONTEXT


def test_cached_tokens(server: RunningServer) -> None:
    body = {"prompt": [9, 8, 7] * 40, "max_tokens": 2}
    first = server.post(COMPLETIONS, body).json()["usage"]
    again = server.post(COMPLETIONS, body).json()["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    # The engine decides; what it says must arrive and be countable.
    assert 0 <= again["prompt_tokens_details"]["cached_tokens"] < again["prompt_tokens"]


def test_chat_logprobs(abc: RunningServer) -> None:
    body = {"messages": HELLO, "logprobs": True, "top_logprobs": 2}
    whole = abc.post(CHAT, body).json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in whole] == list("abcdefgh")
    assert whole[0]["bytes"] == [97] and whole[0]["logprob"] == -0.5
    assert [top["logprob"] for top in whole[0]["top_logprobs"]] == [-0.5, -1.5]
    streamed = abc.stream(CHAT, body)
    assert [e for event in streamed for e in event["choices"][0]["logprobs"]["content"]] == whole
    plain = abc.post(CHAT, {"messages": HELLO, "logprobs": True}).json()["choices"][0]["logprobs"]
    assert plain["content"][0]["top_logprobs"] == []


def test_completion_logprobs(abc: RunningServer) -> None:
    body = {"prompt": "x", "logprobs": 1}
    logprobs = abc.post(COMPLETIONS, body).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == list("abcdefgh")
    assert logprobs["token_logprobs"] == [-0.5] * 8
    assert logprobs["top_logprobs"][0] == {"a": -0.5}
    assert logprobs["text_offset"] == list(range(8))
    streamed = [event["choices"][0]["logprobs"] for event in abc.stream(COMPLETIONS, body)]
    assert [offset for part in streamed for offset in part["text_offset"]] == list(range(8))


def test_reasoning_is_told_apart_from_content() -> None:
    tokenizer = v41_tokenizer()
    answer = [
        *tokenizer.encode("I think.").tolist(),
        tokenizer.token_id("</think>"),
        *tokenizer.encode("Yes."),
    ]
    executor = scripted([int(token) for token in answer], vocab_size=129_280, seconds=0.005)
    with Harness(executor=executor, tokenizer=tokenizer).start() as server:
        body = {"messages": HELLO, "logprobs": True}
        whole = server.post(CHAT, body).json()
        message = whole["choices"][0]["message"]
        assert message == {"role": "assistant", "reasoning_content": "I think.", "content": "Yes."}
        assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4
        events = server.stream(CHAT, body)
        assert (text_of(events, "reasoning_content"), text_of(events)) == ("I think.", "Yes.")
        logprobs = whole["choices"][0]["logprobs"]
        assert [entry["token"] for entry in logprobs["reasoning_content"]][-1] == "</think>"
        assert "".join(entry["token"] for entry in logprobs["content"]) == "Yes."
        chat = server.post(CHAT, {"messages": HELLO, "thinking": {"type": "disabled"}}).json()
        assert chat["choices"][0]["message"]["content"] == "I think.</think>Yes."


def test_tools_reach_the_prompt_and_markup_stays_text() -> None:
    tokenizer = v41_tokenizer()
    markup = '<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">'
    executor = scripted([int(token) for token in tokenizer.encode(markup)], vocab_size=129_280)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"messages": HELLO, "reasoning_effort": "none"}
    with Harness(executor=executor, tokenizer=tokenizer).start() as server:
        plain = server.post(CHAT, body).json()
        with_tools = server.post(CHAT, {**body, "tools": [tool], "tool_choice": "auto"}).json()
    assert with_tools["choices"][0]["message"]["content"] == markup
    assert with_tools["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 100


def test_messages_as_agents_send_them(server: RunningServer) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{broken"}}
    messages = [
        {"role": "developer", "content": "be brief", "name": "x"},
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "a b"},
    ]
    extras = {"user": "me", "metadata": {"a": 1}, "store": False, "parallel_tool_calls": True, "n": 1}
    assert server.post(CHAT, {"messages": messages, "max_tokens": 2, **extras}).status_code == 200


def test_models_and_request_ids(server: RunningServer) -> None:
    listing = httpx.get(f"{server.url}/v1/models").json()
    assert listing["object"] == "list"
    assert [(m["id"], m["object"], m["max_model_len"]) for m in listing["data"]] == [
        (MODEL, "model", CONTEXT)
    ]
    response = server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 1})
    assert response.headers["x-request-id"] == response.json()["id"]


def test_long_prompts_do_not_hold_up_others() -> None:
    """While one request's megabytes are tokenised, /health answers at once."""
    tokenizer = v41_tokenizer()
    text = "The quick brown fox jumps over the lazy dog. " * 20_000
    cap = capacity(vocab_size=129_280)
    with Harness(executor=FakeExecutor(cap), tokenizer=tokenizer).start() as server:
        limit = CONTEXT * tokenizer.longest_token_bytes
        assert len(text) > limit, "refused before any work"
        refused = server.post(COMPLETIONS, {"prompt": text})
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        with httpx.Client(base_url=server.url) as client:
            body = {"prompt": text[: limit - 1]}
            thread = threading.Thread(target=server.post, args=(COMPLETIONS, body))
            thread.start()
            waits = []
            while thread.is_alive():
                started = time.perf_counter()
                client.get("/health")
                waits.append(time.perf_counter() - started)
            thread.join()
    assert len(waits) > 5
    assert sorted(waits)[len(waits) // 2] < 0.3
