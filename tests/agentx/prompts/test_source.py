"""Blocks and tails are cut from one corpus, by names alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashpoint.agentx.prompts.source import LEAST_TOKENS, TokenSource, load_corpus
from flashpoint.agentx.prompts.text import agent_text
from flashpoint.agentx.prompts.tokenizer import PromptTokenizer, load_tokenizer
from flashpoint.errors import InvalidValue
from flashpoint.models.deepseek_v41.preset_tokenizers import small_tokenizer

CORPUS = np.arange(5_000, dtype=np.int32)


@given(st.lists(st.integers(-(2**62), 2**62), max_size=20), st.integers(1, 200), st.integers(0, 5))
def test_a_block_is_a_slice_that_its_name_chooses(ids: list[int], size: int, seed: int) -> None:
    tokens = TokenSource(CORPUS, seed).session("s", size)
    whole = tokens.blocks(ids).reshape(len(ids), size)
    again = TokenSource(CORPUS, seed).session("s", size)
    for block_id, block in zip(reversed(ids), whole[::-1], strict=True):
        np.testing.assert_array_equal(again.blocks([block_id]), block)
        np.testing.assert_array_equal(block, (block[0] + np.arange(size)) % 5_000)


def test_sessions_and_seeds_share_nothing() -> None:
    starts = {
        (seed, name, block): int(TokenSource(CORPUS, seed).session(name, 64).blocks([block])[0])
        for seed in (1, 2)
        for name in ("a", "b")
        for block in range(50)
    }
    # 200 draws from 5,000 places: 4 expected to coincide.
    assert len(set(starts.values())) > 185


@given(st.integers(0, 12_000), st.text(max_size=10))
def test_a_tail_is_as_long_as_asked(count: int, name: str) -> None:
    tail = TokenSource(CORPUS, 0).session("s", 64).tail(count, name)
    assert len(tail) == count
    np.testing.assert_array_equal(tail, TokenSource(CORPUS, 9).session("t", 8).tail(count, name))


def test_a_corpus_too_short_is_refused() -> None:
    with pytest.raises(InvalidValue, match=f"prompt_text.*{LEAST_TOKENS}"):
        TokenSource(CORPUS[:100], 0)


def test_a_corpus_from_a_file(tmp_path: Path) -> None:
    tokenizer = PromptTokenizer(small_tokenizer(512).encode())
    text = agent_text(3, 20_000)
    (tmp_path / "text.txt").write_text(text)
    np.testing.assert_array_equal(load_corpus(tmp_path / "text.txt", tokenizer, 0), tokenizer.encode(text))
    np.save(tmp_path / "ids.npy", CORPUS.astype(np.int64))
    np.testing.assert_array_equal(load_corpus(tmp_path / "ids.npy", tokenizer, 0), CORPUS)
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe caf\xe9")
    (tmp_path / "object.npy").write_bytes(b"no array")
    for name in ("none.txt", "latin.txt", "object.npy"):
        with pytest.raises(InvalidValue, match="prompt_text"):
            load_corpus(tmp_path / name, tokenizer, 0)


def test_our_own_text_is_the_same_for_a_seed() -> None:
    assert agent_text(1, 5_000) == agent_text(1, 5_000)
    assert agent_text(1, 5_000) != agent_text(2, 5_000)
    assert len(agent_text(1, 12_345)) == 12_345


def test_a_tokenizer_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    for path in (tmp_path, tmp_path / "no.json"):
        with pytest.raises(InvalidValue, match="tokenizer"):
            load_tokenizer(path)
