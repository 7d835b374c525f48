"""Engines behind a router: they serve whole requests, or prefill ones hand over to decode ones."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flashpoint.cache.int32_buffer import Int32s
from flashpoint.engine.core import EngineCore
from flashpoint.engine.sampling import SamplingParams
from flashpoint.errors import InvalidValue, RequestTooLong
from flashpoint.hardware.cost import Resource
from flashpoint.hardware.named_request import FreshNames, NamedRequest
from flashpoint.hardware.replica import Delivery, Replica
from flashpoint.hardware.virtual_clock import VirtualClock
from flashpoint.parallel.router import Router
from flashpoint.simulate.front_end import FrontEnd


@dataclass(frozen=True, slots=True)
class Job:
    """One request: what `NamedRequest` needs, and the session by which it is routed."""

    request_id: str
    session: str
    prompt_tokens: int
    names: Int32s
    token_share: int
    max_tokens: int
    namespace: bytes


class EnginePool:
    """Replicas of one kind. An engine is a rank of a replica with a scheduler of its own."""

    def __init__(self, replicas: Sequence[tuple[Replica[Any], Sequence[EngineCore]]], router: Router) -> None:
        self.replicas = [replica for replica, _ in replicas]
        self.engines = [
            (replica, rank, core) for replica, cores in replicas for rank, core in enumerate(cores)
        ]
        self.loads = [0] * len(self.engines)
        self.router = router
        self.place: dict[str, int] = {}
        """Which engine has a request."""

    def route(self, session: str, request: NamedRequest) -> EngineCore:
        """Choose the engine of a request, which counts as its load from now on."""

        def cached_share(engine: int) -> float:
            return self.engines[engine][2].cached_tokens(request) / request.prompt_tokens

        number = self.router.choose(session, self.loads, cached_share)
        self.loads[number] += 1
        self.place[request.request_id] = number
        return self.engines[number][2]

    def submit(self, request: NamedRequest) -> Replica[Any]:
        """Give a routed request to its engine; returns the replica. Raises as `EngineCore.submit`."""
        replica, rank, _ = self.engines[self.place[request.request_id]]
        replica.submit(rank, request)
        return replica

    def over(self, request_id: str) -> None:
        """A request left its engine."""
        self.loads[self.place.pop(request_id)] -= 1


class Fleet:
    """Everything between a client and the tokens it gets, in virtual time.

    prefill: None where engines prefill and decode.  hand_over(tokens): seconds until the caches of so many
        tokens have gone from a prefill engine to a decode engine.
    """

    def __init__(
        self,
        clock: VirtualClock,
        engines: EnginePool,
        prefill: EnginePool | None,
        front_end: FrontEnd,
        hand_over: Callable[[int], float],
    ) -> None:
        self._clock = clock
        self._engines = engines
        self._prefill = prefill
        self._front_end = front_end
        self._hand_over = hand_over
        self._fresh = FreshNames()
        self._jobs: dict[str, Job] = {}
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Replica[Any] | Callable[[], None]]] = []
        self._touched: dict[int, Replica[Any]] = {}
        self.handed_over_tokens = 0

    def arrive(self, job: Job) -> None:
        """A request arrives now. Raises InvalidValue or RequestTooLong for a prompt that no engine takes."""
        if job.prompt_tokens < 1:
            raise InvalidValue("prompt", "0 tokens", "at least one token")
        limit = min(pool.engines[0][2].max_context for pool in (self._engines, self._prefill) if pool)
        if job.prompt_tokens + 1 > limit:
            raise RequestTooLong(job.prompt_tokens + 1, limit, "an engine's context")
        self._jobs[job.request_id] = job
        ready = self._front_end.ready_at(self._clock.now(), job.prompt_tokens, job.max_tokens)
        if ready <= self._clock.now():
            self._begin(job)
        else:
            self._at(ready, lambda: self._begin(job))

    def next_event(self) -> float | None:
        """When something happens next, if nothing arrives before."""
        while self._events:
            moment, _, what = self._events[0]
            if not isinstance(what, Replica) or what.next_end == moment:
                return moment
            heapq.heappop(self._events)  # a segment that was cut
        return None

    def advance(self) -> list[Delivery]:
        """Let everything happen that is due now, and return what clients hear."""
        heard: list[Delivery] = []
        while (moment := self.next_event()) is not None and moment <= self._clock.now():
            _, _, what = heapq.heappop(self._events)
            if isinstance(what, Replica):
                heard += map(self._heard, what.advance())
                self._touch(what)
            else:
                what()
        return heard

    def halt(self) -> list[Delivery]:
        """The run is over now: return what is still to be heard of the steps that have ended."""
        pools = [pool for pool in (self._prefill, self._engines) if pool is not None]
        return [self._heard(heard) for pool in pools for replica in pool.replicas for heard in replica.halt()]

    def time_use(self) -> tuple[dict[Resource, float], dict[Resource, float], int]:
        """Seconds by resource, floors by resource (see `StepTime`), and how many replicas spent them."""
        replicas = [r for pool in (self._engines, self._prefill) if pool is not None for r in pool.replicas]
        sums: tuple[dict[Resource, float], dict[Resource, float]] = ({}, {})
        for replica in replicas:
            for total, part in zip(sums, (replica.use.resources, replica.use.floors), strict=True):
                for resource, seconds in part.items():
                    total[resource] = total.get(resource, 0.0) + seconds
        return *sums, len(replicas)

    def settle(self) -> None:
        """All that arrives now has arrived: replicas that stand still begin their next steps."""
        for replica in self._touched.values():
            replica.begin()
            if (end := replica.next_end) is not None:
                self._at(end, replica)
        self._touched.clear()

    def abort(self, request_id: str) -> None:
        """The client hung up."""
        if self._jobs.pop(request_id, None) is None:
            return
        for pool in (self._engines, self._prefill):
            if pool is not None and request_id in pool.place:
                replica, rank, _ = pool.engines[pool.place[request_id]]
                replica.abort(rank, request_id)
                pool.over(request_id)
                self._touch(replica)  # its step in flight may end earlier now

    def _begin(self, job: Job) -> None:
        if job.request_id not in self._jobs:
            return
        pool = self._prefill or self._engines
        tokens = job.max_tokens if self._prefill is None else 1
        request = self._request(job, job.prompt_tokens, tokens)
        pool.route(job.session, request)
        self._touch(pool.submit(request))

    def _heard(self, delivery: Delivery) -> Delivery:
        """What the client hears of it: the end of a prefill that is handed over is none to the client."""
        event = delivery.event
        if event.finish is None:
            return delivery
        job = self._jobs.get(event.request_id)
        prefill = self._prefill
        if prefill is not None and event.request_id in prefill.place:
            prefill.over(event.request_id)
            if job is not None and event.error is None and self._goes_on(job):
                self._send_on(job)
                return delivery._replace(event=event._replace(finish=None))
        else:
            self._engines.over(event.request_id)
        self._jobs.pop(event.request_id, None)
        return delivery

    def _goes_on(self, job: Job) -> bool:
        """False where the first token was the last one, asked for or that there is room for."""
        return job.max_tokens > 1 and job.prompt_tokens + 2 <= self._engines.engines[0][2].max_context

    def _send_on(self, job: Job) -> None:
        """Hand a prefilled request over to a decode engine."""
        request = self._request(job, job.prompt_tokens + 1, job.max_tokens - 1)
        request.received = True
        moved = job.prompt_tokens - self._engines.route(job.session, request).cached_tokens(request)
        self.handed_over_tokens += moved

        def go() -> None:
            if job.request_id in self._jobs:
                self._touch(self._engines.submit(request))

        self._at(self._clock.now() + self._hand_over(moved), go)

    def _request(self, job: Job, prompt_tokens: int, max_tokens: int) -> NamedRequest:
        sampling = SamplingParams(max_tokens=max_tokens, min_tokens=max_tokens, temperature=0.0)
        return NamedRequest(
            job.request_id, prompt_tokens, job.names, job.token_share, sampling, job.namespace, self._fresh
        )

    def _at(self, moment: float, what: Replica[Any] | Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), what))

    def _touch(self, replica: Replica[Any]) -> None:
        self._touched[id(replica)] = replica
