"""The run archive: one folder per run.

`run.json` says what was run, `requests.parquet` has a row per request, `server_metrics.parquet` the server's
own series and `steps.parquet` the engine's steps, where there are any.

What is guaranteed: after every finished concurrency level the folder holds both files, whole, with all
levels so far. Each file is written beside its place, synced and renamed, `requests.parquet` first; a level
counts once `run.json` names it. So a crash, a kill or a full disk at any moment costs at most the level
that was running: readers never see half a file or half a level. A run that died so has status "running".
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flashpoint.agentx.files import whole_file
from flashpoint.agentx.records import RequestRecord
from flashpoint.errors import FlashpointError, InvalidValue

RUN_FILE = "run.json"
REQUESTS_FILE = "requests.parquet"
SERIES_FILE = "server_metrics.parquet"
STEPS_FILE = "steps.parquet"

RunStatus = Literal["running", "complete", "interrupted", "server_lost", "stopped"]
"""`stopped`: by a rule, such as too many failed requests; `status_detail` says which."""

SCHEMA = pa.schema(
    [
        pa.field("level", pa.int32(), nullable=False),
        pa.field("concurrency", pa.int32(), nullable=False),
        pa.field("lane", pa.int32(), nullable=False),
        pa.field("session", pa.string(), nullable=False),
        pa.field("play", pa.int32(), nullable=False),
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("request_id", pa.string(), nullable=False),
        pa.field("max_tokens", pa.int64()),
        pa.field("start", pa.float64(), nullable=False),
        pa.field("end", pa.float64(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("ttft", pa.float64()),
        pa.field("ttft_answer", pa.float64()),
        pa.field("last_token", pa.float64()),
        pa.field("token_offsets", pa.list_(pa.field("item", pa.float64(), nullable=False)), nullable=False),
        pa.field("chunks", pa.int32(), nullable=False),
        pa.field("prompt_tokens", pa.int64()),
        pa.field("cached_tokens", pa.int64()),
        pa.field("output_tokens", pa.int64()),
        pa.field("http_status", pa.int32()),
        pa.field("finish_reason", pa.string()),
        pa.field("error", pa.string()),
        pa.field("phase", pa.string(), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("depth", pa.int32(), nullable=False),
        pa.field("correlation_id", pa.string(), nullable=False),
        pa.field("due", pa.float64()),
        pa.field("recorded_input", pa.int64()),
        pa.field("hit_blocks", pa.int64()),
        pa.field("total_blocks", pa.int64()),
    ]
)

SERIES_SCHEMA = pa.schema(
    [
        pa.field("level", pa.int32(), nullable=False),
        pa.field("t", pa.float64(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("labels", pa.string(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
    ]
)
"""A server's metrics over time: seconds since the start of the run, labels as JSON text."""

STEPS_SCHEMA = pa.schema(
    [
        pa.field("level", pa.int32(), nullable=False),
        pa.field("step", pa.int64(), nullable=False),
        pa.field("start", pa.float64(), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("prefill_tokens", pa.int64(), nullable=False),
        pa.field("decode_tokens", pa.int64(), nullable=False),
        pa.field("replay_tokens", pa.int64(), nullable=False),
        pa.field("sampled_tokens", pa.int64(), nullable=False),
        pa.field("free_blocks", pa.int64(), nullable=False),
        pa.field("preemptions", pa.int64(), nullable=False),
        pa.field("running", pa.int32(), nullable=False),
        pa.field("waiting", pa.int32(), nullable=False),
        pa.field("steps", pa.int64(), nullable=False),
        pa.field("rank", pa.int32(), nullable=False),
        pa.field("flops", pa.float64()),
        pa.field("flops_fp4", pa.float64()),
        pa.field("flops_fp8", pa.float64()),
        pa.field("flops_bf16", pa.float64()),
        pa.field("flops_fp32", pa.float64()),
        pa.field("memory_bytes", pa.float64()),
        pa.field("link_bytes", pa.float64()),
        pa.field("host_bytes", pa.float64()),
        pa.field("kernels", pa.float64()),
        pa.field("memory_share", pa.float64()),
        pa.field("math_share", pa.float64()),
        pa.field("link_share", pa.float64()),
        pa.field("host_share", pa.float64()),
    ]
)
"""The engine's steps, where the engine is ours: seconds since the start of the run.

`steps`: how many equal steps a row stands for (in virtual time); `seconds`, `sampled_tokens` and the columns
from `flops` to `kernels` are of all of them, the other counts of one. `rank`: whose scheduler planned it,
where there are several.

`flops` to `kernels`: what the steps asked of one accelerator, the busiest one where a replica has several
(`engine.plan.StepCounts`); FLOPs, bytes, launches that wait for each other. `memory_share` to `host_share`:
seconds this would take at the machine's peak of that kind (bytes/s of memory, FLOP/s, bytes/s of the link and
of the way to the CPU's memory) over `seconds`. Null where nobody counted, or the machine is not known.
"""

STEPS_SCHEMA_BEFORE_COUNTS = pa.schema(list(STEPS_SCHEMA)[: STEPS_SCHEMA.get_field_index("flops")])
"""As builds wrote it that did not count; such tables are read with nulls."""


class ArchiveError(FlashpointError):
    """A run archive cannot be read or written; the message names the file and the reason."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ClientLag(_Model):
    """Seconds by which the client was late in stamping chunks at one level."""

    p50: float
    p90: float
    p99: float
    max: float


class LevelInfo(_Model):
    """One concurrency level as it was run; times are seconds since the start of the run."""

    level: int
    concurrency: int
    repeat: int = Field(default=0, description="how many runs of the same concurrency came before it")
    status: Literal["complete", "interrupted", "server_lost", "stopped"]
    status_detail: str | None = None
    start: float
    end: float
    measured_from: float | None = Field(default=None, description="end of the warm-up")
    duration: float | None = Field(default=None, description="length asked for, seconds")
    window: tuple[float, float] | None = Field(
        description="first start, last content chunk of the successful requests"
    )
    sessions_started: int | None
    requests: int
    client_lag: ClientLag | None
    lateness: ClientLag | None = Field(
        default=None, description="seconds by which requests were sent after the schedule wanted them sent"
    )
    broken_waits: int = Field(default=0, description="turns sent although their recorded waits never end")
    idle_skipped: dict[Literal["session", "system"], float] = Field(
        default={}, description="seconds by which timers were pulled forward, by cap"
    )
    reported: dict[str, float] = Field(
        default={}, description="figures as another tool reported them; never mixed with recomputed ones"
    )
    invalid: list[str] = Field(default=[], description="reasons another tool gave against the run")


class CorpusInfo(_Model):
    """The sessions of the run."""

    path: str
    sha256: str | None
    sessions: int | None
    dropped: int = Field(default=0, description="sessions left out, as they exceed the context window")


class ServerInfo(_Model):
    """The server as it presented itself."""

    url: str
    model: str
    models_answer: Any = Field(default=None, description="answer of GET /v1/models")
    description: dict[str, str | int | float | bool | None] = Field(
        default={}, description="hardware, framework, layout and the like, as the user or another tool says"
    )


class RunInfo(_Model):
    """The content of `run.json`."""

    format: Literal["flashpoint-run"] = "flashpoint-run"
    format_version: Literal[2] = 2
    source: Literal["flashpoint", "agentx-harness", "inferencex"] = "flashpoint"
    status: RunStatus
    status_detail: str | None = None
    command: list[str]
    started: str
    finished: str | None = None
    versions: dict[str, str]
    client_machine: dict[str, str | int | float | None]
    server: ServerInfo
    config: dict[str, Any]
    accelerators: int = Field(ge=1)
    corpus: CorpusInfo
    tokenizer: str | None = Field(default=None, description="SHA-256 of the tokenizer that made the prompts")
    prompt_text: str | None = Field(default=None, description="SHA-256 of the text prompts are cut from")
    cache_bust: str = Field(description="text from which the marker of every session was made")
    levels: list[LevelInfo] = []


class Archive:
    """A run as read from, or about to be written to, a folder."""

    def __init__(self, path: Path, run: RunInfo, records: Sequence[RequestRecord]) -> None:
        self.path = path
        self.run = run
        self.records = list(records)

    def series(self) -> pa.Table | None:
        """The server's metrics (`SERIES_SCHEMA`); None where none were scraped."""
        return (
            _read_table(self.path / SERIES_FILE, SERIES_SCHEMA)
            if (self.path / SERIES_FILE).exists()
            else None
        )

    def steps(self) -> pa.Table | None:
        """The engine's steps (`STEPS_SCHEMA`); None where the engine is not ours."""
        path = self.path / STEPS_FILE
        return _read_table(path, STEPS_SCHEMA, STEPS_SCHEMA_BEFORE_COUNTS) if path.exists() else None

    def level(self, level: int) -> list[RequestRecord]:
        """The requests of one concurrency level, in order of their start."""
        return [record for record in self.records if record.level == level]


class ArchiveWriter:
    """Writes the archive of a run level by level."""

    def __init__(self, path: str | Path, run: RunInfo) -> None:
        """Create the folder and its `run.json`; a folder that already holds something is refused."""
        self.path = Path(path)
        self.run = run
        self._tables: dict[str, list[pa.Table]] = {REQUESTS_FILE: [], SERIES_FILE: [], STEPS_FILE: []}
        check_new_folder(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ArchiveError(f"{self.path}: cannot be created ({error.strerror})") from error
        self._write(REQUESTS_FILE, _parquet(SCHEMA, []))
        self._write_run(run)

    def add_level(
        self,
        info: LevelInfo,
        records: Sequence[RequestRecord],
        *,
        series: pa.Table | None = None,
        steps: pa.Table | None = None,
    ) -> None:
        """Put one finished level on disk; `series` and `steps` are of their schemas."""
        rows = to_table(sorted(records, key=lambda record: record.start))
        for name, table in ((REQUESTS_FILE, rows), (SERIES_FILE, series), (STEPS_FILE, steps)):
            if table is not None:
                self._tables[name].append(table)
                self._write(name, _parquet(table.schema, self._tables[name]))
        self._write_run(self.run.model_copy(update={"levels": [*self.run.levels, info]}))

    def finish(self, status: RunStatus, detail: str | None, finished: str | None) -> None:
        """Write down how the run ended."""
        self._write_run(
            self.run.model_copy(update={"status": status, "status_detail": detail, "finished": finished})
        )

    def _write_run(self, run: RunInfo) -> None:
        self._write(RUN_FILE, run.model_dump_json(indent=2).encode() + b"\n")
        self.run = run

    def _write(self, name: str, content: bytes) -> None:
        target = self.path / name
        try:
            with whole_file(target) as file:
                file.write(content)
        except OSError as error:
            levels = ", ".join(f"c={info.concurrency}" for info in self.run.levels) or "none"
            raise ArchiveError(
                f"{target}: cannot be written ({error.strerror}); levels kept in the archive: {levels}"
            ) from error


def _parquet(schema: pa.Schema, tables: Sequence[pa.Table]) -> bytes:
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
    return buffer.getvalue()


def check_new_folder(path: Path) -> None:
    """Refuse an archive folder that exists and is not an empty folder."""
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InvalidValue("out", str(path), "a folder that is new or empty; runs are never overwritten")
    except OSError as error:
        raise InvalidValue("out", str(path), f"a folder that can be used ({error.strerror})") from error


def read_archive(path: str | Path) -> Archive:
    """Read and validate the archive in folder `path`.

    Rows of a level that `run.json` does not name are those of a write that was cut short; they are left out.
    """
    path = Path(path)
    if not path.is_dir():
        raise ArchiveError(
            f"{path}: not a folder; a run archive is the folder that `flashpoint replay` wrote"
        )
    run = _read_run(path / RUN_FILE)
    records = [
        record
        for record in from_table(_read_table(path / REQUESTS_FILE, SCHEMA))
        if record.level < len(run.levels)
    ]
    for number, info in enumerate(run.levels):
        found = sum(record.level == number for record in records)
        if info.level != number or found != info.requests:
            raise ArchiveError(
                f"{path}: {RUN_FILE} says level {number} (c={info.concurrency}) has {info.requests} requests "
                f"and {REQUESTS_FILE} holds {found}; the two files are not of one run"
            )
    return Archive(path, run, records)


def _read_run(path: Path) -> RunInfo:
    try:
        return RunInfo.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ArchiveError(f"{path}: cannot be read ({error.strerror})") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ArchiveError(f"{path}: not a run file of format version 2: {where}: {first['msg']}") from error


def _read_table(path: Path, schema: pa.Schema, earlier: pa.Schema | None = None) -> pa.Table:
    """The table as `schema`; `earlier` is one that it began as, whose missing columns become null."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise ArchiveError(f"{path}: not a readable Parquet file ({error})") from error
    if earlier is not None and table.schema.equals(earlier):
        for column in list(schema)[len(earlier) :]:
            table = table.append_column(column, pa.nulls(table.num_rows, column.type))
    if not table.schema.equals(schema):
        expected, found = set(map(str, schema)), set(map(str, table.schema))
        difference = ", ".join(sorted(expected ^ found)) or "order of columns"
        raise ArchiveError(f"{path}: its columns are not those of a run archive (differs: {difference})")
    return table


def to_table(records: Sequence[RequestRecord]) -> pa.Table:
    """The records as an Arrow table of `SCHEMA`."""
    scalars = [record.scalars() for record in records]
    columns = []
    for column in SCHEMA:
        if column.name == "token_offsets":
            lengths = [len(record.token_offsets) for record in records]
            values = np.concatenate([record.token_offsets for record in records]) if records else np.empty(0)
            ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            columns.append(pa.ListArray.from_arrays(ends, pa.array(values, pa.float64()), type=column.type))
        else:
            columns.append(pa.array([row[column.name] for row in scalars], column.type))
    return pa.table(columns, schema=SCHEMA)


def from_table(table: pa.Table) -> list[RequestRecord]:
    """The records of an Arrow table of `SCHEMA`."""
    records: list[RequestRecord] = []
    scalar_names = [name for name in SCHEMA.names if name != "token_offsets"]
    for batch in table.to_batches():
        offsets = batch.column("token_offsets")
        ends = offsets.offsets.to_numpy()
        values = offsets.values.to_numpy()
        scalars = batch.select(scalar_names).to_pylist()
        records += [
            RequestRecord(**row, token_offsets=values[ends[i] : ends[i + 1]]) for i, row in enumerate(scalars)
        ]
    return records
