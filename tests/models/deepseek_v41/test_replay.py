"""Bounded replay (spec 2.3 to 2.5): trimmed decoders and prefix hits against a slow oracle.

Everything is compared to the bit, in both numeric modes: the oracle runs the same arithmetic on more rows.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.engine.plan import Chunk
from flashpoint.errors import InvalidValue
from flashpoint.models.deepseek_v41.replay import require_replay
from tests.models.deepseek_v41.replay_harness import NAMES, Pools, Sequence, model, oracle, tokens

torch.set_num_threads(1)
MODELS = st.sampled_from([(name, mode) for name in NAMES for mode in ("exact", "exact", "quantized")])
EXAMPLES = settings(max_examples=12, deadline=None)


def equal(got, expected):
    differ = [i for i in range(len(expected)) if not torch.equal(got[i], expected[i])]
    assert got.shape == expected.shape and not differ, differ
    assert bool(torch.isfinite(got).all())


@EXAMPLES
@given(
    which=MODELS,
    block=st.sampled_from([2, 4, 10, 16]),
    trimmed=st.booleans(),
    stale=st.sampled_from(["donor", "nan", "inf"]),
    data=st.data(),
    seed=st.integers(0, 2**31),
)
def test_any_chunking_hit_and_mixture_equals_the_oracle(which, block, trimmed, stale, data, seed):
    name, mode = which
    m, rng = model(name, mode), np.random.default_rng(seed)
    window = m.config.sliding_window
    pools = Pools(m, block, blocks=-(-500 // block))

    def sequence(ids, hit=0, replayed=0):
        prompt = data.draw(st.integers(hit + 1, len(ids)), label="prompt")
        return Sequence(ids, prompt, window, hit, replayed, trimmed)

    donor = sequence(tokens(name, seed, data.draw(st.sampled_from([31, 64, 97]))))
    other = sequence(tokens(name, seed + 1, 50))
    running = [(donor, pools.table(donor), 1), (other, pools.table(other), 2)]
    before = oracle(name, mode, block, donor)
    equal(pools.play(running, rng)[0], before.logits)

    hits = []
    for slot, answer in ((1, 40), (3, 9)):
        hit = data.draw(st.integers(0, len(donor.ids) // block), label="blocks") * block
        replayed = min(hit, data.draw(st.sampled_from([window, window + 5, 1, 3 * window])))
        ids = np.concatenate((donor.ids[:hit], tokens(name, seed + slot + 2, answer)))
        hits.append((s := sequence(ids, hit, replayed), pools.table(s, running[0][1]), slot))
    if stale != "donor":
        pools.stale(1, float(stale))
    kept = pools.shared_bytes(running[0][1], len(donor.ids))
    cold = sequence(tokens(name, seed + 9, 60))
    got = pools.play([*hits, (cold, pools.table(cold), 4)], rng)
    for (s, _, _), logits in zip(hits, got, strict=False):
        equal(logits, oracle(name, mode, block, s, before).logits)
    equal(got[-1], oracle(name, mode, block, cold).logits)
    for old, new in zip(kept, pools.shared_bytes(running[0][1], len(donor.ids)), strict=True):
        assert torch.equal(old, new)  # pages that a hit shares stay as they are


@pytest.mark.parametrize("mode", ["exact", "quantized"])
@pytest.mark.parametrize("name", NAMES)
def test_prompts_within_the_window_run_as_if_nothing_were_trimmed(name, mode):
    m = model(name, mode)
    window = m.config.sliding_window
    for prompt in (1, 2, window // 2, window - 1, window):
        ids = tokens(name, prompt, prompt + 3)
        replay, long = Sequence(ids, prompt, window), Sequence(tokens(name, 1, 70), 70, window)
        full = replace(replay, trimmed=False)
        pools = Pools(m, 16)
        alone = pools.play([(full, pools.table(full), 1)], np.random.default_rng(0))[0]
        mixed = [(replay, pools.table(replay), 2), (long, pools.table(long), 3)]
        equal(pools.play(mixed, np.random.default_rng(prompt))[0], alone)


@pytest.mark.parametrize("mode", ["exact", "quantized"])
@pytest.mark.parametrize("name", NAMES)
def test_a_halo_of_a_window_per_layer_restores_the_run_without_a_cache(name, mode):
    m = model(name, mode)
    window, layers, block = m.config.sliding_window, m.config.num_hidden_layers, 4
    halo = (window - 1) * layers
    hit = -(-halo // block) * block + 2 * block
    donor = Sequence(tokens(name, 0, hit), hit, window, trimmed=False)
    ids = np.concatenate((donor.ids, tokens(name, 1, 30)))
    cold = Sequence(ids, hit + 20, window, trimmed=False)
    expected = oracle(name, mode, block, cold).logits[hit:]

    def after_hit(replayed):
        pools = Pools(m, block, blocks=256)
        table = pools.table(donor)
        pools.play([(donor, table, 1)], np.random.default_rng(0))
        warm = replace(cold, hit=hit, replayed=replayed)
        got = pools.play([(warm, pools.table(warm, table), 1)], np.random.default_rng(1))[0]
        return got[replayed:]

    equal(after_hit(halo), expected)
    assert not torch.equal(after_hit(window), expected)  # one window is an approximation


@pytest.mark.parametrize("name", NAMES)
def test_a_cold_prefill_runs_the_decoder_on_one_window(name):
    m = model(name)
    config, window = m.config, m.config.sliding_window
    source = config.kv_source_layer_ids[-1]
    for length in (1, window - 1, window, window + 1, 70):
        counts = {}

        def tap(name, value, counts=counts):
            counts[name] = counts.get(name, 0) + len(value)
            return value

        sequence = Sequence(tokens(name, 0, length), length, window)
        pools = Pools(m, 16)
        pools.play([(sequence, pools.table(sequence), 1)], np.random.default_rng(length), tap)
        for layer in range(config.num_hidden_layers):
            rows = length if layer < source else min(window, length)
            assert counts[f"layers.{layer}.window_kv"] == (length if layer == source else rows)
            assert counts[f"layers.{layer}.attn_out"] == counts[f"layers.{layer}.moe_ids"] == rows
        assert counts[f"layers.{source}.compress_kv"] == counts[f"layers.{source}.index_k"] == length
        assert counts["final_hidden"] == min(window, length)


def test_a_step_that_hides_nothing_has_no_second_view():
    m = model("tiny-c")
    window = m.config.sliding_window
    chunk = Chunk("r", 0, 90, tokens("tiny-c", 0, 92), np.arange(6), 92, None)
    for plain in (
        chunk,
        chunk._replace(decoder_rows=2),
        chunk._replace(window_start=40, decoder_start=40),
        chunk._replace(decoder_start=90 - window + 1),
    ):
        assert m.build_batch([plain], 16).decoder is None
    for other in (
        chunk._replace(decoder_rows=1, decoder_start=91),
        chunk._replace(decoder_start=90 - window + 2),
    ):
        assert m.build_batch([chunk, other], 16).decoder is not None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"window_start": 21}, "window_start is 21; expected 0 … start = 20"),
        ({"window_start": -1}, "window_start is -1"),
        ({"write_from": 15}, "write_from is 15; expected a multiple of 2"),
        ({"decoder_rows": 31}, "decoder_rows is 31; expected 0 … 30"),
        ({"decoder_rows": -1}, "decoder_rows is -1"),
        ({"decoder_start": 21}, "decoder_start is 21; expected at most 20"),
        ({"decoder_rows": 5, "decoder_start": 44}, "decoder_start is 44; expected 45"),
        ({"decoder_rows": 5, "decoder_start": 46}, "decoder_start is 46; expected at most 45"),
    ],
)
def test_contradicting_chunks_are_refused(fields, message):
    chunk = Chunk("r7", 0, 20, tokens("tiny-c", 0, 50), np.arange(4), 50, None)
    with pytest.raises(ValueError, match=f"request r7: {message}"):
        model("tiny-c").build_batch([chunk._replace(**fields)], 16)


def test_logits_of_rows_outside_the_decoder_are_refused_before_anything_is_written():
    m = model("tiny-c")
    caches = m.allocate_caches(4, 16, 1)
    chunk = Chunk(
        "r", 0, 0, tokens("tiny-c", 0, 50), np.arange(4), 50, None, decoder_rows=16, decoder_start=34
    )
    batch = m.build_batch([chunk], 16)
    with pytest.raises(ValueError, match=r"logit rows \[0, 33\]"):
        m.forward(batch, caches, torch.tensor([0, 49, 33]))
    assert bool(torch.isnan(caches.windows[0].data).all())
    order = m.forward(batch, caches, torch.tensor([49, 34]))
    equal(order, m.forward(batch, caches, torch.arange(34, 50))[[15, 0]])


def test_models_that_cannot_replay_are_named():
    config = model("tiny-c").config
    last = config.kv_source_layer_ids[-1]
    require_replay(config)
    require_replay(config.model_copy(update={"engram_layer_ids": (last - 1,)}))
    for layer in (last, last + 1):
        with pytest.raises(InvalidValue, match=r"semantics: got 'replay'; expected full, because .*Engram"):
            require_replay(config.model_copy(update={"engram_layer_ids": (0, layer)}))
    ratio_2 = {"compress_ratios": tuple(min(2, 2 * r) for r in config.compress_ratios)}
    with pytest.raises(InvalidValue, match="ratio 2"):
        require_replay(config.model_copy(update=ratio_2))
