"""`flashpoint plan`: which layouts of a number of accelerators serve a workload best, and what limits each.

Every layout that fits is played at rising concurrency. A point is kept if no other has both more throughput
and more interactivity. Short levels: a plan ranks, `flashpoint simulate` measures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from flashpoint.errors import InvalidValue
from flashpoint.hardware.machine import load_machine
from flashpoint.simulate.config import DeploymentConfig
from flashpoint.simulate.deployment import Deployment
from flashpoint.simulate.play import Outcome, Sessions, play
from flashpoint.simulate.validate import describe

SIZES = (1, 2, 4, 8, 16, 32, 64)
PREFILL_SHARES = (0.25, 0.5, 0.75)
PER_ACCELERATOR = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Target:
    """What users need: P90 interactivity in tok/s at least, P90 TTFT in s at most; None: no demand."""

    interactivity: float | None = None
    ttft: float | None = None

    def met(self, outcome: Outcome) -> bool:
        """Whether a level meets it."""
        fast = self.interactivity is None or (outcome.interactivity_p90 or 0) >= self.interactivity
        return fast and (self.ttft is None or (outcome.ttft_p90 or float("inf")) <= self.ttft)


@dataclass(frozen=True, slots=True)
class Planned:
    """One deployment at one concurrency. limit: its share of the machine's nearest physical limit."""

    config: DeploymentConfig
    outcome: Outcome
    watts: float
    price: float

    @property
    def limit(self) -> tuple[str, float]:
        """(resource, share of its physical peak) that is nearest to 1."""
        name = max(self.outcome.limits, key=self.outcome.limits.__getitem__)
        return name, self.outcome.limits[name]

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        name, share = self.limit
        return {
            "deployment": describe(self.config),
            **self.outcome.as_json(),
            "limit": name,
            "limit_share": share,
            "throughput_at_limit": self.outcome.total / share if share else None,
            "tokens_per_joule": self.outcome.total / self.watts if self.watts else None,
            "tokens_per_dollar": self.outcome.total * 3600 / self.price if self.price else None,
        }


def candidates(base: DeploymentConfig, accelerators: int) -> list[DeploymentConfig]:
    """Deployments of exactly so many accelerators: TP, DEP, and prefill/decode splits of DEP. Raises
    InvalidValue, with the reason of the last refusal, when none fits."""
    found: list[DeploymentConfig] = []
    refusals: list[str] = []
    for changes in _shapes(accelerators):
        config = dataclasses.replace(base, **changes)
        try:
            Deployment(config)
        except InvalidValue as error:
            refusals.append(str(error))
        else:
            found.append(config)
    if not found:
        raise InvalidValue(
            "accelerators", accelerators, f"enough for a layout; the last refusal: {refusals[-1]}"
        )
    return found


def _shapes(accelerators: int) -> Iterator[dict[str, Any]]:
    sizes = [size for size in SIZES if size <= accelerators and not accelerators % size]
    for size in sizes:
        yield {"layout": f"TP{size}", "replicas": accelerators // size}
        if size > 1:
            yield {"layout": f"DEP{size}", "replicas": accelerators // size}
    for share in PREFILL_SHARES:
        prefill = round(accelerators * share)
        decode = accelerators - prefill
        for small in (size for size in SIZES if size > 1 and prefill and not prefill % size and size <= 8):
            for wide in (size for size in SIZES if size > 1 and decode and not decode % size):
                yield {
                    "layout": f"DEP{wide}",
                    "replicas": decode // wide,
                    "prefill_layout": f"DEP{small}",
                    "prefill_replicas": prefill // small,
                }


def search(
    base: DeploymentConfig,
    accelerators: int,
    sessions: Sessions,
    duration: float,
    seed: int,
    on_point: Callable[[Planned, int, int], None] = lambda planned, done, of: None,
) -> list[Planned]:
    """Every candidate at rising concurrency, until more sessions bring neither throughput nor speed."""
    machine = load_machine(base.hardware).at(base.end)
    configs = candidates(base, accelerators)
    found: list[Planned] = []
    for done, config in enumerate(configs):
        best = 0.0
        for per in PER_ACCELERATOR:
            outcome = play(Deployment(config), sessions, per * accelerators, duration, seed=seed)
            planned = Planned(config, outcome, machine.watts, machine.price)
            found.append(planned)
            on_point(planned, done, len(configs))
            if outcome.total < 1.02 * best:
                break
            best = outcome.total
    return found


def pareto(found: list[Planned]) -> list[Planned]:
    """Points that no other beats in both throughput and P90 interactivity, fastest first."""
    kept: list[Planned] = []
    for planned in sorted(found, key=lambda p: (-(p.outcome.interactivity_p90 or 0), -p.outcome.total)):
        if not kept or planned.outcome.total > kept[-1].outcome.total:
            kept.append(planned)
    return kept


def best(found: list[Planned], target: Target) -> Planned | None:
    """The highest throughput that meets the target; None when nothing does."""
    meeting = [planned for planned in found if target.met(planned.outcome)]
    return max(meeting, key=lambda p: p.outcome.total, default=None)
