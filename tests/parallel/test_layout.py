"""Names of layouts, and layouts that do not exist."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashpoint.errors import InvalidValue
from flashpoint.parallel.layout import Layout, parse_layout


@given(st.integers(1, 128), st.sampled_from(["tp", "tp/ep", "dep"]))
def test_a_name_reads_back(size: int, kind: str) -> None:
    layout = {"tp": Layout(tp=size), "tp/ep": Layout(tp=size, ep=size), "dep": Layout(dp=size, ep=size)}[kind]
    assert parse_layout(str(layout)) == layout
    assert layout.ranks == size


@pytest.mark.parametrize(
    "text", ["", "TP", "TP0", "DEP-1", "PP2", "TP4EP4", "DEP4/EP2", "TP4/EP2", "TP4/EP8"]
)
def test_what_is_no_layout(text: str) -> None:
    with pytest.raises(InvalidValue, match="layout"):
        parse_layout(text)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (2, 2, 4), (1, 4, 1), (1, 4, 2), (4, 1, 2), (True, 1, 1)])
def test_impossible_ranks(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidValue, match="layout"):
        Layout(*sizes)
