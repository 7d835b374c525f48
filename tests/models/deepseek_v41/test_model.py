"""What must not change a token: how a sequence is cut, who else is in the batch, where its blocks lie."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.engine.plan import Chunk
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.load import load_model
from flashpoint.ops.backends import REFERENCE, TORCH
from tests.golden_data import golden_checkpoints

TOLERANCE = 1e-4  # logits have a standard deviation of about 1.5
MODELS = st.sampled_from(["tiny-c", "tiny-q"])
EXAMPLES = settings(max_examples=15, deadline=None)


@cache
def model(name, ops=None):
    return load_model(golden_checkpoints()[name], Numerics("exact"), ops=ops).model


@cache
def sequence(name, seed, length):
    vocab = model(name).config.vocab_size
    return np.random.default_rng(seed).integers(3, vocab, length).astype(np.int32)


@cache
def whole(name, seed, length):
    """Logits of every row of a sequence computed alone and at once."""
    return run(name, [sequence(name, seed, length)], [[(0, length)]], block_tokens=16)[0]


def run(name, sequences, steps, block_tokens, ops=None, spare_slots=1):
    """Logits [len, vocab] per sequence; `steps` is a list of [(sequence, rows), …]."""
    m = model(name, ops)
    per_sequence = max(-(-len(s) // block_tokens) for s in sequences)
    blocks = np.random.default_rng(0).permutation(per_sequence * len(sequences)).astype(np.int32)
    tables = blocks.reshape(len(sequences), per_sequence)
    caches = m.allocate_caches(len(blocks), block_tokens, len(sequences) + spare_slots)
    done = [0] * len(sequences)
    parts = [[] for _ in sequences]
    for step in steps:
        chunks = []
        for s, rows in step:
            end = done[s] + rows
            blocks_used = -(-end // block_tokens)
            chunks.append(
                Chunk(
                    str(s), s + spare_slots, done[s], sequences[s][:end], tables[s][:blocks_used], end, None
                )
            )
            done[s] = end
        batch = m.build_batch(chunks, block_tokens)
        logits = m.forward(batch, caches, torch.arange(batch.row_offsets[-1]))
        for (s, _), start, stop in zip(step, batch.row_offsets, batch.row_offsets[1:], strict=False):
            parts[s].append(logits[start:stop])
    return [torch.cat(p) for p in parts]


@st.composite
def split(draw, length):
    """Chunk sizes that add up to `length`."""
    sizes = []
    while sum(sizes) < length:
        sizes.append(min(draw(st.sampled_from([1, 1, 2, 3, 7, 15, 16, 17, 33, 64])), length - sum(sizes)))
    return sizes


def check(got, expected):
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)


@EXAMPLES
@given(name=MODELS, data=st.data(), block=st.sampled_from([2, 4, 10, 16, 64]), seed=st.integers(0, 2))
def test_any_split_and_any_block_size_give_the_same_logits(name, data, block, seed):
    length = data.draw(st.sampled_from([1, 2, 65, 98, 99]))
    sizes = data.draw(split(length))
    got = run(name, [sequence(name, seed, length)], [[(0, n)] for n in sizes], block)[0]
    check(got, whole(name, seed, length))


@EXAMPLES
@given(name=MODELS, count=st.integers(2, 4), seed=st.integers(0, 2**31))
def test_any_batch_composition_gives_the_same_logits(name, count, seed):
    choose = np.random.default_rng(seed)
    lengths = [99, 34, 1, 60][:count]
    left = np.array(lengths)
    steps = []
    while left.any():
        step = []
        for s in choose.permutation(count).tolist():
            if left[s] and choose.random() < 0.6:
                rows = min(int(left[s]), int(choose.choice([1, 1, 2, 5, 16, 40])))
                step.append((s, rows))
                left[s] -= rows
        if step:
            steps.append(step)
    got = run(name, [sequence(name, s, n) for s, n in enumerate(lengths)], steps, block_tokens=8)
    for s, n in enumerate(lengths):
        check(got[s], whole(name, s, n))


@EXAMPLES
@given(name=MODELS, length=st.integers(1, 40))
def test_stepping_equals_prefilling_anew_at_every_length(name, length):
    stepped = run(name, [sequence(name, 3, 70)[:length]], [[(0, 1)]] * length, block_tokens=4)[0]
    anew = run(name, [sequence(name, 3, 70)[:length]], [[(0, length)]], block_tokens=64)[0]
    check(stepped[-1], anew[-1])


def test_a_used_slot_and_used_blocks_leave_no_trace():
    m = model("tiny-c")
    caches = m.allocate_caches(8, 16, 1)
    table = np.arange(8, dtype=np.int32)

    def prefill(ids):
        batch = m.build_batch([Chunk("x", 0, 0, ids, table[: -(-len(ids) // 16)], len(ids), None)], 16)
        return m.forward(batch, caches, torch.arange(len(ids)))

    first, second = sequence("tiny-c", 5, 99), sequence("tiny-c", 6, 51)
    prefill(first)
    check(prefill(second), whole("tiny-c", 6, 51))


@pytest.mark.parametrize("ops", [REFERENCE, TORCH])
def test_every_set_of_ops_gives_the_same_model(ops):
    ids = sequence("tiny-c", 1, 99)
    got = run("tiny-c", [ids], [[(0, 40)], [(0, 59)]], 16, ops=ops)[0]
    check(got, whole("tiny-c", 1, 99))
