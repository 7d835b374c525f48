"""The server's own series on the report's time axis: KV cache in use, requests running and waiting.

Names: vLLM's and SGLang's as InferenceX reads them (spec agentx.md section 3.6), and this project's own
(docs/server.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flashpoint.agentx.report.columns import Floats
from flashpoint.agentx.report.encode import rounded_list
from flashpoint.agentx.report.slices import Slices

USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
"""Gauges from 0 to 1."""
BLOCKS_USED = "flashpoint_cache_blocks_used"
BLOCKS_CAPACITY = "flashpoint_cache_blocks_capacity"
RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "flashpoint_engine_running_requests")
WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "flashpoint_engine_waiting_requests")


def server_series(table: pa.Table | None, level: int, slices: Slices) -> dict[str, Any] | None:
    """`kv`, `running` and `waiting` per slice and the `names` they come from; None without any of them.

    A slice has the mean of its samples. Several series of one name (one per engine) are added up; for the
    KV cache in use, which is a share of 1, they are averaged. A slice without a sample is None.
    """
    if table is None:
        return None
    own = table.filter(pc.equal(table["level"], level))
    found: dict[str, Any] = {}
    names: list[str] = []
    for key, choices, average in (
        ("kv", USAGE, True),
        ("running", RUNNING, False),
        ("waiting", WAITING, False),
    ):
        for name in choices:
            values = _per_slice(own, name, slices, average)
            if values is not None:
                found[key] = rounded_list(values, 4)
                names.append(name)
                break
    if "kv" not in found:
        used, capacity = (_per_slice(own, name, slices, False) for name in (BLOCKS_USED, BLOCKS_CAPACITY))
        if used is not None and capacity is not None:
            with np.errstate(invalid="ignore", divide="ignore"):
                found["kv"] = rounded_list(used / capacity, 4)
            names.append(f"{BLOCKS_USED} / {BLOCKS_CAPACITY}")
    return found | {"names": names} if found else None


def _per_slice(table: pa.Table, name: str, slices: Slices, average: bool) -> Floats | None:
    rows = table.filter(pc.equal(table["name"], name))
    if not rows.num_rows:
        return None
    labels = rows["labels"].combine_chunks().dictionary_encode()
    if isinstance(labels, pa.ChunkedArray):
        labels = labels.combine_chunks()
    codes, times, values = labels.indices.to_numpy(), rows["t"].to_numpy(), rows["value"].to_numpy()
    each = []
    for code in range(len(labels.dictionary)):
        own = codes == code
        counts = slices.sums(times[own], np.ones(int(own.sum())))
        with np.errstate(invalid="ignore", divide="ignore"):
            each.append(slices.sums(times[own], values[own]) / counts)
    # An engine without a sample in a slice makes the sum of that slice unknown, not smaller.
    combined: Floats = np.mean(each, axis=0) if average else np.sum(each, axis=0)
    return combined
