"""Workload S: what the prefix indexes of several engines are compared on. No dependency but numpy.

60 sessions of 20 turns. All begin with the same 2 048 tokens; every turn says all that was said before and
400 to 4 000 tokens more; the sessions take turns. About 475 000 blocks of 64 and 27.7 M hit tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

SESSIONS = 60
TURNS = 20
SYSTEM_TOKENS = 2048
BLOCK_TOKENS = 64
VOCAB = 129_280


def prompts() -> Iterator[npt.NDArray[np.int32]]:
    """The 1 200 prompts, int32 [tokens], in the order of arrival; the same on every run."""
    rng = np.random.default_rng(20)
    system = rng.integers(0, VOCAB, SYSTEM_TOKENS).astype(np.int32)
    said = [system] * SESSIONS
    for _ in range(TURNS):
        for session in range(SESSIONS):
            news = rng.integers(0, VOCAB, int(rng.integers(400, 4001))).astype(np.int32)
            said[session] = np.concatenate((said[session], news))
            yield said[session]
