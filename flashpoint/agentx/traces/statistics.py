"""What a corpus is like: lengths, waits, sub-agents, and how much of its prompts a perfect cache would hold.

Source: the project's spec, agentx.md section 8. One session is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flashpoint.agentx.traces.format import Trace
from flashpoint.agentx.traces.streams import Session, build_session

PERCENTILES = (10, 50, 75, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Percentiles (linear interpolation), mean and extremes of a quantity."""

    count: int
    mean: float
    minimum: float
    maximum: float
    percentiles: dict[int, float]


@dataclass(frozen=True, slots=True)
class CorpusStatistics:
    """The table of spec section 8; a distribution is None where there is nothing to count."""

    sessions: int
    requests: int
    root_requests: int
    input_tokens: int
    output_tokens: int
    distributions: dict[str, Distribution | None]
    sessions_with_subagents: int
    subagent_groups: int
    theoretical_hit_blocks: int
    theoretical_blocks: int

    @property
    def theoretical_hit(self) -> float | None:
        """Share of blocks that an infinite cache per session would hold (spec section 4)."""
        return self.theoretical_hit_blocks / self.theoretical_blocks if self.theoretical_blocks else None

    def as_json(self) -> dict[str, Any]:
        """The same facts as plain data."""
        shapes = {
            name: None
            if shape is None
            else {
                "count": shape.count,
                "mean": shape.mean,
                "min": shape.minimum,
                "max": shape.maximum,
                **{f"p{p}": value for p, value in shape.percentiles.items()},
            }
            for name, shape in self.distributions.items()
        }
        names = [name for name in self.__slots__ if name != "distributions"]
        return {name: getattr(self, name) for name in names} | {
            "theoretical_hit": self.theoretical_hit,
            "distributions": shapes,
        }


def distribution(values: npt.ArrayLike) -> Distribution | None:
    """The distribution of `values`; None without values."""
    array = np.asarray(values, dtype=np.float64)
    if not len(array):
        return None
    found = np.percentile(array, PERCENTILES)
    return Distribution(
        len(array),
        float(array.mean()),
        float(array.min()),
        float(array.max()),
        {p: float(value) for p, value in zip(PERCENTILES, found, strict=True)},
    )


class _Collector:
    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {
            name: []
            for name in (
                "input tokens",
                "output tokens",
                "think time, s",
                "turns per session",
                "entries per session",
                "requests per session",
                "groups per session with sub-agents",
                "calls per group",
                "group duration, s",
            )
        }
        self.hit = self.blocks = self.with_subagents = self.root = 0

    def add(self, session: Session) -> None:
        trace = session.trace
        calls = list(trace.calls())
        roots, agents = trace.root_calls, trace.subagents
        self.values["input tokens"] += [call.input_tokens for call in calls]
        self.values["output tokens"] += [call.output_tokens for call in calls]
        for stream in session.streams:
            self.values["think time, s"] += [t.delay for t in stream.turns if t.delay is not None]
        self.values["turns per session"].append(len(roots))
        self.values["entries per session"].append(len(trace.entries))
        self.values["requests per session"].append(len(calls))
        if agents:
            self.with_subagents += 1
            self.values["groups per session with sub-agents"].append(len(agents))
            self.values["calls per group"] += [len(agent.calls) for agent in agents]
            self.values["group duration, s"] += [agent.end - agent.t for agent in agents]
        hit, blocks = session.theoretical_hit()
        self.hit += hit
        self.blocks += blocks
        self.root += len(roots)


def corpus_statistics(traces: Iterable[Trace]) -> CorpusStatistics:
    """The statistics of `traces`. Think time is the wait from the end of a stream's call to its next one."""
    found = _Collector()
    for trace in traces:
        found.add(build_session(trace))
    values = found.values
    return CorpusStatistics(
        sessions=len(values["turns per session"]),
        requests=len(values["input tokens"]),
        root_requests=found.root,
        input_tokens=int(sum(values["input tokens"])),
        output_tokens=int(sum(values["output tokens"])),
        distributions={name: distribution(each) for name, each in values.items()},
        sessions_with_subagents=found.with_subagents,
        subagent_groups=len(values["calls per group"]),
        theoretical_hit_blocks=found.hit,
        theoretical_blocks=found.blocks,
    )
