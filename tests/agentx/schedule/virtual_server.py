"""Lanes driven in virtual time against a server that answers after times of its own."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from flashpoint.agentx.schedule.lanes import Lanes, Outcome, Send


@dataclass
class Sent:
    """One request as it went."""

    send: Send
    start: float
    end: float
    outcome: Outcome


def play_lanes(
    lanes: Lanes,
    until: float,
    answer: Callable[[Send, int], tuple[float, Outcome]],
    lateness: Callable[[], float] = lambda: 0.0,
) -> list[Sent]:
    """Everything that was sent until `until` seconds of the measured phase are over.

    `answer` gives (seconds, outcome) for a request and its number; `lateness` how late the caller wakes.
    """
    now = 1000.0
    open_requests: list[tuple[float, int, Sent]] = []
    numbers = itertools.count()
    done: list[Sent] = []
    lanes.prepare()
    lanes.start(now)
    for _ in range(200_000):
        for send in lanes.take(now):
            seconds, outcome = answer(send, len(done) + len(open_requests))
            sent = Sent(send, now, now + seconds, outcome)
            heapq.heappush(open_requests, (sent.end, next(numbers), sent))
        due = lanes.next_due()
        following = [*([due + lateness()] if due is not None else []), *(r[0] for r in open_requests[:1])]
        assert following, "nothing is due and nothing is open: the lanes are stuck"
        now = max(now, min(following))
        if lanes.measured_from is not None and now > lanes.measured_from + until:
            return done + [sent for _, _, sent in open_requests]
        while open_requests and open_requests[0][0] <= now:
            sent = heapq.heappop(open_requests)[2]
            done.append(sent)
            lanes.ended(sent.send, now, sent.outcome)
    raise AssertionError("the lanes never came to an end")
