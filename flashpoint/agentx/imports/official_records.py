"""Lines of the official harness's `profile_export.jsonl` as request records.

Source: spec agentx.md section 6 and agentx-official-harness.md section 8. The lines hold no lane and no count
of plays; both are derived here, always the same way from the same file (`_places`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from flashpoint.agentx.imports.imported import ImportFailed, is_number
from flashpoint.agentx.records import Phase, RequestRecord, Status, spread_tokens

RECORDS_FILE = "profile_export.jsonl"
PHASES: dict[str, Phase] = {"warmup": "warmup", "profiling": "measured"}
_REQUIRED = {
    "x_request_id": str,
    "x_correlation_id": str,
    "conversation_id": str,
    "turn_index": int,
    "request_start_ns": int,
    "request_end_ns": int,
    "benchmark_phase": str,
}

Line = dict[str, Any]


def read_lines(path: Path) -> list[Line]:
    """The lines of the file, each checked for what a record needs; at least one."""
    try:
        raw = path.read_bytes().splitlines()
    except OSError as error:
        raise ImportFailed(f"{path}: cannot be read ({error.strerror})") from error
    lines = [_line(f"{path}, line {number}", text) for number, text in enumerate(raw, 1) if text.strip()]
    if not lines:
        raise ImportFailed(f"{path}: holds no request; the run ended before its first one")
    return lines


def _line(where: str, text: bytes) -> Line:
    try:
        line = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ImportFailed(f"{where}: not JSON ({error}); was the run cut short?") from error
    if not isinstance(line, dict) or not isinstance(line.get("metadata"), dict):
        raise ImportFailed(f"{where}: expected an object with `metadata` and `metrics`")
    metadata = line["metadata"]
    for name, kind in _REQUIRED.items():
        if not isinstance(metadata.get(name), kind):
            raise ImportFailed(
                f"{where}: metadata.{name}: got {metadata.get(name)!r}; expected {kind.__name__}"
            )
    if metadata["benchmark_phase"] not in PHASES:
        raise ImportFailed(
            f"{where}: metadata.benchmark_phase: got {metadata['benchmark_phase']!r}; "
            f"expected {' or '.join(PHASES)}"
        )
    return line


def first_ns(lines: Sequence[Line]) -> int:
    """The moment that is second 0 of the imported run: the first request due or sent."""
    return min(min(_due(line), line["metadata"]["request_start_ns"]) for line in lines)


def to_records(lines: Sequence[Line], concurrency: int) -> list[RequestRecord]:
    """The lines as records of level 0, in their order; times are seconds since `first_ns`."""
    origin = first_ns(lines)
    places = _places(lines)
    return [_record(line, origin, concurrency, *places[_root(line)]) for line in lines]


def last_responses(lines: Sequence[Line]) -> dict[str, float]:
    """By request id, seconds from the start to the last response chunk (the harness's `request_end_ns`)."""
    each = [line["metadata"] for line in lines]
    return {m["x_request_id"]: (m["request_end_ns"] - m["request_start_ns"]) / 1e9 for m in each}


def tokens_without_reasoning(lines: Sequence[Line]) -> dict[str, int]:
    """By request id, tokens of the answer that are not reasoning, where the harness counted any."""
    counts = {line["metadata"]["x_request_id"]: _count(line, "output_token_count") for line in lines}
    return {request_id: count for request_id, count in counts.items() if count is not None}


def _record(line: Line, origin: int, concurrency: int, lane: int, play: int) -> RequestRecord:
    metadata = line["metadata"]
    start_ns = metadata["request_start_ns"]
    ttft, latency = _seconds(line, "time_to_first_token"), _seconds(line, "request_latency")
    full_decode = _seconds(line, "full_decode_duration")
    tokens = _count(line, "output_sequence_length")
    arrivals = _arrivals(line, ttft, latency)
    error = line.get("error") or {}
    code = error.get("code") if isinstance(error, dict) else None
    # The harness's `request_end_ns` is its last response chunk; the response itself ends a little later.
    whole = ttft + full_decode if ttft is not None and full_decode is not None else None
    return RequestRecord(
        level=0,
        concurrency=concurrency,
        lane=lane,
        session=str(metadata.get("source_trace_id") or metadata["conversation_id"]),
        play=play,
        turn=metadata["turn_index"],
        request_id=metadata["x_request_id"],
        max_tokens=_asked_for(line, tokens),
        start=(start_ns - origin) / 1e9,
        end=(start_ns - origin) / 1e9
        + (whole if whole is not None else (metadata["request_end_ns"] - start_ns) / 1e9),
        status=_status(line),
        ttft=ttft,
        ttft_answer=_seconds(line, "time_to_first_output_token"),
        last_token=latency,
        token_offsets=_token_offsets(arrivals, tokens),
        chunks=len(arrivals),
        prompt_tokens=_count(line, "input_sequence_length"),
        cached_tokens=_count(line, "usage_prompt_cache_read_tokens"),
        output_tokens=tokens,
        http_status=code if isinstance(code, int) else (200 if ttft is not None else None),
        error=_error_text(error),
        phase=PHASES[metadata["benchmark_phase"]],
        stream=metadata["conversation_id"],
        depth=int(metadata.get("agent_depth") or 0),
        correlation_id=metadata["x_correlation_id"],
        due=(_due(line) - origin) / 1e9 if is_number(metadata.get("credit_issued_ns")) else None,
    )


def _status(line: Line) -> Status:
    metadata = line["metadata"]
    if metadata.get("context_overflow_skip"):
        return "overflow"
    if metadata.get("was_cancelled"):
        return "cancelled"
    return "error" if line.get("error") else "ok"


def _places(lines: Sequence[Line]) -> dict[str, tuple[int, int]]:
    """Lane and play of every root correlation id, which is one play of a session with its sub-agents.

    Plays are taken in the order they became due. A play gets the lowest lane whose earlier play has sent
    its last request and had the answer; a lane takes its next session only then. Its play number counts
    the earlier plays of the same session.
    """
    spans: dict[str, tuple[int, int]] = {}
    sessions: dict[str, str] = {}
    for line in lines:
        root, metadata = _root(line), line["metadata"]
        first, last = spans.get(root, (_due(line), 0))
        spans[root] = (min(first, _due(line)), max(last, metadata["request_end_ns"]))
        sessions[root] = str(metadata.get("source_trace_id") or metadata["conversation_id"])
    busy_until: list[int] = []
    played: Counter[str] = Counter()
    places: dict[str, tuple[int, int]] = {}
    for root, (first, last) in sorted(spans.items(), key=lambda item: (item[1], item[0])):
        free = [lane for lane, until in enumerate(busy_until) if until <= first]
        lane = free[0] if free else len(busy_until)
        busy_until[lane : lane + 1] = [last]
        places[root] = (lane, played[sessions[root]])
        played[sessions[root]] += 1
    return places


def plays(lines: Sequence[Line]) -> int:
    """How many times a session was started."""
    return len({_root(line) for line in lines})


def _root(line: Line) -> str:
    metadata = line["metadata"]
    return str(metadata.get("root_correlation_id") or metadata["x_correlation_id"])


def _due(line: Line) -> int:
    issued = line["metadata"].get("credit_issued_ns")
    return issued if isinstance(issued, int) else line["metadata"]["request_start_ns"]


def _arrivals(line: Line, ttft: float | None, latency: float | None) -> list[float]:
    """Seconds from the start to every content chunk, where the file tells all of them; else none."""
    gaps = _metric(line, "inter_chunk_latency", "ms")
    if ttft is None or latency is None:
        return []
    if not isinstance(gaps, list):
        return [ttft] if latency == ttft else []
    return list(accumulate((gap / 1e3 for gap in gaps), initial=ttft))


def _token_offsets(arrivals: list[float], tokens: int | None) -> npt.NDArray[np.float64]:
    """Chunk arrivals as token arrivals, by the same rule as in a replay (`records.spread_tokens`)."""
    if not arrivals:
        return np.empty(0)
    counts = spread_tokens(tokens, len(arrivals)) if tokens is not None else [1] * len(arrivals)
    return np.repeat(np.array(arrivals), counts)


def _asked_for(line: Line, tokens: int | None) -> int | None:
    """The length asked for, which the file gives only as the answer's deviation from it in per cent."""
    deviation = _metric(line, "osl_mismatch_diff_pct", "%")
    if tokens is None or not is_number(deviation) or deviation <= -100:
        return None
    return round(tokens / (1 + deviation / 100))


def _error_text(error: object) -> str | None:
    if not error:
        return None
    if not isinstance(error, dict):
        return str(error)
    code = f"HTTP {error['code']}: " if isinstance(error.get("code"), int) else ""
    return code + str(error.get("message") or error.get("type") or "no message")


def _metric(line: Line, name: str, unit: str) -> Any:
    """The value of a metric of one line; None where it is absent."""
    found = (line.get("metrics") or {}).get(name)
    if found is None:
        return None
    if not isinstance(found, dict) or found.get("unit") != unit:
        raise ImportFailed(
            f"{RECORDS_FILE}, request {line['metadata']['x_request_id']}: "
            f"metrics.{name}: got {found!r}; expected a value in {unit}"
        )
    return found.get("value")


def _seconds(line: Line, name: str) -> float | None:
    value = _metric(line, name, "ms")
    return value / 1e3 if is_number(value) else None


def _count(line: Line, name: str) -> int | None:
    value = _metric(line, name, "tokens")
    return int(value) if is_number(value) else None
