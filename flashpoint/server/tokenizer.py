"""The checkpoint's tokenizer, as the server uses it: text to ids in a thread, ids to bytes."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from flashpoint.encoder import encoder_for
from flashpoint.errors import CheckpointError
from flashpoint.models.chat import Segment
from flashpoint.server.text_stream import TextStream

CACHED_SEGMENT_CHARACTERS = 256


class Tokenizer:
    """A byte-level BPE tokenizer. No method adds special tokens of its own. Thread safe.

    Two encodings exist because a prompt is made of text we wrote and text a user wrote: `encode`
    reads the spelling of a special token as that token, `encode_segments` does so only where a
    segment says that it is one, so user text can never become a special token.

    eos_ids: ids that end an answer.
    longest_token_bytes: no id stands for more bytes of text than this.
    """

    def __init__(self, definition: Mapping[str, Any], eos_ids: frozenset[int], cache_bytes: int = 0) -> None:
        self._full = encoder_for(definition)
        self._plain = encoder_for({**definition, "added_tokens": []})
        special = {token["id"] for token in definition["added_tokens"] if token["special"]}
        vocabulary = tokenizers.Tokenizer.from_str(json.dumps(definition)).get_vocab(with_added_tokens=True)
        self._token_bytes = [b""] * (max(vocabulary.values()) + 1)
        self._spelling = list(self._token_bytes)
        for token, token_id in vocabulary.items():
            self._spelling[token_id] = _bytes_of(token)
            if token_id not in special:
                self._token_bytes[token_id] = self._spelling[token_id]
        self._ids = vocabulary
        self._special: dict[str, npt.NDArray[np.int32]] = {}
        self._cache = _SegmentCache(cache_bytes)
        self.eos_ids = eos_ids
        self.longest_token_bytes = max(map(len, self._spelling))

    @classmethod
    def from_checkpoint(cls, folder: Path, cache_bytes: int = 0) -> Tokenizer:
        """Read `tokenizer.json` and find the end-of-text ids.

        They are `eos_token_id` of generation_config.json, else of config.json, else the id of
        `eos_token` in tokenizer_config.json. Raises CheckpointError.
        """
        path = folder / "tokenizer.json"
        try:
            definition = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(folder, [f"tokenizer.json: {error}"]) from error
        decoder = (definition.get("decoder") or {}).get("type")
        if decoder != "ByteLevel":
            raise CheckpointError(folder, [f"tokenizer.json: decoder is {decoder!r}; expected 'ByteLevel'"])
        return cls(definition, _eos_ids(folder, definition), cache_bytes)

    def __len__(self) -> int:
        return len(self._token_bytes)

    def token_id(self, token: str) -> int | None:
        """The id of a token by its spelling, None when there is no such token."""
        return self._ids.get(token)

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; special tokens give their spelling, unknown ids nothing."""
        return self._spelling[token] if token < len(self._spelling) else b""

    def stream(self) -> TextStream:
        """A fresh decoder for one answer; special tokens have no text in it."""
        return TextStream(self._token_bytes)

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """Ids of a raw prompt; special-token spellings in it become those tokens."""
        return self._full.encode([text])[0]

    def encode_segments(self, segments: Sequence[Segment]) -> npt.NDArray[np.int32]:
        """Ids of a rendered chat; a segment that is not special is plain text whatever it spells.

        Segments are encoded apart and long ones are remembered, so that a growing conversation costs
        only what is new in it.
        """
        ids: list[npt.NDArray[np.int32] | None] = []
        missing: list[int] = []
        for index, segment in enumerate(segments):
            if segment.special:
                ids.append(self._special_ids(segment.text))
                continue
            ids.append(self._cache.get(segment.text))
            if ids[index] is None:
                missing.append(index)
        encoded = self._plain.encode([segments[index].text for index in missing])
        for index, new in zip(missing, encoded, strict=True):
            ids[index] = new
            self._cache.put(segments[index].text, new)
        return np.concatenate([part for part in ids if part is not None] or [np.empty(0, dtype=np.int32)])

    def _special_ids(self, spelling: str) -> npt.NDArray[np.int32]:
        ids = self._special.get(spelling)
        if ids is None:
            ids = self._special[spelling] = np.array([self._ids[spelling]], dtype=np.int32)
        return ids


class _SegmentCache:
    """Least-recently-used map from a text to its ids, bounded by bytes."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._used = 0
        self._entries: OrderedDict[str, npt.NDArray[np.int32]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, text: str) -> npt.NDArray[np.int32] | None:
        if len(text) < CACHED_SEGMENT_CHARACTERS:
            return None  # quicker to encode than to look up
        with self._lock:
            ids = self._entries.get(text)
            if ids is not None:
                self._entries.move_to_end(text)
            return ids

    def put(self, text: str, ids: npt.NDArray[np.int32]) -> None:
        size = _entry_bytes(text, ids)
        if len(text) < CACHED_SEGMENT_CHARACTERS or size > self._capacity:
            return
        with self._lock:
            if text in self._entries:
                return
            self._entries[text] = ids
            self._used += size
            while self._used > self._capacity:
                old_text, old_ids = self._entries.popitem(last=False)
                self._used -= _entry_bytes(old_text, old_ids)


def _entry_bytes(text: str, ids: npt.NDArray[np.int32]) -> int:
    # 4 bytes a character is the most CPython uses.
    return 4 * len(text) + ids.nbytes


def _eos_ids(folder: Path, definition: Mapping[str, Any]) -> frozenset[int]:
    for name in ("generation_config.json", "config.json"):
        eos = _read_json(folder / name).get("eos_token_id")
        if eos is None:
            continue
        ids = eos if isinstance(eos, list) else [eos]
        if not all(type(token) is int and token >= 0 for token in ids):
            raise CheckpointError(
                folder, [f"{name}: eos_token_id is {eos!r}; expected an id or a list of ids"]
            )
        return frozenset(ids)
    eos_token = _read_json(folder / "tokenizer_config.json").get("eos_token")
    spelling = eos_token["content"] if isinstance(eos_token, dict) else eos_token
    ids = [token["id"] for token in definition["added_tokens"] if token["content"] == spelling]
    if not ids:
        searched = "eos_token_id in generation_config.json or config.json, eos_token in tokenizer_config.json"
        raise CheckpointError(folder, [f"no end-of-text token; looked for {searched}"])
    return frozenset(ids)


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object file; an absent one is empty."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(path.parent, [f"{path.name}: {error}"]) from error
    if not isinstance(content, dict):
        raise CheckpointError(path.parent, [f"{path.name}: expected a JSON object"])
    return content


def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level BPE writes the 256 bytes: printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + rank): byte for rank, byte in enumerate(others)})
    return alphabet


_BYTE_OF = _byte_alphabet()


def _bytes_of(token: str) -> bytes:
    """Bytes of a vocabulary entry; one that is not written in the byte alphabet is its own text."""
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()
