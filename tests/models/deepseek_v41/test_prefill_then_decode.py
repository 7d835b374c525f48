"""Prefill(N) and one decode step give what prefill(N + 1) gives, wherever a window, a pair or a tile ends.

Spec section 17, tests 5 and 6, at the lengths it names.
"""

from functools import cache

import numpy as np
import pytest
import torch

from flashpoint.engine.plan import Chunk
from flashpoint.models.deepseek_v41.init import init_checkpoint
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.load import load_model

BLOCK = 64
LENGTHS = [*range(127, 131), *range(511, 515), *range(1023, 1027)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nano") / "nano"
    init_checkpoint("nano", folder)
    return load_model(folder, Numerics("exact")).model


@cache
def tokens(vocab, length):
    return np.random.default_rng(11).integers(3, vocab, length).astype(np.int32)


def last_logits(model, pieces):
    """Logits after a sequence computed in `pieces` of so many rows."""
    length = sum(pieces)
    ids = tokens(model.config.vocab_size, 20_000)[:length]
    blocks = -(-length // BLOCK)
    caches = model.allocate_caches(blocks, BLOCK, 1)
    table, done, logits = np.arange(blocks, dtype=np.int32)[::-1].copy(), 0, None
    for rows in pieces:
        end = done + rows
        chunk = Chunk("r", 0, done, ids[:end], table[: -(-end // BLOCK)], length, None)
        batch = model.build_batch([chunk], BLOCK)
        logits = model.forward(batch, caches, batch.last_rows)
        done = end
    return logits


def check(model, length):
    whole = last_logits(model, [length + 1])
    for pieces in ([length, 1], [length // 2, length - length // 2, 1]):
        torch.testing.assert_close(last_logits(model, pieces), whole, atol=1e-4, rtol=0)


@pytest.mark.parametrize("length", LENGTHS)
def test_decode_continues_a_prefill(model, length):
    check(model, length)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("offset", [-8, -1, 0, 1, 8])
def test_decode_continues_a_long_prefill(model, offset):
    check(model, 16_384 + offset)
