"""What holds for the messages of every stream of every trace."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import orjson
import pytest

from flashpoint.agentx.prompts.body import chat_body
from flashpoint.agentx.prompts.conversation import Conversation, check_prefix
from flashpoint.agentx.prompts.prompter import Prompter
from flashpoint.agentx.prompts.source import TokenSource
from flashpoint.agentx.prompts.tokenizer import PromptTokenizer
from flashpoint.agentx.schedule.play import Play, StreamState
from flashpoint.agentx.traces.chains import shared_blocks
from flashpoint.agentx.traces.format import parse_trace
from flashpoint.agentx.traces.streams import Session, build_session
from flashpoint.errors import InvalidValue
from flashpoint.models.deepseek_v41.preset_tokenizers import small_tokenizer
from tests.agentx.messy_traces import messy_trace

TOKENIZER = PromptTokenizer(small_tokenizer(1024).encode())
SOURCE = TokenSource(np.random.default_rng(0).integers(0, 1024, 50_000).astype(np.int32), 7)


def session(seed: int) -> Session:
    return build_session(parse_trace(json.dumps(messy_trace(seed)).encode(), "messy"))


@pytest.mark.parametrize("seed", range(100, 130))
def test_prompts_are_as_long_as_recorded_and_share_what_was_shared(seed: int) -> None:
    played = session(seed)
    size = played.trace.block_size
    tokens = SOURCE.session(played.id, size)
    for stream in played.streams:
        if any(len(turn.call.hash_ids) * size > turn.call.input_tokens for turn in stream.turns):
            continue  # a block that is hashed and not full: see the next test
        conversation = Conversation(stream, tokens)
        before = None
        for turn in stream.turns:
            messages = list(conversation.advance())
            prompt = np.concatenate([message.tokens for message in messages])
            assert len(prompt) == turn.call.input_tokens
            covered = min(len(turn.call.hash_ids), len(prompt) // size)
            np.testing.assert_array_equal(
                prompt[: covered * size], tokens.blocks(turn.call.hash_ids[:covered].tolist())
            )
            assert "user" in {message.role for message in messages}
            if before is not None:
                call, earlier = before
                shared = min(shared_blocks(call.hash_ids, turn.call.hash_ids), covered) * size
                np.testing.assert_array_equal(prompt[:shared], earlier[:shared])
            before = turn.call, prompt


def test_a_hashed_block_that_was_not_full_stays_as_it_was() -> None:
    """The harness keeps such a block's tokens when a later turn shares it: the prompt is a bit shorter."""
    calls = [
        {"t": k, "type": "n", "model": "m", "in": tokens, "out": 1, "hash_ids": list(range(blocks))}
        for k, (tokens, blocks) in enumerate([(64 * 3 + 10, 4), (64 * 6, 6)])
    ]
    data = messy_trace(0) | {"requests": calls, "tool_tokens": 0, "system_tokens": 0}
    played = build_session(parse_trace(json.dumps(data).encode(), "short"))
    conversation = Conversation(played.streams[0], SOURCE.session(played.id, 64))
    lengths = [sum(len(message.tokens) for message in conversation.advance()) for _ in range(2)]
    assert lengths == [64 * 3 + 10, 64 * 6 - 54]


@pytest.mark.parametrize("seed", range(100, 110))
def test_the_text_is_that_of_the_messages_with_the_marker_in_front(seed: int) -> None:
    played = session(seed)
    play = Play(played, 0, 0, "[marker]\n", 0.0, [StreamState() for _ in played.streams])
    prompter = Prompter(SOURCE, TOKENIZER)

    async def check() -> None:
        for number, stream in enumerate(played.streams):
            conversation = Conversation(stream, SOURCE.session(played.id, played.trace.block_size))
            for turn in range(len(stream.turns)):
                prompter.prefetch(play, number, turn)
                sent = orjson.loads((await prompter.prompt(play, number, turn)).messages)
                messages = conversation.advance()
                texts = [TOKENIZER.decode(message.tokens) for message in messages]
                first = next(i for i, message in enumerate(messages) if message.role == "user")
                texts[first] = "[marker]\n" + texts[first]
                assert [m["content"] for m in sent] == texts
                assert [m["role"] for m in sent] == [m.role for m in messages]

    try:
        asyncio.run(check())
    finally:
        prompter.close()


def test_a_play_in_process_gets_the_same_tokens() -> None:
    played = session(100)
    play = Play(played, 0, 0, "x", 0.0, [StreamState() for _ in played.streams])
    prompter = Prompter(SOURCE, TOKENIZER)
    conversation = Conversation(played.streams[0], SOURCE.session(played.id, played.trace.block_size))
    try:
        for turn in range(len(played.streams[0].turns)):
            expected = [message.tokens for message in conversation.advance()]
            np.testing.assert_array_equal(prompter.tokens(play, 0, turn), np.concatenate(expected))
    finally:
        prompter.close()


def test_a_system_prompt_longer_than_the_hashes() -> None:
    data = messy_trace(0) | {"tool_tokens": 10**7, "system_tokens": 5}
    played = build_session(parse_trace(json.dumps(data).encode(), "messy"))
    with pytest.raises(InvalidValue, match="tool_tokens"):
        check_prefix(played.streams[0], 64)


def test_the_body() -> None:
    body = orjson.loads(chat_body(b'[{"role":"user","content":"a"}]', "m", 7))
    assert body == {
        "messages": [{"role": "user", "content": "a"}],
        "model": "m",
        "stream": True,
        "max_completion_tokens": 7,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    assert orjson.loads(chat_body(b"[]", "m", 7, legacy_max_tokens=True))["max_tokens"] == 7
