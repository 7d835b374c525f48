"""The work of a step against the tables of the spec (deepseek-v4.1-flash.md section 15)."""

from __future__ import annotations

import json
from importlib import resources

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.models.deepseek_v41.cache_spec import cache_spec
from flashpoint.models.deepseek_v41.config import parse_config
from flashpoint.models.deepseek_v41.manifest import tensor_manifest
from flashpoint.models.deepseek_v41.memory import weight_bytes
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.deepseek_v41.presets import PRESETS, preset_files
from flashpoint.models.deepseek_v41.work import V41Work
from flashpoint.models.deepseek_v41.work_formats import computed_formats
from flashpoint.models.deepseek_v41.work_kernels import SPECIALISED, STANDARD
from flashpoint.models.deepseek_v41.work_rows import RowSums, row_sums
from flashpoint.models.work import StepShape
from flashpoint.parallel.layout import Layout, parse_layout

RELEASED = parse_config(
    json.loads((resources.files("flashpoint.models.deepseek_v41") / "released_config.json").read_text())
)
TEXT = RELEASED.text
WORK = V41Work(TEXT)
ONE = Layout()
NOTHING = WORK.sums(0, 0)


def shape(encoder: RowSums, decoder: RowSums, head=0, drafted=0, group=1):
    return StepShape(encoder, decoder, head, drafted, group * encoder.rows, group * decoder.rows)


def decode_row(position: int, rows: int = 1):
    sums = WORK.sums(position, rows)
    return WORK.step(shape(sums, sums, head=rows), ONE)


def prefill_row(position: int):
    return WORK.step(shape(WORK.sums(position, 1), NOTHING), ONE)


def gflop(work, *families):
    return (
        sum(n for f, k in work.kernels.items() if not families or f in families for n in k.flops.values())
        / 1e9
    )


def total(work, name):
    return sum(getattr(k, name) for k in work.kernels.values())


@pytest.mark.parametrize("layout", ["TP2", "DEP4"])
def test_what_is_remembered_of_row_counts_changes_no_step(layout):
    """Steps of as many rows elsewhere, and of other row counts, are counted as if none had been before."""
    used, layout = V41Work(TEXT), parse_layout(layout)
    cases = (100, 6, 6, 1), (90_001, 6, 6, 1), (90_001, 6, 0, 0), (7, 130, 1, 1)
    for position, rows, head, drafted in cases:
        sums = WORK.sums(position, rows)
        step = shape(sums, sums, head, drafted, layout.dp)
        assert used.step(step, layout) == V41Work(TEXT).step(step, layout)


# Parameters: exact against the checkpoint, and the digits that the spec prints.


def manifest_parameters(*parts: str) -> int:
    return sum(t.parameters for t in tensor_manifest(RELEASED).values() if t.part in parts)


def test_parameters_are_the_checkpoint_s():
    layers = TEXT.num_hidden_layers
    experts = layers * TEXT.n_routed_experts * WORK.expert_parameters
    assert experts == manifest_parameters("routed experts")
    assert layers * WORK.expert_parameters == manifest_parameters("shared experts")
    vectors = layers * (TEXT.q_lora_rank + TEXT.head_dim + TEXT.num_attention_heads)
    assert layers * WORK.attention_parameters == manifest_parameters("attention") - vectors
    norms = 4 * TEXT.head_dim
    assert sum(WORK.compressor_parameters(s) for s in TEXT.kv_source_layer_ids) == (
        manifest_parameters("compressors") - norms + 4 * TEXT.head_dim * TEXT.index_head_dim
    )
    assert WORK.head_parameters * 2 + TEXT.hidden_size == manifest_parameters("embedding and head")


def test_published_sizes():
    backbone = manifest_parameters(
        "embedding and head", "norms", "attention", "compressors", "indexers", "routed experts",
        "shared experts", "routers", "hyper-connections", "engram projections",
    )  # fmt: skip
    assert round(backbone / 1e9) == 552
    assert round(WORK.active_full / 1e9, 2) == 16.13
    assert round(WORK.active_encoder / 1e9, 2) == 7.90
    assert round(WORK.layer_active / 1e6, 2) == 377.29
    assert cache_spec(TEXT, "codes").block_bytes(64) == 64 * 890


@pytest.mark.parametrize(("layout", "gib"), [("DEP2", 147.65), ("TP8", 35.9), ("TP2", 147.65)])
def test_weights_of_a_rank(layout, gib):
    """DEP2: "about 150 GiB", TP2 of SGLang 147.8, TP8 35.9 GiB; 3 % for what servers keep elsewhere."""
    assert WORK.weight_bytes(parse_layout(layout)) / 2**30 == pytest.approx(gib, rel=0.03)


# FLOPs (15.2)


@pytest.mark.parametrize(
    ("position", "decode", "prefill"),
    [
        (4096, 35.7, 17.4),
        (32_768, 36.7, 17.7),
        (131_072, 38.7, 19.0),
        (152_000, 39.1, 19.2),
        (262_144, 41.4, None),
        (2**20 - 1, 57.5, 30.2),
    ],
)
def test_flops_of_a_row(position, decode, prefill):
    assert gflop(decode_row(position)) == pytest.approx(decode, abs=0.06)
    if prefill is not None:
        assert gflop(prefill_row(position)) == pytest.approx(prefill, abs=0.06)


def test_flops_by_kind():
    at = 152_000
    assert gflop(prefill_row(at), "gemm", "moe", "engram", "hyper_connections") == pytest.approx(
        15.75, abs=0.06
    )
    assert gflop(prefill_row(at), "attention") == pytest.approx(1.54, abs=0.005)
    assert gflop(decode_row(at), "attention") == pytest.approx(3.22, abs=0.005)
    score = (20.5e-6 * at + 32.8e-6 * 16_384) + 2 * 8 * WORK.indexer_parameters / 1e9
    assert gflop(decode_row(at), "indexer") == pytest.approx(score, rel=0.003)


def test_replay_of_a_window_costs_what_the_spec_says():
    window = WORK.sums(152_000 - 128, 128)
    both = WORK.step(shape(window, window), ONE)
    assert gflop(both) / 1e3 == pytest.approx(4.4, rel=0.15)


# Bytes (15.3)


def test_weights_that_one_row_reads():
    work = decode_row(152_000)
    read = total(work, "weight_bytes") / 1e9
    # The spec counts FP32 routers' and mixers' bytes alike; the sum agrees to 2 %.
    assert read == pytest.approx(13.04, rel=0.02)
    assert work.kernels["head"].weight_bytes / 1e9 == pytest.approx(1.32, abs=0.005)


@pytest.mark.parametrize(("rows", "experts"), [(6, 34.6), (76, 268), (384, 383)])
def test_experts_that_rows_touch(rows, experts):
    sums = WORK.sums(1000, rows)
    one = V41Work(TEXT).step(shape(sums, NOTHING), ONE).kernels["moe"].weight_bytes
    dense = 20 * (WORK.expert_parameters * (1 + 1 / 1024) + WORK.router_parameters * 2)
    touched = (one - dense) / 20 / (WORK.expert_parameters * (0.5 + 1 / 32))
    assert touched == pytest.approx(experts, rel=0.003)


@pytest.mark.parametrize(
    ("context", "megabytes"), [(4096, 1.8), (32_768, 10.0), (131_072, 26.7), (152_000, 30.3)]
)
def test_index_keys_that_a_row_reads(context, megabytes):
    assert decode_row(context - 1).kernels["indexer"].cache_bytes / 1e6 == pytest.approx(megabytes, abs=0.06)


def test_entries_that_a_row_reads():
    read = decode_row(152_000).kernels["attention"].cache_bytes
    assert read == 38 * 512 * 288 + 40 * 128 * 528 + 40 * 528


def test_engram_rows_come_from_the_host():
    assert total(prefill_row(10), "host_bytes") == 2 * 24 * 264


def test_verify_rows_share_one_pass_over_index_keys():
    six, one = decode_row(152_000, 6), decode_row(152_005)
    assert six.kernels["indexer"].cache_bytes == one.kernels["indexer"].cache_bytes


# Sums


def brute(first, rows):
    seen = [p + 1 for p in range(first, first + rows)]
    half = [p // 2 for p in seen]
    window, topk = TEXT.sliding_window, TEXT.index_topk
    cap = TEXT.candidate_topk_blocks * TEXT.candidate_block_size
    return (
        rows,
        sum(min(window, n) for n in seen),
        sum(min(topk, n) for n in seen),
        sum(min(topk, n) for n in half),
        sum(seen),
        sum(half),
        sum(min(cap, n) for n in seen),
        sum(n % 2 == 0 for n in seen),
    )


@given(st.integers(0, 40_000), st.integers(1, 3000))
@settings(max_examples=60, deadline=None)
def test_closed_forms_are_the_sums(first, rows):
    s = row_sums(TEXT, first, rows)
    found = (s.rows, s.windowed, s.picked1, s.picked2, s.entries1, s.entries2, s.candidates, s.new2)
    assert found == brute(first, rows)


@given(st.lists(st.integers(0, 2**20), min_size=1, max_size=20), st.integers(1, 64))
def test_many_sequences_at_once(firsts, rows):
    added = NOTHING
    for first in firsts:
        added = added + WORK.sums(first, rows)
    assert WORK.sums_of(firsts, rows) == added


@given(st.integers(0, 100_000), st.integers(1, 500), st.integers(1, 500))
@settings(deadline=None)
def test_what_counts_per_row_adds_up_over_chunks(first, a, b):
    whole, parts = WORK.sums(first, a + b), WORK.sums(first, a) + WORK.sums(first + a, b)
    for name in ("rows", "windowed", "picked1", "picked2", "entries1", "entries2", "candidates", "new2"):
        assert getattr(whole, name) == getattr(parts, name)


# Layouts


@pytest.mark.parametrize("layout", ["TP2", "TP4", "TP8", "TP4/EP4", "DEP2", "DEP8"])
def test_ranks_share_the_work(layout):
    """Over all ranks, no less work than one rank alone would have, and experts' work exactly as much."""
    spread = parse_layout(layout)
    sums = WORK.sums(100_000, 60)
    mine = StepShape(sums, sums, 60, 0, 60 * spread.dp, 60 * spread.dp)
    rank = WORK.step(mine, spread)
    # One rank with the rows of all of them.
    whole = NOTHING
    for _ in range(spread.dp):
        whole = whole + sums
    alone = WORK.step(StepShape(whole, whole, whole.rows, 0, whole.rows, whole.rows), ONE)
    assert gflop(rank) * spread.ranks >= gflop(alone) * 0.999
    routed = 2 * 40 * 6 * WORK.expert_parameters * whole.rows / 1e9
    assert rank.kernels["moe"].flops["fp8"] / 1e9 * spread.ranks >= routed * 0.999
    kinds = {exchange.kind for exchange in rank.exchanges}
    assert kinds == ({"all_to_all"} if spread.dp > 1 else {"all_reduce", "all_gather"})


def test_skew_is_the_busiest_rank_s():
    sums = WORK.sums(1000, 600)
    even, uneven = (
        V41Work(TEXT, skew=s).step(shape(sums, sums, group=8), Layout(dp=8, ep=8)) for s in (1.0, 1.5)
    )
    assert gflop(uneven, "moe") > 1.3 * gflop(even, "moe")
    assert gflop(uneven, "gemm", "attention") == gflop(even, "gemm", "attention")


@given(st.integers(1, 2000), st.integers(1, 2000))
@settings(max_examples=30, deadline=None)
def test_more_rows_are_never_less_work(a, b):
    few, many = sorted((a, b))
    small, large = (WORK.step(shape(s := WORK.sums(50_000, n), s), ONE) for n in (few, many))
    for family, kernels in small.kernels.items():
        assert kernels.device_bytes <= large.kernels[family].device_bytes
        assert sum(kernels.flops.values()) <= sum(large.kernels[family].flops.values())


def test_kernels_of_a_path():
    sums = WORK.sums(1000, 6)
    standard, special = (
        V41Work(TEXT, path=path).step(shape(sums, sums, head=6), ONE) for path in (STANDARD, SPECIALISED)
    )
    assert sum(STANDARD.layer.values()) == 15 and sum(SPECIALISED.layer.values()) == 11
    assert total(standard, "kernels") - total(special, "kernels") == 40 * 4


def test_no_rows_are_no_work():
    work = WORK.step(shape(NOTHING, NOTHING), ONE)
    assert not work.exchanges
    assert total(work, "device_bytes") == 0


# As this project computes.


@pytest.mark.parametrize("form", ["bf16", "quantized"])
def test_computed_formats_are_those_of_the_loaded_weights_and_caches(form):
    config = preset_files(PRESETS["nano"], form).config
    for numerics in (Numerics("exact"), Numerics("quantized"), Numerics("quantized", "bfloat16")):
        formats = computed_formats(
            config.text, numerics.compute, numerics.entry_format, quantized=config.quantized
        )
        work = V41Work(config.text, formats, drafts=False)
        embedding = work.head_parameters * (4 - numerics.dtype.itemsize)
        loaded, _ = weight_bytes(config, numerics)
        assert work.weight_bytes(ONE) - embedding == pytest.approx(loaded, rel=5e-3)
        spec = cache_spec(config.text, numerics.entry_format)
        assert formats.window == spec.group("window").entry_bytes
        assert formats.entry == spec.group("global_r2").entry_bytes
        assert formats.key == spec.group("index_keys_r2").entry_bytes


def test_counts_are_all_of_a_steps_work():
    work = WORK.step(shape(WORK.sums(5000, 3), WORK.sums(5000, 3), head=3, group=8), Layout(dp=8, ep=8))
    counts = work.counts()
    assert counts.flops == pytest.approx(gflop(work) * 1e9)
    assert counts.flops_fp4 > 0 and counts.flops_fp32 == 0
    assert counts.memory_bytes == pytest.approx(total(work, "device_bytes"))
    assert counts.host_bytes == total(work, "host_bytes") > 0
    assert counts.kernels == total(work, "kernels")
    assert counts.link_bytes == sum(e.count * e.bytes for e in work.exchanges) > 0
