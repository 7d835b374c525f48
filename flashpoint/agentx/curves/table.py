"""Comparisons and claims in words and numbers, as the command line prints them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from flashpoint.agentx.curves.bootstrap import Interval
from flashpoint.agentx.curves.claim import Claim, Statement
from flashpoint.agentx.curves.compare import HIT_DIFFERENCE, HOLDS_WITHIN, Comparison, Side
from flashpoint.agentx.curves.curve import AXIS_NAMES, Point
from flashpoint.agentx.table import ABSENT, number, share

KINDS = {
    "follows": "what follows by arithmetic",
    "inconsistent": "what is inconsistent",
    "missing": "what is missing to check it",
}


def render_comparison(found: Comparison) -> Group:
    """The ratio first, then what it rests on."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column(f"A: {found.a.name}", justify="right", overflow="fold")
    table.add_column(f"B: {found.b.name}", justify="right", overflow="fold")
    table.add_column("A / B", justify="right")
    for label, cells, ratio in _rows(found):
        table.add_row(label, *cells, _ratio(ratio))
    return Group(Text(_headline(found)), table, *(Text(line) for line in _notes(found)))


def render_claim(claim: Claim, statements: Sequence[Statement]) -> Group:
    """What follows, what contradicts, what is missing."""
    lines = [Text(claim.sentence, style="bold")]
    for kind, title in KINDS.items():
        found = [s for s in statements if s.kind == kind]
        lines.append(Text(f"\n{title}:" if found else f"\n{title}: nothing"))
        lines += [Text(f"  - {statement.text}") for statement in found]
    if claim.workload is not None:
        lines.append(Text(f"\nworkload assumed: {claim.workload.source}"))
    return Group(*lines)


def _headline(found: Comparison) -> str:
    where = f"at {found.at:.4g} {AXIS_NAMES[found.axis]}" if found.at is not None else ""
    if found.ratio is None:
        return f"no ratio {where}: " + "; ".join(found.reasons or ("a throughput is not known",))
    spread = _interval(found.ratio_interval)
    return f"A / B = {_ratio(found.ratio)}{spread} in {found.unit} {where}".rstrip()


def _rows(found: Comparison) -> list[tuple[str, tuple[str, str], float | None]]:
    a, b = found.a, found.b
    return [
        ("total tok/s per accelerator there", (_value(a), _value(b)), found.ratio),
        ("of it output", (number(a.output), number(b.output)), found.output_ratio),
        ("of it uncached prompt", (number(a.uncached), number(b.uncached)), found.uncached_ratio),
        ("cache hit share", (share(a.hit_share), share(b.hit_share)), None),
        ("load (throughput / speed)", (number(a.load), number(b.load)), None),
        ("at A's load", ("", ""), found.at_equal_load),
        ("at the peak", (number(a.peak), number(b.peak)), found.at_peak),
        ("at equal latency (other axis)", ("", ""), found.at_equal_e2e),
        ("where on the curve", (_place(a), _place(b)), None),
        ("measured range, tok/s/user", (_range(a), _range(b)), None),
        ("knots", (str(a.knots), str(b.knots)), None),
        ("forced acceptance", (number(a.acceptance), number(b.acceptance)), None),
    ]


def _notes(found: Comparison) -> list[str]:
    notes = [f"{label}: {text}" for label, side in (("A", found.a), ("B", found.b)) for text in side.notes]
    if found.holds is not None:
        low, high = found.holds
        notes.append(
            f"the ratio stays within {HOLDS_WITHIN:g}x of this one from {low:.4g} to {high:.4g} tok/s/user"
        )
    shares = found.a.hit_share, found.b.hit_share
    if shares[0] is not None and shares[1] is not None and abs(shares[0] - shares[1]) > HIT_DIFFERENCE:
        notes.append("the hit shares differ: part of the ratio is cached prompt, which costs almost nothing")
    if found.a.acceptance != found.b.acceptance:
        notes.append("the forced acceptance lengths differ or are not known for both")
    if found.ratio is not None and found.ratio_interval is None:
        notes.append("no interval: the figures come without request records")
    return notes


def _value(side: Side) -> str:
    return ABSENT if side.reading is None else number(side.reading.value)


def _place(side: Side) -> str:
    if side.reading is None:
        return ABSENT
    if side.reading.where == "interpolated":
        return f"between {_point(side.left)} and {_point(side.right)}"
    words = {"knot": "at", "clamped_low": "below", "unreachable": "beyond"}
    return f"{words[side.reading.where]} {_point(side.left)}"


def _point(point: Point | None) -> str:
    if point is None:
        return ABSENT
    return f"c={point.concurrency}" if point.concurrency is not None else point.source


def _range(side: Side) -> str:
    return ABSENT if side.range is None else f"{side.range[0]:.4g} … {side.range[1]:.4g}"


def _interval(found: Interval | None) -> str:
    if found is None:
        return ""
    return f" (95 % of {found.resamples} resamples of sessions: {found.low:.3g} … {found.high:.3g})"


def _ratio(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.3g}x"
