"""Request records and archives made by hand, for tests that need exact numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flashpoint.agentx.archive import (
    STEPS_SCHEMA,
    Archive,
    ArchiveWriter,
    ClientLag,
    CorpusInfo,
    LevelInfo,
    RunInfo,
    ServerInfo,
    read_archive,
)
from flashpoint.agentx.metrics import window
from flashpoint.agentx.records import RequestRecord


def made_record(
    start: float = 0.0, arrivals: tuple[float, ...] = (0.5, 0.6, 0.7), tail: float = 0.0, **fields: Any
) -> RequestRecord:
    """A successful request whose tokens arrive at `arrivals` after its start; any field can be replaced."""
    values: dict[str, Any] = {
        "level": 0,
        "concurrency": 1,
        "lane": 0,
        "session": "s",
        "play": 0,
        "turn": 0,
        "request_id": f"r{start}",
        "max_tokens": len(arrivals),
        "start": start,
        "end": start + (arrivals[-1] if arrivals else 0.0) + tail,
        "status": "ok",
        "ttft": arrivals[0] if arrivals else None,
        "ttft_answer": arrivals[0] if arrivals else None,
        "last_token": arrivals[-1] if arrivals else None,
        "token_offsets": np.array(arrivals, dtype=np.float64),
        "chunks": len(set(arrivals)),
        "prompt_tokens": 100,
        "cached_tokens": 60,
        "output_tokens": len(arrivals),
        "http_status": 200,
        "finish_reason": "length",
    }
    return RequestRecord(**(values | fields))


def failed_record(start: float = 0.0, error: str = "HTTP 500: broken", **fields: Any) -> RequestRecord:
    """A request that failed before anything arrived."""
    nothing = {"prompt_tokens": None, "cached_tokens": None, "output_tokens": None, "finish_reason": None}
    return made_record(start, (), 0.1, **(nothing | {"status": "error", "error": error} | fields))


def made_run_info(**fields: Any) -> RunInfo:
    """A `run.json` without levels."""
    values: dict[str, Any] = {
        "status": "running",
        "command": ["flashpoint", "replay"],
        "started": "2026-01-01T00:00:00+00:00",
        "versions": {"flashpoint": "0.1.0"},
        "client_machine": {"cpu": "a cpu", "cores": 2, "memory_gib": 4.0, "platform": "Linux"},
        "server": ServerInfo(url="http://127.0.0.1:1", model="mock", models_answer={"data": []}),
        "config": {"seed": 0},
        "accelerators": 1,
        "corpus": CorpusInfo(path="corpus", sha256="0" * 64, sessions=1),
        "cache_bust": "abc",
    }
    return RunInfo(**(values | fields))


def made_level_info(records: list[RequestRecord], **fields: Any) -> LevelInfo:
    """The `run.json` entry that fits `records`."""
    values: dict[str, Any] = {
        "level": 0,
        "concurrency": 1,
        "status": "complete",
        "start": 0.0,
        "end": max((record.end for record in records), default=0.0),
        "window": window(records),
        "sessions_started": 1,
        "requests": len(records),
        "client_lag": ClientLag(p50=1e-6, p90=1e-6, p99=1e-6, max=1e-6),
    }
    return LevelInfo(**(values | fields))


def made_archive(
    path: Path, levels: dict[int, list[RequestRecord]], *, status: str = "complete", **fields: Any
) -> Archive:
    """An archive on disk with a level per concurrency; the records' level and concurrency are set to fit."""
    writer = ArchiveWriter(path, made_run_info(**fields))
    for number, (concurrency, records) in enumerate(levels.items()):
        fitted = [
            RequestRecord(
                **record.scalars() | {"level": number, "concurrency": concurrency},
                token_offsets=record.token_offsets,
            )
            for record in records
        ]
        writer.add_level(made_level_info(fitted, level=number, concurrency=concurrency), fitted)
    writer.finish(status, None, "2026-01-01T00:01:00+00:00")  # type: ignore[arg-type]
    return read_archive(path)


def made_steps(*rows: dict[str, Any]) -> pa.Table:
    """Engine steps; what a row does not say is 0, one step, or unknown where that is allowed."""
    nothing = {column.name: None if column.nullable else 0 for column in STEPS_SCHEMA} | {"steps": 1}
    return pa.Table.from_pylist([nothing | row for row in rows], schema=STEPS_SCHEMA)
