"""Text to token ids by the quickest library that agrees with the standard one.

`fastokens` encodes a prompt of 142K tokens in a few milliseconds where `tokenizers` takes about half a
second. `tokenizers` is the definition: where the two disagree on a set of awkward texts, or fastokens cannot
read a tokenizer at all, `tokenizers` does the work.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import fastokens
import numpy as np
import numpy.typing as npt
import tokenizers

log = logging.getLogger(__name__)

Ids = npt.NDArray[np.int32]

PROBES = (
    "",
    "The quick brown fox's 12345 jumps, doesn't it? 3.14159e-10\r\n\r\n\t  two  spaces   three",
    'def f(x: int) -> str:\n    return f"{x!r:>10}\\n"  # naïve café Größe ÀÉÎ İıſ\n\n\n',
    "中文字符和标点。日本語のテキスト、カタカナ 한국어 𠀀𝒜 ①②Ⅷ٣²½ ｆｕｌｌ",
    "😀👨‍👩‍👧🏳️‍🌈 e\u0301 a\u0308\u0304 \u200b\u200d\ufeff\u00a0\u3000\u2028\x00\x07\x7f",
    '{"path": "/usr/lib/x86_64", "n": -1.5e+300, "s": "\\u00e9\\\\"}</tool> <|end|> [INST] </s> <think>',
    "    \n  \n\t\t\n'll 'S 'Re a'b' ''' \"\"\" ---- ====  !!!???...;;;",
)


class Encoder(Protocol):
    """Encodes texts, adding no tokens of its own. Thread safe."""

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """One int32 array per text."""
        ...


class StandardEncoder:
    """The `tokenizers` library."""

    def __init__(self, definition: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(definition))

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """See Encoder."""
        # encode_batch_fast releases the interpreter lock while it works; encode does not.
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]


class FastEncoder:
    """The `fastokens` library. Raises whatever it raises for a definition it cannot read."""

    def __init__(self, definition: Mapping[str, Any]) -> None:
        self._tokenizer = fastokens.Tokenizer.from_json_str(json.dumps(definition))

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """See Encoder."""
        ids, offsets = self._tokenizer.encode_batch_flat(list(texts))
        all_ids = np.frombuffer(ids, dtype="<u4").astype(np.int32)
        edges = np.frombuffer(offsets, dtype="<u8").tolist()
        return [all_ids[start:stop] for start, stop in pairwise(edges)]


def encoder_for(definition: Mapping[str, Any]) -> Encoder:
    """The fast encoder if it agrees with the standard one on PROBES and on the spelling of added tokens."""
    standard = StandardEncoder(definition)
    added = [token["content"] for token in definition["added_tokens"]]
    probes = [*PROBES, *(f"a {token}b" for token in added)]
    try:
        fast = FastEncoder(definition)
        encoded = fast.encode(probes)
    except Exception as error:
        log.warning("tokenizing with `tokenizers`: fastokens cannot read this tokenizer (%s)", error)
        return standard
    for probe, ours, theirs in zip(probes, encoded, standard.encode(probes), strict=True):
        if not np.array_equal(ours, theirs):
            log.warning("tokenizing with `tokenizers`: fastokens reads %r differently", probe)
            return standard
    return fast
