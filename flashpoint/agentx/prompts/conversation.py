"""A stream's chat messages, turn by turn, from block ids.

Source: the project's spec, agentx.md section 2. A first turn is one user message (and a system message, where
the trace declares one). For every further turn the common block prefix with the turn before is kept, the
first ceil(previous answer / block) blocks of what is new become an assistant message, and the rest a user
message. Where earlier content changed, the messages are cut at the point of change. The token counts are
exactly those of the trace, and a block has the same tokens in whatever message it lies; only a block that was
hashed before it was full stays as short as it was, as in the harness.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flashpoint.agentx.prompts.source import SessionTokens
from flashpoint.agentx.prompts.tokenizer import Tokens
from flashpoint.agentx.traces.chains import shared_blocks
from flashpoint.agentx.traces.format import Call
from flashpoint.agentx.traces.streams import Stream
from flashpoint.errors import InvalidValue

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """One message: whole blocks, and in a stream's last message a tail that no block covers."""

    role: Role
    blocks: int
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class _Region:
    """How a turn's prompt divides: blocks kept, blocks added, tokens behind the last block."""

    kept: int
    end: int
    tail: int

    @property
    def new(self) -> int:
        return max(0, self.end - self.kept)


class Conversation:
    """The messages of one stream; `advance` moves to the next turn."""

    def __init__(self, stream: Stream, tokens: SessionTokens) -> None:
        self._stream = stream
        self._tokens = tokens
        self._longest_answers = _answer_bounds(stream, tokens.block_size)
        self._turn = -1
        self.messages: list[Message] = []

    @property
    def turn(self) -> int:
        """The turn whose prompt `messages` is; -1 before the first."""
        return self._turn

    def advance(self) -> list[Message]:
        """The messages of the next turn's prompt. Messages that stay are the same objects."""
        self._turn += 1
        call = self._stream.turns[self._turn].call
        name = f"{self._stream.id}:turn_{self._turn}:partial_tail"
        if self._turn == 0:
            self._open(call, name)
        else:
            self._continue(self._stream.turns[self._turn - 1].call, call, name)
        return self.messages

    def _open(self, call: Call, name: str) -> None:
        region = _region(None, call, self._tokens.block_size)
        prefix = min(-(-self._stream.prefix_tokens // self._tokens.block_size), region.end)
        self.messages = []
        if prefix:
            self.messages.append(
                Message("system", prefix, self._tokens.blocks(call.hash_ids[:prefix].tolist()))
            )
        content = self._content(call, prefix, region, name)
        if len(content) or not self.messages:
            self.messages.append(Message("user", region.end - prefix, content))

    def _continue(self, before: Call, call: Call, name: str) -> None:
        block_size = self._tokens.block_size
        region = _region(before, call, block_size)
        self.messages = _cut(self.messages, region.kept, block_size)
        content = self._content(call, region.kept, region, name)
        answer = min(-(-before.output_tokens // block_size), region.new)
        if not any(message.role == "user" for message in self.messages):
            answer = 0  # nothing is left to answer, so the conversation begins anew with a user
        bound = self._longest_answers[self._turn]
        if bound is not None:
            answer = min(answer, bound)
        if answer and answer == region.new and not region.tail:
            answer -= 1  # a prompt ends with a user
        if answer:
            self.messages.append(Message("assistant", answer, content[: answer * block_size]))
        if len(content) > answer * block_size:
            self.messages.append(Message("user", region.new - answer, content[answer * block_size :]))

    def _content(self, call: Call, start: int, region: _Region, name: str) -> Tokens:
        """The tokens from block `start` to the end of the prompt."""
        blocks = self._tokens.blocks(call.hash_ids[start : region.end].tolist())
        return np.concatenate([blocks, self._tokens.tail(region.tail, name)]) if region.tail else blocks


def check_prefix(stream: Stream, block_size: int) -> None:
    """Raise `InvalidValue` where a declared system prompt is longer than the hashes of the first prompt."""
    needed = -(-stream.prefix_tokens // block_size)
    if stream.turns and needed > len(stream.turns[0].call.hash_ids):
        raise InvalidValue(
            f"{stream.id}, tool_tokens + system_tokens",
            stream.prefix_tokens,
            f"no more than the {len(stream.turns[0].call.hash_ids)} hashed blocks of the first prompt",
        )


def _region(before: Call | None, call: Call, block_size: int) -> _Region:
    full = call.input_tokens // block_size
    end = min(len(call.hash_ids), full)
    kept = shared_blocks(before.hash_ids, call.hash_ids) if before is not None else 0
    return _Region(kept, end, call.input_tokens - end * block_size)


def _cut(messages: Sequence[Message], blocks: int, block_size: int) -> list[Message]:
    """The messages up to block `blocks`; the tail of the message that the cut falls behind goes too."""
    kept: list[Message] = []
    if blocks <= 0:
        return kept
    for message in messages:
        if message.blocks < blocks:
            kept.append(message)
            blocks -= message.blocks
            continue
        whole = blocks * block_size
        same = len(message.tokens) == whole
        kept.append(message if same else Message(message.role, blocks, message.tokens[:whole]))
        break
    return kept


def _answer_bounds(stream: Stream, block_size: int) -> list[int | None]:
    """Per turn, how many blocks its assistant message may have at most.

    A later turn that adds nothing and is cut at a block boundary ends with whatever message holds the block
    before the cut; bounded so, that is a user message, as a prompt must end with one.
    """
    bounds: list[int | None] = [None] * len(stream.turns)
    owner: list[int] = []
    """The turn that brought each block of the present prompt."""
    begun: list[int] = []
    """The block at which each turn's own content begins."""
    before: Call | None = None
    for number, turn in enumerate(stream.turns):
        region = _region(before, turn.call, block_size)
        before = turn.call
        kept = min(region.kept, len(owner)) if number else 0
        begun.append(kept)
        new = max(0, region.end - kept)
        if number and not new and not region.tail and kept:
            maker = owner[kept - 1]
            bound = kept - 1 - begun[maker]
            if maker and bound >= 0:
                known = bounds[maker]
                bounds[maker] = bound if known is None else min(known, bound)
        del owner[kept:]
        owner += [number] * new
    return bounds
