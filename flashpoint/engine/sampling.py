"""How the next token of a request is chosen, as data. The tensor work is in `executor/sampler.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from flashpoint.errors import InvalidValue

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling choices of one request, with the names and ranges of the OpenAI API.

    Order of application: logit bias, penalties, `min_tokens` mask, temperature, top-k, top-p, min-p.
    temperature 0 is greedy (ties to the lowest id). `seed` fixes every draw of the request
    whatever else is in the batch. `logprobs` asks for the chosen token's log-probability and that many
    alternatives, taken from the model's raw logits (before bias, penalties and temperature).
    `stop_ids` end the request with reason "stop"; the stop id itself is not part of the text.
    Raises InvalidValue naming the field.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    stop_ids: frozenset[int] = frozenset()
    min_tokens: int = 0

    def __post_init__(self) -> None:
        _between("max_tokens", self.max_tokens, 1, math.inf, "an integer of at least 1")
        _between("temperature", self.temperature, 0.0, 2.0, "a number from 0 to 2")
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidValue("top_p", self.top_p, "a number above 0 and up to 1")
        _between("top_k", self.top_k, 0, math.inf, "0 (off) or a positive integer")
        _between("min_p", self.min_p, 0.0, 1.0, "a number from 0 to 1")
        _between("presence_penalty", self.presence_penalty, -2.0, 2.0, "a number from -2 to 2")
        _between("frequency_penalty", self.frequency_penalty, -2.0, 2.0, "a number from -2 to 2")
        _between("repetition_penalty", self.repetition_penalty, 0.01, 10.0, "a number from 0.01 to 10")
        _between("seed", self.seed, -(2**63), 2**63 - 1, "a 64-bit signed integer")
        for token, bias in self.logit_bias.items():
            _between(f"logit_bias[{token}]", bias, -100.0, 100.0, "a number from -100 to 100")
        if self.logprobs is not None:
            _between("logprobs", self.logprobs, 0, MAX_LOGPROBS, f"an integer from 0 to {MAX_LOGPROBS}")
        _between("min_tokens", self.min_tokens, 0, self.max_tokens, "0 up to max_tokens")

    @property
    def greedy(self) -> bool:
        """True when the most likely token is taken."""
        return self.temperature == 0.0

    @property
    def needs_history(self) -> bool:
        """True when a penalty looks at earlier tokens."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0


def _between(name: str, value: float, low: float, high: float, expected: str) -> None:
    # The comparison is written so that NaN fails it.
    if not low <= value <= high:
        raise InvalidValue(name, value, expected)


def uniform(seed: int, position: int, draw: int = 0) -> float:
    """The `draw`-th uniform number in [0, 1) for the token at `position` of a request with `seed`.

    Counter based (Philox 4x64): it depends on nothing else, so a request gives the same tokens alone, in
    any batch, and after preemption (INV-7).
    """
    generator = np.random.Generator(np.random.Philox(key=seed & (2**64 - 1), counter=[position, draw, 0, 0]))
    return float(generator.random())
