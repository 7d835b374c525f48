"""The requests of an archive as NumPy columns, read without a Python object per request."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flashpoint.agentx.archive import REQUESTS_FILE, Archive, ArchiveError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_FLOATS = ("start", "end", "ttft", "last_token", "due")
_COUNTS = ("prompt_tokens", "cached_tokens", "output_tokens", "hit_blocks", "total_blocks")
_INTEGERS = ("level", "lane", "play", "turn", "depth")
_TEXTS = ("session", "stream", "status", "phase")


@dataclass(frozen=True)
class Columns:
    """One value per request; what an archive does not say is NaN. Units are those of `RequestRecord`."""

    level: Integers
    lane: Integers
    play: Integers
    turn: Integers
    depth: Integers
    start: Floats
    end: Floats
    ttft: Floats
    last_token: Floats
    due: Floats
    prompt_tokens: Floats
    cached_tokens: Floats
    output_tokens: Floats
    hit_blocks: Floats
    total_blocks: Floats
    session: Integers
    """Index into `sessions`; `stream` likewise."""
    stream: Integers
    ok: Flags
    failed: Flags
    overflow: Flags
    measured: Flags
    sessions: list[str]
    streams: list[str]

    def __len__(self) -> int:
        return len(self.level)

    @property
    def counted(self) -> Flags:
        """The requests that figures are made of: measured phase, ended well."""
        return self.ok & self.measured

    def take(self, chosen: Integers | Flags) -> Columns:
        """Some of the requests, by position or by flag."""
        arrays: dict[str, Any] = {
            field.name: getattr(self, field.name)[chosen]
            for field in fields(self)
            if field.name not in ("sessions", "streams")
        }
        return replace(self, **arrays)


def read_columns(archive: Archive) -> Columns:
    """The requests of every level that `run.json` names.

    Raises ArchiveError where the file cannot be read any more.
    """
    path: Path = archive.path / REQUESTS_FILE
    try:
        table = pq.read_table(path, columns=[*_FLOATS, *_COUNTS, *_INTEGERS, *_TEXTS])
    except (OSError, pa.ArrowException) as error:
        raise ArchiveError(f"{path}: not a readable Parquet file ({error})") from error
    table = table.filter(pc.less(table["level"], len(archive.run.levels)))
    numbers: dict[str, Any] = {name: _floats(table[name]) for name in (*_FLOATS, *_COUNTS)}
    numbers |= {name: table[name].to_numpy().astype(np.int64) for name in _INTEGERS}
    session, sessions = _codes(table["session"])
    stream, streams = _codes(table["stream"])
    return Columns(
        **numbers,
        session=session,
        sessions=sessions,
        stream=stream,
        streams=streams,
        ok=_equals(table["status"], "ok"),
        failed=_equals(table["status"], "error"),
        overflow=_equals(table["status"], "overflow"),
        measured=_equals(table["phase"], "measured"),
    )


def _floats(column: pa.ChunkedArray) -> Floats:
    values: Floats = pc.fill_null(column.cast(pa.float64()), float("nan")).to_numpy()
    return values


def _codes(column: pa.ChunkedArray) -> tuple[Integers, list[str]]:
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist()


def _equals(column: pa.ChunkedArray, value: str) -> Flags:
    flags: Flags = pc.equal(column, value).to_numpy()
    return flags.astype(bool)
