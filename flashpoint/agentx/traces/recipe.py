"""Invented corpora: sessions drawn from the distributions of the published one, from a seed.

Source: the project's spec, agentx.md section 8.1. A corpus is its recipe: some parameters and a seed, a few
hundred bytes, and session `n` can be made alone in milliseconds. A full-size corpus as trace files would
take gigabytes. The same recipe gives the same sessions everywhere (`draws.py`), and at every scale the same
turns at the same times.

Where the recipe leaves something open, the published shares decide: a session of 30 turns or more that has
sub-agents at all has at least one, and their calls follow each other as in the project's own traces (a fit of
their gaps), which nobody's pauses interrupt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from flashpoint.agentx.traces.draws import Draws
from flashpoint.agentx.traces.format import BLOCK_SIZE, Blocks, Call, SubAgent, Trace
from flashpoint.errors import InvalidValue

MODEL = "agent"
LONGEST_CONTEXT = 990_000
COMPACTION_FROM = 150_000
SHARED_PREFIX = 8_000
"""Tokens at the head of a sub-agent's prompt that its session's prompt begins with, too."""
LONGEST_GAP = 3 * 3600.0
AGENT_GAP = (1.6, 1.3)
"""Median and sigma of the seconds between two calls of a sub-agent."""
LONGEST_SESSION = 3052
TURNS_WITH_AGENT = 30


@dataclass(frozen=True)
class Recipe:
    """A corpus: how many sessions, from which seed, at what scale. All else is the spec's recipe."""

    sessions: int = field(default=393, metadata={"help": "number of sessions"})
    seed: int = field(default=0, metadata={"help": "the same seed gives the same sessions"})
    scale: Fraction = field(
        default=Fraction(1),
        metadata={"help": "token lengths times this, such as 1/64; turns, waits and structure stay"},
    )
    max_turns: int = field(default=3052, metadata={"help": "most turns of a session's own conversation"})

    def __post_init__(self) -> None:
        for name in ("sessions", "max_turns"):
            if getattr(self, name) < 1:
                raise InvalidValue(name, getattr(self, name), "a whole number of at least 1")
        if not 0 <= self.seed < 2**63:
            raise InvalidValue("seed", self.seed, "a whole number from 0 to 2^63 - 1")
        if not 0 < self.scale <= 1:
            raise InvalidValue("scale", str(self.scale), "a fraction above 0 and at most 1, such as 1/64")


def generate_session(recipe: Recipe, number: int) -> Trace:
    """Session `number` of a corpus (from 0); it depends on the recipe's parameters and `number` only."""
    draws = Draws(recipe.seed, number)
    turns = min(max(round(draws.lognormal(43, 1.56)), 12), LONGEST_SESSION, recipe.max_turns)
    with_agents = draws.uniform() < 0.34 + 0.5 * min(1.0, turns / 150)
    base = round(draws.lognormal(22_000, 0.25))
    root = _Stream(draws, recipe.scale, _Ids(), base, growth=1_450, output=(560, 1.15, 32_000))
    entries: list[Call | SubAgent] = []
    certain = draws.integer(3, turns - 1) if with_agents and turns >= TURNS_WITH_AGENT else None
    t = 0.0
    agents = 0
    for turn in range(turns):
        call = root.next_call(t)
        entries.append(call)
        t = call.end
        chosen = turn == certain and not agents
        # A turn of the session waits for each of its sub-agents, so the last turn starts none.
        if with_agents and 3 <= turn < turns - 1 and (draws.uniform() < 0.03 or chosen):
            together = 1 if draws.uniform() < 0.7 else draws.integer(2, 5)
            started = [_subagent(draws, recipe.scale, root, t, agents + i) for i in range(together)]
            agents += together
            entries += started
            t = max(agent.end for agent in started)
        gap = draws.lognormal(2.3, 1.6) if draws.uniform() < 0.93 else draws.lognormal(120, 1.3)
        t = round(t + min(gap, LONGEST_GAP), 3)
    return Trace(f"synthetic-{recipe.seed}-{number:05d}", tuple(entries), (MODEL,))


def _subagent(draws: Draws, scale: Fraction, parent: _Stream, t: float, number: int) -> SubAgent:
    base = round(draws.lognormal(24_000, 0.4))
    shared = parent.ids[: max(1, int(SHARED_PREFIX * scale) // BLOCK_SIZE)]
    stream = _Stream(draws, scale, parent.source, base, growth=1_300, output=(340, 1.0, 8_000), shared=shared)
    calls = []
    start = t
    for _ in range(min(max(round(draws.lognormal(16, 0.97)), 1), 789)):
        calls.append(stream.next_call(t))
        t = round(calls[-1].end + min(draws.lognormal(*AGENT_GAP), LONGEST_GAP), 3)
    return SubAgent(
        t=start,
        agent_id=f"agent_{number:03d}",
        calls=tuple(calls),
        subagent_type="synthetic",
        duration=round(calls[-1].end - start, 3),
        models=(MODEL,),
    )


class _Ids:
    """Block ids of one session, each used for one content."""

    def __init__(self) -> None:
        self._next = 1

    def take(self, count: int) -> Blocks:
        first, self._next = self._next, self._next + count
        return np.arange(first, first + count, dtype=np.int64)


class _Stream:
    """One conversation that grows turn by turn; lengths are drawn at full size and scaled."""

    def __init__(
        self,
        draws: Draws,
        scale: Fraction,
        source: _Ids,
        base: int,
        *,
        growth: float,
        output: tuple[float, float, int],
        shared: Blocks | None = None,
    ) -> None:
        self.source = source
        self.ids = np.empty(0, dtype=np.int64) if shared is None else shared
        self._draws = draws
        self._scale = scale
        self._full = scale == 1
        self._base = base
        self._growth = growth
        self._output = output
        self._context = base
        self._room = self.ids
        """Ids, then space for more: prompts are views of it, so a long session costs few copies."""
        self._written = len(self.ids)

    def next_call(self, t: float) -> Call:
        """The stream's next call, at time `t`."""
        median, sigma, most = self._output
        output = min(max(1, round(self._draws.lognormal(median, sigma))), most)
        tokens = max(BLOCK_SIZE, self._scaled(self._context))
        self._set_blocks(tokens // BLOCK_SIZE)
        seconds = 1.2 + output / 75 + 0.5e-6 * self._context
        call = Call(
            t=t,
            model=MODEL,
            input_tokens=tokens,
            output_tokens=max(1, self._scaled(output)),
            hash_ids=self.ids,
            api_time=round(seconds, 3),
        )
        self._grow(output)
        return call

    def _scaled(self, tokens: int) -> int:
        # Fractions are slow, and most corpora are of full size.
        return tokens if self._full else round(tokens * self._scale)

    def _grow(self, output: int) -> None:
        context = self._context + output + min(round(self._draws.lognormal(self._growth, 1.2)), 120_000)
        chance = 0.0016 * (context / 400_000) ** 3.5 if context > COMPACTION_FROM else 0.0
        if self._draws.uniform() < chance or context > LONGEST_CONTEXT:
            context = self._base + 9_000
            # A copy, as prompts already made are views of what lies behind.
            self._room = self.ids[: int(self._base * self._scale) // BLOCK_SIZE].copy()
            self._written = len(self._room)
        self._context = context

    def _set_blocks(self, count: int) -> None:
        if count > len(self._room):
            self._room = np.concatenate([self._room[: self._written], np.empty(2 * count, dtype=np.int64)])
        if count > self._written:
            self._room[self._written : count] = self.source.take(count - self._written)
            self._written = count
        self.ids = self._room[:count]
