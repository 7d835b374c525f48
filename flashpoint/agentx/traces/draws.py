"""Random numbers that are the same on every machine and with every version of numpy.

numpy keeps the raw bits of PCG64 and the hash of SeedSequence as they are, but not what its distributions
make of them (NEP 19, its policy on random numbers). So only raw bits are taken from it. What is left to a
machine is the last bit of a logarithm or a root; whoever draws rounds to whole tokens or milliseconds, where
it is lost but for a case in many billions.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

_INVERSE = NormalDist().inv_cdf


class Draws:
    """One stream of random numbers; streams of other keys are independent of it."""

    def __init__(self, *key: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def uniform(self) -> float:
        """A number between 0 and 1, neither included."""
        # 52 bits and a half: exact in a double, and never 0 or 1.
        return (float(int(self._bits.random_raw()) >> 12) + 0.5) * 2.0**-52

    def integer(self, low: int, high: int) -> int:
        """A whole number of at least `low` and below `high`."""
        return low + int(self.uniform() * (high - low))

    def lognormal(self, median: float, sigma: float) -> float:
        """A number whose logarithm is normal, with standard deviation `sigma`."""
        return median * math.exp(sigma * _INVERSE(self.uniform()))
