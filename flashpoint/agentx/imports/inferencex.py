"""InferenceX result files: compact points, and folders that hold such a point beside official harness output.

Source: spec inferencex.md sections 1.1 and 1.2. A point has aggregates alone, so its level has `reported`
figures and no requests. Figures are named as the official harness names them, so that both can be laid over
each other; latencies are seconds, shares are of 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flashpoint import __version__
from flashpoint.agentx.archive import CorpusInfo, LevelInfo, RunInfo, ServerInfo
from flashpoint.agentx.imports.imported import Imported, ImportFailed, is_number, read_json, scalars
from flashpoint.errors import InvalidValue

Point = dict[str, Any]

METRICS = {
    "ttft": "time_to_first_token",
    "e2el": "request_latency",
    "itl": "inter_token_latency",
    "tpot": "time_per_output_token",
    "intvty": "interactivity",
    "e2e_norm_intvty": "e2e_normalised_interactivity",
    "full_response_itl": "full_response_inter_token_latency",
    "full_response_intvty": "full_response_interactivity",
    "qps": "requests_per_second_slice",
    "input": "input_sequence_length",
    "input_tokens": "input_sequence_length",
    "output_actual": "output_sequence_length",
    "output_tokens_actual": "output_sequence_length",
    "output_expected": "requested_output_length",
    "output_tokens_expected": "requested_output_length",
}
SCALARS = {
    "input_tput_tps": "input_token_throughput",
    "output_tput_tps": "output_token_throughput",
    "total_tput_tps": "total_token_throughput",
    "duration_seconds": "benchmark_duration",
    "tput_per_gpu": "total_token_throughput_per_accelerator",
    "input_tput_per_gpu": "input_token_throughput_per_accelerator",
    "output_tput_per_gpu": "output_token_throughput_per_accelerator",
    "theoretical_cache_hit_rate": "theoretical_prefix_cache_hit",
}
_STATISTICS = {"mean": "avg", "median": "p50"}
_FLAT = re.compile(rf"(mean|median|std|p[0-9.]+)_({'|'.join(map(re.escape, METRICS))})")
# What a point holds beside its figures is the description of the system, but for these.
_NO_DESCRIPTION = {"conc", "num_gpus", "model", "num_requests_total", "num_requests_successful", "date"}


def is_point(content: object) -> bool:
    """Whether a JSON value is a point of an agentic run."""
    return isinstance(content, dict) and is_number(content.get("conc")) and bool(point_figures(content))


def find_points(folder: Path) -> list[Path]:
    """The point files directly in a folder; its other JSON files are of other kinds."""
    return [path for path in sorted(folder.glob("*.json")) if is_point(_content(path))]


def _content(path: Path) -> object:
    try:
        return read_json(path)
    except ImportFailed:
        return None


def read_points(paths: Sequence[Path], accelerators: int | None, description: Mapping[str, Any]) -> Imported:
    """Read points of one system, each another level, ordered by concurrency."""
    found = sorted(((path, read_json(path)) for path in paths), key=lambda item: item[1].get("conc", 0))
    for path, point in found:
        if not is_point(point):
            raise ImportFailed(
                f"{path}: not an InferenceX point; expected `conc` and `request_metrics` or flat metric keys"
            )
    first = found[0][1]
    system = point_description(first)
    for path, point in found[1:]:
        for name, value in point_description(point).items():
            if system.get(name) != value:
                raise InvalidValue(
                    f"{path}: {name}", value, f"{system.get(name)!r}, as the other points have"
                )
    counts = {point_accelerators(point, accelerators, path) for path, point in found}
    if len(counts) > 1:
        raise InvalidValue("num_gpus", sorted(counts), "the same in all points; import them one by one")
    dataset = first.get("dataset") if isinstance(first.get("dataset"), dict) else {}
    entries = (dataset or {}).get("num_dataset_entries")
    run = RunInfo(
        source="inferencex",
        status="complete",
        command=[],
        started=str(first.get("date") or ""),
        versions={"flashpoint": __version__},
        client_machine={},
        server=ServerInfo(
            url="", model=str(first.get("model") or ""), description=system | dict(description)
        ),
        config={"scenario_type": first.get("scenario_type")},
        accelerators=counts.pop(),
        corpus=CorpusInfo(
            path=str((dataset or {}).get("hf_dataset_name") or ""),
            sha256=None,
            sessions=entries if isinstance(entries, int) else None,
        ),
        cache_bust="",
    )
    return Imported(run=run, levels=[_level(number, point) for number, (_, point) in enumerate(found)])


def _level(number: int, point: Point) -> LevelInfo:
    figures = point_figures(point)
    return LevelInfo(
        level=number,
        concurrency=int(point["conc"]),
        status="complete",
        start=0.0,
        end=figures.get("benchmark_duration", 0.0),
        window=None,
        sessions_started=None,
        requests=0,
        client_lag=None,
        reported=figures,
    )


def point_accelerators(point: Point, given: int | None, path: Path) -> int:
    """Accelerators of a point: its own count, or one given by the user where it has none.

    On one node without a count: tensor x pipeline x prefill-context parallel size (spec agentx.md section 4).
    """
    own = point.get("num_gpus")
    if not is_number(own) and not point.get("disagg") and is_number(point.get("tp")):
        own = point["tp"] * (point.get("pp") or 1) * (point.get("pcp_size") or 1)
    if own is None or not is_number(own):
        if given is None:
            raise InvalidValue("accelerators", None, f"a number, as {path} does not say how many there were")
        return given
    if own < 1 or own != int(own):
        raise InvalidValue(f"{path}: num_gpus", own, "a whole number of at least 1")
    if given is not None and given != own:
        raise InvalidValue("accelerators", given, f"{int(own)}, as {path} says, or no such option")
    return int(own)


def point_description(point: Point) -> dict[str, str | int | float | bool | None]:
    """The system that a point was measured on: hardware, framework, layout and so on."""
    named = {
        name: " ".join(str(part) for part in value.values())
        for name, value in point.items()
        if name in ("router", "kv_offload_backend", "kv_p2p_transfer") and isinstance(value, dict)
    }
    plain = {
        name: value for name, value in scalars(point).items() if name not in _NO_DESCRIPTION | set(SCALARS)
    }
    return {name: value for name, value in plain.items() if not _FLAT.fullmatch(name)} | named


def point_figures(point: Point) -> dict[str, float]:
    """The figures of a point by name; both forms of the file are read, nested and flat."""
    figures: dict[str, float] = {}
    request = _object(point, "request_metrics")
    groups = _object(request, "latency") | _object(request, "tokens") | {"qps": request.get("qps")}
    for name, values in groups.items():
        if name in METRICS and isinstance(values, dict):
            _add(figures, METRICS[name], values)
    throughput = _object(request, "throughput")
    for name in ("input", "output", "total"):
        _put(figures, f"{name}_token_throughput", _object(throughput, name).get("tokens_per_second"))
        per_gpu = _object(throughput, "per_gpu").get(f"{name}_tput_tps")
        _put(figures, f"{name}_token_throughput_per_accelerator", per_gpu)
    _put(figures, "benchmark_duration", throughput.get("duration_seconds"))
    theoretical = _object(request, "cache").get("theoretical_cache_hit_rate")
    _put(figures, "theoretical_prefix_cache_hit", theoretical)
    server = _object(point, "server_metrics")
    for name, value in (_object(server, "cache") | _object(server, "kv_cache")).items():
        _put(figures, f"server_{name}", value)
    for name, value in _object(point, "request_accounting").items():
        _put(figures, name, value)
    for flat in (_object(point, "metrics"), point):
        for name, value in flat.items():
            if matched := _FLAT.fullmatch(name):
                _put(figures, f"{METRICS[matched[2]]}_{_STATISTICS.get(matched[1], matched[1])}", value)
            elif name in SCALARS:
                _put(figures, SCALARS[name], value)
    if figures:
        _put(figures, "request_count", point.get("num_requests_successful"))
        _put(figures, "requests_total", point.get("num_requests_total"))
    return figures


def _add(figures: dict[str, float], metric: str, values: Mapping[str, Any]) -> None:
    for statistic, value in values.items():
        _put(figures, f"{metric}_{_STATISTICS.get(statistic, statistic)}", value)


def _put(figures: dict[str, float], name: str, value: object) -> None:
    if isinstance(value, int | float) and is_number(value):
        figures[name] = float(value)


def _object(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name)
    return found if isinstance(found, dict) else {}
