"""Makes the bodies of a level's requests beside the event loop, so that sending one costs the loop a copy.

A stream's next body is made as soon as its turn before has ended, while the recorded wait runs. Messages that
stay from turn to turn are turned into text and JSON once.
"""

from __future__ import annotations

import asyncio
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import orjson

from flashpoint.agentx.prompts.conversation import Conversation, Message
from flashpoint.agentx.prompts.source import SessionTokens, TokenSource
from flashpoint.agentx.prompts.tokenizer import PromptTokenizer, Tokens
from flashpoint.agentx.schedule.play import Play


@dataclass(frozen=True, slots=True)
class Prompt:
    """One turn's prompt: the JSON text of its messages, and its tokens where the text is of no use."""

    messages: bytes
    """The value of `messages` in a chat request."""


class Prompter:
    """Prompts of the plays of one level; close it at the end."""

    def __init__(self, source: TokenSource, tokenizer: PromptTokenizer) -> None:
        self._source = source
        self._tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prompts")
        self._plays: weakref.WeakKeyDictionary[Play, _PlayPrompts] = weakref.WeakKeyDictionary()

    def close(self) -> None:
        """Drop what is not made yet."""
        self._thread.shutdown(cancel_futures=True)

    def prefetch(self, play: Play, stream: int, turn: int) -> None:
        """Begin to make a prompt that will be asked for; turns of a stream in their order."""
        self._prompts(play).begin(self._thread, stream, turn)

    async def prompt(self, play: Play, stream: int, turn: int) -> Prompt:
        """The prompt of a turn. A primer's turn may lie anywhere; later turns follow in order."""
        return await asyncio.wrap_future(self._prompts(play).begin(self._thread, stream, turn))

    def tokens(self, play: Play, stream: int, turn: int) -> Tokens:
        """The prompt's tokens, int32 [tokens], as an engine takes them: no template, no marker."""
        return self._prompts(play).tokens(stream, turn)

    def _prompts(self, play: Play) -> _PlayPrompts:
        known = self._plays.get(play)
        if known is None:
            tokens = self._source.session(play.session.id, play.session.trace.block_size)
            known = self._plays[play] = _PlayPrompts(weakref.ref(play), tokens, self._tokenizer)
        return known


class _PlayPrompts:
    """The prompts of one play. Only one thread makes them; a play's streams share its block tokens."""

    def __init__(self, play: weakref.ref[Play], tokens: SessionTokens, tokenizer: PromptTokenizer) -> None:
        self._play = play
        self._tokens = tokens
        self._tokenizer = tokenizer
        self._streams: dict[int, _StreamPrompts] = {}
        self._begun: dict[tuple[int, int], Future[Prompt]] = {}

    def begin(self, thread: ThreadPoolExecutor, stream: int, turn: int) -> Future[Prompt]:
        """The prompt in the making; asked for a second time, the same one."""
        key = (stream, turn)
        if key not in self._begun:
            for old in [k for k in self._begun if k[0] == stream]:
                del self._begun[old]
            self._begun[key] = thread.submit(self._make, stream, turn)
        return self._begun[key]

    def tokens(self, stream: int, turn: int) -> Tokens:
        return self._stream(stream).tokens(turn)

    def _make(self, stream: int, turn: int) -> Prompt:
        return Prompt(self._stream(stream).json(turn))

    def _stream(self, number: int) -> _StreamPrompts:
        if number not in self._streams:
            play = self._play()
            assert play is not None
            conversation = Conversation(play.session.streams[number], self._tokens)
            self._streams[number] = _StreamPrompts(conversation, play.marker, self._tokenizer)
        return self._streams[number]


class _StreamPrompts:
    def __init__(self, conversation: Conversation, marker: str, tokenizer: PromptTokenizer) -> None:
        self._conversation = conversation
        self._marker = marker
        self._tokenizer = tokenizer
        self._json: dict[int, tuple[Message, bytes]] = {}

    def json(self, turn: int) -> bytes:
        """The messages of `turn` as a JSON list, the marker in front of the first user message."""
        messages = self._advance(turn)
        marked = next((i for i, message in enumerate(messages) if message.role == "user"), None)
        parts = []
        known = {}
        for i, message in enumerate(messages):
            # Keyed by the object: a message that stays is the same one, a cut or new one is another.
            kept = self._json.get(id(message))
            text = kept[1] if kept else self._message_json(message, self._marker if i == marked else "")
            known[id(message)] = (message, text)
            parts.append(text)
        self._json = known
        return b"[" + b",".join(parts) + b"]"

    def tokens(self, turn: int) -> Tokens:
        """The tokens of `turn`, without a marker."""
        return np.concatenate([message.tokens for message in self._advance(turn)])

    def _advance(self, turn: int) -> list[Message]:
        while self._conversation.turn < turn:
            self._conversation.advance()
        if self._conversation.turn != turn:
            raise RuntimeError(f"turn {turn} was asked for after turn {self._conversation.turn}")
        return self._conversation.messages

    def _message_json(self, message: Message, marker: str) -> bytes:
        text = marker + self._tokenizer.decode(message.tokens)
        return orjson.dumps({"role": message.role, "content": text})
