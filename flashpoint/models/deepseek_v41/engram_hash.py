"""Which table rows a token reads: token compression, hash constants (spec 7.1, 7.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EngramHash:
    """Constants of a checkpoint's Engram layers, in the order of `engram_layer_ids`.

    token_map int64 [vocab]: compressed id of each token id.  pad: compressed id of `engram_pad_token_id`.
    multipliers int64 [layers, max_ngram].  primes, offsets int64 [layers, slots], slots ordered 2-gram heads
    first, then 3-gram heads, ….
    """

    token_map: Int64
    pad: int
    multipliers: Int64
    primes: Int64
    offsets: Int64
