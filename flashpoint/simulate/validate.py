"""`flashpoint validate`: every published point whose configuration is known, predicted and compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flashpoint.hardware.machine import End, Machine, Number, load_machine
from flashpoint.simulate.config import DeploymentConfig
from flashpoint.simulate.deployment import Deployment
from flashpoint.simulate.play import Outcome, Sessions, play
from flashpoint.simulate.published import Figures, Fit, Point

SWEEP = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512)
"""Sessions per accelerator at most, for points whose concurrency was not published."""
FIGURES = tuple(Figures.model_fields)


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of one point: published, predicted (None: not reached), in which deployment."""

    point: Point
    figure: str
    published: float
    predicted: float | None
    deployment: str
    lanes: int | None

    @property
    def ratio(self) -> float | None:
        """predicted / published."""
        return None if self.predicted is None else self.predicted / self.published

    @property
    def miss(self) -> float | None:
        """How far off, as a factor of at least 1, whichever way."""
        return None if not self.ratio else max(self.ratio, 1 / self.ratio)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "id": self.point.id,
            "use": self.point.use,
            "group": self.point.group,
            "figure": self.figure,
            "published": self.published,
            "predicted": self.predicted,
            "ratio": self.ratio,
            "deployment": self.deployment,
            "lanes": self.lanes,
            "source": self.point.source,
        }


class Predictor:
    """Plays deployments, each level once."""

    def __init__(self, sessions: Sessions, duration: float, seed: int, end: End = "middle") -> None:
        self._sessions = sessions
        self._duration = duration
        self._seed = seed
        self._end = end
        self._known: dict[tuple[DeploymentConfig, int, tuple[tuple[str, float], ...]], Outcome] = {}

    def predict(self, config: DeploymentConfig, lanes: int, fitted: dict[str, float]) -> Outcome:
        """The outcome of a level, with some of the machine's numbers fitted."""
        key = (config, lanes, tuple(sorted(fitted.items())))
        if key not in self._known:
            machine = with_numbers(load_machine(config.hardware).at(self._end), fitted)
            deployment = Deployment(config, machine)
            self._known[key] = play(deployment, self._sessions, lanes, self._duration, seed=self._seed)
        return self._known[key]


def with_numbers(machine: Machine, fitted: dict[str, float]) -> Machine:
    """The machine with fitted numbers."""
    source = "fit on published points"
    return machine.with_numbers(
        {name: Number(value=value, kind="measured", source=source) for name, value in fitted.items()}
    )


def compare(
    points: list[Point],
    predictor: Predictor,
    fits: dict[str, Fit],
    on_point: Callable[[Point], None] = lambda point: None,
) -> Iterator[Compared]:
    """Every figure of every point."""
    for point in points:
        on_point(point)
        fit = fits.get(point.group)
        fitted = {} if fit is None else fit.numbers
        if point.concurrency is not None:
            yield from _at_concurrency(point, predictor, fitted)
        else:
            yield from _at_speed(point, predictor, fitted)


def _at_concurrency(point: Point, predictor: Predictor, fitted: dict[str, float]) -> Iterator[Compared]:
    assert point.concurrency is not None
    configs = point.configs()
    outcomes = [predictor.predict(config, point.concurrency, fitted) for config in configs]
    for figure in FIGURES:
        published = getattr(point.published, figure)
        if published is None:
            continue
        name = "interactivity_mean" if figure == "single" else figure
        values = [(getattr(o, name), config) for o, config in zip(outcomes, configs, strict=True)]
        known = [(value, config) for value, config in values if value]
        if known:
            # Of several candidates the nearest: the published one is unknown.
            value, config = min(known, key=lambda pair: abs(math.log(pair[0] / published)))
            yield Compared(point, figure, published, value, describe(config), point.concurrency)
        else:
            yield Compared(point, figure, published, None, describe(configs[0]), point.concurrency)


def _at_speed(point: Point, predictor: Predictor, fitted: dict[str, float]) -> Iterator[Compared]:
    """For every candidate the highest throughput at the published P90 interactivity, or at any."""
    wanted, published = point.published.interactivity_p90, point.published.total or 0.0
    for config in point.configs():
        best: tuple[float, int] | None = None
        before: Outcome | None = None
        for per in SWEEP:
            now = predictor.predict(config, per * config.accelerators, fitted)
            if wanted is not None and (now.interactivity_p90 or 0.0) < wanted:
                if before is not None:
                    best = between(before, now, wanted), now.lanes
                break
            grown = before is None or now.total >= 1.05 * before.total
            best = max(best or (0.0, 0), (now.total, now.lanes))
            if wanted is None and not grown:
                break
            before = now
        predicted, lanes = best or (None, None)
        yield Compared(point, "total", published, predicted, describe(config), lanes)


def between(fast: Outcome, slow: Outcome, speed: float) -> float:
    """Throughput at a P90 interactivity between those of two levels, linear in both."""
    a, b = fast.interactivity_p90 or 0.0, slow.interactivity_p90 or 0.0
    share = (a - speed) / (a - b) if a > b else 0.0
    return fast.total + share * (slow.total - fast.total)


def describe(config: DeploymentConfig) -> str:
    """A deployment in a few words."""
    serving = f"{config.replicas} x {config.layout}" if config.replicas > 1 else config.layout
    if config.prefill_layout is None:
        return serving
    return f"{config.prefill_replicas} x {config.prefill_layout} prefill, {serving} decode"


def medians(compared: Sequence[Compared]) -> Sequence[tuple[str, str, int, float, float]]:
    """(group, use, figures, median ratio, worst factor) of what was compared."""
    rows = []
    for group, use in sorted({(c.point.group, c.point.use) for c in compared}):
        members = [c for c in compared if (c.point.group, c.point.use) == (group, use)]
        ratios = sorted(c.ratio for c in members if c.ratio)
        if not ratios:
            continue
        middle = len(ratios) // 2
        median = ratios[middle] if len(ratios) % 2 else math.sqrt(ratios[middle - 1] * ratios[middle])
        rows.append((group, use, len(ratios), median, max(max(r, 1 / r) for r in ratios)))
    return rows
