"""The official harness's `server_metrics_export.json` as the archive's server series.

The file holds slices of the scraped series, no samples: of a gauge the mean of each slice, of a counter its
increase. A gauge becomes a point at the end of each slice. A counter becomes a running total that starts at
0 with the first slice, under its Prometheus name (the harness drops `_total`), so differences are what the
server counted. Histograms have no single value and are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from flashpoint.agentx.archive import SERIES_SCHEMA
from flashpoint.agentx.imports.imported import ImportFailed, is_number, read_json

Row = tuple[float, str, str, float]


def read_series(path: Path, origin_ns: int) -> pa.Table:
    """The series of level 0; times are seconds since `origin_ns`."""
    try:
        return _series(read_json(path), origin_ns)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ImportFailed(f"{path}: not in the form of the harness's server metrics ({error!r})") from error


def _series(content: dict[str, Any], origin_ns: int) -> pa.Table:
    slices: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for part in ("warmup_metrics", "metrics"):
        for name, metric in (content.get(part) or {}).items():
            for series in metric.get("series") or []:
                key = (name, str(metric.get("type")), _labels(series))
                slices.setdefault(key, []).extend(series.get("timeslices") or [])
    rows = sorted(row for key, found in slices.items() for row in _rows(*key, found, origin_ns))
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
    return pa.table([[0] * len(rows), *map(list, columns)], schema=SERIES_SCHEMA)


def measured_from(path: Path, origin_ns: int) -> float | None:
    """When the measured phase began, seconds since `origin_ns`; None where the file does not say."""
    ranges = (read_json(path).get("summary") or {}).get("phase_time_ranges") or {}
    start = (ranges.get("profiling") or {}).get("start_ns")
    return (start - origin_ns) / 1e9 if is_number(start) else None


def _labels(series: dict[str, Any]) -> str:
    labels = dict(series.get("labels") or {}) | {"endpoint": str(series.get("endpoint_url"))}
    return orjson.dumps(labels, option=orjson.OPT_SORT_KEYS).decode()


def _rows(name: str, kind: str, labels: str, slices: list[dict[str, Any]], origin_ns: int) -> list[Row]:
    ordered = sorted(slices, key=lambda piece: piece["start_ns"])
    ends = [(piece["end_ns"] - origin_ns) / 1e9 for piece in ordered]
    if kind == "gauge":
        values = [piece.get("avg") for piece in ordered]
        return [
            (t, name, labels, float(value))
            for t, value in zip(ends, values, strict=True)
            if value is not None
        ]
    if kind != "counter" or not ordered:
        return []
    total = 0.0
    rows = [((ordered[0]["start_ns"] - origin_ns) / 1e9, f"{name}_total", labels, total)]
    for t, piece in zip(ends, ordered, strict=True):
        total += float(piece.get("total") or 0.0)
        rows.append((t, f"{name}_total", labels, total))
    return rows
