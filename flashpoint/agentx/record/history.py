"""A conversation as block ids: what stays the same keeps its ids, and no text can be got back from them.

A block's id stands for the digest of its 64 tokens and of all before it, keyed with a random number that is
thrown away after the session. Ids are dense numbers in the order of their first appearance.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from flashpoint.agentx.prompts.tokenizer import PromptTokenizer, Tokens
from flashpoint.agentx.traces.format import BLOCK_SIZE, Blocks


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a prompt: a key that tells it from other parts, and its text."""

    key: Hashable
    text: str


@dataclass(frozen=True, slots=True)
class _State:
    """Where a history stood behind a piece."""

    key: Hashable
    blocks: int
    rest: Tokens
    digest: bytes


class SessionIds:
    """Gives the blocks of one session their ids."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self.tokenizer = tokenizer
        self._key = secrets.token_bytes(32)
        self._ids: dict[bytes, int] = {}

    def digest(self, before: bytes, tokens: Tokens) -> bytes:
        """The digest of a block behind everything that `before` stands for."""
        data = before + tokens.astype("<i4").tobytes()
        return hashlib.blake2b(data, digest_size=16, key=self._key).digest()

    def id_of(self, digest: bytes) -> int:
        """The block's number, from 1."""
        return self._ids.setdefault(digest, len(self._ids) + 1)


class History:
    """The prompt of one conversation, piece by piece."""

    def __init__(self, session: SessionIds) -> None:
        self._session = session
        self._ids: list[int] = []
        self._states = [_State(None, 0, np.empty(0, dtype=np.int32), b"")]
        self.prefix_tokens = 0
        """Tokens in front that the log does not show (system prompt, tool schemas)."""

    @property
    def tokens(self) -> int:
        """Length of the prompt, the unlogged prefix included."""
        state = self._states[-1]
        return self.prefix_tokens + (state.blocks * BLOCK_SIZE + len(state.rest))

    def become(self, pieces: Sequence[Piece]) -> None:
        """Make the prompt consist of `pieces`; leading ones that it has already cost nothing."""
        kept = 0
        while (
            kept < min(len(pieces), len(self._states) - 1) and self._states[kept + 1].key == pieces[kept].key
        ):
            kept += 1
        del self._states[kept + 1 :]
        del self._ids[self._states[-1].blocks :]
        for piece in pieces[kept:]:
            self._append(piece)

    def _append(self, piece: Piece) -> None:
        state = self._states[-1]
        new = self._session.tokenizer.encode(piece.text) if piece.text else np.empty(0, dtype=np.int32)
        tokens = np.concatenate([state.rest, new])
        full, digest = len(tokens) // BLOCK_SIZE, state.digest
        for i in range(full):
            digest = self._session.digest(digest, tokens[i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE])
            self._ids.append(self._session.id_of(digest))
        self._states.append(_State(piece.key, state.blocks + full, tokens[full * BLOCK_SIZE :], digest))

    def blocks(self, length: int) -> Blocks:
        """The ids of a prompt of `length` tokens: the unlogged prefix first, then what the log shows.

        The prefix is whole blocks with ids that no other content has, the same for every conversation of the
        session with a prefix of that length.
        """
        count = self.prefix_tokens // BLOCK_SIZE
        prefix = [self._session.id_of(b"prefix" + i.to_bytes(4, "big")) for i in range(count)]
        return np.array([*prefix, *self._ids][: length // BLOCK_SIZE], dtype=np.int64)
