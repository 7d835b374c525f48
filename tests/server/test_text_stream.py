"""Incremental text equals text decoded at once; stop strings cut at one place however it is split."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.server.answer_text import AnswerText
from flashpoint.server.text_stream import StopMatcher, TextStream
from flashpoint.server.tokenizer import Tokenizer
from tests.server.harness import TINY, decoded
from tests.server.tokenizers_for_tests import v41_definition, v41_tokenizer

TINY_TOKENIZER = Tokenizer.from_checkpoint(TINY)
TINY_REFERENCE = tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))


@given(st.lists(st.integers(0, 511), max_size=60))
def test_stream_equals_decoding_at_once_tiny(ids: list[int]) -> None:
    assert decoded(TINY_TOKENIZER, ids) == TINY_REFERENCE.decode(ids, skip_special_tokens=True)


@pytest.fixture(scope="module")
def v41_reference() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps(v41_definition()))


@settings(deadline=None)
@given(ids=st.lists(st.one_of(st.integers(0, 129_279), st.integers(0, 400)), max_size=60))
def test_stream_equals_decoding_at_once_v4(v41_reference: tokenizers.Tokenizer, ids: list[int]) -> None:
    assert decoded(v41_tokenizer(), ids) == v41_reference.decode(ids, skip_special_tokens=True)


@settings(deadline=None)
@given(text=st.text(max_size=80))
def test_stream_gives_back_any_text(text: str) -> None:
    for tokenizer in (TINY_TOKENIZER, v41_tokenizer()):
        stream = tokenizer.stream()
        ids = [int(token) for token in tokenizer.encode(text)]
        pieces = [stream.push(token) for token in ids]
        # No half characters: every piece is whole by itself.
        assert "�" not in "".join(pieces) or "�" in text
        assert "".join(pieces) + stream.finish() == text


def test_unknown_ids_have_no_text() -> None:
    stream = TextStream([b"a", b"b"])
    assert [stream.push(token) for token in (0, 7, 1)] == ["a", "", "b"]


texts = st.text(alphabet="abc", max_size=30)


def expected_cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text before the stop string that is complete first; the longest of those wins."""
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return (text[: min(ends)[1]], True) if ends else (text, False)


@given(
    text=texts,
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4),
    cuts=st.lists(st.integers(0, 30)),
)
def test_stop_strings_cut_the_same_however_the_text_is_split(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    matcher = StopMatcher(stops)
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    shown = ""
    for start, end in pairwise(bounds):
        shown += matcher.push(text[start:end])
        assert text.startswith(shown)
        if matcher.matched is None:
            held = text[len(shown) : end]
            assert held == "" or any(stop.startswith(held) for stop in stops), "held back for nothing"
    shown += matcher.finish()
    assert (shown, matcher.matched is not None) == expected_cut(text, stops)


def answer(tokens: list[str], stops: list[str], min_tokens: int = 0, reasoning: bool = False) -> AnswerText:
    table = [b"</think>", *(token.encode() for token in tokens)]
    return AnswerText(TextStream(table), stops, min_tokens, 0 if reasoning else None)


def test_stop_strings_count_only_after_min_tokens() -> None:
    early = answer(["stop", "x"], ["stop"], min_tokens=1)
    assert [early.push(1), early.push(2)] == [("", "stop"), ("", "x")]
    assert not early.stopped
    assert early.push(1) == ("", "")
    assert early.stopped


def test_stop_string_does_not_begin_before_min_tokens() -> None:
    text = answer(["st", "op"], ["stop"], min_tokens=1)
    assert [text.push(1), text.push(2)] == [("", "st"), ("", "op")]
    assert not text.stopped


def test_reasoning_ends_at_its_token_and_has_no_stop_strings() -> None:
    text = answer(["stop", "hi"], ["stop"], reasoning=True)
    assert text.push(1) == ("stop", "")
    assert text.in_reasoning
    assert text.push(0) == ("", "")
    assert text.push(2) == ("", "hi")
    text.push(1)
    assert text.stopped


def test_half_a_character_at_the_end_of_reasoning_is_flushed_there() -> None:
    text = AnswerText(TextStream([b"", b"\xe2\x82", b"ok"]), [], 0, reasoning_end=0)
    assert text.push(1) == ("", "")
    assert text.push(0) == ("�", "")
    assert text.push(2) == ("", "ok")
    assert text.finish() == ("", "")
