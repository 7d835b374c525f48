"""The pools that are allocated are those the cache spec declares, to the byte."""

import pytest
import torch

from flashpoint.models.deepseek_v41.cache_spec import cache_spec
from flashpoint.models.deepseek_v41.caches import allocate_caches
from flashpoint.models.deepseek_v41.config import load_config
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.ops.backends import ops_for
from tests.golden_data import golden_checkpoints

CPU = torch.device("cpu")
MODES = [Numerics("exact"), Numerics("quantized", "float32"), Numerics("quantized", "bfloat16")]


def nbytes(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def allocate(text, numerics, blocks, block_tokens, slots):
    return allocate_caches(text, blocks, block_tokens, slots, numerics, ops_for("cpu").codecs, CPU)


@pytest.mark.parametrize("name", ["tiny-c", "tiny-q", "tiny-v"])
@pytest.mark.parametrize("numerics", MODES)
def test_pool_bytes_are_those_of_the_spec(name, numerics):
    text = load_config(golden_checkpoints()[name]).text
    spec = cache_spec(text, numerics.entry_format)
    blocks, block_tokens, slots = 5, 8, 3
    caches = allocate(text, numerics, blocks, block_tokens, slots)
    paged = nbytes(pool.data for pool in [*caches.entries.values(), *caches.index_keys.values()])
    assert paged == blocks * spec.block_bytes(block_tokens) == blocks * block_tokens * spec.bytes_per_token
    assert nbytes(caches.block_views(blocks)) == paged
    rings = nbytes(pool.data for pool in caches.windows) + nbytes(caches.tails.values())
    assert rings == slots * spec.bytes_per_sequence


def test_released_widths_take_890_bytes_a_token():
    """Spec 10.1, by the pools' own accounting: 288 + 68 per entry, 528 per window latent."""
    widths = {"head_dim": 512, "index_head_dim": 128, "sliding_window": 128}
    text = load_config(golden_checkpoints()["tiny-c"]).text.model_copy(update=widths)
    ratios = [text.compress_ratios[source] for source in text.kv_source_layer_ids]
    caches = allocate(text, Numerics("quantized"), 3, 64, 2)
    for source, ratio in zip(text.kv_source_layer_ids, ratios, strict=True):
        assert caches.entries[source].data.shape == (3 * 64 // ratio, 288)
        assert caches.index_keys[source].data.shape == (3 * 64 // ratio, 68)
    assert all(pool.data.shape == (2 * 128, 528) for pool in caches.windows)
    by_ratio = {ratio: (288 + 68) / ratio for ratio in (1, 2)}
    assert 3 * by_ratio[2] + by_ratio[1] == 890, "three sources of ratio 2 and one of ratio 1"
    paged = nbytes(caches.block_views(3))
    assert paged == 3 * 64 * sum(by_ratio[ratio] for ratio in ratios)


@pytest.mark.parametrize("numerics", MODES)
def test_what_was_never_written_reads_as_nan(numerics):
    text = load_config(golden_checkpoints()["tiny-q"]).text
    caches = allocate(text, numerics, 2, 8, 1)
    for pool in [*caches.entries.values(), *caches.index_keys.values(), *caches.windows]:
        assert bool(torch.isnan(pool[torch.arange(len(pool.data))]).all())
