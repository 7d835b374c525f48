"""A trace as a replay sees it: streams of turns that wait for each other.

Source: the project's spec, agentx.md sections 1.4 and 3.4. A session has one stream of its own and one for
each agent that it started: explicit sub-agents (`::sa:`), agents found in the flat list (`::fa:`, worker
groups `::wg:`) and single side calls (`::aux:`). A stream is spawned by the session's last turn before it;
the first turn that starts at or after its recorded end joins it; if there is none it runs in the background.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from flashpoint.agentx.traces.chains import (
    TIME_TOLERANCE,
    IndexedCall,
    find_chains,
    is_auxiliary,
    shared_blocks,
    split_preamble,
    worker_groups,
)
from flashpoint.agentx.traces.format import Call, SubAgent, Trace

Kind = Literal["main", "subagent", "flat"]
TurnKey = tuple[int, int]
"""A turn of a session: number of its stream, position in the stream."""


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One call of a stream, and what it waits for."""

    call: Call
    entry: int
    """Position of the call, or of its sub-agent, in the trace."""
    inner: int | None
    """Position within the sub-agent."""
    delay: float | None
    """Seconds from the end of the turn before to this one; None for a stream's first turn."""
    hit_blocks: int = 0
    """Leading blocks that an earlier call of the session had sent (in recorded order)."""
    after: tuple[TurnKey, ...] = ()
    """Turns of sibling streams that must have ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """One conversation of a session."""

    id: str
    kind: Kind
    turns: tuple[Turn, ...]
    prefix_tokens: int
    """Tokens of tool schemas and system prompt at the head of the first turn, as declared."""

    @property
    def depth(self) -> int:
        """0 for the session's own conversation, 1 for one it started."""
        return 0 if self.kind == "main" else 1


@dataclass(frozen=True, slots=True)
class Branch:
    """Streams that the session starts together."""

    streams: tuple[int, ...]
    start: float
    """Recorded time of the spawn; a stream that began later is sent that much later."""
    spawned_by: int
    """The turn of the session after which they start."""
    joined_by: int | None
    """The turn of the session that waits for them all; None: they run in the background."""


@dataclass(frozen=True, slots=True, eq=False)
class Session:
    """A trace taken apart; `streams[0]` is the session's own conversation."""

    trace: Trace
    streams: tuple[Stream, ...]
    branches: tuple[Branch, ...]
    dropped: tuple[str, ...] = field(default=())
    """Sub-agents that began before the session's first turn: nothing could start them."""

    @property
    def id(self) -> str:
        """The trace's id."""
        return self.trace.id

    def turn(self, key: TurnKey) -> Turn:
        """The turn at (stream, position)."""
        return self.streams[key[0]].turns[key[1]]

    def span(self) -> tuple[float, float]:
        """First and last start of a turn, in recorded seconds."""
        times = [turn.call.t for stream in self.streams for turn in stream.turns]
        return min(times), max(times)

    def theoretical_hit(self) -> tuple[int, int]:
        """(hit blocks, all blocks) with one infinite cache for the session (spec section 4)."""
        turns = [turn for stream in self.streams for turn in stream.turns]
        return sum(turn.hit_blocks for turn in turns), sum(len(turn.call.hash_ids) for turn in turns)


def build_session(trace: Trace) -> Session:
    """Take a trace apart into streams, branches and waits."""
    builder = _Builder(trace)
    streams = _with_predecessors(builder.streams, builder.scopes)
    streams = _with_hits(streams, builder.orders)
    return Session(trace, tuple(streams), tuple(builder.branches), tuple(builder.dropped))


class _Builder:
    """Collects streams (the main one first, then sub-agents, then flat ones) and their branches."""

    def __init__(self, trace: Trace) -> None:
        self.streams: list[Stream] = []
        self.scopes: list[str] = []
        """Streams of one scope wait for each other's calls."""
        self.orders: list[int] = []
        """Which chain of its entry a stream is: what breaks ties between calls of one moment."""
        self.branches: list[Branch] = []
        self.dropped: list[str] = []
        self._trace = trace
        calls = [(i, entry) for i, entry in enumerate(trace.entries) if isinstance(entry, Call)]
        main, others = _split(calls, trace.id, "::")
        prefix = trace.tool_tokens + trace.system_tokens
        self._add(trace.id, "main", [(i, None, call) for i, call in main], prefix, trace.id, 0)
        self._main = main
        self._add_subagents()
        self._add_flat(others, prefix)

    def _add(
        self,
        id: str,
        kind: Kind,
        calls: Sequence[tuple[int, int | None, Call]],
        prefix: int,
        scope: str,
        order: int,
    ) -> int:
        turns = []
        before: Call | None = None
        for entry, inner, call in calls:
            delay = None if before is None else max(0.0, call.t - before.t - before.duration)
            turns.append(Turn(call, entry, inner, delay))
            before = call
        self.streams.append(Stream(id, kind, tuple(turns), prefix))
        self.scopes.append(scope)
        self.orders.append(order)
        return len(self.streams) - 1

    def _add_subagents(self) -> None:
        groups: dict[tuple[int, int | None], list[tuple[SubAgent, list[int]]]] = defaultdict(list)
        for position, agent in enumerate(self._trace.entries):
            if not isinstance(agent, SubAgent):
                continue
            spawn = max((i for i, (entry, _) in enumerate(self._main) if entry < position), default=None)
            if spawn is None:
                self.dropped.append(agent.agent_id)
                continue
            streams = self._add_subagent(position, agent)
            groups[spawn, self._join(position, agent.end)].append((agent, streams))
        for (spawn, join), members in groups.items():
            started = tuple(stream for _, streams in members for stream in streams)
            if started:  # sub-agents that called nothing start and join nothing
                self.branches.append(Branch(started, min(agent.t for agent, _ in members), spawn, join))

    def _add_subagent(self, position: int, agent: SubAgent) -> list[int]:
        if not agent.calls:
            return []
        id = f"{self._trace.id}::sa:{agent.agent_id}"
        main, others = _split(list(enumerate(agent.calls)), id, ":")
        declared = agent.tool_tokens + agent.system_tokens
        chains = [(id, main, declared)]
        chains += [(name, calls, self._prefix(declared, main, calls)) for name, calls in others]
        return [
            self._add(name, "subagent", [(position, i, call) for i, call in calls], prefix, id, order)
            for order, (name, calls, prefix) in enumerate(chains)
        ]

    def _add_flat(self, others: Iterable[tuple[str, list[IndexedCall]]], declared: int) -> None:
        groups: dict[tuple[int, int | None], list[int]] = defaultdict(list)
        for name, calls in others:
            prefix = self._prefix(declared, self._main, calls)
            stream = self._add(
                name, "flat", [(i, None, call) for i, call in calls], prefix, self._trace.id, 0
            )
            first = calls[0][0]
            spawn = max((i for i, (entry, _) in enumerate(self._main) if entry < first), default=0)
            groups[spawn, self._join(first, max(call.end for _, call in calls))].append(stream)
        for (spawn, join), streams in groups.items():
            start = min(self.streams[stream].turns[0].call.t for stream in streams)
            self.branches.append(Branch(tuple(streams), start, spawn, join))

    def _join(self, entry: int, end: float) -> int | None:
        """The first turn of the session behind `entry` that starts at or after `end`."""
        later = (
            i
            for i, (position, call) in enumerate(self._main)
            if position > entry and call.t + TIME_TOLERANCE >= end
        )
        return next(later, None)

    def _prefix(self, declared: int, main: Sequence[IndexedCall], calls: Sequence[IndexedCall]) -> int:
        """The declared prefix, where a chain's first prompt proves that it has it; else 0."""
        blocks = -(-declared // self._trace.block_size)
        base = next((call.hash_ids for _, call in main if len(call.hash_ids)), None)
        own = next((call.hash_ids for _, call in calls if len(call.hash_ids)), None)
        if not blocks or base is None or own is None or min(len(base), len(own)) < blocks:
            return 0
        return declared if np.array_equal(base[:blocks], own[:blocks]) else 0


def _split(
    calls: list[IndexedCall], id: str, separator: str
) -> tuple[list[IndexedCall], list[tuple[str, list[IndexedCall]]]]:
    """The main chain of `calls`, and the named chains beside it."""
    if len(calls) < 2:
        return calls, []
    preamble, rest = split_preamble(calls)
    chains = find_chains(rest)
    if not chains.others:
        return calls, []
    main = chains.all[chains.main].calls
    main_calls = [call for _, call in main]
    groups = worker_groups(chains)
    named = []
    for number, chain in enumerate(chains.others):
        found = chains.all[chain].calls
        if is_auxiliary([call for _, call in found], main_calls):
            name = f"aux:{number:03d}"
        elif chain in groups:
            name = "wg:{:03d}_{:03d}".format(*groups[chain])
        else:
            name = f"fa:{number:03d}"
        named.append((f"{id}{separator}{name}", list(found)))
    return sorted([*preamble, *main], key=lambda item: (item[1].t, item[0])), named


def _with_predecessors(streams: Sequence[Stream], scopes: Sequence[str]) -> list[Stream]:
    """Each turn waits, per sibling stream, for the last call that had ended when it began (spec 3.4).

    Of those, one that had itself ended before another began is implied by it and left out.
    """
    ended = []
    for stream in streams:
        calls = [(turn.call.end, turn.call.t, i) for i, turn in enumerate(stream.turns)]
        ended.append(sorted(calls))
    ends = [[end for end, _, _ in calls] for calls in ended]
    result = []
    for number, stream in enumerate(streams):
        siblings = [s for s in range(len(streams)) if s != number and scopes[s] == scopes[number]]
        if not siblings:
            result.append(stream)
            continue
        turns = []
        for turn in stream.turns:
            t = turn.call.t
            frontier = []
            for sibling in siblings:
                last = bisect_right(ends[sibling], t) - 1
                while last >= 0 and ended[sibling][last][1] >= t:
                    last -= 1  # a call of no length at this very moment is not before it
                if last >= 0:
                    end, start, position = ended[sibling][last]
                    frontier.append((start, end, (sibling, position)))
            after = [
                key
                for start, end, key in frontier
                if not any(start < later and end <= later for later, _, other in frontier if other != key)
            ]
            turns.append(replace(turn, after=tuple(sorted(after))))
        result.append(replace(stream, turns=tuple(turns)))
    return result


def _with_hits(streams: Sequence[Stream], orders: Sequence[int]) -> list[Stream]:
    """Count for each call, in order of its recorded start, the leading blocks that were sent before."""
    keys = [
        (
            (turn.call.t, turn.entry, orders[number], i if orders[number] or turn.inner is not None else 0),
            number,
            i,
        )
        for number, stream in enumerate(streams)
        for i, turn in enumerate(stream.turns)
    ]
    seen: set[int] = set()
    hits: dict[tuple[int, int], int] = {}
    for _, number, i in sorted(keys):
        turns = streams[number].turns
        ids = turns[i].call.hash_ids
        # What the turn before sent has been seen; only what is new needs a look.
        known = shared_blocks(turns[i - 1].call.hash_ids, ids) if i else 0
        new = ids[known:].tolist()
        hits[number, i] = known + next((n for n, id in enumerate(new) if id not in seen), len(new))
        seen.update(new)
    return [
        replace(
            stream,
            turns=tuple(
                Turn(turn.call, turn.entry, turn.inner, turn.delay, hits[number, i], turn.after)
                for i, turn in enumerate(stream.turns)
            ),
        )
        for number, stream in enumerate(streams)
    ]
