"""Which of a flat list of recorded calls belong to one agent: chains by the longest common block prefix.

Source: the project's spec, agentx.md section 1.4. A recorder sees one flat list of calls, also where several
agents ran side by side. A call continues the chain whose latest prompt is a whole prefix of its own. A call
that shares only a part of a chain's latest prompt is either the same agent after its context was cut down (a
*seam*: nobody ever comes back to the longer state), or another agent that started from shared context (a
*fork*). Only calls of one model are ever joined.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from flashpoint.agentx.traces.format import Blocks, Call

TIME_TOLERANCE = 1e-6
SEAM_LONGEST_GAP = 3600.0
SEAM_LEAST_OVERLAP = 0.5
"""A continuation both later (seconds) and with less in common than this is another session, not a seam."""
PREAMBLE_OUTPUT = 64
"""Tokens of answer up to which a first call that shares nothing is a title generation or the like."""
AUXILIARY_PROMPT = 16_384
AUXILIARY_SHARE_OF_PEAK = 0.10
REDUCTION_OUTPUT = 4_000
REDUCTION_RATIO = 20
GROUP_LEAST = 3

IndexedCall = tuple[int, Call]
"""A call and its position in the recorded list."""


@dataclass(slots=True)
class Fork:
    """Where a chain split off: the chain and call it shares a prefix with, and how many blocks."""

    chain: int | None
    call: int | None
    depth: int


@dataclass(slots=True)
class Chain:
    """The calls of one agent, in order of time."""

    calls: list[IndexedCall] = field(default_factory=list)
    fork: Fork | None = None
    joined_to: int | None = None
    """The chain it turned out to continue; such a chain is empty shell only."""

    @property
    def tail(self) -> IndexedCall | None:
        """The last call that carries hashes."""
        return next((item for item in reversed(self.calls) if len(item[1].hash_ids)), None)


@dataclass(frozen=True, slots=True)
class Chains:
    """`main` is the chain of the first call; `others` the rest, by their first call."""

    all: list[Chain]
    main: int
    others: list[int]


def shared_blocks(a: Blocks, b: Blocks) -> int:
    """Length of the longest common prefix of two lists of block ids."""
    count = min(len(a), len(b))
    different = np.flatnonzero(a[:count] != b[:count])
    return int(different[0]) if len(different) else count


def split_preamble(calls: Sequence[IndexedCall]) -> tuple[list[IndexedCall], list[IndexedCall]]:
    """Set a first call aside that shares nothing with the others (a title generation), and the rest.

    It must not found the main chain; a replay sends it there all the same.
    """
    if len(calls) < 2:
        return [], list(calls)
    first, *rest = sorted(calls, key=_by_time)
    ids = first[1].hash_ids
    if not len(ids) or any(shared_blocks(ids, other.hash_ids) for _, other in rest):
        return [], list(calls)
    if first[1].output_tokens > PREAMBLE_OUTPUT:
        elsewhere = np.concatenate([other.hash_ids for _, other in rest])
        if np.isin(ids, elsewhere).any():
            return [], list(calls)
    return [first], sorted(rest, key=lambda item: item[0])


def find_chains(calls: Sequence[IndexedCall]) -> Chains:
    """Partition `calls` (at least one) into chains."""
    ordered = sorted(calls, key=_by_time)
    finder = _Finder()
    for position, call in ordered:
        finder.add(position, call)
    finder.join_seams()
    main = finder.owner(ordered[0][0])
    others = [i for i, chain in enumerate(finder.chains) if chain.joined_to is None and i != main]
    others.sort(key=lambda i: _by_time(finder.chains[i].calls[0]))
    for chain in finder.chains:
        if chain.joined_to is None and chain.fork is not None and chain.fork.chain is not None:
            chain.fork.chain = finder.resolve(chain.fork.chain)
    return Chains(finder.chains, main, others)


class _Finder:
    def __init__(self) -> None:
        self.chains: list[Chain] = []
        self._chain_of: dict[int, int] = {}
        self._calls: dict[int, Call] = {}
        self._forks_of: dict[int, list[int]] = defaultdict(list)
        self._tails: list[IndexedCall | None] = []

    def add(self, position: int, call: Call) -> None:
        """Continue a chain with `call`, or begin one."""
        self._calls[position] = call
        if not len(call.hash_ids):
            if not self.chains:
                self._begin(None)
            self._append(0, position, call)
            return
        if not any(self._tails):
            # The first call with hashes is the main agent's, even behind calls without any.
            if not self.chains:
                self._begin(None)
            self._append(0, position, call)
            return
        continued = self._continued(call)
        if continued is None:
            parent, depth = self._closest(call)
            tail = self._tails[parent] if parent is not None else None
            continued = self._begin(Fork(parent, tail[0] if tail else None, depth))
            if tail and depth:
                self._forks_of[tail[0]].append(continued)
        self._append(continued, position, call)

    def _begin(self, fork: Fork | None) -> int:
        self.chains.append(Chain(fork=fork))
        self._tails.append(None)
        return len(self.chains) - 1

    def _append(self, chain: int, position: int, call: Call) -> None:
        self.chains[chain].calls.append((position, call))
        self._chain_of[position] = chain
        if len(call.hash_ids):
            self._tails[chain] = (position, call)

    def _continued(self, call: Call) -> int | None:
        """The chain whose latest prompt is the longest whole prefix of this one, ended, of the same model."""
        best, best_length = None, 0
        ids = call.hash_ids
        for number, tail in enumerate(self._tails):
            if tail is None:
                continue
            before = tail[1]
            length = len(before.hash_ids)
            if not best_length < length <= len(ids) or before.model != call.model:
                continue
            if before.end > call.t + TIME_TOLERANCE or before.hash_ids[-1] != ids[length - 1]:
                continue
            if np.array_equal(before.hash_ids, ids[:length]):
                best, best_length = number, length
        return best

    def _closest(self, call: Call) -> tuple[int | None, int]:
        """The chain that shares the longest prefix (then: has the longest prompt), and how much it shares."""
        best: int | None = None
        best_key = (0, 0)
        for number, tail in enumerate(self._tails):
            if tail is None:
                continue
            depth = shared_blocks(tail[1].hash_ids, call.hash_ids)
            key = (depth, len(tail[1].hash_ids))
            if depth and key > best_key:
                best, best_key = number, key
        return best, best_key[0]

    def resolve(self, chain: int) -> int:
        """The chain that `chain` has become part of."""
        while (joined := self.chains[chain].joined_to) is not None:
            chain = joined
        return chain

    def owner(self, position: int) -> int:
        """The chain that holds the call at `position`."""
        return self.resolve(self._chain_of[position])

    def join_seams(self) -> None:
        """Join each chain that nobody extended to the fork that continues it, if one does."""
        waiting = list(self._forks_of)
        heapq.heapify(waiting)
        done: set[int] = set()
        while waiting:
            position = heapq.heappop(waiting)
            if position in done:
                continue
            done.add(position)
            owner = self.owner(position)
            tail = self.chains[owner].tail
            if tail is None or tail[0] != position:
                continue  # the longer state was continued, so every fork is another agent
            candidates = [i for i in self._forks_of[position] if self.chains[i].joined_to is None]
            elected = self._continuation(position, candidates)
            if elected is None:
                continue
            chain = self.chains[elected]
            self.chains[owner].calls += chain.calls
            chain.joined_to = owner
            new_tail = self.chains[owner].tail
            assert new_tail is not None
            if self._compare_again([i for i in candidates if i != elected], owner, new_tail):
                done.discard(new_tail[0])
                heapq.heappush(waiting, new_tail[0])

    def _continuation(self, position: int, candidates: list[int]) -> int | None:
        """The candidate that shares most with the call at `position` (then: began first), or None."""
        before = self._calls[position]

        def plausible(chain: int) -> bool:
            first, fork = self.chains[chain].calls[0][1], self.chains[chain].fork
            assert fork is not None
            gap, overlap = first.t - before.end, fork.depth / len(before.hash_ids)
            return (
                fork.depth > 0
                and gap >= -TIME_TOLERANCE
                and first.model == before.model
                and not (gap > SEAM_LONGEST_GAP and overlap < SEAM_LEAST_OVERLAP)
            )

        def preference(chain: int) -> tuple[int, float, int]:
            fork = self.chains[chain].fork
            assert fork is not None
            return fork.depth, -self.chains[chain].calls[0][1].t, -chain

        return max(filter(plausible, candidates), key=preference, default=None)

    def _compare_again(self, candidates: list[int], owner: int, tail: IndexedCall) -> bool:
        """Measure the forks not elected against the chain's new state; True if one shares with it."""
        position, call = tail
        found = False
        for number in candidates:
            depth = shared_blocks(call.hash_ids, self.chains[number].calls[0][1].hash_ids)
            if depth:
                self.chains[number].fork = Fork(owner, position, depth)
                self._forks_of[position].append(number)
                found = True
        return found


def is_auxiliary(calls: Sequence[Call], main: Sequence[Call]) -> bool:
    """Whether a chain is a side call of the agent with the calls `main`, and no agent of its own.

    One call at most, and of another model, or with a prompt that is small (absolutely, or beside the main
    chain's peak), or a reduction: a large prompt digested into a short answer by the same model.
    """
    if len(calls) != 1:
        return False
    call = calls[0]
    if main and call.model != main[0].model:
        return True
    peak = max((other.input_tokens for other in main), default=0)
    if call.input_tokens < max(AUXILIARY_PROMPT, int(AUXILIARY_SHARE_OF_PEAK * peak)):
        return True
    return (
        0 < call.output_tokens < REDUCTION_OUTPUT and call.input_tokens > REDUCTION_RATIO * call.output_tokens
    )


def worker_groups(chains: Chains) -> dict[int, tuple[int, int]]:
    """Three or more chains that fork from one call and run at the same time: (group, member) of each."""
    by_fork: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number in chains.others:
        fork = chains.all[number].fork
        if fork is not None and fork.depth and fork.chain is not None and fork.call is not None:
            by_fork[fork.chain, fork.call].append(number)

    def first(number: int) -> tuple[float, int]:
        return _by_time(chains.all[number].calls[0])

    groups: list[list[int]] = []
    for members in by_fork.values():
        together: list[int] = []
        until = 0.0
        for number in sorted(members, key=first):
            begin = chains.all[number].calls[0][1].t
            if together and begin >= until:
                groups.append(together)
                together = []
            end = max(call.end for _, call in chains.all[number].calls)
            until = max(until, end) if together else end
            together.append(number)
        groups.append(together)
    groups = sorted(
        (group for group in groups if len(group) >= GROUP_LEAST), key=lambda group: first(group[0])
    )
    return {number: (g, m) for g, group in enumerate(groups) for m, number in enumerate(group)}


def _by_time(item: IndexedCall) -> tuple[float, int]:
    return item[1].t, item[0]
