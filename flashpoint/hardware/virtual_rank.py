"""One rank that computes nothing: it says what a planned step's shape is and what it yields.

The engine above it plans as it does over a real executor (INV-14).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic

from flashpoint.cache.transfer import Run
from flashpoint.engine.executor import Capacity
from flashpoint.engine.plan import Chunk, Sampled, StepPlan, StepResult
from flashpoint.hardware.acceptance import Acceptance
from flashpoint.models.work import ModelWork, S


@dataclass(frozen=True, slots=True)
class RankRows(Generic[S]):
    """Of one rank's step: the fields of `StepShape` that it knows alone."""

    encoder: S
    decoder: S
    head_rows: int
    drafted: int

    def toward(self, other: RankRows[S], share: float) -> RankRows[S]:
        """The step between this one (share 0) and a later, equal one (share 1)."""
        return RankRows(
            self.encoder.toward(other.encoder, share),
            self.decoder.toward(other.decoder, share),
            self.head_rows,
            self.drafted,
        )


class PlannedSteps(Generic[S]):
    """A rank's plan, taken as one step or as several equal ones: what they compute and what they yield."""

    def __init__(
        self, plan: StepPlan, capacity: Capacity, work: ModelWork[S], acceptance: Acceptance
    ) -> None:
        self.plan = plan
        self._capacity = capacity
        self._work = work
        # Where steps may repeat, all chunks are decodes.
        self._decodes: list[Chunk] = []
        self._prefills: list[Chunk] = []
        repeats = plan.repeat_blocks is not None
        for chunk in plan.chunks:
            decodes = chunk.sampling is not None and (repeats or chunk.draft_tokens > 0)
            (self._decodes if decodes else self._prefills).append(chunk)
        self._pace = acceptance.pace(
            [(chunk.request_id, len(chunk.history) - chunk.prompt_tokens) for chunk in self._decodes]
        )

    def rows(self, after: int) -> RankRows[S]:
        """What the step computes when `after` equal steps came before it."""
        encoder = decoder = self._work.sums(0, 0)
        ends = 0
        for chunk in self._prefills:
            rows = chunk.rows
            ends += chunk.sampling is not None
            every = self._work.sums(chunk.start, rows)
            encoder = encoder + every
            if chunk.decoder_rows is None or chunk.decoder_rows >= rows:
                decoder = decoder + every
            elif chunk.decoder_rows:
                tail = self._work.sums(chunk.start + rows - chunk.decoder_rows, chunk.decoder_rows)
                decoder = decoder + tail
        verified = 0
        for rows, firsts in self._verified(after):
            every = self._work.sums_of(firsts, rows)
            encoder, decoder = encoder + every, decoder + every
            verified += rows * len(firsts)
        drafted = len(self._decodes) + ends if self._capacity.draft_tokens else 0
        return RankRows(encoder, decoder, verified + ends, drafted)

    @property
    def most(self) -> int:
        """How many equal steps the plan may stand for: to the first end, within the blocks that are free."""
        plan = self.plan
        if plan.repeat_blocks is None:
            return 1
        to_end = self._pace.steps_for([chunk.room for chunk in plan.chunks])
        # A sequence's last block is filled up, and a step touches at most draft_tokens + 1 positions.
        per_step = len(plan.chunks) * (self._capacity.draft_tokens + 1)
        spare = plan.repeat_blocks - len(plan.chunks)
        return max(1, min(to_end, spare * self._capacity.block_tokens // per_step))

    def result(self, steps: int) -> StepResult:
        """What the plan yields after `steps` equal steps; a prefill ends with one token."""
        gained = self._pace.tokens_after(steps)
        sampled = [
            Sampled(chunk.request_id, (0,) * tokens)
            for chunk, tokens in zip(self._decodes, gained, strict=True)
        ]
        sampled += [Sampled(chunk.request_id, (0,)) for chunk in self._prefills if chunk.sampling is not None]
        return StepResult(self.plan.step, tuple(sampled), steps=steps)

    def tokens_by_step(self, steps: int) -> dict[str, list[int]]:
        """By decoding request, new tokens after each of `steps` equal steps, cut at its end."""
        after = [self._pace.tokens_after(step) for step in range(1, steps + 1)]
        return {
            chunk.request_id: [min(tokens[number], chunk.room) for tokens in after]
            for number, chunk in enumerate(self._decodes)
        }

    def _verified(self, after: int) -> Iterable[tuple[int, list[int]]]:
        """Rows and first positions of decodes; near the end of the context some have fewer drafts."""
        firsts = [chunk.start for chunk in self._decodes]
        if after:
            firsts = [
                first + more for first, more in zip(firsts, self._pace.tokens_after(after), strict=True)
            ]
        by_rows: dict[int, list[int]] = {}
        for chunk, first in zip(self._decodes, firsts, strict=True):
            by_rows.setdefault(1 + chunk.draft_tokens, []).append(first)
        return by_rows.items()


class VirtualRank(Generic[S]):
    """The executor of a rank in virtual time. Its steps are timed and ended by the replica it belongs to."""

    def __init__(self, capacity: Capacity, work: ModelWork[S], acceptance: Acceptance) -> None:
        self._capacity = capacity
        self._work = work
        self._acceptance = acceptance

    @property
    def capacity(self) -> Capacity:
        """As an executor's."""
        return self._capacity

    @property
    def stored(self) -> tuple[Run, ...]:
        """Nothing lasts from run to run."""
        return ()

    def close(self) -> None:
        """Nothing is held."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Not here: a step's time depends on the other ranks of the replica."""
        raise NotImplementedError("a virtual rank is stepped by its replica (hardware/replica.py)")

    def steps(self, plan: StepPlan) -> PlannedSteps[S]:
        """What the plan comes to."""
        return PlannedSteps(plan, self._capacity, self._work, self._acceptance)

    def forget(self, request_id: str) -> None:
        """The request is over."""
        self._acceptance.forget(request_id)
