"""Plans, validations and machines as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from flashpoint.agentx.table import number
from flashpoint.hardware.calibrate import Calibration
from flashpoint.hardware.curve_fit import Residual
from flashpoint.hardware.machine import NUMBERS, Machine
from flashpoint.simulate.plan import Planned
from flashpoint.simulate.validate import Compared, describe, medians


def plan_table(planned: Sequence[Planned], marked: Planned | None) -> Table:
    """The Pareto set; `marked` is the one that meets the target."""
    table = Table(box=None, header_style="bold")
    for title in ("", "deployment", "sessions", "tok/s", "P90 tok/s", "P90 TTFT ms", "hit", "binding"):
        table.add_column(title, justify="left" if title in ("", "deployment", "binding") else "right")
    table.add_column("of physical limit")
    for point in planned:
        o = point.outcome
        name, share = point.limit
        table.add_row(
            "*" if point is marked else "",
            describe(point.config),
            str(o.lanes),
            number(o.total),
            number(o.interactivity_p90),
            number(None if o.ttft_p90 is None else o.ttft_p90 * 1000),
            "–" if o.hit_share is None else f"{o.hit_share:.1%}",
            o.binding or "–",
            f"{share:.0%} of {name}",
        )
    return table


def validation_table(compared: Sequence[Compared]) -> Table:
    """Published against predicted."""
    table = Table(box=None, header_style="bold")
    for title in ("point", "use", "figure", "published", "predicted", "ratio", "deployment"):
        numeric = title in ("published", "predicted", "ratio")
        table.add_column(title, justify="right" if numeric else "left")
    for c in compared:
        table.add_row(
            c.point.id,
            c.point.use,
            c.figure,
            number(c.published),
            number(c.predicted),
            "–" if c.ratio is None else f"{c.ratio:.2f}",
            c.deployment,
        )
    return table


def medians_table(compared: Sequence[Compared]) -> Table:
    """Median and worst ratio per hardware, engine and use."""
    table = Table(box=None, header_style="bold")
    for title in ("hardware and engine", "use", "figures", "median ratio", "worst factor"):
        table.add_column(title, justify="left" if title in ("hardware and engine", "use") else "right")
    for group, use, count, median, worst in medians(compared):
        table.add_row(group, use, str(count), f"{median:.2f}", f"{worst:.2f}")
    return table


def machine_table(machine: Machine) -> Table:
    """Every number of a machine, with range, kind and source."""
    table = Table(box=None, header_style="bold", title=machine.name)
    for title in ("number", "value", "low", "high", "kind", "source"):
        table.add_column(title, justify="right" if title in ("value", "low", "high") else "left")
    for name in NUMBERS:
        n = machine.numbers[name]
        low, high = ("" if v is None else f"{v:.4g}" for v in (n.low, n.high))
        table.add_row(name, f"{n.value:.4g}", low, high, n.kind, n.source)
    return table


def machines_table(machines: Sequence[tuple[str, Machine]]) -> Table:
    """The machines that come with flashpoint."""
    table = Table(box=None, header_style="bold")
    for title in (
        "name",
        "machine",
        "FP4 PF",
        "FP8 PF",
        "memory GB",
        "TB/s",
        "link GB/s",
        "domain",
        "W",
        "$/h",
    ):
        table.add_column(title, justify="left" if title in ("name", "machine") else "right")
    for name, m in machines:
        table.add_row(
            name,
            m.name,
            f"{m.fp4 / 1e15:.3g}" if m.fp4 else "–",
            f"{m.fp8 / 1e15:.3g}",
            f"{m.memory / 1e9:.0f}",
            f"{m.memory_bandwidth / 1e12:.3g}",
            f"{m.link_bandwidth / 1e9:.0f}",
            str(m.domain),
            f"{m.watts:.0f}",
            f"{m.price:.2f}",
        )
    return table


def calibration_table(found: Calibration) -> Table:
    """What was fitted, beside what the profile says."""
    table = Table(box=None, header_style="bold")
    for title in ("number", "profile", "fitted", "table"):
        table.add_column(title, justify="right" if title in ("profile", "fitted") else "left")
    for name, fitted in found.numbers.items():
        table.add_row(name, f"{getattr(found.machine, name):.3g}", f"{fitted.value:.3g}", fitted.source)
    return table


def residuals_table(residuals: Sequence[Residual]) -> Table:
    """How far fits are off: the median, and what 90 % stay below."""
    table = Table(box=None, header_style="bold")
    for title in ("fit of", "points", "median", "90 % within"):
        table.add_column(title, justify="left" if title == "fit of" else "right")
    for off in residuals:
        table.add_row(off.what, f"{off.points:,}", f"{off.median:+.1%}", f"{off.p90:.1%}")
    return table
