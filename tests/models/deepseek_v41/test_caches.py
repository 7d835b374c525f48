"""The pools that are allocated are those the cache spec declares, to the byte."""

import pytest
import torch

from flashpoint.models.deepseek_v41.cache_spec import cache_spec
from flashpoint.models.deepseek_v41.caches import allocate_caches
from flashpoint.models.deepseek_v41.config import load_config
from tests.golden_data import golden_checkpoints


def nbytes(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize("name", ["tiny-c", "tiny-q", "tiny-v"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pool_bytes_are_those_of_the_spec(name, dtype):
    text = load_config(golden_checkpoints()[name]).text
    spec = cache_spec(text, dtype)
    blocks, block_tokens, slots = 5, 8, 3
    caches = allocate_caches(text, blocks, block_tokens, slots, getattr(torch, dtype), torch.device("cpu"))
    paged = nbytes([*caches.entries.values(), *caches.index_keys.values()])
    assert paged == blocks * spec.block_bytes(block_tokens) == blocks * block_tokens * spec.bytes_per_token
    assert nbytes([*caches.windows, *caches.tails.values()]) == slots * spec.bytes_per_sequence
