"""One rank that computes nothing: it says what a planned step's shape is and what it yields.

The engine above it plans as it does over a real executor (INV-14).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import numpy as np

from flashpoint.cache.transfer import Run
from flashpoint.engine.executor import Capacity
from flashpoint.engine.plan import Chunk, Sampled, StepCounts, StepPlan, StepResult
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

    def rows(self, plan: StepPlan, after: int) -> RankRows[S]:
        """What the step computes when `after` equal steps came before it."""
        firsts = [chunk.start for chunk in plan.chunks]
        if after:
            firsts = [
                first + self._acceptance.tokens_after(chunk.request_id, _generated(chunk), after)
                for first, chunk in zip(firsts, plan.chunks, strict=True)
            ]
        return rank_rows(self._work, plan, firsts, self._capacity.draft_tokens)

    def most_steps(self, plan: StepPlan) -> int:
        """How many equal steps the plan may stand for: to the first end, within the blocks that are free."""
        if plan.repeat_blocks is None:
            return 1
        to_end = min(
            self._acceptance.steps_for(chunk.request_id, _generated(chunk), chunk.room)
            for chunk in plan.chunks
        )
        # A sequence's last block is filled up, and a step touches at most draft_tokens + 1 positions.
        per_step = len(plan.chunks) * (self._capacity.draft_tokens + 1)
        spare = plan.repeat_blocks - len(plan.chunks)
        return max(1, min(to_end, spare * self._capacity.block_tokens // per_step))

    def result(self, plan: StepPlan, steps: int, counts: StepCounts) -> StepResult:
        """What the plan yields after `steps` equal steps, which asked `counts` of the machine."""
        sampled = []
        for chunk in plan.chunks:
            if chunk.sampling is None:
                continue
            count = 1
            if _decodes(plan, chunk):
                count = self._acceptance.tokens_after(chunk.request_id, _generated(chunk), steps)
            sampled.append(Sampled(chunk.request_id, (0,) * count))
        return StepResult(plan.step, tuple(sampled), steps=steps, counts=counts)

    def tokens_by_step(self, plan: StepPlan, chunk: Chunk, steps: int) -> list[int]:
        """New tokens of a sampling chunk after each of `steps` equal steps, cut at its end."""
        if not _decodes(plan, chunk):
            return [1]
        generated, room = _generated(chunk), chunk.room
        after = self._acceptance.tokens_after
        return [min(after(chunk.request_id, generated, step), room) for step in range(1, steps + 1)]

    def forget(self, request_id: str) -> None:
        """The request is over."""
        self._acceptance.forget(request_id)


def rank_rows(work: ModelWork[S], plan: StepPlan, firsts: list[int], draft_tokens: int) -> RankRows[S]:
    """What a rank computes of `plan`, virtual or real, with each chunk's rows from `firsts` on.

    draft_tokens: drafts that a decoding sequence verifies in each step.
    """
    encoder = decoder = work.sums(0, 0)
    head_rows = 0
    verify = draft_tokens + 1
    verified = []
    for chunk, first in zip(plan.chunks, firsts, strict=True):
        if chunk.rows == verify and chunk.decoder_rows is None and chunk.sampling is not None:
            verified.append(first)
            continue
        every = work.sums(first, chunk.rows)
        encoder = encoder + every
        if chunk.decoder_rows is None or chunk.decoder_rows >= chunk.rows:
            decoder = decoder + every
        elif chunk.decoder_rows:
            decoder = decoder + work.sums(first + chunk.rows - chunk.decoder_rows, chunk.decoder_rows)
        if chunk.sampling is not None:
            head_rows += 1 + chunk.draft_tokens
    if verified:
        every = work.sums_of(np.array(verified, dtype=np.int64), verify)
        encoder, decoder = encoder + every, decoder + every
        head_rows += every.rows
    sampling = sum(chunk.sampling is not None for chunk in plan.chunks)
    return RankRows(encoder, decoder, head_rows, sampling if draft_tokens else 0)


def _decodes(plan: StepPlan, chunk: Chunk) -> bool:
    """False for the end of a prefill, which gives one token."""
    return chunk.draft_tokens > 0 or plan.repeat_blocks is not None


def _generated(chunk: Chunk) -> int:
    return len(chunk.history) - chunk.prompt_tokens
