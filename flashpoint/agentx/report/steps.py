"""What the engine did with its time: steps that carry prefill, steps that only decode, and none.

Shares of the machine's limits need two kinds of numbers from `server.description`, as the user measured them
or looked them up; nothing is assumed where one is absent:

* limits: `peak_tflops` (10^12 FLOP/s) and `hbm_gbps` (10^9 bytes/s) of one accelerator;
* work: `gflop_per_prefill_token`, `gflop_per_decode_token` (10^9 FLOP), `gb_read_per_step` (10^9 bytes, all
  accelerators together).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flashpoint.agentx.archive import LevelInfo, RunInfo
from flashpoint.agentx.metrics import percentile

COMPUTE_KEYS = ("peak_tflops", "gflop_per_prefill_token", "gflop_per_decode_token")
MEMORY_KEYS = ("hbm_gbps", "gb_read_per_step")


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
    compute_share: float | None
    """FLOP done / (seconds · peak). Unit: share of 1; None without the numbers it needs."""
    memory_share: float | None
    """Bytes read / (seconds · bandwidth), likewise."""


@dataclass(frozen=True)
class LevelSteps:
    """The steps of one level; `idle_share` is the part of the level's time with no step in it."""

    level: int
    kinds: tuple[StepKind, ...]
    idle_share: float


def level_steps(table: pa.Table | None, run: RunInfo, info: LevelInfo) -> LevelSteps | None:
    """The steps of one level by kind; None where the archive has none of it."""
    if table is None or info.end <= info.start:
        return None
    own = table.filter(pc.equal(table["level"], info.level))
    if not own.num_rows:
        return None
    seconds, prefill, decode, steps = (
        own[name].to_numpy().astype(np.float64)
        for name in ("seconds", "prefill_tokens", "decode_tokens", "steps")
    )
    # Engines that run beside each other each have the level's whole time.
    whole = (info.end - info.start) * len(own["rank"].unique())
    kinds = []
    for name, chosen in (("with prefill", prefill > 0), ("decode only", prefill == 0)):
        count = int(steps[chosen].sum())
        tokens = np.repeat((prefill + decode)[chosen], steps[chosen].astype(np.int64))
        computed = ((steps * prefill)[chosen].sum(), (steps * decode)[chosen].sum())
        kinds.append(
            StepKind(
                name=name,
                steps=count,
                seconds=float(seconds[chosen].sum()),
                time_share=float(seconds[chosen].sum()) / whole,
                prefill_tokens=int(computed[0]),
                decode_tokens=int(computed[1]),
                tokens_per_step_p50=percentile(tokens, 50),
                tokens_per_step_p90=percentile(tokens, 90),
                compute_share=_compute_share(run, float(seconds[chosen].sum()), *computed),
                memory_share=_memory_share(run, float(seconds[chosen].sum()), count),
            )
        )
    return LevelSteps(info.level, tuple(kinds), max(0.0, 1.0 - float(seconds.sum()) / whole))


def missing_for_shares(run: RunInfo) -> list[str]:
    """The names that `server.description` lacks for shares of the machine's limits."""
    return [name for name in (*COMPUTE_KEYS, *MEMORY_KEYS) if _positive(run.server.description, name) is None]


def _compute_share(run: RunInfo, seconds: float, prefill: float, decode: float) -> float | None:
    peak, per_prefill, per_decode = (_positive(run.server.description, name) for name in COMPUTE_KEYS)
    if peak is None or per_prefill is None or per_decode is None or not seconds:
        return None
    return (prefill * per_prefill + decode * per_decode) / (seconds * peak * 1e3 * run.accelerators)


def _memory_share(run: RunInfo, seconds: float, steps: int) -> float | None:
    bandwidth, per_step = (_positive(run.server.description, name) for name in MEMORY_KEYS)
    if bandwidth is None or per_step is None or not seconds:
        return None
    return steps * per_step / (seconds * bandwidth * run.accelerators)


def _positive(description: Mapping[str, Any], name: str) -> float | None:
    value = description.get(name)
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    return float(value) if usable else None  # type: ignore[arg-type]
