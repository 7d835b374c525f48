"""Invented corpora: sessions drawn from the distributions of the published one, from a seed.

Source: the project's spec, agentx.md section 8.1. A corpus is its recipe: some parameters and a seed, a few
hundred bytes, and session `n` can be made alone in milliseconds. A full-size corpus as trace files would
take gigabytes. The same recipe gives the same sessions wherever numpy's generators do (its `PCG64` streams
are fixed; distributions may change with a numpy release, so a run archive names the version).

Where the recipe leaves something open, the published shares decide: calls of a sub-agent follow each other at
the pace of tools, and a session of 30 turns or more that has sub-agents at all has at least one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from flashpoint.agentx.traces.format import BLOCK_SIZE, Call, SubAgent, Trace
from flashpoint.errors import InvalidValue

MODEL = "agent"
LONGEST_CONTEXT = 990_000
COMPACTION_FROM = 150_000
SHARED_PREFIX = 8_000
"""Tokens at the head of a sub-agent's prompt that its session's prompt begins with, too."""
LONGEST_GAP = 3 * 3600.0
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
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([recipe.seed, number])))
    turns = int(np.clip(round(_lognormal(rng, 43, 1.56)), min(12, recipe.max_turns), recipe.max_turns))
    with_agents = rng.random() < 0.34 + 0.5 * min(1.0, turns / 150)
    base = 22_000 * float(np.exp(0.25 * rng.standard_normal()))
    root = _Stream(rng, recipe.scale, _Ids(), base, growth=1_450, output=(560, 1.15, 32_000))
    entries: list[Call | SubAgent] = []
    certain = int(rng.integers(3, turns)) if with_agents and turns >= TURNS_WITH_AGENT else None
    t = 0.0
    agents = 0
    for turn in range(turns):
        call = root.next_call(t)
        entries.append(call)
        t = call.end
        chosen = turn == certain and not agents
        if with_agents and turn >= 3 and (rng.random() < 0.03 or chosen):
            together = 1 if rng.random() < 0.7 else int(rng.integers(2, 5))
            started = [_subagent(rng, recipe.scale, root, t, agents + i) for i in range(together)]
            agents += together
            entries += started
            t = max(agent.end for agent in started)
        t = round(t + (_tool_gap(rng) if rng.random() < 0.93 else _human_gap(rng)), 3)
    return Trace(f"synthetic-{recipe.seed}-{number:05d}", tuple(entries), (MODEL,))


def _subagent(rng: np.random.Generator, scale: Fraction, parent: _Stream, t: float, number: int) -> SubAgent:
    base = 24_000 * float(np.exp(0.4 * rng.standard_normal()))
    shared = parent.ids[: int(SHARED_PREFIX * scale) // BLOCK_SIZE]
    stream = _Stream(rng, scale, parent.source, base, growth=1_300, output=(340, 1.0, 8_000), shared=shared)
    calls = []
    start = t
    for _ in range(int(np.clip(round(_lognormal(rng, 16, 0.97)), 1, 789))):
        calls.append(stream.next_call(t))
        t = round(calls[-1].end + _tool_gap(rng), 3)
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

    def take(self, count: int) -> np.ndarray:
        first, self._next = self._next, self._next + count
        return np.arange(first, first + count, dtype=np.int64)


class _Stream:
    """One conversation that grows turn by turn; lengths are drawn at full size and scaled."""

    def __init__(
        self,
        rng: np.random.Generator,
        scale: Fraction,
        source: _Ids,
        base: float,
        *,
        growth: float,
        output: tuple[float, float, int],
        shared: np.ndarray | None = None,
    ) -> None:
        self.source = source
        self.ids = np.empty(0, dtype=np.int64) if shared is None else shared
        self._rng = rng
        self._scale = float(scale)
        self._base = base
        self._growth = growth
        self._output = output
        self._context = 0.0
        self._room = self.ids
        """Ids already written behind `ids`; prompts are views of it, so a long session costs no copies."""

    def next_call(self, t: float) -> Call:
        """The stream's next call, at time `t`."""
        rng = self._rng
        if not self._context:
            self._context = self._base
        median, sigma, most = self._output
        output = min(max(1, round(_lognormal(rng, median, sigma))), most)
        tokens = max(1, round(self._context * self._scale))
        self._set_blocks(tokens // BLOCK_SIZE)
        seconds = 1.2 + output / 75 + 0.5e-6 * self._context
        call = Call(
            t=t,
            model=MODEL,
            input_tokens=tokens,
            output_tokens=max(1, round(output * self._scale)),
            hash_ids=self.ids,
            api_time=round(seconds, 3),
        )
        self._grow(output)
        return call

    def _grow(self, output: int) -> None:
        context = self._context + output + min(_lognormal(self._rng, self._growth, 1.2), 120_000)
        chance = 0.0016 * (context / 400_000) ** 3.5 if context > COMPACTION_FROM else 0.0
        if self._rng.random() < chance or context > LONGEST_CONTEXT:
            context = self._base + 9_000
            kept = int(self._base * self._scale) // BLOCK_SIZE
            self.ids = self._room = self.ids[:kept]
        self._context = context

    def _set_blocks(self, count: int) -> None:
        if count > len(self._room):
            new = self.source.take(max(count, 2 * len(self._room)) - len(self.ids))
            self._room = np.concatenate([self.ids, new])
        self.ids = self._room[:count]


def _lognormal(rng: np.random.Generator, median: float, sigma: float) -> float:
    return median * math.exp(sigma * rng.standard_normal())


def _tool_gap(rng: np.random.Generator) -> float:
    return min(_lognormal(rng, 2.3, 1.6), LONGEST_GAP)


def _human_gap(rng: np.random.Generator) -> float:
    return min(_lognormal(rng, 120, 1.3), LONGEST_GAP)
