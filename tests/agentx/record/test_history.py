"""Histories: equal prefixes give equal ids, and a change gives new ones from there on."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashpoint.agentx.prompts.tokenizer import standard_tokenizer
from flashpoint.agentx.record.history import History, Piece, SessionIds

TOKENIZER = standard_tokenizer()
WORDS = st.lists(
    st.sampled_from(["cache ", "block ", "return None\n", "é", "0123 ", "if x: "]), max_size=400
).map("".join)


def pieces(texts):
    return [Piece((i, text), text) for i, text in enumerate(texts)]


def direct(ids, texts):
    history = History(ids)
    history.become(pieces(texts))
    return history


@given(st.lists(WORDS, max_size=5), st.lists(WORDS, max_size=3), st.integers(0, 5))
def test_however_a_prompt_came_about_its_ids_are_the_same(first, more, kept):
    ids = SessionIds(TOKENIZER)
    moved = History(ids)
    moved.become(pieces(first))
    target = [*first[:kept], *more]
    moved.become(pieces(target))
    plain = direct(ids, target)
    assert moved.tokens == plain.tokens
    assert np.array_equal(moved.blocks(10**9), plain.blocks(10**9))
    assert len(moved.blocks(10**9)) == moved.tokens // 64


def test_a_change_changes_everything_behind_it():
    ids = SessionIds(TOKENIZER)
    long = "the same text again and again, " * 200
    one, other = direct(ids, [long, "x", long]), direct(ids, [long, "y", long])
    before = len(direct(ids, [long]).blocks(10**9))
    a, b = one.blocks(10**9), other.blocks(10**9)
    assert np.array_equal(a[:before], b[:before])
    assert not set(a[before:]) & set(b[before:])


def test_the_unlogged_prefix_comes_first_and_the_length_cuts():
    ids = SessionIds(TOKENIZER)
    history = direct(ids, ["some text " * 100])
    plain = history.blocks(10**9)
    history.prefix_tokens = 128
    shifted = history.blocks(10**9)
    assert np.array_equal(shifted[2:], plain) and len(history.blocks(64)) == 1
    assert np.array_equal(direct(ids, ["other"]).blocks(10), [])


def test_sessions_share_no_digests():
    text = "some text " * 100
    digests = [
        next(iter(ids._ids)) for ids in (SessionIds(TOKENIZER), SessionIds(TOKENIZER)) if direct(ids, [text])
    ]
    assert digests[0] != digests[1]
