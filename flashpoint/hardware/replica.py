"""The ranks of one replica, in lockstep and in virtual time.

Ranks that share experts step together: a step takes as long as its slowest rank. As long as nobody arrives
and nobody ends, the next steps differ from this one only in how far the sequences are; as many of them as
nothing interrupts are taken at once. A rank on which nothing happens keeps its plan while others plan anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol

import numpy as np
import numpy.typing as npt

from flashpoint.engine.core import EngineCore
from flashpoint.engine.events import TokenEvent
from flashpoint.engine.plan import StepPlan
from flashpoint.engine.request import Request
from flashpoint.hardware.virtual_clock import VirtualClock
from flashpoint.hardware.virtual_rank import RankRows, VirtualRank
from flashpoint.models.work import S, StepShape

Moments = npt.NDArray[np.float64]


class StepTimer(Protocol[S]):
    """How long a rank's step takes, in seconds."""

    def __call__(self, shape: StepShape[S]) -> float:
        """Seconds of one step."""
        ...


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event, and when its tokens came.

    ends: of the steps that gave them; without `token_times` of the last one only.
    totals: tokens after each of `ends`.  steps: how many steps gave them.
    """

    event: TokenEvent
    ends: Moments
    totals: list[int]
    steps: int


@dataclass(slots=True)
class _Rank(Generic[S]):
    core: EngineCore
    executor: VirtualRank[S]
    plan: StepPlan | None = None
    most: int = 0
    done: int = 0
    ends: list[Moments] = field(default_factory=list)
    arrived: bool = False


class Replica(Generic[S]):
    """Engines that step together. The caller owns the clock and calls at the moments of `next_end`."""

    def __init__(
        self,
        clock: VirtualClock,
        cores: list[tuple[EngineCore, VirtualRank[S]]],
        timer: StepTimer[S],
        *,
        token_times: bool,
    ) -> None:
        """`token_times`: tell when each token came, and not only the first and the last of an event."""
        self._clock = clock
        self._ranks = [_Rank(core, executor) for core, executor in cores]
        self._timer = timer
        self._token_times = token_times
        self._segment: Moments | None = None
        self._segment_start = 0.0
        self.busy_seconds = 0.0

    @property
    def next_end(self) -> float | None:
        """When the steps in flight end; None while nothing runs."""
        return None if self._segment is None else float(self._segment[-1])

    def submit(self, rank: int, request: Request) -> None:
        """A request arrives now. The step in flight ends first. Raises as `EngineCore.submit`."""
        self._ranks[rank].core.submit(request)
        self._interrupt(rank)

    def abort(self, rank: int, request_id: str) -> None:
        """End a request; nothing more is delivered of it."""
        self._ranks[rank].core.abort(request_id)
        self._interrupt(rank)

    def advance(self) -> list[Delivery]:
        """The steps in flight end now: commit them, begin the next ones, and return what they gave."""
        delivered: list[Delivery] = []
        if self._segment is not None:
            segment, self._segment = self._segment, None
            self.busy_seconds += float(segment[-1]) - self._segment_start
            for rank in self._ranks:
                if rank.plan is not None:
                    rank.done += len(segment)
                    rank.ends.append(segment)
                    if rank.done >= rank.most or rank.arrived:
                        delivered += self._finish(rank)
        return delivered

    def halt(self) -> list[Delivery]:
        """The run is over now: return what the steps that have ended gave; one in flight gives nothing."""
        segment, self._segment = self._segment, None
        ended = np.empty(0) if segment is None else segment
        ended = ended[: np.searchsorted(ended, self._clock.now(), "right")]
        delivered: list[Delivery] = []
        for rank in self._ranks:
            if rank.plan is not None and rank.done + len(ended):
                rank.done += len(ended)
                rank.ends.append(ended)
                delivered += self._finish(rank)
        return delivered

    def begin(self) -> None:
        """Begin the next steps, unless some are in flight or there is nothing to do."""
        if self._segment is not None:
            return
        for rank in self._ranks:
            if rank.plan is None:
                self._plan(rank)
        working = [rank for rank in self._ranks if rank.plan is not None]
        if not working:
            return
        steps = min(rank.most - rank.done for rank in working)
        first = self._seconds(0)
        last = first if steps == 1 else self._seconds(steps - 1)
        # Between two equal steps only positions move on, on which time depends almost linearly.
        seconds = np.linspace(first, last, steps) if steps > 1 else np.array([first])
        self._segment_start = self._clock.now()
        self._segment = self._segment_start + np.cumsum(seconds)

    def _plan(self, rank: _Rank[S]) -> None:
        rank.arrived = False
        rank.plan = rank.core.begin()
        rank.done, rank.ends = 0, []
        rank.most = 0 if rank.plan is None else rank.executor.most_steps(rank.plan)

    def _seconds(self, further: int) -> float:
        rows: list[RankRows[S]] = [
            rank.executor.rows(rank.plan, rank.done + further)
            for rank in self._ranks
            if rank.plan is not None
        ]
        encoder_rows = sum(r.encoder.rows for r in rows)
        decoder_rows = sum(r.decoder.rows for r in rows)
        return max(
            self._timer(StepShape(r.encoder, r.decoder, r.head_rows, r.drafted, encoder_rows, decoder_rows))
            for r in rows
        )

    def _interrupt(self, number: int) -> None:
        """Something changed on a rank: its plan ends with the step now in flight."""
        rank = self._ranks[number]
        rank.arrived = True
        if self._segment is not None:
            current = int(np.searchsorted(self._segment, self._clock.now(), side="left"))
            self._segment = self._segment[: current + 1]

    def _finish(self, rank: _Rank[S]) -> list[Delivery]:
        plan, steps = rank.plan, rank.done
        assert plan is not None
        rank.plan = None
        events = rank.core.finish(rank.executor.result(plan, steps))
        ends = np.concatenate(rank.ends) if len(rank.ends) > 1 else rank.ends[0]
        chunks = {chunk.request_id: chunk for chunk in plan.chunks} if self._token_times else {}
        delivered = []
        for event in events:
            if event.finish is not None:
                rank.executor.forget(event.request_id)
            chunk = chunks.get(event.request_id)
            if chunk is None:
                delivered.append(Delivery(event, ends[-1:], [len(event.tokens)], steps))
            else:
                totals = rank.executor.tokens_by_step(plan, chunk, steps)
                delivered.append(Delivery(event, ends, totals, steps))
        return delivered


def run_alone(replica: Replica[S], clock: VirtualClock, deliver: Callable[[Delivery], None]) -> None:
    """Step a replica until it has nothing to do."""
    replica.begin()
    while (end := replica.next_end) is not None:
        clock.wait_until(end)
        for delivery in replica.advance():
            deliver(delivery)
        replica.begin()
