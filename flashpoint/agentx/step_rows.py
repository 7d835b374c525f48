"""The rows of `steps.parquet`: an engine's records of its steps, and their shares of a machine's limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from flashpoint.agentx.archive import STEPS_SCHEMA
from flashpoint.engine.core import StepRecord
from flashpoint.engine.plan import StepCounts

LIMITS = ("memory", "math", "link", "host")

Floors = Callable[[StepCounts], Mapping[Any, float]]
"""Seconds that each of `LIMITS` would take for some counts, were it all that counts."""

_SAME = ("step", "steps", "seconds", "sampled_tokens", "running", "waiting", "free_blocks", "preemptions")
_COUNTED = ("flops", *StepCounts._fields)


def steps_table(
    records: Sequence[StepRecord], *, level: int, rank: int, origin: float, floors: Floors | None
) -> pa.Table:
    """One engine's steps as `STEPS_SCHEMA`.

    origin: when the run started on the engine's clock, seconds.  floors: of the machine it ran on; None
    where it is not known, and then there are counts and no shares.
    """
    columns: dict[str, list[object]] = {name: [getattr(r, name) for r in records] for name in _SAME}
    columns |= {
        "level": [level] * len(records),
        "rank": [rank] * len(records),
        "start": [r.start - origin for r in records],
        "prefill_tokens": [r.prefill_rows for r in records],
        "decode_tokens": [r.decode_rows for r in records],
        "replay_tokens": [r.replay_rows for r in records],
    }
    for name in _COUNTED:
        columns[name] = [None if r.counts is None else getattr(r.counts, name) for r in records]
    shares = [_shares(record, floors) for record in records]
    for name in LIMITS:
        columns[f"{name}_share"] = [share.get(name) for share in shares]
    return pa.Table.from_pydict(columns, schema=STEPS_SCHEMA)


def _shares(record: StepRecord, floors: Floors | None) -> dict[str, float]:
    if floors is None or record.counts is None or record.seconds <= 0:
        return {}
    return {name: floor / record.seconds for name, floor in floors(record.counts).items()}
