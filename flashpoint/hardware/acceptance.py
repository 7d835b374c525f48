"""How many tokens a verify step yields: forced to a mean, as the benchmark does it, or drawn.

Source: the project's spec, agentx.md section 3 (synthetic acceptance) and performance-model.md section 2
(3.51 tokens a step at five drafts). Whatever the step, an answer's first token comes from its prefill.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from typing import Literal, Protocol

import numpy as np

from flashpoint.errors import InvalidValue


class Acceptance(Protocol):
    """Tokens of an answer after so many verify steps."""

    @property
    def draft_tokens(self) -> int:
        """Drafts verified in a step; 0: a step yields one token."""
        ...

    def tokens_after(self, request_id: str, generated: int, steps: int) -> int:
        """New tokens of `steps` steps that begin with `generated` tokens (at least the prefill's)."""
        ...

    def steps_for(self, request_id: str, generated: int, tokens: int) -> int:
        """How many steps it takes from there to at least `tokens` new tokens."""
        ...

    def forget(self, request_id: str) -> None:
        """The request is over."""
        ...


class ForcedAcceptance:
    """Every answer gets the same mean, spread evenly: after n steps floor(n · mean + phase) tokens.

    The phase is the request's own, so that answers do not all get their long steps at once. Exact integers.
    """

    def __init__(self, mean: Fraction, draft_tokens: int) -> None:
        """`mean` is tokens per step, from 1 to `draft_tokens` + 1. Raises InvalidValue."""
        if draft_tokens < 0:
            raise InvalidValue("draft_tokens", draft_tokens, "an integer of at least 0")
        if not 1 <= mean <= draft_tokens + 1:
            raise InvalidValue("acceptance", float(mean), f"1 to {draft_tokens + 1} tokens a step")
        self.draft_tokens = draft_tokens
        self._tokens, self._per = mean.numerator, mean.denominator
        self._phases: dict[str, int] = {}

    def tokens_after(self, request_id: str, generated: int, steps: int) -> int:
        """See Acceptance. Never less than `steps`."""
        known = max(generated, 1)
        phase = self._phase(request_id)
        done = self._steps_done(phase, known)
        return 1 + (self._tokens * (done + steps) + phase) // self._per - known

    def steps_for(self, request_id: str, generated: int, tokens: int) -> int:
        """See Acceptance."""
        known = max(generated, 1)
        phase = self._phase(request_id)
        return self._steps_to(phase, known + tokens) - self._steps_done(phase, known)

    def forget(self, request_id: str) -> None:
        """Drop the request's phase."""
        self._phases.pop(request_id, None)

    def _steps_to(self, phase: int, total: int) -> int:
        """Steps until an answer has at least `total` tokens."""
        return max(0, -(((1 - total) * self._per + phase) // self._tokens))

    def _steps_done(self, phase: int, known: int) -> int:
        """Steps behind an answer of `known` tokens: the most that give no more than that."""
        steps = self._steps_to(phase, known)
        return steps if 1 + (self._tokens * steps + phase) // self._per <= known else steps - 1

    def _phase(self, request_id: str) -> int:
        phase = self._phases.get(request_id)
        if phase is None:
            phase = self._phases[request_id] = _digest(request_id) % self._per
        return phase


class SampledAcceptance:
    """Each draft is accepted with one chance, as long as all before it were; drawn per request and seed."""

    def __init__(self, mean: Fraction, draft_tokens: int, seed: int) -> None:
        """The chance is that which gives `mean` tokens a step. Raises InvalidValue as ForcedAcceptance."""
        ForcedAcceptance(mean, draft_tokens)
        self.draft_tokens = draft_tokens
        self.chance = _chance(float(mean), draft_tokens)
        self._seed = seed
        self._totals: dict[str, np.ndarray] = {}

    def tokens_after(self, request_id: str, generated: int, steps: int) -> int:
        """See Acceptance."""
        done = self._steps_done(request_id, generated)
        return int(self._after(request_id, done + steps)[done + steps]) - max(generated, 1)

    def steps_for(self, request_id: str, generated: int, tokens: int) -> int:
        """See Acceptance."""
        done = self._steps_done(request_id, generated)
        wanted = max(generated, 1) + tokens
        totals = self._after(request_id, done + tokens)
        return int(np.searchsorted(totals, wanted)) - done

    def forget(self, request_id: str) -> None:
        """Drop the request's draws."""
        self._totals.pop(request_id, None)

    def _steps_done(self, request_id: str, generated: int) -> int:
        totals = self._after(request_id, generated)
        return int(np.searchsorted(totals, max(generated, 1), side="right")) - 1

    def _after(self, request_id: str, steps: int) -> np.ndarray:
        """Tokens after 0, 1, … steps, at least `steps` of them; longer asks continue the same draws."""
        known = self._totals.get(request_id)
        if known is None or len(known) <= steps:
            size = 64
            while size <= steps:
                size *= 2
            rng = np.random.Generator(np.random.PCG64([self._seed, _digest(request_id)]))
            chances = rng.random((size, self.draft_tokens)) < self.chance
            gained = 1 + np.cumprod(chances, axis=1, dtype=np.int64).sum(axis=1)
            known = self._totals[request_id] = np.concatenate([[1], 1 + np.cumsum(gained)])
        return known


def make_acceptance(
    kind: Literal["forced", "sampled"], mean: Fraction, draft_tokens: int, seed: int
) -> Acceptance:
    """The rule of a run."""
    if kind == "sampled" and draft_tokens:
        return SampledAcceptance(mean, draft_tokens, seed)
    return ForcedAcceptance(mean, draft_tokens)


def _chance(mean: float, drafts: int) -> float:
    """p with 1 + p + p² + … + p^drafts = mean, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if sum(middle**i for i in range(drafts + 1)) < mean:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
