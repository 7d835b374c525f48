"""`flashpoint query`: the tables, what comes out, and what is refused."""

import csv
import io
import json

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from flashpoint.agentx.archive import SERIES_SCHEMA, ArchiveError, ArchiveWriter
from flashpoint.agentx.query import SCHEMAS, QueryError, query
from flashpoint.agentx.summary import summarize
from flashpoint.cli import app
from flashpoint.errors import InvalidValue
from tests.agentx.made_records import (
    failed_record,
    made_archive,
    made_level_info,
    made_record,
    made_run_info,
    made_steps,
)


@pytest.fixture
def archives(tmp_path):
    first = made_archive(tmp_path / "first", {1: [made_record()], 2: [made_record(1.0), failed_record(2.0)]})
    second = made_archive(tmp_path / "second", {4: [made_record(max_tokens=None)]}, accelerators=8)
    return [first, second]


def rows(archives, sql):
    return query([archive.path for archive in archives], sql).to_pylist()


def test_requests_of_all_runs(archives):
    found = rows(archives, "select run, concurrency, count(*) n from requests group by all order by all")
    assert found == [
        {"run": "first", "concurrency": 1, "n": 1},
        {"run": "first", "concurrency": 2, "n": 2},
        {"run": "second", "concurrency": 4, "n": 1},
    ]
    (one,) = rows(archives, "select * from requests where run = 'second'")
    record = archives[1].records[0]
    assert one == {"run": "second", **record.scalars(), "token_offsets": record.token_offsets.tolist()}


def test_a_row_per_level_with_the_summary_figures(archives):
    found = rows(archives, "select * from runs order by run, level")
    expected = [level for archive in archives for level in summarize(archive).levels]
    assert [row["run"] for row in found] == ["first", "first", "second"]
    for row, level in zip(found, expected, strict=True):
        for name in ("total_throughput", "interactivity_p90", "ttft_p50", "errors", "cache_hit_share"):
            assert row[name] == getattr(level, name)
        assert row["warnings"] == list(level.warnings)
    assert found[2]["accelerators"] == 8
    assert rows(archives, "select distinct config->>'seed' s from runs") == [{"s": "0"}]


def test_series_and_steps(tmp_path):
    writer = ArchiveWriter(tmp_path / "run", made_run_info())
    series = pa.table([[0], [1.5], ["m"], ["{}"], [7.0]], schema=SERIES_SCHEMA)
    steps = made_steps({"step": 3, "seconds": 0.1, "prefill_tokens": 64, "flops": 1e9, "math_share": 0.5})
    writer.add_level(made_level_info([made_record()]), [made_record()], series=series, steps=steps)
    writer.finish("complete", None, "2026-01-01T00:01:00+00:00")
    without = made_archive(tmp_path / "without", {1: [made_record()]})
    both = [tmp_path / "run", without.path]
    assert query(both, "from server_metrics").to_pylist() == [{"run": "run", **series.to_pylist()[0]}]
    assert query(both, "from steps").to_pylist() == [{"run": "run", **steps.to_pylist()[0]}]


@pytest.mark.parametrize("table", SCHEMAS)
def test_missing_tables_are_empty_with_their_columns(tmp_path, table):
    archive = ArchiveWriter(tmp_path / "empty", made_run_info())
    found = query([archive.path], f"from {table}")
    assert found.num_rows == 0 and found.column_names == SCHEMAS[table].names
    for mine, wanted in zip(found.schema, SCHEMAS[table], strict=True):
        # DuckDB names the items of its lists differently.
        assert pa.types.is_list(mine.type) if pa.types.is_list(wanted.type) else mine.type == wanted.type


def test_runs_of_the_same_name_are_told_apart(tmp_path):
    paths = [made_archive(tmp_path / name / "run", {1: [made_record()]}).path for name in ("a", "b")]
    found = query(paths, "select run from runs order by run").to_pylist()
    assert found == [{"run": str(path)} for path in paths]


def test_mistakes_list_what_there_is(archives):
    with pytest.raises(
        QueryError, match=r'"nosuch" not found[^\n]*\nrequests: run, level, concurrency, lane'
    ):
        rows(archives, "select nosuch from requests")
    with pytest.raises(
        QueryError, match=r"nosuch does not exist[^\n]*\nrequests: run(.|\n)*\nruns: run, source"
    ):
        rows(archives, "select * from nosuch")
    with pytest.raises(QueryError, match="syntax error"):
        rows(archives, "selec 1")
    with pytest.raises(QueryError, match="Could not convert"):
        rows(archives, "select cast('x' as int)")
    with pytest.raises(InvalidValue, match=r"^runs: got"):
        query([], "select 1")


@pytest.mark.parametrize(
    "sql",
    [
        "create table t as select 1",
        "insert into runs select * from runs",
        "delete from requests",
        "drop table requests",
        "copy requests to '{path}'",
        "attach '{path}'",
        "install httpfs",
        "set enable_external_access = true",
        "select 1; select 2",
        "",
    ],
)
def test_only_one_reading_statement(archives, tmp_path, sql):
    path = tmp_path / "written"
    with pytest.raises(InvalidValue, match=r"expected one statement that reads"):
        rows(archives, sql.format(path=path))
    assert not path.exists()


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('{path}')",
        "select * from read_text('{path}')",
        "select * from '{path}'",
        "select * from read_parquet('{run}/requests.parquet')",
        "select * from glob('{run}/*')",
        "select * from SCHEMAS",
    ],
)
def test_nothing_but_the_tables_can_be_read(archives, tmp_path, sql):
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    with pytest.raises(QueryError):
        rows(archives, sql.format(path=secret, run=archives[0].path))


def test_output_forms(archives):
    runs = [str(archive.path) for archive in archives]
    sql = "select concurrency, ok, pooled_itl_p50 is null n, warnings from runs order by all"

    def printed(*options):
        done = CliRunner().invoke(app, ["query", *runs, sql, *options])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert [row["concurrency"] for row in json.loads(printed("--json"))] == [1, 2, 4]
    table = list(csv.reader(io.StringIO(printed("--csv"))))
    assert table[0] == ["concurrency", "ok", "n", "warnings"] and [row[0] for row in table[1:]] == [
        "1",
        "2",
        "4",
    ]
    assert "requests failed" in json.loads(table[2][3])[0]
    assert "concurrency" in printed() and "failed" in printed()


def test_whatever_a_query_gives_can_be_printed(archives):
    sql = "select 'nan'::double a, [date '2026-01-02'] b, '[/x]' c, 1 d, 2 d, 3 d_2"

    def printed(*options):
        done = CliRunner().invoke(app, ["query", str(archives[0].path), sql, *options])
        assert done.exit_code == 0, done.output
        return done.stdout

    (row,) = json.loads(printed("--json"), parse_constant=pytest.fail)
    # No value is lost where two columns have one name.
    assert row == {"a": None, "b": ["2026-01-02"], "c": "[/x]", "d": 1, "d_3": 2, "d_2": 3}
    assert "[/x]" in printed() and '[""2026-01-02""]' in printed("--csv")


def test_a_table_of_other_columns_is_named(archives):
    folder = archives[0].path
    (folder / "steps.parquet").write_bytes((folder / "requests.parquet").read_bytes())
    with pytest.raises(ArchiveError, match=r"steps\.parquet: its columns"):
        query([folder], "select 1")
