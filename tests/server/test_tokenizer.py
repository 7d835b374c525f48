"""Prompts to ids: user text never becomes a special token, and remembered texts change nothing."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.errors import CheckpointError
from flashpoint.models.chat import Segment
from flashpoint.server.tokenizer import Tokenizer
from tests.server.harness import TINY, decoded
from tests.server.tokenizers_for_tests import v41_definition, v41_tokenizer

SPECIALS = ["<｜User｜>", "<｜Assistant｜>", "</think>", "｜DSML｜", "<｜end▁of▁sentence｜>", "<｜System｜>"]


def special_ids() -> set[int]:
    return {token["id"] for token in v41_definition()["added_tokens"]}


@settings(deadline=None)
@given(st.lists(st.one_of(st.sampled_from(SPECIALS), st.text(max_size=8))).map("".join))
def test_plain_segments_never_hold_special_ids(text: str) -> None:
    tokenizer = v41_tokenizer()
    ids = tokenizer.encode_segments([Segment(text)])
    assert special_ids().isdisjoint(ids.tolist())
    assert decoded(tokenizer, ids.tolist()) == text


def test_raw_prompts_and_special_segments_do_hold_them() -> None:
    tokenizer = v41_tokenizer()
    user = tokenizer.token_id("<｜User｜>")
    assert tokenizer.encode("<｜User｜>hi")[0] == user
    assert tokenizer.encode_segments([Segment("<｜User｜>", special=True), Segment("hi")])[0] == user


def test_remembered_segments_give_the_same_ids() -> None:
    definition = json.loads((TINY / "tokenizer.json").read_text())
    cached = Tokenizer(definition, frozenset({1}), cache_bytes=100_000)
    plain = Tokenizer(definition, frozenset({1}))
    rng = np.random.default_rng(0)
    texts = ["".join(chr(c) for c in rng.integers(32, 127, 3000)) for _ in range(12)]
    for text in texts * 3:
        segments = [Segment("short"), Segment(text), Segment(text)]
        assert np.array_equal(cached.encode_segments(segments), plain.encode_segments(segments))
    assert 0 < cached._cache._used <= 100_000
    assert plain._cache._used == 0


def test_tokenizing_leaves_the_interpreter_free() -> None:
    tokenizer = v41_tokenizer()
    text = "The quick brown fox jumps over the lazy dog. " * 400_000
    done = threading.Event()

    def encode() -> None:
        tokenizer.encode(text)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    turns = 0
    while not done.wait(0.001):
        turns += 1
    thread.join()
    assert turns > 5, "encoding held the interpreter lock"


def test_empty_prompts_have_no_tokens() -> None:
    assert len(v41_tokenizer().encode("")) == 0
    assert len(v41_tokenizer().encode_segments([])) == 0


@pytest.mark.parametrize(
    ("files", "eos"),
    [
        ({"config.json": {"eos_token_id": 1}}, {1}),
        ({"config.json": {"eos_token_id": 1}, "generation_config.json": {"eos_token_id": [3, 4]}}, {3, 4}),
        ({"tokenizer_config.json": {"eos_token": "<｜end▁of▁sentence｜>"}}, {1}),
        ({"tokenizer_config.json": {"eos_token": {"content": "<｜▁pad▁｜>"}}}, {2}),
    ],
)
def test_eos_ids_come_from_the_checkpoint(tmp_path: Path, files: dict[str, object], eos: set[int]) -> None:
    (tmp_path / "tokenizer.json").write_bytes((TINY / "tokenizer.json").read_bytes())
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert Tokenizer.from_checkpoint(tmp_path).eos_ids == eos


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "tokenizer.json"),
        ("{", "tokenizer.json"),
        ('{"decoder": {"type": "Metaspace"}}', "decoder is 'Metaspace'; expected 'ByteLevel'"),
        ((TINY / "tokenizer.json").read_text(), "no end-of-text token"),
    ],
)
def test_bad_tokenizers_are_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.from_checkpoint(tmp_path)
