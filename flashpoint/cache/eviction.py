"""Which cached blocks go first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from flashpoint.cache.prefix_tree import Segment


class EvictionPolicy(Protocol):
    """Orders segments that nobody uses. Only ends of chains are ever asked about, so a prefix outlives its
    continuations whatever the policy."""

    def priority(self, segment: Segment) -> float:
        """The lowest goes first. It is asked when a segment becomes evictable and must not change until the
        segment is used again."""
        ...


class LeastRecentlyUsed:
    """The segment that no request has touched for longest goes first."""

    def priority(self, segment: Segment) -> float:
        """The tick of the last use."""
        return segment.last_used


class EvictionQueue:
    """Segments offered for eviction, lowest priority first, ties in the order of the offers.

    Entries are not withdrawn when a segment is used again: `accepts` says, when one comes up, whether it
    still stands. A segment's latest offer is the one that counts.
    """

    def __init__(self, policy: EvictionPolicy, accepts: Callable[[Segment], bool]) -> None:
        self._policy = policy
        self._accepts = accepts
        self._heap: list[tuple[float, int, Segment]] = []
        self._offers = 0
        self._compact_at = 64

    def offer(self, segment: Segment) -> None:
        """Add a segment, or renew its offer."""
        self._offers += 1
        segment.offer = self._offers
        heapq.heappush(self._heap, (self._policy.priority(segment), self._offers, segment))
        if len(self._heap) > self._compact_at:
            self._heap = [entry for entry in self._heap if self._stands(entry)]
            heapq.heapify(self._heap)
            self._compact_at = 64 + 2 * len(self._heap)

    def take(self) -> Segment | None:
        """The segment to evict next, no longer offered; None when there is none."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            if self._stands(entry):
                return entry[2]
        return None

    def __iter__(self) -> Iterator[Segment]:
        """What is on offer, in no order."""
        return (entry[2] for entry in self._heap if self._stands(entry))

    def _stands(self, entry: tuple[float, int, Segment]) -> bool:
        _, offer, segment = entry
        return segment.offer == offer and self._accepts(segment)
