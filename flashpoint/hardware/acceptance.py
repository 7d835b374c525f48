"""How many tokens a verify step yields: forced to a mean, as the benchmark does it, or drawn.

Source: the project's spec, agentx.md section 3 (synthetic acceptance) and performance-model.md section 2
(3.51 tokens a step at five drafts). Whatever the step, an answer's first token comes from its prefill.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, Protocol

import numpy as np

from flashpoint.errors import InvalidValue


class Pace(Protocol):
    """How some answers go on from where they are, in step with each other."""

    def tokens_after(self, steps: int) -> list[int]:
        """New tokens of each after `steps` more steps; never fewer than `steps`."""
        ...

    def steps_for(self, tokens: Sequence[int]) -> int:
        """How many steps it takes until one of them has as many new tokens as `tokens` says for it."""
        ...


class Acceptance(Protocol):
    """The rule by which verify steps yield tokens."""

    @property
    def draft_tokens(self) -> int:
        """Drafts verified in a step; 0: a step yields one token."""
        ...

    def pace(self, answers: Sequence[tuple[str, int]]) -> Pace:
        """Of answers, each by request id and tokens so far (the one of the prefill included in any case)."""
        ...

    def forget(self, request_id: str) -> None:
        """The request is over."""
        ...


class ForcedPace:
    """Answers that have floor((lead + n · tokens) / per) new tokens after n steps, each with its own lead."""

    def __init__(self, leads: list[int], tokens: int, per: int) -> None:
        self._leads = leads
        self._tokens = tokens
        self._per = per

    def tokens_after(self, steps: int) -> list[int]:
        """See Pace."""
        gained, per = self._tokens * steps, self._per
        return [(lead + gained) // per for lead in self._leads]

    def steps_for(self, tokens: Sequence[int]) -> int:
        """See Pace."""
        per = self._per
        missing = min([wanted * per - lead for wanted, lead in zip(tokens, self._leads, strict=True)])
        return -(-missing // self._tokens)


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

    def pace(self, answers: Sequence[tuple[str, int]]) -> ForcedPace:
        """See Acceptance."""
        tokens, per = self._tokens, self._per
        # The steps behind an answer are the most that give no more than it has.
        leads = [
            per - 1 - (max(generated, 1) * per - self._phase(request_id) - 1) % tokens
            for request_id, generated in answers
        ]
        return ForcedPace(leads, tokens, per)

    def forget(self, request_id: str) -> None:
        """Drop the request's phase."""
        self._phases.pop(request_id, None)

    def _phase(self, request_id: str) -> int:
        phase = self._phases.get(request_id)
        if phase is None:
            phase = self._phases[request_id] = _digest(request_id) % self._per
        return phase


class SampledPace:
    """Answers of a `SampledAcceptance`: each by request id, steps behind it and tokens it has."""

    def __init__(self, acceptance: SampledAcceptance, answers: list[tuple[str, int, int]]) -> None:
        self._totals = acceptance.totals
        self._answers = answers

    def tokens_after(self, steps: int) -> list[int]:
        """See Pace."""
        return [
            int(self._totals(request_id, done + steps)[done + steps]) - known
            for request_id, done, known in self._answers
        ]

    def steps_for(self, tokens: Sequence[int]) -> int:
        """See Pace."""
        return min(
            int(np.searchsorted(self._totals(request_id, done + wanted), known + wanted)) - done
            for wanted, (request_id, done, known) in zip(tokens, self._answers, strict=True)
        )


class SampledAcceptance:
    """Each draft is accepted with one chance, as long as all before it were; drawn per request and seed."""

    def __init__(self, mean: Fraction, draft_tokens: int, seed: int) -> None:
        """The chance is that which gives `mean` tokens a step. Raises InvalidValue as ForcedAcceptance."""
        ForcedAcceptance(mean, draft_tokens)
        self.draft_tokens = draft_tokens
        self.chance = _chance(float(mean), draft_tokens)
        self._seed = seed
        self._totals: dict[str, np.ndarray] = {}

    def pace(self, answers: Sequence[tuple[str, int]]) -> SampledPace:
        """See Acceptance."""
        behind = []
        for request_id, generated in answers:
            known = max(generated, 1)
            steps = np.searchsorted(self.totals(request_id, known), known, side="right") - 1
            behind.append((request_id, int(steps), known))
        return SampledPace(self, behind)

    def forget(self, request_id: str) -> None:
        """Drop the request's draws."""
        self._totals.pop(request_id, None)

    def totals(self, request_id: str, steps: int) -> np.ndarray:
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
