"""What the engine did with its time: steps that carry prefill, steps that only decode, and none.

What steps asked of the machine, and their shares of its limits, are those of the archive (`STEPS_SCHEMA`).
Sums are over all engines and divided by the seconds of all of them, so a rate is that of one accelerator, the
busiest one of each replica.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flashpoint.agentx.archive import LevelInfo
from flashpoint.agentx.metrics import percentile
from flashpoint.agentx.report.columns import Flags, Floats
from flashpoint.agentx.report.encode import rounded_list
from flashpoint.agentx.report.slices import Slices
from flashpoint.agentx.step_rows import LIMITS

RATES = ("flops", "memory_bytes", "link_bytes", "host_bytes")
"""Counts that are shown per second of steps."""

_COLUMNS = ("start", "seconds", "prefill_tokens", "decode_tokens", "steps", "rank", *RATES)


@dataclass(frozen=True)
class StepKind:
    """The steps of one kind at one level."""

    name: str
    steps: int
    seconds: float
    time_share: float
    """Of the level's whole time. Unit: share of 1."""
    prefill_tokens: int
    decode_tokens: int
    tokens_per_step_p50: float | None
    tokens_per_step_p90: float | None
    rates: dict[str, float | None]
    """By `RATES`: FLOP/s and bytes/s while in such a step; None where nobody counted."""
    shares: dict[str, float | None]
    """By `LIMITS`: seconds that the work would take at the machine's peak over those it took; None where the
    machine is not known. Unit: share of 1."""
    nearest: dict[str, float | None]
    """By `LIMITS`: part of the time of such steps in which this limit was the nearest. Unit: share of 1."""


@dataclass(frozen=True)
class LevelSteps:
    """The steps of one level; `idle_share` is the part of the level's time with no step in it."""

    level: int
    kinds: tuple[StepKind, ...]
    idle_share: float
    counted: bool
    """Whether there are `rates`."""
    limited: bool
    """Whether there are `shares`."""


def level_steps(table: pa.Table | None, info: LevelInfo) -> LevelSteps | None:
    """The steps of one level by kind; None where the archive has none of it."""
    own = _columns(table, info)
    if own is None or info.end <= info.start:
        return None
    seconds, prefill, decode, steps = (
        own[name] for name in ("seconds", "prefill_tokens", "decode_tokens", "steps")
    )
    # Engines that run beside each other each have the level's whole time.
    whole = (info.end - info.start) * len(np.unique(own["rank"]))
    nearest = _nearest(own)
    kinds = []
    for name, chosen in (("with prefill", prefill > 0), ("decode only", prefill == 0), ("all", seconds >= 0)):
        tokens = np.repeat((prefill + decode)[chosen], steps[chosen].astype(np.int64))
        kinds.append(
            StepKind(
                name=name,
                steps=int(steps[chosen].sum()),
                seconds=float(seconds[chosen].sum()),
                time_share=float(seconds[chosen].sum()) / whole,
                prefill_tokens=int((steps * prefill)[chosen].sum()),
                decode_tokens=int((steps * decode)[chosen].sum()),
                tokens_per_step_p50=percentile(tokens, 50),
                tokens_per_step_p90=percentile(tokens, 90),
                rates={rate: _per_second(own[rate], seconds, chosen) for rate in RATES},
                shares={limit: _per_second(own[limit], seconds, chosen) for limit in LIMITS},
                nearest={
                    limit: _per_second(np.where(nearest == number, seconds, 0.0), seconds, chosen)
                    for number, limit in enumerate(LIMITS)
                    if (nearest[chosen] >= 0).any()
                },
            )
        )
    idle = max(0.0, 1.0 - float(seconds.sum()) / whole)
    return LevelSteps(
        info.level,
        tuple(kinds),
        idle,
        counted=not np.isnan(own["flops"]).all(),
        limited=bool((nearest >= 0).any()),
    )


def step_series(table: pa.Table | None, info: LevelInfo, slices: Slices) -> dict[str, Any] | None:
    """Per slice, of the seconds in steps: shares by `LIMITS`, or `RATES` where the machine is not known.

    A slice without a step is None, and so is what was 0 all the time. None where nobody counted.
    """
    own = _columns(table, info)
    if own is None or np.isnan(own["flops"]).all():
        return None
    names = RATES if np.isnan([own[limit] for limit in LIMITS]).all() else LIMITS
    spent = _spread(own, own["seconds"], slices)
    found: dict[str, Any] = {}
    for name in names:
        amounts = _spread(own, np.nan_to_num(own[name]), slices)
        with np.errstate(invalid="ignore", divide="ignore"):
            found[name] = rounded_list(amounts / spent, 4) if amounts.any() else None
    return {"limits": names is LIMITS, "lines": found}


def _columns(table: pa.Table | None, info: LevelInfo) -> dict[str, Floats] | None:
    """A level's steps; by the name of a limit the seconds that work takes at its peak. Unknown is NaN."""
    if table is None:
        return None
    own = table.filter(pc.equal(table["level"], info.level))
    if not own.num_rows:
        return None
    shares = {limit: own[f"{limit}_share"] for limit in LIMITS}
    columns = {name: own[name] for name in _COLUMNS} | shares
    values: dict[str, Floats] = {
        name: pc.fill_null(column.cast(pa.float64()), float("nan")).to_numpy()
        for name, column in columns.items()
    }
    return values | {limit: values[limit] * values["seconds"] for limit in LIMITS}


def _nearest(own: dict[str, Floats]) -> Floats:
    """The number of the limit that each row came nearest to; -1 where none is known."""
    floors = np.array([np.nan_to_num(own[limit], nan=-1.0) for limit in LIMITS])
    found: Floats = np.where(floors.max(axis=0) > 0, floors.argmax(axis=0), -1).astype(np.float64)
    return found


def _per_second(amounts: Floats, seconds: Floats, chosen: Flags) -> float | None:
    """Amounts over seconds, of the chosen rows that have an amount."""
    known = chosen & ~np.isnan(amounts)
    spent = float(seconds[known].sum())
    return float(amounts[known].sum()) / spent if spent else None


def _spread(own: dict[str, Floats], amounts: Floats, slices: Slices) -> Floats:
    """Sums of `amounts` per slice; a row that lasts over several slices is spread evenly over its time."""
    edges = np.minimum(slices.begin + slices.width * np.arange(slices.count + 1), slices.end)
    total: Floats = np.zeros(slices.count)
    for rank in np.unique(own["rank"]):
        mine = own["rank"] == rank
        starts, seconds = own["start"][mine], own["seconds"][mine]
        order = np.argsort(starts, kind="stable")
        # What had been done at the start and at the end of each row; between two rows nothing is added.
        done = np.concatenate([[0.0], np.cumsum(amounts[mine][order])])
        times = np.ravel(np.column_stack([starts[order], starts[order] + seconds[order]]))
        before_and_after = np.ravel(np.column_stack([done[:-1], done[1:]]))
        total += np.diff(np.interp(edges, np.maximum.accumulate(times), before_and_after))
    return total
