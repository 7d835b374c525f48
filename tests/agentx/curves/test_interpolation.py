"""Frontier and interpolation: properties, and Steffen's curve worked out by hand."""

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flashpoint.agentx.curves.frontier import frontier
from flashpoint.agentx.curves.interpolation import Interpolation, steffen_slopes

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)
SPEEDS = st.floats(0.01, 1e4)
POINTS = st.lists(
    st.tuples(st.one_of(st.none(), st.floats(-10, 1e4)), st.one_of(st.none(), NUMBERS)), max_size=30
)


def front(points):
    return frontier(points, lambda p: p[0], lambda p: p[1])


def dominates(p, q):
    return p[0] >= q[0] and p[1] >= q[1] and p != q


@given(POINTS)
def test_the_frontier_is_what_nothing_dominates_and_stays_itself(points):
    found = front(points)
    eligible = [p for p in points if p[0] is not None and p[1] is not None and p[0] > 0]
    assert set(found) == {p for p in eligible if not any(dominates(q, p) for q in eligible)}
    assert front(found) == found
    assert all(a[0] < b[0] and a[1] > b[1] for a, b in pairwise(found))


@given(POINTS, st.floats(0, 1), st.floats(0, 100))
def test_a_dominated_point_changes_nothing(points, share, less):
    found = front(points)
    assume(found)
    x, y = found[0]
    worse = (x * (0.5 + share / 2), y - less)
    assert front([*points, worse]) == found


@st.composite
def knots(draw, least=1):
    xs = sorted(draw(st.lists(st.integers(1, 10_000), min_size=least, max_size=12, unique=True)))
    return [float(x) for x in xs], [draw(st.floats(-1e5, 1e5)) for _ in xs]


@given(knots(), st.floats(0, 1))
def test_exact_at_knots_and_between_neighbours_elsewhere(line, share):
    xs, ys = line
    curve = Interpolation(xs, ys)
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        reading = curve.read(x)
        assert (reading.value, reading.where, reading.left, reading.right) == (y, "knot", i, i)
    for i in range(len(xs) - 1):
        x = xs[i] + share * (xs[i + 1] - xs[i])
        low, high = sorted((ys[i], ys[i + 1]))
        slack = 1e-9 * (1 + abs(low) + abs(high))
        assert low - slack <= curve.read(x).value <= high + slack


@given(knots(2), st.floats(0, 1), st.floats(0, 1))
def test_monotone_between_knots(line, s, t):
    xs, ys = line
    curve = Interpolation(xs, ys)
    for i in range(len(xs) - 1):
        a, b = sorted(xs[i] + share * (xs[i + 1] - xs[i]) for share in (s, t))
        change = curve.read(b).value - curve.read(a).value
        slack = 1e-9 * (1 + abs(ys[i]) + abs(ys[i + 1]))
        assert change * (1 if ys[i + 1] >= ys[i] else -1) >= -slack


@given(knots(), st.floats(0.001, 100))
def test_nothing_is_extrapolated(line, beyond):
    xs, ys = line
    curve = Interpolation(xs, ys)
    below, above = curve.read(xs[0] - beyond), curve.read(xs[-1] + beyond)
    assert (below.value, below.where) == (ys[0], "clamped_low")
    assert (above.value, above.where) == (None, "unreachable")


def test_steffens_slopes_by_hand():
    # Steps 2 and 1/2 over widths 1 and 2: mean (2*2 + 0.5*1)/3 = 1.5; smallest of 4, 1 and 1.5 is 1.
    assert steffen_slopes([0, 1, 3], [0, 2, 3]) == [(3 * 2 - 1) / 2, 1.0, (3 * 0.5 - 1) / 2]
    # A peak: steps of opposite sign, slope 0.
    assert steffen_slopes([0, 1, 2], [0, 5, 1])[1] == 0
    assert steffen_slopes([0, 2], [1, 5]) == [2, 2]
    assert steffen_slopes([7], [3]) == [0]


def test_the_curve_by_hand():
    # Knots (0,0) (1,2) (3,3) with the slopes above, half way of the first stretch: 2*0.5 + (2.5 - 1)/8.
    assert Interpolation([0, 1, 3], [0, 2, 3]).read(0.5).value == pytest.approx(1 + 1.5 / 8)
    assert Interpolation([1, 3], [10, 20]).read(2).value == 15


@pytest.mark.parametrize(("xs", "ys"), [([], []), ([1, 1], [1, 2]), ([2, 1], [1, 2]), ([1], [1, 2])])
def test_knots_must_rise(xs, ys):
    with pytest.raises(ValueError, match="knots must rise"):
        Interpolation(xs, ys)
