"""How much of a figure is chance: intervals from resampled sessions.

The sessions that happened to be played, not single requests, are what another run would draw anew: requests
of one session resemble each other. So whole plays of sessions are drawn with replacement, and every figure is
computed again from what was drawn (a cluster bootstrap). Runs that were not repeated hide what differs from
run to run; the interval then is a lower bound of the real uncertainty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashpoint.agentx import metrics
from flashpoint.agentx.curves.curve import Axis, Curve, Point, Sample
from flashpoint.agentx.curves.frontier import frontier
from flashpoint.agentx.curves.interpolation import Interpolation

RESAMPLES = 200
COVERAGE = 0.95
SEED = 0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """The middle 95 % of a figure over the resamples."""

    low: float
    high: float
    resamples: int
    """How many of the resamples gave the figure at all."""


def interval(values: Sequence[float]) -> Interval | None:
    """The interval of resampled figures; None where there are none."""
    if not len(values):
        return None
    tail = (1 - COVERAGE) / 2 * 100
    low, high = np.percentile(np.asarray(values), [tail, 100 - tail])
    return Interval(float(low), float(high), len(values))


class ResampledLevel:
    """The arrays of one level that resampling needs, by play of a session."""

    def __init__(self, sample: Sample) -> None:
        done = metrics.successful(sample.records)
        plays = {key: i for i, key in enumerate(dict.fromkeys((r.session, r.play) for r in done))}
        play = np.array([plays[r.session, r.play] for r in done], dtype=np.int64)
        self.plays = len(plays)
        self._seconds = (metrics.window_seconds(sample.records) or 0.0) * sample.accelerators
        tokens = np.array([(r.prompt_tokens or 0) + (r.output_tokens or 0) for r in done], dtype=np.float64)
        self._tokens = np.bincount(play, weights=tokens, minlength=self.plays)
        self._latencies: dict[Axis, tuple[Floats, npt.NDArray[np.int64]]] = {
            "p90": _sorted([metrics.inter_token_latency(r) for r in done], play),
            "e2e": _sorted(
                [metrics.request_latency(r) / r.output_tokens if r.output_tokens else None for r in done],
                play,
            ),
        }

    def draw(self, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """How often each play is drawn."""
        return np.bincount(rng.integers(0, self.plays, self.plays), minlength=self.plays)

    def total(self, counts: npt.NDArray[np.int64]) -> float:
        """Total throughput of a draw, tokens/s per accelerator; the window stays that of the level."""
        return float(self._tokens @ counts) / self._seconds if self._seconds else 0.0

    def latencies(self, counts: npt.NDArray[np.int64], axis: Axis) -> Floats:
        """Sorted seconds per token of a draw."""
        values, play = self._latencies[axis]
        return np.repeat(values, counts[play])


def _sorted(
    values: Sequence[float | None], play: npt.NDArray[np.int64]
) -> tuple[Floats, npt.NDArray[np.int64]]:
    known = np.array([value is not None for value in values], dtype=bool)
    numbers = np.array([value for value in values if value is not None], dtype=np.float64)
    order = np.argsort(numbers, kind="stable")
    return numbers[order], play[known][order] if len(values) else play


class ResampledCurve:
    """A curve that can be drawn anew; points without records stay as they are."""

    def __init__(self, curve: Curve) -> None:
        self._curve = curve
        self._levels = [[ResampledLevel(sample) for sample in point.samples] for point in curve.points]
        self.has_records = any(level.plays for levels in self._levels for level in levels)

    def draw(self, rng: np.random.Generator, axis: Axis) -> Interpolation | None:
        """The interpolation through the frontier of one draw."""
        points = [
            self._draw_point(point, levels, rng, axis)
            for point, levels in zip(self._curve.points, self._levels, strict=True)
        ]
        knots = frontier(points, lambda p: p[0], lambda p: p[1])
        return Interpolation([x for x, _ in knots if x], [y for _, y in knots if y]) if knots else None

    def _draw_point(
        self, point: Point, levels: Sequence[ResampledLevel], rng: np.random.Generator, axis: Axis
    ) -> tuple[float | None, float | None]:
        levels = [level for level in levels if level.plays]
        if not levels:
            return point.x.get(axis), point.total
        draws = [(level, level.draw(rng)) for level in levels]
        latencies = np.concatenate([level.latencies(counts, axis) for level, counts in draws])
        latency = metrics.percentile(latencies, 90)
        total = sum(level.total(counts) for level, counts in draws) / len(draws)
        return (1 / latency if latency else None), total or None


def point_intervals(point: Point, resamples: int = RESAMPLES) -> dict[str, Interval | None]:
    """Intervals of a point's total throughput and of both its speeds."""
    curve = ResampledCurve(Curve("", (point,)))
    found: dict[str, list[float]] = {"total": [], "p90": [], "e2e": []}
    axes: tuple[Axis, Axis] = ("p90", "e2e")
    for axis in axes:
        rng = np.random.default_rng(SEED)
        for _ in range(resamples if curve.has_records else 0):
            drawn = curve.draw(rng, axis)
            if drawn is not None:
                found[axis].append(drawn.xs[0])
                if axis == "p90":
                    found["total"].append(drawn.ys[0])
    return {name: interval(values) for name, values in found.items()}
