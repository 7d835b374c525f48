"""Which table rows a token reads: token compression, hash constants (spec 7.1, 7.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, normalizers

from flashpoint.errors import CheckpointError
from flashpoint.models.deepseek_v41.config import ModelConfig, TextConfig

Int64 = npt.NDArray[np.int64]

# A lone space must survive Strip; this private-use character stands in for it meanwhile.
_LONE_SPACE = "\ue000"
_REPLACEMENT = "\ufffd"
_SEED_PER_LAYER = 10007


@dataclass(frozen=True, slots=True)
class EngramHash:
    """Constants of a checkpoint's Engram layers, in the order of `engram_layer_ids`.

    token_map int64 [vocab]: compressed id of each token id.  pad: compressed id of `engram_pad_token_id`.
    multipliers int64 [layers, max_ngram].  primes, offsets int64 [layers, slots], slots ordered 2-gram heads
    first, then 3-gram heads, ….
    """

    token_map: Int64
    pad: int
    multipliers: Int64
    primes: Int64
    offsets: Int64


def build_engram_hash(config: ModelConfig, tokenizer_path: Path) -> EngramHash:
    """Derive every constant from the config and the checkpoint's `tokenizer.json`.

    Raises CheckpointError when the tokenizer is absent or unreadable, does not give exactly
    `engram_compressed_vocab_size` keys, or the primes do not sum to `engram_num_embeddings`: with any of
    these wrong every look-up would read a wrong row, and the text would still be plausible.
    """
    text = config.text
    token_map = build_token_map(tokenizer_path, text.vocab_size)
    primes = hash_primes(text)
    problems = []
    keys = int(token_map.max()) + 1
    if keys != text.engram_compressed_vocab_size:
        problems.append(
            f"{tokenizer_path.name}: gives {keys} distinct Engram keys; expected "
            f"{text.engram_compressed_vocab_size} (engram_compressed_vocab_size)"
        )
    rows = primes.sum(axis=1).tolist()
    if rows != list(text.engram_num_embeddings):
        problems.append(
            f"engram_num_embeddings: got {list(text.engram_num_embeddings)}; expected {rows}, the sums of "
            f"the hash primes from engram_vocab_size {text.engram_vocab_size} upward"
        )
    if problems:
        raise CheckpointError(tokenizer_path.parent, problems)
    offsets = np.zeros_like(primes)
    offsets[:, 1:] = np.cumsum(primes, axis=1)[:, :-1]
    return EngramHash(
        token_map=token_map,
        pad=int(token_map[text.engram_pad_token_id]),
        multipliers=hash_multipliers(text),
        primes=primes,
        offsets=offsets,
    )


def build_token_map(tokenizer_path: Path, vocab_size: int) -> Int64:
    """Compressed id of every token id, int64 [vocab_size] (spec 7.1).

    Tokens that differ only in case, accents, width or white space share an id; ids count up in order of first
    appearance. Ids beyond the tokenizer's length only pad the embedding matrix, are in no prompt, and share
    the id of token 0. Raises CheckpointError when the file is absent, is not a tokenizer or has more tokens
    than `vocab_size`.
    """
    tokenizer = load_tokenizer(tokenizer_path)
    length = tokenizer.get_vocab_size(with_added_tokens=True)
    if length > vocab_size:
        raise CheckpointError(
            tokenizer_path.parent,
            [f"{tokenizer_path.name}: has {length} tokens; expected at most vocab_size {vocab_size}"],
        )
    normalize = _normalizer().normalize_str
    ids: dict[str | None, int] = {}
    token_map = np.zeros(vocab_size, dtype=np.int64)
    for token in range(length):
        text = tokenizer.decode([token], skip_special_tokens=False)
        key = tokenizer.id_to_token(token) if _REPLACEMENT in text else normalize(text) or text
        token_map[token] = ids.setdefault(key, len(ids))
    return token_map


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a `tokenizer.json`. Raises CheckpointError when it is absent or not a tokenizer."""
    if not path.is_file():
        raise CheckpointError(path.parent, [f"{path.name}: missing"])
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every fault of the file
        raise CheckpointError(path.parent, [f"{path.name}: not a usable tokenizer ({error})"]) from None


def _normalizer() -> normalizers.Sequence:
    return normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), _LONE_SPACE),
            normalizers.Strip(),
            normalizers.Replace(_LONE_SPACE, " "),
        ]
    )


def hash_primes(config: TextConfig) -> Int64:
    """Modulus of every slot, int64 [layers, slots]: primes from `engram_vocab_size` up, none used twice."""
    shape = (len(config.engram_layer_ids), config.engram_slots)
    primes: list[int] = []
    candidate = config.engram_vocab_size
    while len(primes) < math.prod(shape):
        if _is_prime(candidate):
            primes.append(candidate)
        candidate += 1
    return np.array(primes, dtype=np.int64).reshape(shape)


def _is_prime(n: int) -> bool:
    return n >= 2 and all(n % d for d in range(2, math.isqrt(n) + 1))


def hash_multipliers(config: TextConfig) -> Int64:
    """Odd multipliers, int64 [layers, max_ngram]; `compressed id x multiplier` never leaves int64."""
    bound = np.iinfo(np.int64).max // config.engram_compressed_vocab_size // 2
    rows = [
        np.random.default_rng(_SEED_PER_LAYER * layer).integers(
            0, bound, size=config.engram_max_ngram_size, dtype=np.int64
        )
        for layer in config.engram_layer_ids
    ]
    shape = (len(config.engram_layer_ids), config.engram_max_ngram_size)
    return 2 * np.array(rows, dtype=np.int64).reshape(shape) + 1
