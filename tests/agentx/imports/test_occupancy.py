"""Open intervals over time against counting them moment by moment."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashpoint.agentx.imports.occupancy import PERCENTILES, occupancy

intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted).map(tuple), max_size=12)


def test_by_hand():
    # 4 s: nothing for 1 s, one for 1 s, two for 1 s, one for 1 s.
    figures = occupancy([(1.0, 3.0), (2.0, 5.0)], (0.0, 4.0))
    assert figures["avg"] == 1.0 and figures["max"] == 2 and figures["min"] == 0
    assert figures["std"] == pytest.approx(0.5**0.5)
    assert (figures["p50"], figures["p90"]) == (1, 2)
    assert occupancy([(0.0, 1.0)], (2.0, 2.0)) == {}


@given(intervals, st.tuples(st.integers(0, 20), st.integers(21, 40)))
def test_equals_counting_at_every_moment(found, span):
    open_at = np.array(
        [sum(a <= moment < b for a, b in found) for moment in range(span[0], span[1])], dtype=float
    )
    figures = occupancy(found, span)
    assert figures["avg"] == pytest.approx(open_at.mean())
    assert figures["std"] == pytest.approx(open_at.std(), abs=1e-9)
    assert (figures["min"], figures["max"]) == (open_at.min(), open_at.max())
    ordered = np.sort(open_at)
    for p in PERCENTILES:
        # A percentile that falls exactly between two numbers may take either.
        wanted = len(ordered) * p / 100
        below, above = int(np.ceil(wanted - 1e-9)) - 1, int(np.floor(wanted + 1e-9))
        assert figures[f"p{p}"] in (ordered[below], ordered[min(above, len(ordered) - 1)])
