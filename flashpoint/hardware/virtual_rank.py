"""One rank that computes nothing: it says what a planned step's shape is and what it yields.

The engine above it plans as it does over a real executor (INV-14).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple

from flashpoint.cache.transfer import Landed, Run
from flashpoint.engine.executor import Capacity
from flashpoint.engine.plan import Chunk, Sampled, StepCounts, StepPlan, StepResult
from flashpoint.hardware.acceptance import Acceptance
from flashpoint.hardware.transfer_line import TransferLine
from flashpoint.models.work import ModelWork, S


class RankRows(NamedTuple, Generic[S]):
    """Of one rank's step: the fields of `StepShape` that it knows alone."""

    encoder: S
    decoder: S
    head_rows: int
    drafted: int

    def toward(self, other: RankRows[S], share: float) -> RankRows[S]:
        """The step between this one (share 0) and a later, equal one (share 1)."""
        encoder = self.encoder.toward(other.encoder, share)
        # Decodes run every layer: their rows are the same ones in both parts.
        same = self.decoder is self.encoder and other.decoder is other.encoder
        decoder = encoder if same else self.decoder.toward(other.decoder, share)
        return RankRows(encoder, decoder, self.head_rows, self.drafted)


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
        firsts = [chunk.start for chunk in self.plan.chunks]
        if after:
            firsts = [
                first + more for first, more in zip(firsts, self._pace.tokens_after(after), strict=True)
            ]
        return rank_rows(self._work, self.plan, firsts, self._capacity.draft_tokens)

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

    def result(self, steps: int, counts: StepCounts, landed: tuple[Landed, ...] = ()) -> StepResult:
        """What the plan yields after `steps` equal steps, which asked `counts` of the machine.

        A prefill ends with one token.  landed: transfers that are over meanwhile.
        """
        gained = self._pace.tokens_after(steps)
        sampled = [
            Sampled(chunk.request_id, (0,) * tokens)
            for chunk, tokens in zip(self._decodes, gained, strict=True)
        ]
        sampled += [Sampled(chunk.request_id, (0,)) for chunk in self._prefills if chunk.sampling is not None]
        before = self._pace.tokens_after(steps - 1) if steps > 1 else ()
        return StepResult(
            self.plan.step, tuple(sampled), landed=landed, steps=steps, before_last=before, counts=counts
        )

    def tokens_by_step(self, steps: int) -> dict[str, list[int]]:
        """By decoding request, new tokens after each of `steps` equal steps, cut at its end."""
        after = [self._pace.tokens_after(step) for step in range(1, steps + 1)]
        return {
            chunk.request_id: [min(tokens[number], chunk.room) for tokens in after]
            for number, chunk in enumerate(self._decodes)
        }


class VirtualRank(Generic[S]):
    """The executor of a rank in virtual time. Its steps are timed and ended by the replica it belongs to."""

    def __init__(
        self,
        capacity: Capacity,
        work: ModelWork[S],
        acceptance: Acceptance,
        transfer_seconds_per_block: float = 0.0,
    ) -> None:
        self._capacity = capacity
        self._work = work
        self._acceptance = acceptance
        self.transfers = TransferLine(transfer_seconds_per_block)

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


def rank_rows(work: ModelWork[S], plan: StepPlan, firsts: Sequence[int], draft_tokens: int) -> RankRows[S]:
    """What a rank computes of `plan`, virtual or real, with each chunk's rows from `firsts` on.

    draft_tokens: drafts that a decoding sequence verifies in each step.
    """
    encoder = decoder = work.sums(0, 0)
    head_rows = sampling = 0
    verify = draft_tokens + 1
    verified = []
    for chunk, first in zip(plan.chunks, firsts, strict=True):
        rows = len(chunk.history) - chunk.start + chunk.draft_tokens
        if chunk.sampling is not None:
            sampling += 1
            if rows == verify and chunk.decoder_rows is None:
                verified.append(first)
                continue
            head_rows += 1 + chunk.draft_tokens
        every = work.sums(first, rows)
        encoder = encoder + every
        if chunk.decoder_rows is None or chunk.decoder_rows >= rows:
            decoder = decoder + every
        elif chunk.decoder_rows:
            decoder = decoder + work.sums(first + rows - chunk.decoder_rows, chunk.decoder_rows)
    if verified:
        every = work.sums_of(verified, verify)
        encoder, decoder = encoder + every, decoder + every
        head_rows += every.rows
    return RankRows(encoder, decoder, head_rows, sampling if draft_tokens else 0)
