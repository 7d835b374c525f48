"""Fits find the numbers that made the points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.hardware.curve_fit import Range, fit, residual

BYTES = np.geomspace(1e4, 1e9, 40)
RANGES = {"rate": Range(1e11, 1e9, 1e13), "latency": Range(1e-5, 1e-7, 1e-3)}


def seconds(numbers):
    return BYTES / numbers["rate"] + numbers["latency"]


@given(st.floats(1e10, 5e12), st.floats(1e-6, 5e-4), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_numbers_are_found_again_in_spite_of_outliers(rate, latency, seed):
    rng = np.random.default_rng(seed)
    measured = seconds({"rate": rate, "latency": latency})
    measured[rng.choice(len(measured), 4, replace=False)] *= 5
    found = fit(seconds, measured, RANGES)
    off = seconds(found) / seconds({"rate": rate, "latency": latency}) - 1
    assert np.abs(off).max() < 0.1


def test_a_number_stays_in_its_range():
    found = fit(seconds, seconds({"rate": 1e12, "latency": 1e-2}), RANGES)
    assert found["latency"] == pytest.approx(1e-3)


def test_the_best_of_several_beginnings_counts():
    measured = np.full(40, 0.3)

    def two_valleys(numbers):
        # One at 0.3, exact, and a flat one above 2 that a beginning there cannot leave.
        x = numbers["x"]
        return np.full(40, x if x < 1 else 0.6)

    poor = fit(two_valleys, measured, {"x": Range(5.0, 0.01, 10.0)})
    good = fit(two_valleys, measured, {"x": Range((5.0, 0.5), 0.01, 10.0)})
    assert poor["x"] == pytest.approx(5.0)
    assert good["x"] == pytest.approx(0.3)


def test_residuals_are_of_the_prediction():
    off = residual("x", np.array([1.1, 1.2, 0.9]), np.ones(3))
    assert (off.what, off.points) == ("x", 3)
    assert off.median == pytest.approx(0.1)
    assert off.p90 == pytest.approx(0.18)
