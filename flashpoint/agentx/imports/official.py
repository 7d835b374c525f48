"""The output folder of the official harness (`agentx-harness` 1.0.12) as an imported run.

Source: spec agentx.md section 6, agentx-official-harness.md section 8. One run is one level.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flashpoint import __version__
from flashpoint.agentx.archive import CorpusInfo, LevelInfo, RunInfo, ServerInfo
from flashpoint.agentx.imports import official_records, official_series
from flashpoint.agentx.imports.imported import PHASE_SECONDS, Imported, ImportFailed, is_number, read_json
from flashpoint.agentx.imports.official_records import RECORDS_FILE
from flashpoint.agentx.metrics import window

AGGREGATE_FILE = "profile_export_aiperf.json"
SERIES_FILE = "server_metrics_export.json"

SECRET_OPTIONS = ("--api-key", "--header", "-H")

_FACTORS = {"ms": 1e-3, "%": 1e-2}


def is_official(folder: Path) -> bool:
    """Whether a folder holds the output of the harness."""
    return (folder / RECORDS_FILE).is_file() and (folder / AGGREGATE_FILE).is_file()


def read_official(folder: Path, accelerators: int, description: Mapping[str, Any]) -> Imported:
    """Read the folder; `accelerators` and `description` are what the harness does not know of the server."""
    aggregate = read_json(folder / AGGREGATE_FILE)
    lines = official_records.read_lines(folder / RECORDS_FILE)
    config = _object(aggregate, "input_config")
    phase = _measured_phase(config, folder)
    records = official_records.to_records(lines, int(phase["concurrency"]))
    origin = official_records.first_ns(lines)
    end = max(record.end for record in records)
    stopped = bool(aggregate.get("was_cancelled"))
    validity = _object(aggregate, "metadata")
    invalid = [str(reason) for reason in validity.get("submission_invalid_reasons") or []]
    detail = "stopped by the harness: " + (", ".join(invalid) or "no reason given") if stopped else None
    series_file = folder / SERIES_FILE
    duration = phase.get("duration")
    level = LevelInfo(
        level=0,
        concurrency=int(phase["concurrency"]),
        status="stopped" if stopped else "complete",
        status_detail=detail,
        start=0.0,
        end=end,
        measured_from=official_series.measured_from(series_file, origin) if series_file.exists() else None,
        duration=float(duration) if duration is not None and is_number(duration) else None,
        window=window(records),
        sessions_started=official_records.plays(lines),
        requests=len(records),
        client_lag=None,
        reported=reported_figures(aggregate),
        invalid=invalid,
    )
    run_info = _object(aggregate, "run_info")
    dataset = (_objects(config, "datasets") or [{}])[0]
    entries = dataset.get("entries")
    run = RunInfo(
        source="agentx-harness",
        status=level.status,
        status_detail=detail,
        command=_without_secrets(shlex.split(str(run_info.get("cli_command") or ""))),
        started=_utc(origin, 0.0),
        finished=_utc(origin, end),
        versions={"flashpoint": __version__, "aiperf": str(aggregate.get("aiperf_version"))},
        client_machine={},
        server=ServerInfo(url=_url(config), model=_model(config), description=dict(description)),
        config={"seed": run_info.get("random_seed"), **config, "endpoint": _endpoint(config)},
        accelerators=accelerators,
        corpus=CorpusInfo(
            path=str(dataset.get("path") or ""),
            sha256=None,
            sessions=entries if isinstance(entries, int) else None,
        ),
        tokenizer=None,
        cache_bust="",
    )
    return Imported(
        run=run,
        levels=[level],
        records=records,
        series=official_series.read_series(series_file, origin) if series_file.exists() else None,
        last_response=official_records.last_responses(lines),
        without_reasoning=official_records.tokens_without_reasoning(lines),
    )


def reported_figures(aggregate: Mapping[str, Any]) -> dict[str, float]:
    """Every figure of the measured phase as `metric_statistic`; seconds for ms, a share of 1 for %.

    A metric that is one number is named without a statistic: the harness calls it an average.
    """
    figures: dict[str, float] = {}
    for metric, values in aggregate.items():
        if not isinstance(values, dict) or "unit" not in values:
            continue
        factor = _FACTORS.get(values["unit"], 1.0)
        statistics = {name: value for name, value in values.items() if is_number(value)}
        if set(statistics) == {"avg"}:
            figures[metric] = statistics["avg"] * factor
            continue
        for name, value in statistics.items():
            counted = name == "count" or (metric, name) == ("theoretical_prefix_cache_hit", "sum")  # blocks
            figures[f"{metric}_{name}"] = value if counted else value * factor
    seconds = _phase_seconds(aggregate)
    if seconds is not None:
        figures[PHASE_SECONDS] = seconds
    return figures


def _phase_seconds(aggregate: Mapping[str, Any]) -> float | None:
    try:
        start, end = (datetime.fromisoformat(aggregate[name]) for name in ("start_time", "end_time"))
    except (KeyError, TypeError, ValueError):
        return None
    return (end - start).total_seconds()


def _measured_phase(config: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    for phase in _objects(config, "phases"):
        if phase.get("name") == "profiling" and is_number(phase.get("concurrency")):
            return phase
    raise ImportFailed(
        f"{folder / AGGREGATE_FILE}: input_config.phases: expected a phase `profiling` with its concurrency"
    )


def _object(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name)
    return found if isinstance(found, dict) else {}


def _objects(values: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = values.get(name)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _endpoint(config: Mapping[str, Any]) -> dict[str, Any]:
    """The endpoint's settings without what may hold a secret."""
    kept = _object(config, "endpoint")
    return {name: value for name, value in kept.items() if name not in ("api_key", "headers", "urls")} | {
        "url": _url(config)
    }


def _without_secrets(command: list[str]) -> list[str]:
    """The command with the values of its secret options left out."""
    shown: list[str] = []
    secret = False
    for word in command:
        name, equals, _ = word.partition("=")
        hidden = secret or (equals and name in SECRET_OPTIONS)
        shown.append((f"{name}=…" if not secret else "…") if hidden else re.sub(r"//[^/@ ]*@", "//", word))
        secret = not hidden and word in SECRET_OPTIONS
    return shown


def _url(config: Mapping[str, Any]) -> str:
    urls = _object(config, "endpoint").get("urls") or [""]
    # A password in the address must not reach the archive.
    return re.sub(r"//[^/@]*@", "//", str(urls[0]))


def _model(config: Mapping[str, Any]) -> str:
    items = _objects(_object(config, "models"), "items") or [{}]
    return str(items[0].get("name") or "")


def _utc(origin_ns: int, seconds: float) -> str:
    return datetime.fromtimestamp(origin_ns / 1e9 + seconds, UTC).isoformat(timespec="milliseconds")
