"""Counts the steps of an executor that computes for real, as those of a virtual one are counted."""

from __future__ import annotations

from typing import Generic

from flashpoint.engine.plan import StepCounts, StepPlan
from flashpoint.hardware.virtual_rank import rank_rows
from flashpoint.models.work import ModelWork, S, StepShape, StepWork
from flashpoint.parallel.layout import Layout

ALONE = Layout()


class StepCounter(Generic[S]):
    """Calling it with a plan gives what the step asks of the one accelerator that computes it."""

    def __init__(self, work: ModelWork[S], draft_tokens: int = 0) -> None:
        """draft_tokens: drafts that a decoding sequence verifies in each step."""
        self._work = work
        self._draft_tokens = draft_tokens

    def __call__(self, plan: StepPlan) -> StepCounts:
        """FLOPs, bytes and kernels of `plan`, summed up."""
        return self.work(plan).counts()

    def work(self, plan: StepPlan) -> StepWork:
        """The same by kernel family."""
        firsts = [chunk.start for chunk in plan.chunks]
        rows = rank_rows(self._work, plan, firsts, self._draft_tokens)
        shape = StepShape(
            rows.encoder,
            rows.decoder,
            rows.head_rows,
            rows.drafted,
            rows.encoder.rows,
            rows.decoder.rows,
        )
        return self._work.step(shape, ALONE)
