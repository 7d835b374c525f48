"""The ranks of one replica, in lockstep and in virtual time.

Ranks that share experts step together: a step takes as long as its slowest rank. As long as nobody arrives,
nobody ends and no transfer between tiers lands, the next steps differ from this one only in how far the
sequences are; as many of them as nothing interrupts are taken at once (INV-15). A rank on which nothing
happens keeps its plan while others plan anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from flashpoint.engine.core import EngineCore
from flashpoint.engine.events import TokenEvent
from flashpoint.engine.plan import WAIT_SECONDS, StepCounts, total_counts
from flashpoint.engine.request import Request
from flashpoint.hardware.cost import Resource, StepTime
from flashpoint.hardware.virtual_clock import VirtualClock
from flashpoint.hardware.virtual_rank import PlannedSteps, RankRows, VirtualRank
from flashpoint.models.work import S, StepShape

Moments = npt.NDArray[np.float64]


class StepTimer(Protocol[S]):
    """How long a rank's step takes."""

    def __call__(self, shape: StepShape[S]) -> StepTime:
        """The time of one step, and what it is spent on."""
        ...


@dataclass(slots=True)
class TimeUse:
    """Seconds of a replica's busiest ranks, added up over steps; see `StepTime`."""

    seconds: float = 0.0
    resources: dict[Resource, float] = field(default_factory=dict)
    floors: dict[Resource, float] = field(default_factory=dict)

    def add(self, time: StepTime, steps: float) -> None:
        """`steps` steps of that time."""
        self.seconds += time.seconds * steps
        for sums, values in ((self.resources, time.resources), (self.floors, time.floors)):
            for resource, seconds in values.items():
                sums[resource] = sums.get(resource, 0.0) + seconds * steps

    def move(self, seconds: float) -> None:
        """A rank's link to host memory is busy for so long, beside steps."""
        self.floors["host"] = self.floors.get("host", 0.0) + seconds


class Delivery(NamedTuple):
    """An event, and when its tokens came.

    ends: of the steps that gave them; without `token_times` of the last one only.
    totals: tokens after each of `ends`.  steps: how many steps gave them.
    """

    event: TokenEvent
    ends: Moments | Sequence[float]
    totals: Sequence[int]
    steps: int


@dataclass(slots=True)
class _Rank(Generic[S]):
    core: EngineCore
    executor: VirtualRank[S]
    steps: PlannedSteps[S] | None = None
    most: int = 0
    done: int = 0
    first: RankRows[S] | None = None
    last: RankRows[S] | None = None
    ends: list[Moments] = field(default_factory=list)
    counts: list[tuple[StepCounts, float]] = field(default_factory=list)
    arrived: bool = False

    def rows(self, step: int) -> RankRows[S]:
        """What step `step` of the plan computes; in between only positions move on."""
        assert self.first is not None and self.last is not None
        if not step:
            return self.first
        return self.last if step == self.most - 1 else self.first.toward(self.last, step / (self.most - 1))


class Replica(Generic[S]):
    """Engines that step together. The caller owns the clock and calls at the moments of `next_end`."""

    def __init__(
        self,
        clock: VirtualClock,
        cores: list[tuple[EngineCore, VirtualRank[S]]],
        timer: StepTimer[S],
        load: Callable[[S], float],
        *,
        token_times: bool,
    ) -> None:
        """`load`: how busy a rank is with rows of either part; the busiest one is timed.
        `token_times`: tell when each token came, and not only the first and the last of an event."""
        self._clock = clock
        self._ranks = [_Rank(core, executor) for core, executor in cores]
        self._timer = timer
        self._load = load
        self._token_times = token_times
        self._segment: Moments | None = None
        self._times: tuple[StepTime, StepTime] | None = None
        self._begun = 0
        self._late: list[Delivery] = []
        self.use = TimeUse()

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
        """The steps in flight end now: commit them, and return what they and any before them gave."""
        delivered, self._late = self._late, []
        if self._segment is not None:
            segment, self._segment = self._segment, None
            counts = self._count(len(segment))
            for rank in self._ranks:
                if rank.steps is not None:
                    rank.done += len(segment)
                    rank.counts += counts
                    rank.ends.append(segment)
                    landed = rank.executor.transfers.next_landing <= segment[-1]
                    if rank.done >= rank.most or rank.arrived or landed:
                        delivered += self._finish(rank)
        return delivered

    def halt(self) -> list[Delivery]:
        """The run is over now: return what the steps that have ended gave; one in flight gives nothing."""
        segment, self._segment = self._segment, None
        ended = np.empty(0) if segment is None else segment
        ended = ended[: np.searchsorted(ended, self._clock.now(), "right")]
        counts = self._count(len(ended))
        delivered, self._late = self._late, []
        for rank in self._ranks:
            if rank.steps is not None and rank.done + len(ended):
                rank.done += len(ended)
                rank.counts += counts
                rank.ends.append(ended)
                delivered += self._finish(rank)
        return delivered

    def begin(self) -> None:
        """Begin the next steps, unless some are in flight or there is nothing to do."""
        if self._segment is not None:
            return
        for rank in self._ranks:
            if rank.steps is not None and rank.arrived:  # between two steps: the next one is planned anew
                self._late += self._finish(rank)
            if rank.steps is None:
                self._plan(rank)
        working = [rank for rank in self._ranks if rank.steps is not None]
        if not working:
            return
        now, landing = self._clock.now(), min(rank.executor.transfers.next_landing for rank in working)
        computing = [rank for rank in working if rank.steps is not None and rank.steps.plan.chunks]
        if not computing:  # all wait for blocks on their way between tiers
            wait = min(max(0.0, landing - now), WAIT_SECONDS)
            time = StepTime(wait, {}, {"host": wait}, {})
            self._times, self._begun = (time, time), 1
            self._segment = np.array([max(now, landing) if wait < WAIT_SECONDS else now + wait])
            return
        steps = min(rank.most - rank.done for rank in computing)
        first = self._time(computing, 0)
        last = first if steps == 1 else self._time(computing, steps - 1)
        self._times, self._begun = (first, last), steps
        # Between two equal steps only positions move on, on which time depends almost linearly.
        seconds = np.linspace(first.seconds, last.seconds, steps) if steps > 1 else np.array([first.seconds])
        segment = now + np.cumsum(seconds)
        self._segment = segment[: int(np.searchsorted(segment, landing)) + 1]

    def _count(self, steps: int) -> list[tuple[StepCounts, float]]:
        """Of the steps begun together, the first `steps` have ended: what they counted, and how often."""
        if self._times is None or not steps:
            return []
        first, last = self._times
        # In between, counts grow evenly, as seconds do; the ith of n steps is i / (n - 1) of the way.
        later = steps * (steps - 1) / 2 / max(1, self._begun - 1)
        parts = [(first, steps - later), (last, later)] if later else [(first, float(steps))]
        for time, share in parts:
            self.use.add(time, share)
        return [(time.counts, share) for time, share in parts]

    def _plan(self, rank: _Rank[S]) -> None:
        rank.arrived = False
        rank.done, rank.ends, rank.counts = 0, [], []
        plan = rank.core.begin()
        if plan is not None:
            moved = rank.executor.transfers.start(plan.transfers, self._clock.now())
            self.use.move(moved / len(self._ranks))
            steps = rank.steps = rank.executor.steps(plan)
            rank.most = steps.most
            rank.first = rank.last = steps.rows(0)
            if rank.most > 1:
                rank.last = steps.rows(rank.most - 1)

    def _time(self, ranks: Sequence[_Rank[S]], further: int) -> StepTime:
        """Of a step of ranks, `further` steps on."""
        rows = [rank.rows(rank.done + further) for rank in ranks]
        return self._timer(joint_shape(rows, self._load))

    def _interrupt(self, number: int) -> None:
        """Something changed on a rank: its plan ends with the step now in flight."""
        rank = self._ranks[number]
        rank.arrived = True
        if self._segment is not None:
            current = int(np.searchsorted(self._segment, self._clock.now(), side="left"))
            self._segment = self._segment[: current + 1]

    def _finish(self, rank: _Rank[S]) -> list[Delivery]:
        planned, steps = rank.steps, rank.done
        assert planned is not None
        rank.steps = None
        landed = rank.executor.transfers.landed(self._clock.now())
        events = rank.core.finish(planned.result(steps, total_counts(rank.counts), landed))
        ends = np.concatenate(rank.ends) if len(rank.ends) > 1 else rank.ends[0]
        last = [float(ends[-1])]
        totals = planned.tokens_by_step(steps) if self._token_times else {}
        delivered = []
        for event in events:
            if event.finish is not None:
                rank.executor.forget(event.request_id)
            if event.request_id in totals:
                delivered.append(Delivery(event, ends, totals[event.request_id], steps))
            else:
                delivered.append(Delivery(event, last, [len(event.tokens)], steps))
        return delivered


def joint_shape(ranks: Sequence[RankRows[S]], load: Callable[[S], float]) -> StepShape[S]:
    """What a step of ranks in lockstep takes the time of.

    They meet in every layer's exchange, so each part of the model takes as long as the rank that is busiest
    with it: one that only prefills does not hide what another one decodes behind the last source layer.
    """
    first = ranks[0]
    if len(ranks) == 1:
        rows, behind = first.encoder.rows, first.decoder.rows
        return StepShape(first.encoder, first.decoder, first.head_rows, first.drafted, rows, behind)
    return StepShape(
        max((r.encoder for r in ranks), key=load),
        max((r.decoder for r in ranks), key=load),
        max(r.head_rows for r in ranks),
        max(r.drafted for r in ranks),
        sum(r.encoder.rows for r in ranks),
        sum(r.decoder.rows for r in ranks),
    )


def run_alone(replica: Replica[S], clock: VirtualClock, deliver: Callable[[Delivery], None]) -> None:
    """Step a replica until it has nothing to do."""
    replica.begin()
    while (end := replica.next_end) is not None:
        clock.wait_until(end)
        for delivery in replica.advance():
            deliver(delivery)
        replica.begin()
