from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashpoint.cache.spec import CacheGroup, CacheSpec
from flashpoint.engine.config import EngineConfig
from flashpoint.engine.memory_plan import DEFAULT_CACHE_TOKENS, ModelMemory, plan_memory
from flashpoint.errors import InvalidValue

MIB = 2**20
SPEC = CacheSpec(
    (
        CacheGroup("global", "paged", (0,), entry_bytes=890, prefix_cacheable=True),
        CacheGroup("window", "ring", tuple(range(40)), 528, entries=128, replay_tokens=128),
    )
)
MODEL = ModelMemory(weights=100 * MIB, workspace=30 * MIB, mapped=7)
BLOCK_BYTES = 64 * 890
WINDOWS = 40 * 128 * 528


def plan(available=1 << 40, host=0, **config):
    return plan_memory(EngineConfig(**{"max_running": 4, **config}), SPEC, MODEL, host, available)


@given(limit=st.integers(150 * MIB, 10_000 * MIB), host=st.integers(0, 5 * MIB))
def test_a_limit_is_kept_and_filled(limit, host):
    made = plan(memory_limit=limit, host=host)
    assert made.total <= limit < made.total + BLOCK_BYTES
    assert made.total == 130 * MIB + 4 * WINDOWS + host + made.cache
    assert made.cache == made.blocks * BLOCK_BYTES and made.cache_tokens == made.blocks * 64


def test_without_a_limit_the_pool_has_its_default_size_or_what_there_is():
    assert plan().cache_tokens == DEFAULT_CACHE_TOKENS
    assert plan(cache_tokens=1000).blocks == 15
    small = plan(available=160 * MIB)
    assert 0 < small.cache_tokens < DEFAULT_CACHE_TOKENS and small.total <= 160 * MIB


def test_what_does_not_fit_is_refused_with_the_numbers():
    with pytest.raises(
        InvalidValue, match=r"memory_limit: got '130 MiB'.*more than 140 MiB.*weights 100 MiB"
    ):
        plan(memory_limit=130 * MIB)
    with pytest.raises(InvalidValue, match=r"available memory: got '99 MiB'"):
        plan(available=99 * MIB)
    fits = plan(memory_limit=200 * MIB).cache_tokens
    assert plan(memory_limit=200 * MIB, cache_tokens=fits).cache_tokens == fits
    with pytest.raises(InvalidValue, match=f"cache_tokens: got {fits + 64}; expected at most {fits}"):
        plan(memory_limit=200 * MIB, cache_tokens=fits + 64)
    with pytest.raises(InvalidValue, match="cache_tokens"):
        plan(cache_tokens=10**18)


def test_the_table_says_what_the_numbers_say():
    made = plan(memory_limit=300 * MIB, host=5 * MIB)
    rows = {name: (size, remark) for name, size, remark in made.rows()}
    assert rows["weights"][0] == "100 MiB" and rows["host tier"][0] == "5 MiB"
    assert f"{made.cache_tokens:,} tokens, 890 bytes each" in rows["cache blocks"][1]
    assert rows["total"] == ("300 MiB", "of 300 MiB")
    assert rows["mapped"][0] == "7 B"
    assert "mapped" not in {row[0] for row in replace(made, mapped=0).rows()}
    assert made.as_json()["cache_tokens"] == made.cache_tokens
