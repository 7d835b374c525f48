from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.cache.block_pool import BlockPool, BlockPoolError


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_allocates_distinct_ids_and_counts() -> None:
    pool = BlockPool(5)
    first, second = pool.allocate(2), pool.allocate(3)
    assert sorted([*first, *second]) == [0, 1, 2, 3, 4]
    assert first.dtype == np.int32
    assert (pool.free_count, pool.taken_count) == (0, 5)
    pool.free(second)
    assert (pool.free_count, pool.taken_count) == (3, 2)


def test_handing_out_is_deterministic_and_last_freed_first() -> None:
    pool = BlockPool(4)
    assert pool.allocate(3).tolist() == [0, 1, 2]
    pool.free(ids(1, 2))
    assert pool.allocate(3).tolist() == [1, 2, 3]


@pytest.mark.parametrize("count", [-1, 4])
def test_allocating_more_than_is_free_changes_nothing(count: int) -> None:
    pool = BlockPool(3)
    with pytest.raises(BlockPoolError, match="cannot allocate"):
        pool.allocate(count)
    assert pool.free_count == 3


@pytest.mark.parametrize(
    ("given_back", "message"),
    [
        (ids(0, 7), "ids are 0 to 3"),
        (ids(-1), "ids are 0 to 3"),
        (ids(0, 0), "twice"),
        (ids(0, 3), "already free"),
    ],
)
def test_wrong_frees_are_refused_and_change_nothing(given_back: np.ndarray, message: str) -> None:
    pool = BlockPool(4)
    pool.allocate(2)
    with pytest.raises(BlockPoolError, match=message):
        pool.free(given_back)
    assert pool.free_count == 2
    pool.free(ids(0, 1))
    assert pool.free_count == 4


def test_a_block_freed_twice_is_refused() -> None:
    pool = BlockPool(4)
    block_ids = pool.allocate(2)
    pool.free(block_ids)
    with pytest.raises(BlockPoolError, match=r"\[0, 1\]: already free"):
        pool.free(block_ids)
    assert pool.free_count == 4


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 20), st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=40))
def test_free_and_taken_blocks_always_add_up(total: int, moves: list[tuple[bool, int]]) -> None:
    """INV-1 at the pool: no id is lost, none is handed out twice."""
    pool = BlockPool(total)
    held: list[np.ndarray] = []
    for take, count in moves:
        if take and count <= pool.free_count:
            held.append(pool.allocate(count))
        elif not take and held:
            pool.free(held.pop(count % len(held)))
        taken = [int(i) for block_ids in held for i in block_ids]
        assert len(set(taken)) == len(taken) == pool.taken_count
        assert pool.free_count + pool.taken_count == total
    for block_ids in held:
        pool.free(block_ids)
    assert sorted(pool.allocate(total).tolist()) == list(range(total))
