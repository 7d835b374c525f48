"""Which engine a request goes to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashpoint.errors import InvalidValue
from flashpoint.parallel.router import Router


@given(st.integers(1, 9), st.lists(st.sampled_from("abcde"), min_size=1, max_size=40))
def test_a_session_stays_where_it_began(engines, sessions):
    router, loads, homes = Router("session_sticky", engines), [0] * engines, {}
    for session in sessions:
        least = loads.index(min(loads))
        chosen = router.choose(session, loads, lambda engine: 0.0)
        assert chosen == homes.setdefault(session, least)
        loads[chosen] += 1


def test_a_session_that_is_over_may_go_elsewhere():
    router = Router("session_sticky", 2)
    assert router.choose("a", [0, 1], lambda engine: 0.0) == 0
    router.forget("a")
    assert router.choose("a", [3, 1], lambda engine: 0.0) == 1


def test_round_robin_and_least_loaded():
    turn, least = Router("round_robin", 3), Router("least_loaded", 3)
    assert [turn.choose("a", [9, 0, 0], lambda e: 0.0) for _ in range(4)] == [0, 1, 2, 0]
    assert least.choose("a", [2, 1, 1], lambda e: 1.0) == 1


def test_prefixes_attract_and_loads_repel():
    router = Router("prefix_aware", 2)
    assert router.choose("a", [2, 0], lambda engine: float(engine == 0)) == 0
    assert router.choose("a", [9, 0], lambda engine: float(engine == 0)) == 1


@pytest.mark.parametrize(("policy", "engines"), [("random", 1), ("round_robin", 0)])
def test_what_is_no_router(policy, engines):
    with pytest.raises(InvalidValue):
        Router(policy, engines)
