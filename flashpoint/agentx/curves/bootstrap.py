"""How much of a figure is chance: intervals from resampled sessions.

The sessions that happened to be played, not single requests, are what another run would draw anew: requests
of one session resemble each other. So whole plays of sessions are drawn with replacement, and every figure is
computed again from what was drawn (a cluster bootstrap). Runs that were not repeated hide what differs from
run to run; the interval then is a lower bound of the real uncertainty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flashpoint.agentx import metrics
from flashpoint.agentx.curves.curve import Axis, Curve, Point
from flashpoint.agentx.curves.frontier import frontier
from flashpoint.agentx.curves.interpolation import Interpolation
from flashpoint.agentx.records import RequestRecord

RESAMPLES = 200
COVERAGE = 0.95
SEED = 0
RATES = {
    "total": "total_throughput",
    "output": "output_throughput",
    "uncached": "uncached_input_throughput",
}
SPEEDS = {"p90": "interactivity_p90", "e2e": "e2e_normalised_interactivity_p90"}

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

    def __init__(self, records: Sequence[RequestRecord], accelerators: int) -> None:
        done = metrics.successful(records)
        plays = {key: i for i, key in enumerate(dict.fromkeys((r.session, r.play) for r in done))}
        play = np.array([plays[r.session, r.play] for r in done], dtype=np.int64)
        self.plays = len(plays)
        self._seconds = (metrics.window_seconds(records) or 0.0) * accelerators
        prompt, output = [r.prompt_tokens for r in done], [r.output_tokens for r in done]
        cached = [r.cached_tokens or 0 for r in done]
        knows_cached = any(r.cached_tokens is not None for r in done)
        both = list(zip(prompt, output, cached, strict=True))
        uncached = [p - c if p is not None and knows_cached else None for p, _, c in both]
        total = [p + o if p is not None and o is not None else None for p, o, _ in both]
        self._tokens = {
            name: self._per_play(values, play)
            for name, values in (("total", total), ("output", output), ("uncached", uncached))
        }
        per_token = [metrics.request_latency(r) / r.output_tokens if r.output_tokens else None for r in done]
        self._latencies = {
            "p90": _sorted([metrics.inter_token_latency(r) for r in done], play),
            "e2e": _sorted(per_token, play),
            "ttft": _sorted([r.ttft for r in done], play),
        }

    def _per_play(self, values: Sequence[int | None], play: npt.NDArray[np.int64]) -> Floats | None:
        known = [value for value in values if value is not None]
        if len(known) < len(values) or not known:
            return None
        weights = np.asarray(known, dtype=np.float64)
        return np.bincount(play, weights=weights, minlength=self.plays).astype(np.float64)

    def draw(self, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """How often each play is drawn."""
        return np.bincount(rng.integers(0, self.plays, self.plays), minlength=self.plays)

    def rate(self, counts: npt.NDArray[np.int64], name: str = "total") -> float | None:
        """A throughput of a draw, tokens/s per accelerator; the window stays that of the level."""
        tokens = self._tokens[name]
        return float(tokens @ counts) / self._seconds if tokens is not None and self._seconds else None

    def latencies(self, counts: npt.NDArray[np.int64], name: str) -> Floats:
        """Seconds per token (`p90`, `e2e`) or to the first one (`ttft`) of a draw, sorted."""
        values, play = self._latencies[name]
        return np.repeat(values, counts[play])


def _sorted(
    values: Sequence[float | None], play: npt.NDArray[np.int64]
) -> tuple[Floats, npt.NDArray[np.int64]]:
    known = np.array([value is not None for value in values], dtype=bool)
    numbers = np.array([value for value in values if value is not None], dtype=np.float64)
    order = np.argsort(numbers, kind="stable")
    return numbers[order], play[known][order] if len(values) else play


def level_intervals(
    records: Sequence[RequestRecord], accelerators: int, resamples: int = RESAMPLES
) -> dict[str, Interval]:
    """Intervals of a level's headline figures, by the names they have in a summary."""
    level = ResampledLevel(records, accelerators)
    found: dict[str, list[float]] = defaultdict(list)
    rng = np.random.default_rng(SEED)
    for _ in range(resamples if level.plays > 1 else 0):
        counts = level.draw(rng)
        for name, figure in RATES.items():
            if (rate := level.rate(counts, name)) is not None:
                found[figure].append(rate)
        for name, figure in SPEEDS.items():
            if latency := metrics.percentile(level.latencies(counts, name), 90):
                found[figure].append(1 / latency)
        if ttft := metrics.percentile(level.latencies(counts, "ttft"), 90):
            found["ttft_p90"].append(ttft)
    return {name: made for name, values in found.items() if (made := interval(values)) is not None}


class ResampledCurve:
    """A curve that can be drawn anew; points without records stay as they are."""

    def __init__(self, curve: Curve) -> None:
        self._curve = curve
        self._levels = [
            [ResampledLevel(sample.records, sample.accelerators) for sample in point.samples]
            for point in curve.points
        ]
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
        totals = [total for level, counts in draws if (total := level.rate(counts)) is not None]
        return (1 / latency if latency else None), sum(totals) / len(totals) if totals else None
