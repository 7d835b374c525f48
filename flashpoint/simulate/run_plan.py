"""Runs a plan: progress, the target, the budget, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Console

from flashpoint.agentx.progress import OnEvent
from flashpoint.agentx.table import number
from flashpoint.agentx.traces.corpus import open_corpus
from flashpoint.errors import InvalidValue
from flashpoint.hardware.machine import load_machine
from flashpoint.simulate.config import DeploymentConfig, PlanConfig
from flashpoint.simulate.plan import Planned, Target, best, pareto, search
from flashpoint.simulate.play import Sessions
from flashpoint.simulate.validate import describe


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The Pareto set, and the point of it that meets the target with the most throughput."""

    pareto: list[Planned]
    best: Planned | None
    verdict: str

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "pareto": [planned.as_json() for planned in self.pareto],
            "best": None if self.best is None else self.best.as_json(),
            "verdict": self.verdict,
        }


def run_plan(
    config: PlanConfig,
    base: DeploymentConfig,
    console: Console,
    on_event: OnEvent = lambda event: None,
) -> PlanResult:
    """Search, showing each point as it comes, to `on_event` as plain data.

    Raises InvalidValue for a budget that buys nothing.
    """
    machine = load_machine(base.hardware)
    count = within_budget(config, machine.watts, machine.price)
    if count < config.accelerators:
        console.print(f"the budget pays for {count} of {config.accelerators} accelerators")
    sessions = Sessions(open_corpus(config.corpus).first(config.max_sessions))

    def show(planned: Planned, done: int, of: int) -> None:
        o = planned.outcome
        on_event({"event": "level_ended", "candidate": done + 1, "candidates": of, **planned.as_json()})
        console.print(
            f"{done + 1}/{of} {describe(planned.config)}, {o.lanes} sessions: {number(o.total)} tok/s per "
            f"accelerator at P90 {number(o.interactivity_p90)}",
            highlight=False,
        )

    found = search(base, count, sessions, config.duration, config.seed, show)
    target = Target(config.interactivity, config.ttft)
    chosen = best(found, target)
    kept = pareto(found)
    if chosen is not None and chosen not in kept:
        kept = sorted([*kept, chosen], key=lambda p: -(p.outcome.interactivity_p90 or 0))
    return PlanResult(kept, chosen, verdict(chosen, target, count))


def within_budget(config: PlanConfig, watts: float, price: float) -> int:
    """Accelerators that power and price allow. Raises InvalidValue when not even one."""
    count = config.accelerators
    for name, limit, each in (
        ("kilowatts", config.kilowatts, watts / 1000),
        ("dollars", config.dollars, price),
    ):
        if limit is not None:
            if not each:
                raise InvalidValue(name, limit, "none: the machine's profile does not say what one takes")
            count = min(count, int(limit / each))
            if not count:
                raise InvalidValue(name, limit, f"at least {each:.3g}, one accelerator")
    return count


def verdict(chosen: Planned | None, target: Target, accelerators: int) -> str:
    """The answer in a sentence."""
    if chosen is None:
        return f"no layout of {accelerators} accelerators meets the target"
    o = chosen.outcome
    name, share = chosen.limit
    return (
        f"{describe(chosen.config)} with {o.lanes} sessions: {number(o.total)} tok/s per accelerator, "
        f"{_per(o.total * 1000, chosen.watts)} per kW, {_per(o.total * 3600, chosen.price)} per $; "
        f"most time goes into {o.binding}; the nearest physical limit, {name}, is used to {share:.0%}"
    )


def _per(value: float, cost: float) -> str:
    return number(value / cost if cost else None)
