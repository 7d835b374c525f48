"""Block ids to tokens: the same block of a session is the same tokens, everywhere and in every run.

Source: the project's spec, agentx.md section 2. One long token array is the corpus; a block is a slice of it
at an offset drawn from a generator that run seed, session and block id seed. Sessions share nothing, because
the session's id is in the seed. What no block id covers is a slice that the turn's own name chooses.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flashpoint.agentx.prompts.text import agent_text
from flashpoint.agentx.prompts.tokenizer import PromptTokenizer, Tokens
from flashpoint.errors import InvalidValue

CORPUS_CHARS = 4_000_000
LEAST_TOKENS = 4_096
BLOCKS_PURPOSE = "dataset.coding_content.corpus"
"""The official harness derives the seed of its blocks from the run's seed and this name; so do we, so that
the same corpus gives the same prompts."""


class TokenSource:
    """A corpus of tokens and a seed; makes the tokens of any session."""

    def __init__(self, corpus: Tokens, seed: int) -> None:
        """`corpus` is int32 [tokens], at least `LEAST_TOKENS` long."""
        if len(corpus) < LEAST_TOKENS:
            raise InvalidValue(
                "prompt_text", f"{len(corpus)} tokens", f"at least {LEAST_TOKENS} tokens of text"
            )
        self.corpus = corpus
        self.sha256 = hashlib.sha256(corpus.astype("<i4").tobytes()).hexdigest()
        self._seed = _first_64_bits(f"{seed}:{BLOCKS_PURPOSE}")

    def session(self, session_id: str, block_size: int) -> SessionTokens:
        """The tokens of one session."""
        return SessionTokens(self.corpus, f"{self._seed}:{session_id}", block_size)


class SessionTokens:
    """Makes the tokens of one session; remembers where its blocks lie."""

    def __init__(self, corpus: Tokens, salt: str, block_size: int) -> None:
        self.block_size = block_size
        self._corpus = corpus
        self._salt = salt
        self._random = random.Random()
        self._offsets: dict[int, int] = {}

    def blocks(self, ids: Sequence[int]) -> Tokens:
        """The tokens of blocks, int32 [len(ids) * block_size]."""
        size = len(self._corpus)
        starts = np.fromiter(map(self._offset, ids), dtype=np.int64, count=len(ids))
        positions = (starts[:, None] + np.arange(self.block_size)) % size
        return self._corpus[positions.reshape(-1)]

    def tail(self, count: int, name: str) -> Tokens:
        """`count` tokens that `name` chooses, int32 [count]."""
        size = len(self._corpus)
        start = _first_64_bits(name) % max(size - count, 1)
        return np.take(self._corpus, np.arange(start, start + count), mode="wrap")

    def _offset(self, block_id: int) -> int:
        known = self._offsets.get(block_id)
        if known is None:
            self._random.seed(_first_64_bits(f"{self._salt}:{block_id}"))
            known = self._offsets[block_id] = self._random.randrange(len(self._corpus))
        return known


def load_corpus(path: Path | None, tokenizer: PromptTokenizer, seed: int) -> Tokens:
    """The corpus: a text file, token ids in a .npy file, or without a path our own invented text.

    Raises `InvalidValue` naming `prompt_text`.
    """
    if path is None:
        return tokenizer.encode(agent_text(seed, CORPUS_CHARS))
    try:
        if path.suffix == ".npy":
            return np.ascontiguousarray(np.load(path, allow_pickle=False), dtype=np.int32).reshape(-1)
        return tokenizer.encode(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidValue(
            "prompt_text", str(path), f"a UTF-8 text, or token ids in a .npy file ({error})"
        ) from error


def _first_64_bits(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
