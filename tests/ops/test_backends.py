"""Every fast op against its reference: random ragged inputs, odd sizes, outliers, poisoned unused memory."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.ops.attention import cpu as attention_cpu
from flashpoint.ops.attention import reference as attention_reference
from flashpoint.ops.backends import REFERENCE, TORCH, ops_for
from flashpoint.ops.indexer import cpu as indexer_cpu
from flashpoint.ops.indexer import reference as indexer_reference
from flashpoint.ops.quantization.cpu import fp8_qdq

NATIVE = ops_for("cpu")
SEEDS = st.integers(0, 2**31)
SLOW = settings(max_examples=40, deadline=None)


def rng(seed):
    return torch.Generator().manual_seed(seed)


def close(got, expected, tolerance=2e-5):
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


@SLOW
@given(
    seed=SEEDS,
    rows=st.integers(1, 40),
    heads=st.integers(1, 7),
    window=st.integers(1, 19),
    top=st.integers(0, 13),
)
def test_sparse_attention(seed, rows, heads, window, top):
    g = rng(seed)
    width = 32
    window_kv = torch.randn(rows + 5, width, generator=g)
    entries = torch.randn(23, width, generator=g)
    window_index = torch.randint(-1, rows + 5, (rows, window), generator=g)
    window_index[:, -1] = torch.randint(0, rows + 5, (rows,), generator=g)  # a row always sees itself
    entry_index = torch.randint(-1, 23, (rows, top), generator=g)
    # What nobody names may hold anything.
    for memory, index in ((window_kv, window_index), (entries, entry_index)):
        unused = torch.ones(len(memory), dtype=torch.bool)
        unused[index[index >= 0]] = False
        memory[unused] = float("nan")
    q = torch.randn(rows, heads, width, generator=g) * 3
    sink = torch.randn(heads, generator=g) * 4
    args = (window_kv, window_index, entries, entry_index, sink, width**-0.5)
    expected = REFERENCE.sparse_attention(q, *args)
    assert torch.isfinite(expected).all()
    close(TORCH.sparse_attention(q, *args), expected)


def test_attention_tiles_do_not_change_rows(monkeypatch):
    g = rng(1)
    q, kv = torch.randn(37, 3, 32, generator=g), torch.randn(60, 32, generator=g)
    index = torch.randint(0, 60, (37, 9), generator=g)
    args = (q, kv, index, kv, index[:, :5], torch.zeros(3), 0.2)
    expected = attention_reference.sparse_attention(*args)
    for floats in (1, 1000, 5000, 1 << 20):
        monkeypatch.setattr(attention_cpu, "_TILE_FLOATS", floats)
        close(attention_cpu.sparse_attention(*args), expected)


def ragged_selection(seed, lengths, starts, ratio, dtype):
    """A paged pool with NaN wherever no sequence has an entry."""
    g = rng(seed)
    ends = [s + n for s, n in zip(starts, lengths, strict=True)]
    counts = [e // ratio for e in ends]
    widest = max(counts)
    order = torch.randperm(sum(counts) + 7, generator=g)
    keys = torch.full((sum(counts) + 7, 32), float("nan"), dtype=dtype)
    key_rows = torch.full((len(lengths), widest), int(order[-1]))
    taken = 0
    for s, count in enumerate(counts):
        key_rows[s, :count] = order[taken : taken + count]
        taken += count
        # Few distinct values, so that ties are everywhere.
        keys[key_rows[s, :count]] = torch.randint(-2, 3, (count, 32), generator=g).to(dtype)
    rows = sum(lengths)
    q = torch.randint(-2, 3, (rows, 4, 32), generator=g).to(dtype)
    weights = torch.randint(-3, 4, (rows, 4), generator=g).to(dtype) / 4
    visible = torch.cat([torch.arange(s + 1, e + 1) // ratio for s, e in zip(starts, ends, strict=True)])
    offsets = [0]
    for n in lengths:
        offsets.append(offsets[-1] + n)
    return q, weights, keys, key_rows, offsets, visible


@SLOW
@given(
    seed=SEEDS,
    shape=st.lists(
        st.tuples(st.sampled_from([1, 1, 1, 2, 5, 17]), st.integers(0, 40)), min_size=1, max_size=6
    ),
    ratio=st.sampled_from([1, 2]),
    top=st.integers(1, 12),
    block=st.sampled_from([2, 3, 4]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    tile=st.sampled_from([1, 64, 1 << 20]),
)
def test_select_entries(seed, shape, ratio, top, block, dtype, tile):
    args = ragged_selection(seed, [n for n, _ in shape], [s for _, s in shape], ratio, dtype)
    before, indexer_cpu._TILE_FLOATS = indexer_cpu._TILE_FLOATS, tile
    try:
        expected, blocks = REFERENCE.select_entries(*args, top, block, publish=3)
        got, got_blocks = TORCH.select_entries(*args, top, block, publish=3)
        assert torch.equal(got, expected)
        assert torch.equal(got_blocks, blocks)
        expected, none = REFERENCE.select_entries(*args, top, block, candidates=blocks)
        got, also_none = TORCH.select_entries(*args, top, block, candidates=blocks)
        assert none is None and also_none is None
        assert torch.equal(got, expected)
    finally:
        indexer_cpu._TILE_FLOATS = before


@SLOW
@given(seed=SEEDS, rows=st.integers(1, 9), width=st.integers(1, 30), count=st.integers(1, 35))
def test_top_positions_with_ties_and_missing(seed, rows, width, count):
    scores = torch.randint(0, 4, (rows, width), generator=rng(seed)).float()
    scores[torch.rand(rows, width, generator=rng(seed)) < 0.3] = float("-inf")
    assert torch.equal(
        indexer_cpu.top_positions(scores, count), indexer_reference.top_positions(scores, count)
    )


@SLOW
@given(
    seed=SEEDS,
    rows=st.integers(1, 33),
    experts=st.integers(1, 19),
    top=st.integers(1, 6),
    quantise=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_experts(seed, rows, experts, top, quantise, dtype):
    g = rng(seed)
    top = min(top, experts)
    x = (torch.randn(rows, 96, generator=g) * 3).to(dtype)
    ids = torch.stack([torch.randperm(experts, generator=g)[:top] for _ in range(rows)])
    weights = torch.rand(rows, top, generator=g)
    w13 = (torch.randn(experts, 64, 96, generator=g) / 10).to(dtype)
    w2 = (torch.randn(experts, 96, 32, generator=g) / 6).to(dtype)
    # An expert nobody chose may hold anything.
    unused = torch.ones(experts, dtype=torch.bool)
    unused[ids.flatten()] = False
    w13[unused], w2[unused] = float("nan"), float("nan")
    args = (x, ids, weights, w13, w2, 1.5, fp8_qdq if quantise else None)
    # A quantised hidden value may flip by one step between summation orders.
    tolerance = 2e-5 if dtype == torch.float32 and not quantise else 6e-2
    close(TORCH.experts(*args), REFERENCE.experts(*args), tolerance)


@SLOW
@given(
    seed=SEEDS,
    rows=st.integers(1, 37),
    spread=st.sampled_from([0.1, 1.0, 30.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_hyper_connections(seed, rows, spread, dtype):
    g = rng(seed)
    stream = (torch.randn(rows, 4, 96, generator=g) * spread).to(dtype)
    fn = torch.randn(24, 4 * 96, generator=g) / 20
    base, scale = torch.randn(24, generator=g), torch.rand(3, generator=g) + 0.5
    args = (stream, fn, base, scale, 20, 1e-6, 1e-20)
    for ops in (TORCH, NATIVE):
        for got, expected in zip(ops.mix(*args), REFERENCE.mix(*args), strict=True):
            close(got, expected)
    pre, post, comb = REFERENCE.mix(*args)
    output = torch.randn(rows, 96, generator=g).to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 1.6e-2
    close(TORCH.collapse(stream, pre), REFERENCE.collapse(stream, pre), tolerance)
    close(TORCH.expand(stream, output, post, comb), REFERENCE.expand(stream, output, post, comb), tolerance)


@pytest.mark.parametrize("rows", [1, 3])
def test_combinations_are_nearly_doubly_stochastic(rows):
    g = rng(rows)
    stream, fn, base = (
        torch.randn(rows, 4, 64, generator=g),
        torch.randn(24, 256, generator=g),
        torch.zeros(24),
    )
    _, _, comb = TORCH.mix(stream, fn / 16, base, torch.ones(3), 20, 1e-6, 1e-20)
    close(comb.sum(1), torch.ones(rows, 4), 1e-4)
    close(comb.sum(2), torch.ones(rows, 4), 1e-2)


def test_the_compiler_of_this_machine_builds_the_kernels():
    assert NATIVE.mix is not TORCH.mix
