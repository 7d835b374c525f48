"""Fits a machine's free efficiencies to published points marked `fit`, and to no others.

Free are numbers that nobody has published; each stays within the range that its profile states. A coordinate
search: every number in turn takes the value on a grid over its range that brings the predictions closest.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from flashpoint.hardware.machine import load_machine
from flashpoint.simulate.published import Fit, Point
from flashpoint.simulate.validate import Predictor, compare

FREE = ("kernel_latency", "moe_memory_share", "math_share_fp8", "step_overhead")
FITTED_FIGURES = ("total", "output", "interactivity_mean", "interactivity_p90", "ttft_mean")
GRID = 5


def fit_group(
    points: list[Point],
    predictor: Predictor,
    *,
    seed: int,
    duration: float,
    corpus: str,
    rounds: int = 2,
    note: Callable[[str], None] = lambda text: None,
) -> Fit:
    """Fit one group's points; all must be marked `fit` and belong to one group."""
    group, hardware = points[0].group, points[0].hardware
    if any(point.use != "fit" or point.group != group for point in points):
        raise ValueError("points of one group, all marked fit")
    machine = load_machine(hardware)
    numbers = {name: machine.numbers[name].value for name in FREE}
    best = _error(points, predictor, numbers, hardware, group)
    note(f"{group}: root mean square of log ratios {best:.3f} with the profile's own numbers")
    for _ in range(rounds):
        before = dict(numbers)
        for name in FREE:
            known = machine.numbers[name]
            if known.low is None or known.high is None:
                continue
            for i in range(GRID):
                trial = {**numbers, name: known.low + (known.high - known.low) * i / (GRID - 1)}
                error = _error(points, predictor, trial, hardware, group)
                if error < best:
                    best, numbers = error, trial
            note(f"{group}: {name} {numbers[name]:.4g}, {best:.3f}")
        if numbers == before:
            break
    return Fit(
        group=group,
        hardware=hardware,
        numbers=numbers,
        points=[point.id for point in points],
        rms_log_ratio=best,
        seed=seed,
        duration=duration,
        corpus=corpus,
    )


def _error(
    points: list[Point], predictor: Predictor, numbers: dict[str, float], hardware: str, group: str
) -> float:
    """Root mean square of log(predicted / published) over the fitted figures."""
    trial = Fit(
        group=group,
        hardware=hardware,
        numbers=numbers,
        points=[],
        rms_log_ratio=0,
        seed=0,
        duration=0,
        corpus="",
    )
    logs = [
        math.log(c.ratio)
        for c in compare(points, predictor, {group: trial})
        if c.figure in FITTED_FIGURES and c.ratio
    ]
    return math.sqrt(sum(value * value for value in logs) / len(logs))
