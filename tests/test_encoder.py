"""The quick encoder is the standard one, token for token, or is not used."""

import logging
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint import encoder as module
from flashpoint.encoder import FastEncoder, StandardEncoder, encoder_for
from flashpoint.models.deepseek_v41.preset_tokenizers import small_tokenizer
from tests.server.tokenizers_for_tests import v41_definition

PIECES = [
    *"ab Z09 \n\t\r.,!?'\"_-/\\{}()[]<>|#@$%^&*=+~`:;",
    *(
        "  ",
        "\n\n",
        "\r\n",
        "the",
        "def f(x):",
        "'ll",
        "'S",
        "12",
        "345",
        "6789",
        "é",
        "e\u0301",
        "ß",
        "İ",
        "ſ",
    ),
    *(
        "中文",
        "カナ",
        "かな",
        "한글",
        "😀",
        "👨‍👩‍👧",
        "\u200d",
        "\ufeff",
        "\u3000",
        "\u2028",
        "\x00",
        "²",
        "Ⅷ",
        "٣",
    ),
    *("<｜User｜>", "<think>", "</think>", "｜DSML｜", "<｜end▁of▁sentence｜>", "｜", "▁"),
]
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=30).map("".join),
    st.text(max_size=40),
)


def definitions():
    import json

    whole = v41_definition()
    yield whole
    yield {**whole, "added_tokens": []}
    yield json.loads(small_tokenizer(1024))


PAIRS = [(FastEncoder(d), StandardEncoder(d)) for d in definitions()]


@pytest.mark.parametrize("pair", PAIRS, ids=["v4", "v4 plain", "small"])
@settings(max_examples=400, deadline=None)
@given(texts=st.lists(TEXTS, max_size=4))
def test_both_encoders_give_the_same_ids(pair, texts):
    fast, standard = (encoder.encode(texts) for encoder in pair)
    assert [ids.tolist() for ids in fast] == [ids.tolist() for ids in standard]
    assert all(ids.dtype == np.int32 for ids in fast)


def test_this_repository_encodes_the_same():
    from pathlib import Path

    root = Path(module.__file__).parents[2]
    texts = [
        path.read_text() for path in [*sorted(root.rglob("flashpoint/**/*.py")), *root.glob("docs/*.md")]
    ]
    fast, standard = (encoder.encode(texts) for encoder in PAIRS[1])
    assert sum(map(len, standard)) > 100_000
    for one, other in zip(fast, standard, strict=True):
        assert np.array_equal(one, other)


def test_the_quick_one_is_used_where_it_agrees():
    assert isinstance(encoder_for(v41_definition()), FastEncoder)


def test_a_tokenizer_it_cannot_read_falls_back(caplog):
    unknown = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"},
        "pre_tokenizer": {"type": "Whitespace"},
    }
    with caplog.at_level(logging.WARNING):
        assert isinstance(encoder_for(unknown), StandardEncoder)
    assert "fastokens" in caplog.text


def test_one_that_disagrees_is_not_used(monkeypatch, caplog):
    class Wrong(FastEncoder):
        def encode(self, texts):
            return [ids[:-1] for ids in super().encode(texts)]

    monkeypatch.setattr(sys.modules[module.__name__], "FastEncoder", Wrong)
    with caplog.at_level(logging.WARNING):
        assert isinstance(encoder_for(v41_definition()), StandardEncoder)
    assert "reads" in caplog.text
