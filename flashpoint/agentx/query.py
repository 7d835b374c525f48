"""`flashpoint query`: SQL over run archives.

DuckDB sees four tables and nothing else: no files, no network, no extensions, and only statements that read.
Every row names its run: the archive's folder, as far as needed to tell the folders apart.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import sys
import types
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import duckdb
import orjson
import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flashpoint.agentx.archive import (
    SCHEMA,
    SERIES_SCHEMA,
    STEPS_SCHEMA,
    Archive,
    LevelInfo,
    RunInfo,
    read_archive,
    to_table,
)
from flashpoint.agentx.summary import LevelSummary, summarize
from flashpoint.agentx.table import ABSENT
from flashpoint.errors import FlashpointError, InvalidValue

_TYPES: dict[type, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string()}
_RUN = pa.field("run", pa.string(), nullable=False)
_OF_THE_RUN = ("source", "accelerators", "started", "finished")
_OF_THE_LEVEL = ("start", "end", "measured_from", "duration", "invalid")
_JSON = ("command", "config", "description", "versions", "reported")


def _arrow_type(hint: Any) -> pa.DataType:
    """The column type of a field annotated with `hint`: a number, text, a list of these, each maybe None."""
    if isinstance(hint, types.UnionType):
        (hint,) = (kind for kind in get_args(hint) if kind is not types.NoneType)
    if get_origin(hint) in (tuple, list):
        return pa.list_(_arrow_type(get_args(hint)[0]))
    return _TYPES.get(hint, pa.string())


def _runs_schema() -> pa.Schema:
    run, level, figures = (get_type_hints(kind) for kind in (RunInfo, LevelInfo, LevelSummary))
    columns = [_RUN]
    columns += [pa.field(name, _arrow_type(run[name])) for name in _OF_THE_RUN]
    columns += [pa.field(name, pa.string()) for name in ("run_status", "model", "url")]
    columns += [pa.field(name, _arrow_type(level[name])) for name in _OF_THE_LEVEL]
    columns += [pa.field(name, _arrow_type(hint)) for name, hint in figures.items()]
    columns += [pa.field(name, pa.string()) for name in _JSON]
    return pa.schema(columns)


SCHEMAS: dict[str, pa.Schema] = {
    "requests": pa.schema([_RUN, *SCHEMA]),
    "runs": _runs_schema(),
    "steps": pa.schema([_RUN, *STEPS_SCHEMA]),
    "server_metrics": pa.schema([_RUN, *SERIES_SCHEMA]),
}
"""The tables and their columns. `runs` has a row per level; its JSON columns are text for `->>`."""


class QueryError(FlashpointError):
    """A query that cannot be run; the message says why and lists the tables and columns."""


def query(paths: Sequence[str | Path], sql: str) -> pa.Table:
    """The result of one reading statement over the archives in `paths`."""
    archives = [read_archive(path) for path in paths]
    if not archives:
        raise InvalidValue("runs", [], "at least one run archive")
    connection = duckdb.connect(":memory:", config={"python_enable_replacements": False})
    try:
        for name, table in tables(archives).items():
            # A copy: a view on Arrow data would be a scan of something external.
            connection.register("arrow_data", table)
            connection.execute(f"create table {name} as select * from arrow_data")
            connection.unregister("arrow_data")
        connection.execute("set enable_external_access = false; set lock_configuration = true")
        return _run(connection, sql)
    finally:
        connection.close()


def _run(connection: duckdb.DuckDBPyConnection, sql: str) -> pa.Table:
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise QueryError(str(error)) from error
    kinds = [statement.type for statement in statements]
    if kinds != [duckdb.StatementType.SELECT]:
        found = ", ".join(kind.name for kind in kinds) or "nothing"
        raise InvalidValue("query", sql, f"one statement that reads (select …), not: {found}")
    try:
        rows = connection.sql(statements[0]).to_arrow_table()
    except (duckdb.BinderException, duckdb.CatalogException) as error:
        raise QueryError(f"{str(error).splitlines()[0]}\n{describe()}") from error
    except duckdb.Error as error:
        raise QueryError(str(error)) from error
    return rows.rename_columns(_distinct(rows.column_names))


def _distinct(names: Sequence[str]) -> list[str]:
    """The names of columns, where one comes again with a number, so that no row loses a value."""
    found: list[str] = []
    for name in names:
        again = (f"{name}_{number}" for number in itertools.count(2))
        found.append(name if name not in found else next(n for n in again if n not in [*found, *names]))
    return found


def describe() -> str:
    """The tables with their columns, a line each."""
    return "\n".join(f"{name}: {', '.join(schema.names)}" for name, schema in SCHEMAS.items())


def tables(archives: Sequence[Archive]) -> dict[str, pa.Table]:
    """The tables over all archives, of `SCHEMAS`; what no archive has is an empty table."""
    parts: dict[str, list[pa.Table]] = {name: [schema.empty_table()] for name, schema in SCHEMAS.items()}
    for run, archive in zip(_names(archives), archives, strict=True):
        found = {
            "requests": to_table(archive.records),
            "runs": pa.Table.from_pylist(_levels(archive), SCHEMAS["runs"]).drop_columns("run"),
            "steps": archive.steps(),
            "server_metrics": archive.series(),
        }
        for name, table in found.items():
            if table is not None:
                column = pa.array([run] * table.num_rows, pa.string())
                parts[name].append(table.add_column(0, _RUN, column).cast(SCHEMAS[name]))
    return {name: pa.concat_tables(found) for name, found in parts.items()}


def _names(archives: Sequence[Archive]) -> list[str]:
    short = Counter(archive.path.resolve().name for archive in archives)
    return [
        name if short[name := archive.path.resolve().name] == 1 else str(archive.path) for archive in archives
    ]


def _levels(archive: Archive) -> list[dict[str, Any]]:
    run = archive.run
    of_the_run = {name: getattr(run, name) for name in _OF_THE_RUN} | {
        "run": "",
        "run_status": run.status,
        "model": run.server.model,
        "url": run.server.url,
        "command": _text(run.command),
        "config": _text(run.config),
        "description": _text(run.server.description),
        "versions": _text(run.versions),
    }
    return [
        of_the_run
        | {name: getattr(info, name) for name in _OF_THE_LEVEL}
        | dataclasses.asdict(figures)
        | {
            "warnings": list(figures.warnings),
            "intervals": _text(dataclasses.asdict(figures)["intervals"]),
            "reported": _text(info.reported),
        }
        for info, figures in zip(run.levels, summarize(archive).levels, strict=True)
    ]


def _text(value: object) -> str:
    return orjson.dumps(value).decode()


def print_table(rows: pa.Table) -> None:
    """Print the rows for reading; piped output is as wide as it needs to be."""
    table = Table(*map(escape, rows.column_names), box=SIMPLE_HEAD, pad_edge=False)
    for row in rows.to_pylist():
        table.add_row(*(escape(_cell(value)) for value in row.values()))
    console = Console()
    console.print(table, crop=False, soft_wrap=not console.is_terminal)


def print_json(rows: pa.Table) -> None:
    """Print the rows as a JSON list of objects; what JSON cannot say is text, infinities and NaN are null."""
    print(orjson.dumps(rows.to_pylist(), default=str).decode())


def print_csv(rows: pa.Table) -> None:
    """Print the rows as CSV with a heading; lists are JSON, absent values empty."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(rows.column_names)
    for row in rows.to_pylist():
        writer.writerow(
            [json.dumps(v, default=str) if isinstance(v, list | dict) else v for v in row.values()]
        )


def _cell(value: object) -> str:
    if value is None:
        return ABSENT
    return f"{value:.6g}" if isinstance(value, float) else str(value)
