"""Every request of a run, small enough for the page; sessions.js unpacks it, lanes.js draws one session.

Requests are sorted by level, session, play and start: a session as it was played once is a stretch of rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flashpoint.agentx.report.columns import Columns, Floats
from flashpoint.agentx.report.encode import pack

TICKS_PER_SECOND = 10_000
"""Times are whole tenths of a millisecond: 4 bytes hold 119 hours."""

MISSING = 0xFFFFFFFF
OK, FAILED, OVERFLOW, CANCELLED = range(4)
WARM_UP = 4
"""Added to the status of a warm-up request."""

Packed = npt.NDArray[np.unsignedinteger[Any]]


def pack_sessions(columns: Columns) -> str:
    """All requests, packed: times since the start of the run, spans since the request's own start."""
    rows = columns.take(
        np.lexsort((columns.start, columns.lane, columns.play, columns.session, columns.level))
    )
    keys = np.stack([rows.level, rows.session, rows.play, rows.lane], axis=1)
    first = (
        np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]).any(axis=1)])
        if len(rows)
        else np.empty(0, np.int64)
    )
    status = np.where(
        rows.ok, OK, np.where(rows.failed, FAILED, np.where(rows.overflow, OVERFLOW, CANCELLED))
    )
    return pack(
        {
            "sessions": rows.sessions,
            "streams": rows.streams,
            "ticksPerSecond": TICKS_PER_SECOND,
            "missing": MISSING,
        },
        {
            "playLevel": rows.level[first].astype(np.uint16),
            "playSession": rows.session[first].astype(np.uint32),
            "playNumber": rows.play[first].astype(np.uint32),
            "playFirst": first.astype(np.uint32),
            "stream": rows.stream.astype(np.uint32),
            "turn": rows.turn.astype(np.uint32),
            "start": _ticks(rows.start),
            "wait": _ticks(rows.start - rows.due),
            "ttft": _ticks(rows.ttft),
            "last": _ticks(rows.last_token),
            "span": _ticks(rows.end - rows.start),
            "prompt": _whole(rows.prompt_tokens),
            "cached": _whole(rows.cached_tokens),
            "output": _whole(rows.output_tokens),
            "status": (status + np.where(rows.measured, 0, WARM_UP)).astype(np.uint8),
            "depth": np.minimum(rows.depth, 255).astype(np.uint8),
        },
    )


def _ticks(seconds: Floats) -> Packed:
    return _whole(np.rint(seconds * TICKS_PER_SECOND))


def _whole(values: Floats) -> Packed:
    known = np.clip(np.nan_to_num(values, nan=0.0), 0, MISSING - 1).astype(np.uint32)
    return np.where(np.isnan(values), np.uint32(MISSING), known).astype(np.uint32)
