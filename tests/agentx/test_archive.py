from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flashpoint.agentx import archive as archive_module
from flashpoint.agentx.archive import (
    STEPS_SCHEMA,
    STEPS_SCHEMA_BEFORE_COUNTS,
    ArchiveError,
    ArchiveWriter,
    read_archive,
)
from flashpoint.errors import InvalidValue
from tests.agentx.made_records import (
    failed_record,
    made_archive,
    made_level_info,
    made_record,
    made_run_info,
    made_steps,
)

RECORDS = [made_record(0.0), failed_record(0.2), made_record(0.4, (0.1,) * 5, session="ünï\n")]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    archive = made_archive(tmp_path / "run", {1: RECORDS, 4: [made_record(9.0)]}, accelerators=2)
    assert archive.run.status == "complete"
    assert archive.run.accelerators == 2
    assert [level.concurrency for level in archive.run.levels] == [1, 4]
    assert len(archive.level(0)) == 3 and len(archive.level(1)) == 1
    for written, read in zip(RECORDS, archive.level(0), strict=True):
        assert read.scalars() == written.scalars()
        assert np.array_equal(read.token_offsets, written.token_offsets)
    assert sorted(os.listdir(tmp_path / "run")) == ["requests.parquet", "run.json"]
    assert pq.ParquetFile(tmp_path / "run" / "requests.parquet").num_row_groups == 2


def test_duckdb_reads_it(tmp_path: Path) -> None:
    made_archive(tmp_path / "run", {1: RECORDS})
    rows = duckdb.sql(
        f"select status, count(*), sum(len(token_offsets)) from '{tmp_path}/run/requests.parquet' "
        "group by status order by status"
    ).fetchall()
    assert rows == [("error", 1, 0), ("ok", 2, 8)]


def test_a_used_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    ArchiveWriter(tmp_path / "run", made_run_info())
    with pytest.raises(InvalidValue, match=r"out: .*new or empty"):
        ArchiveWriter(tmp_path / "run", made_run_info())
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidValue, match="new or empty"):
        ArchiveWriter(tmp_path / "file", made_run_info())


def test_a_run_that_dies_keeps_its_finished_levels(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path / "run", made_run_info())
    assert read_archive(tmp_path / "run").records == []
    writer.add_level(made_level_info(RECORDS), RECORDS)
    archive = read_archive(tmp_path / "run")
    assert archive.run.status == "running"
    assert len(archive.records) == 3


def test_a_kill_between_the_two_files_costs_the_level_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ArchiveWriter(tmp_path / "run", made_run_info())
    writer.add_level(made_level_info(RECORDS), RECORDS)
    monkeypatch.setattr(writer, "_write_run", lambda run: None)
    second = [made_record(5.0, level=1, concurrency=2)]
    writer.add_level(made_level_info(second, level=1, concurrency=2), second)
    assert len(pq.read_table(tmp_path / "run" / "requests.parquet")) == 4
    assert len(read_archive(tmp_path / "run").records) == 3


def test_a_full_disk_is_an_error_and_keeps_what_was_there(tmp_path: Path) -> None:
    """A real failing write: the process may write no file larger than 40 kB."""
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))\n"
        "import random\n"
        "from tests.agentx.made_records import *\n"
        "writer = ArchiveWriter(sys.argv[1], made_run_info())\n"
        "few = [made_record(1.0)]\n"
        "noise = [tuple(random.random() for _ in range(999)) for _ in range(99)]\n"
        "many = [made_record(2.0 + i, times, level=1) for i, times in enumerate(noise)]\n"
        "writer.add_level(made_level_info(few), few)\n"
        "writer.add_level(made_level_info(many, level=1), many)\n"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (
        "requests.parquet: cannot be written (File too large); levels kept in the archive: c=1" in done.stderr
    )
    assert sorted(os.listdir(tmp_path / "run")) == ["requests.parquet", "run.json"]
    assert len(read_archive(tmp_path / "run").records) == 1


def test_readers_name_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    with pytest.raises(ArchiveError, match="not a folder"):
        read_archive(path)
    path.mkdir()
    with pytest.raises(ArchiveError, match=r"run\.json: cannot be read \(No such file"):
        read_archive(path)
    made = made_archive(tmp_path / "good", {1: RECORDS})
    good_run = (made.path / "run.json").read_bytes()
    good_rows = (made.path / "requests.parquet").read_bytes()

    def refused(run: bytes, rows: bytes, message: str) -> None:
        (path / "run.json").write_bytes(run)
        (path / "requests.parquet").write_bytes(rows)
        with pytest.raises(ArchiveError, match=message):
            read_archive(path)

    refused(good_run[:100], good_rows, r"run\.json: not a run file")
    refused(b'{"format": "other"}', good_rows, "format: Input should be 'flashpoint-run'")
    refused(good_run.replace(b'"format_version": 2', b'"format_version": 3'), good_rows, "format_version")
    extra = json.loads(good_run) | {"surprise": 1}
    refused(json.dumps(extra).encode(), good_rows, "surprise")
    refused(good_run, good_rows[:-100], r"requests\.parquet: not a readable Parquet file")
    refused(good_run, b"", r"requests\.parquet: not a readable Parquet file")
    fewer = made_archive(tmp_path / "fewer", {1: RECORDS[:1]})
    refused(good_run, (fewer.path / "requests.parquet").read_bytes(), "3 requests and .* holds 1")
    other = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1]}), other)
    refused(good_run, other.getvalue().to_pybytes(), "its columns are not those of a run archive")


def test_every_column_has_a_field_and_the_other_way_round() -> None:
    names = [*made_record().scalars(), "token_offsets"]
    assert sorted(names) == sorted(archive_module.SCHEMA.names)


def test_steps_of_builds_that_did_not_count_are_read(tmp_path: Path) -> None:
    records = [made_record()]
    writer = ArchiveWriter(tmp_path / "run", made_run_info())
    now = made_steps({"seconds": 0.5, "prefill_tokens": 7, "flops": 1.0})
    before = now.select(STEPS_SCHEMA_BEFORE_COUNTS.names)
    assert before.schema == STEPS_SCHEMA_BEFORE_COUNTS and len(before.schema) == 14
    writer.add_level(made_level_info(records), records, steps=before)
    read = read_archive(tmp_path / "run").steps()
    assert read.schema == STEPS_SCHEMA
    (row,) = read.to_pylist()
    assert (row["seconds"], row["prefill_tokens"], row["flops"], row["host_share"]) == (0.5, 7, None, None)
    # Whatever else is missing is a mistake.
    pq.write_table(now.drop_columns("kernels"), tmp_path / "run" / "steps.parquet")
    with pytest.raises(ArchiveError, match=r"differs: \S+kernels"):
        read_archive(tmp_path / "run").steps()
