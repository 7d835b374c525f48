"""One level played and summed up, without an archive: what planning and validation ask for many times."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flashpoint.agentx import metrics
from flashpoint.agentx.recording import Cut
from flashpoint.agentx.records import RequestRecord
from flashpoint.agentx.run_levels import LevelContext
from flashpoint.agentx.schedule.lanes import Lanes, ScheduleConfig
from flashpoint.agentx.traces.corpus import Corpus
from flashpoint.agentx.traces.streams import Session, build_session
from flashpoint.hardware.cost import Resource
from flashpoint.hardware.virtual_clock import VirtualClock
from flashpoint.simulate.deployment import Deployment
from flashpoint.simulate.level import VirtualLevel


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of a level, per accelerator where they are rates; the functions are those of `agentx.metrics`.

    interactivity, ttft: mean and P90, tok/s of a user and s.  resources: shares of the busiest ranks' time.
    limits: shares of the machine's physical limits over the whole time, idle time included.
    """

    lanes: int
    requests: int
    total: float
    output: float
    interactivity_mean: float | None
    interactivity_p90: float | None
    ttft_mean: float | None
    ttft_p90: float | None
    hit_share: float | None
    resources: dict[Resource, float]
    limits: dict[Resource, float]

    @property
    def binding(self) -> Resource | None:
        """What most of the time goes into."""
        if not self.resources:
            return None
        return max(self.resources, key=self.resources.__getitem__)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {name: getattr(self, name) for name in self.__slots__} | {"binding": self.binding}


class Sessions:
    """A corpus' sessions, each built once for many levels."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._built: dict[int, Session] = {}

    def feed(self) -> Callable[[], Session]:
        """Sessions in order, over and over."""
        numbers = itertools.cycle(range(len(self._corpus)))
        return lambda: self._get(next(numbers))

    def _get(self, number: int) -> Session:
        if number not in self._built:
            self._built[number] = build_session(self._corpus.trace(number))
        return self._built[number]


def play(
    deployment: Deployment,
    sessions: Sessions,
    lanes: int,
    duration: float,
    *,
    seed: int = 42,
    warmup_requests: int = 3,
    interrupted: Callable[[], Cut | None] = lambda: None,
) -> Outcome:
    """Play `lanes` lanes for `duration` virtual seconds behind a warm-up."""
    clock = VirtualClock()
    fleet, cores = deployment.fleet(clock, seed)
    schedule = ScheduleConfig(lanes, seed, warmup_requests=warmup_requests)
    context = LevelContext(
        Lanes(schedule, sessions.feed(), "play"), 0, "play", 0.0, clock, lambda record: None
    )
    level = VirtualLevel(fleet, cores, context, token_times=False)
    level.run(duration, 1e9, interrupted)
    return outcome(deployment, lanes, level.records, fleet.time_use(), clock.now())


def outcome(
    deployment: Deployment,
    lanes: int,
    records: Sequence[RequestRecord],
    use: tuple[dict[Resource, float], dict[Resource, float], int],
    elapsed: float,
) -> Outcome:
    """Figures of what was measured."""
    measured = [r for r in records if r.phase == "measured"]
    done = metrics.successful(measured)
    count = deployment.accelerators
    resources, floors, replicas = use
    spent = sum(resources.values())
    return Outcome(
        lanes=lanes,
        requests=len(done),
        total=metrics.total_throughput(measured, count) or 0.0,
        output=metrics.output_throughput(measured, count) or 0.0,
        interactivity_mean=_inverse(metrics.mean([v for r in done if (v := metrics.inter_token_latency(r))])),
        interactivity_p90=metrics.interactivity(measured, 90),
        ttft_mean=metrics.mean([r.ttft for r in done if r.ttft is not None]),
        ttft_p90=metrics.ttft_percentile(measured, 90),
        hit_share=metrics.cache_hit_share(measured),
        resources={name: seconds / spent for name, seconds in resources.items()} if spent else {},
        limits={name: seconds / elapsed / replicas for name, seconds in floors.items()} if elapsed else {},
    )


def _inverse(value: float | None) -> float | None:
    return 1 / value if value else None
