"""Two curves at one matched speed: the ratio, and everything that it rests on.

Source: the project's spec, agentx.md sections 7.5 to 7.8 and 10. A ratio exists only where both curves were
measured; one near the end of a curve says more about that end than about the systems, so the same ratio at
the peak, at equal load and at equal latency stands beside it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flashpoint.agentx.curves.bootstrap import RESAMPLES, SEED, Interval, ResampledCurve, interval
from flashpoint.agentx.curves.compare_config import CompareConfig
from flashpoint.agentx.curves.curve import AXIS_NAMES, Axis, Curve, Point
from flashpoint.agentx.curves.interpolation import Interpolation, Reading

GAP = 1.5
"""Neighbouring knots further apart than this, in x, leave what lies between them to the interpolation."""
HOLDS_WITHIN = 2.0
GRID = 400
HIT_DIFFERENCE = 0.02


@dataclass(frozen=True, slots=True)
class Side:
    """One curve at the matched speed."""

    name: str
    range: tuple[float, float] | None
    knots: int
    reading: Reading | None
    left: Point | None
    right: Point | None
    peak: float | None
    output: float | None
    uncached: float | None
    hit_share: float | None
    load: float | None
    """Throughput / speed: proportional to the requests in flight per accelerator on equal work."""
    acceptance: float | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A against B. A ratio is None where it does not exist; `reasons` says why."""

    axis: Axis
    at: float | None
    a: Side
    b: Side
    unit: str
    factor: float
    """What turns the ratio of throughputs into the one of `unit`."""
    ratio: float | None
    ratio_interval: Interval | None
    at_peak: float | None
    at_equal_load: float | None
    at_equal_e2e: float | None
    holds: tuple[float, float] | None
    """Speeds between which the ratio stays within a factor of 2 of the one asked for."""
    output_ratio: float | None
    uncached_ratio: float | None
    reasons: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The comparison as plain data; points by their source, speed, throughput and concurrency."""

        def point(p: Point | None, axis: Axis) -> dict[str, Any] | None:
            if p is None:
                return None
            return {"source": p.source, "x": p.x.get(axis), "total": p.total, "concurrency": p.concurrency}

        def side(s: Side) -> dict[str, Any]:
            plain = {name: getattr(s, name) for name in Side.__slots__ if name not in ("left", "right")}
            plain["reading"] = None if s.reading is None else dataclasses.asdict(s.reading)
            return plain | {"left": point(s.left, self.axis), "right": point(s.right, self.axis)}

        plain = {name: getattr(self, name) for name in Comparison.__slots__}
        spread = self.ratio_interval
        plain["ratio_interval"] = None if spread is None else dataclasses.asdict(spread)
        return plain | {"a": side(self.a), "b": side(self.b)}


def compare(a: Curve, b: Curve, config: CompareConfig) -> Comparison:
    """Compare `a` with `b` as `config` says."""
    axis = config.x_axis
    lines = a.interpolation(axis), b.interpolation(axis)
    unit, factor = _unit(config)
    if config.at_throughput is not None:
        return _at_throughput(a, b, lines, config, unit, factor)
    assert config.at is not None
    sides = _side(a, lines[0], axis, config.at), _side(b, lines[1], axis, config.at)
    ratio, reasons = _ratio(sides)
    ratio = None if ratio is None else ratio * factor
    return Comparison(
        axis=axis,
        at=config.at,
        a=sides[0],
        b=sides[1],
        unit=unit,
        factor=factor,
        ratio=ratio,
        ratio_interval=_ratio_interval(a, b, axis, config.at, factor) if ratio else None,
        at_peak=_times(_divide(sides[0].peak, sides[1].peak), factor),
        at_equal_load=_times(_at_equal_load(lines, sides[0].load), factor),
        at_equal_e2e=_times(_at_other_axis(a, b, axis, config.at), factor),
        holds=_holds(lines, config.at, ratio / factor) if ratio else None,
        output_ratio=_times(_divide(sides[0].output, sides[1].output), factor),
        uncached_ratio=_times(_divide(sides[0].uncached, sides[1].uncached), factor),
        reasons=reasons,
    )


def _unit(config: CompareConfig) -> tuple[str, float]:
    """Costs are applied to the interpolated throughput, never interpolated themselves."""
    if config.per_dollar and config.dollars_a and config.dollars_b:
        return "tokens per dollar", config.dollars_b / config.dollars_a
    if config.per_watt and config.kw_a and config.kw_b:
        return "tokens/s per MW", config.kw_b / config.kw_a
    return "total tokens/s per accelerator", 1.0


def _side(curve: Curve, line: Interpolation | None, axis: Axis, at: float) -> Side:
    knots = curve.knots(axis)
    peak = max((p.total for p in curve.points if p.total is not None), default=None)
    if line is None:
        note = f"no point has a {AXIS_NAMES[axis]} and a throughput"
        return Side(curve.name, None, 0, None, None, None, peak, None, None, None, None, None, (note,))
    reading = line.read(at)
    left, right = knots[reading.left], knots[reading.right]
    inside = reading.where in ("knot", "interpolated")
    return Side(
        name=curve.name,
        range=(line.xs[0], line.xs[-1]),
        knots=len(knots),
        reading=reading,
        left=left,
        right=right,
        peak=peak,
        output=_component(knots, axis, at, lambda p: p.output) if inside else None,
        uncached=_component(knots, axis, at, lambda p: p.uncached) if inside else None,
        hit_share=_mean_of(left.hit_share, right.hit_share) if inside else None,
        load=reading.value / at if inside and reading.value else None,
        acceptance=left.acceptance if left.acceptance == right.acceptance else None,
        notes=tuple(_notes(curve, line, reading, left, right, axis)),
    )


def _notes(
    curve: Curve, line: Interpolation, reading: Reading, left: Point, right: Point, axis: Axis
) -> list[str]:
    notes = []
    last = len(line.xs) - 1
    if reading.where == "clamped_low":
        notes.append(f"slower than its slowest point ({line.xs[0]:.4g}); that point is shown, no ratio is")
    if reading.where == "unreachable":
        notes.append(f"faster than its fastest point ({line.xs[-1]:.4g}): not reached")
    if reading.where == "knot" and reading.left == last and last:
        notes.append("at its fast end: no knot lies beyond")
    if reading.where == "interpolated":
        if reading.right == last:
            notes.append("in its last stretch: only its fastest point lies beyond")
        if line.xs[reading.right] > GAP * line.xs[reading.left]:
            notes.append(
                f"interpolated across a gap: knots at {line.xs[reading.left]:.4g} and "
                f"{line.xs[reading.right]:.4g}"
            )
    if len(line.xs) == 1:
        notes.append("one knot only: no curve")
    for point in dict.fromkeys((left, right)):
        notes += [f"{point.source}, c={point.concurrency}: {problem}" for problem in point.problems]
        if axis in point.spread:
            low, high = point.spread[axis]
            notes.append(f"c={point.concurrency}: repeats spread from {low:.4g} to {high:.4g} tok/s/user")
    if not any(point.samples and len(point.samples) > 1 for point in curve.points):
        notes.append("no point was repeated: what differs from run to run is not known")
    return list(dict.fromkeys(notes))


def _ratio(sides: tuple[Side, Side]) -> tuple[float | None, tuple[str, ...]]:
    reasons = []
    for label, side in zip("AB", sides, strict=True):
        if side.reading is None:
            reasons.append(f"{label} ({side.name}) has no curve on this axis")
        elif side.reading.where in ("clamped_low", "unreachable"):
            reasons.append(f"{label} ({side.name}) was not measured at this speed: {side.notes[0]}")
    if reasons or sides[0].reading is None or sides[1].reading is None:
        return None, tuple(reasons)
    return _divide(sides[0].reading.value, sides[1].reading.value), ()


def _component(
    knots: Sequence[Point], axis: Axis, at: float, of: Callable[[Point], float | None]
) -> float | None:
    """A part of the throughput at `at`, through the same knots; None where a knot does not know it."""
    values = [of(point) for point in knots]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return Interpolation([point.x[axis] for point in knots], known).read(at).value


def _at_equal_load(
    lines: tuple[Interpolation | None, Interpolation | None], load: float | None
) -> float | None:
    """Ratio of throughputs where both have the load (throughput / speed) that A has at the matched speed."""
    a, b = lines
    if a is None or b is None or load is None:
        return None
    return _divide(_value_at_load(a, load), _value_at_load(b, load))


def _value_at_load(line: Interpolation, load: float) -> float | None:
    """Throughput at which throughput / x equals `load`; along a frontier that ratio falls with x."""
    low, high = line.xs[0], line.xs[-1]

    def excess(x: float) -> float:
        return (line.read(x).value or 0.0) / x - load

    tolerance = 1e-9 * load
    if excess(low) < -tolerance or excess(high) > tolerance:
        return None
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return load * (low + high) / 2


def _at_other_axis(a: Curve, b: Curve, axis: Axis, at: float) -> float | None:
    """The ratio at equal latency: at the speed on the other axis that A has where it has `at` on this one."""
    other: Axis = "e2e" if axis == "p90" else "p90"
    knots = [p for p in a.knots(axis) if other in p.x]
    if len(knots) < 1:
        return None
    reading = Interpolation([p.x[axis] for p in knots], [p.x[other] for p in knots]).read(at)
    lines = a.interpolation(other), b.interpolation(other)
    if reading.value is None or reading.where == "clamped_low" or lines[0] is None or lines[1] is None:
        return None
    readings = [line.read(reading.value) for line in lines if line]
    if any(r.where in ("clamped_low", "unreachable") for r in readings):
        return None
    return _divide(readings[0].value, readings[1].value)


def _holds(
    lines: tuple[Interpolation | None, Interpolation | None], at: float, ratio: float
) -> tuple[float, float] | None:
    a, b = lines
    if a is None or b is None:
        return None
    low, high = max(a.xs[0], b.xs[0]), min(a.xs[-1], b.xs[-1])
    grid = sorted({low, high, at, *(low + (high - low) * i / GRID for i in range(GRID + 1))})

    def within(x: float) -> bool:
        value = _divide(a.read(x).value, b.read(x).value)
        return value is not None and ratio / HOLDS_WITHIN <= value <= ratio * HOLDS_WITHIN

    position = grid.index(at)
    first = last = position
    while first > 0 and within(grid[first - 1]):
        first -= 1
    while last < len(grid) - 1 and within(grid[last + 1]):
        last += 1
    return grid[first], grid[last]


def _ratio_interval(a: Curve, b: Curve, axis: Axis, at: float, factor: float) -> Interval | None:
    """The interval of the ratio over resampled sessions; None where neither curve has records."""
    curves = ResampledCurve(a), ResampledCurve(b)
    if not any(curve.has_records for curve in curves):
        return None
    rng = np.random.default_rng(SEED)
    found = []
    for _ in range(RESAMPLES):
        lines = [curve.draw(rng, axis) for curve in curves]
        readings = [line.read(at) if line else None for line in lines]
        inside = [r for r in readings if r is not None and r.where in ("knot", "interpolated")]
        if len(inside) == 2 and (ratio := _divide(inside[0].value, inside[1].value)) is not None:
            found.append(ratio * factor)
    return interval(found)


def _at_throughput(
    a: Curve,
    b: Curve,
    lines: tuple[Interpolation | None, Interpolation | None],
    config: CompareConfig,
    unit: str,
    factor: float,
) -> Comparison:
    """The ratio of speeds at one throughput; every other figure is that of the comparison at A's speed."""
    assert config.at_throughput is not None
    speeds = [_speed_at(line, config.at_throughput) if line else None for line in lines]
    reasons = tuple(
        f"{label} ({curve.name}) has no {config.at_throughput:.4g} tok/s per accelerator within its range"
        for label, curve, speed in zip("AB", (a, b), speeds, strict=True)
        if speed is None
    )
    at = speeds[0] if speeds[0] is not None else config.at_throughput
    sides = [
        _side(curve, line, config.x_axis, speed if speed is not None else at)
        for curve, line, speed in zip((a, b), lines, speeds, strict=True)
    ]
    return Comparison(
        axis=config.x_axis,
        at=None,
        a=sides[0],
        b=sides[1],
        unit=f"tok/s/user at {config.at_throughput:.4g} total tokens/s per accelerator",
        factor=1.0,
        ratio=_divide(speeds[0], speeds[1]) if not reasons else None,
        ratio_interval=None,
        at_peak=_times(_divide(sides[0].peak, sides[1].peak), factor),
        at_equal_load=None,
        at_equal_e2e=None,
        holds=None,
        output_ratio=_divide(sides[0].output, sides[1].output),
        uncached_ratio=_divide(sides[0].uncached, sides[1].uncached),
        reasons=reasons,
    )


def _speed_at(line: Interpolation, throughput: float) -> float | None:
    """The speed at which a frontier has `throughput`; it falls with x. None outside what was measured."""
    if not min(line.ys) <= throughput <= max(line.ys):
        return None
    low, high = line.xs[0], line.xs[-1]
    for _ in range(100):
        middle = (low + high) / 2
        value = line.read(middle).value or 0.0
        low, high = (middle, high) if value > throughput else (low, middle)
    return (low + high) / 2


def _mean_of(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else (a + b) / 2


def _divide(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
