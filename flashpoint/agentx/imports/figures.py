"""The official harness's figures by name, each as a function of request records.

Source: spec agentx.md section 4, agentx-official-harness.md section 9; where they leave room, what reproduces
the recorded runs in every digit. Population: successful requests of the measured phase.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flashpoint.agentx import metrics
from flashpoint.agentx.records import RequestRecord

PerRequest = Callable[[RequestRecord], float | None]
Scalar = Callable[[Sequence[RequestRecord]], float | None]


def _inverse(of: PerRequest) -> PerRequest:
    def inverse(record: RequestRecord) -> float | None:
        value = of(record)
        return 1 / value if value else None

    return inverse


def _decode(record: RequestRecord) -> float | None:
    return None if record.last_token is None or record.ttft is None else record.last_token - record.ttft


def _full_decode(record: RequestRecord) -> float | None:
    return None if record.ttft is None else record.end - record.start - record.ttft


def _total_tokens(record: RequestRecord) -> float | None:
    known = record.prompt_tokens is not None and record.output_tokens is not None
    return (record.prompt_tokens or 0) + (record.output_tokens or 0) if known else None


def _prefill_rate(record: RequestRecord) -> float | None:
    return record.prompt_tokens / record.ttft if record.ttft and record.prompt_tokens is not None else None


def _e2e_rate(record: RequestRecord) -> float | None:
    return record.output_tokens / record.last_token if record.last_token and record.output_tokens else None


PER_REQUEST: dict[str, tuple[str, PerRequest]] = {
    "request_latency": ("s", lambda r: r.last_token),
    "time_to_first_token": ("s", lambda r: r.ttft),
    "time_to_first_output_token": ("s", lambda r: r.ttft_answer),
    "time_to_second_token": ("s", metrics.time_to_second_token),
    "inter_token_latency": ("s", metrics.inter_token_latency),
    "full_response_inter_token_latency": ("s", metrics.full_response_itl),
    "output_token_throughput_per_user": ("tok/s", _inverse(metrics.inter_token_latency)),
    "full_response_output_token_throughput_per_user": ("tok/s", _inverse(metrics.full_response_itl)),
    "e2e_output_token_throughput": ("tok/s", _e2e_rate),
    "prefill_throughput_per_user": ("tok/s", _prefill_rate),
    "decode_duration": ("s", _decode),
    "full_decode_duration": ("s", _full_decode),
    "input_sequence_length": ("tokens", lambda r: r.prompt_tokens),
    "output_sequence_length": ("tokens", lambda r: r.output_tokens),
    "usage_prompt_tokens": ("tokens", lambda r: r.prompt_tokens),
    "usage_completion_tokens": ("tokens", lambda r: r.output_tokens),
    "usage_total_tokens": ("tokens", _total_tokens),
    "usage_prompt_cache_read_tokens": ("tokens", lambda r: r.cached_tokens),
    "osl_mismatch_diff_pct": ("share", metrics.output_length_mismatch),
}
"""Distributions over the successful requests: unit and the value of one request."""

SCALARS: dict[str, tuple[str, Scalar]] = {
    "request_count": ("requests", lambda records: len(metrics.successful(records))),
    "error_request_count": ("requests", lambda records: _ended(records, "error")),
    "context_overflow_count": ("requests", lambda records: _ended(records, "overflow")),
    "completed_request_count": ("requests", lambda records: _ended(records, "ok", "error")),
    "request_error_rate": (
        "share",
        lambda records: _ended(records, "error") / _ended(records, "ok", "error"),
    ),
    "benchmark_duration": ("s", metrics.window_seconds),
    "total_isl": ("tokens", metrics.prompt_tokens),
    "total_osl": ("tokens", metrics.output_tokens),
    "total_usage_prompt_tokens": ("tokens", metrics.prompt_tokens),
    "total_usage_completion_tokens": ("tokens", metrics.output_tokens),
    "total_usage_total_tokens": ("tokens", lambda records: _all_tokens(records)),
    "total_usage_prompt_cache_read_tokens": ("tokens", metrics.cached_tokens),
    "overall_usage_prompt_cache_read_pct": ("share", metrics.cache_hit_share),
    "osl_mismatch_count": ("requests", lambda records: _mismatches(records)),
}
"""Figures of the whole run: unit and the function of its records."""

RATES: dict[str, tuple[str, Scalar]] = {
    "request_throughput": ("requests/s", SCALARS["request_count"][1]),
    "output_token_throughput": ("tok/s", metrics.output_tokens),
    "input_token_throughput": ("tok/s", metrics.prompt_tokens),
    "total_token_throughput": ("tok/s", SCALARS["total_usage_total_tokens"][1]),
}
"""Unit and numerator of the rates. The harness divides by the measured phase, idle start and end included;
flashpoint and InferenceX by the window, which is a little shorter (spec agentx.md section 4)."""

REASONS: tuple[tuple[str, str], ...] = (
    ("theoretical_prefix_cache_hit", "needs the traces: the records do not name the blocks of a prompt"),
    ("http_req_", "timings inside the HTTP client, which the archive does not keep"),
    ("adj_", "counts a failed request as infinitely slow, by nearest rank; no figure of ours does"),
    ("effective_", "a rate spread over each request's time; no figure of ours"),
    ("active_", "a rate over the busy time alone; no figure of ours"),
    ("tokens_in_flight", "tokens held by open requests, modelled by the harness; no figure of ours"),
)
"""Why a figure is not computed, by the start of its name; the first that fits."""


def _all_tokens(records: Sequence[RequestRecord]) -> int | None:
    prompt, output = metrics.prompt_tokens(records), metrics.output_tokens(records)
    return None if prompt is None or output is None else prompt + output


def _mismatches(records: Sequence[RequestRecord]) -> int | None:
    each = [metrics.is_output_length_mismatch(r) for r in metrics.successful(records)]
    known = [missed for missed in each if missed is not None]
    return sum(known) if known else None


def _ended(records: Sequence[RequestRecord], *statuses: str) -> int:
    return sum(r.phase == "measured" and r.status in statuses for r in records)


POINT_PER_REQUEST: dict[str, tuple[str, PerRequest]] = {
    "requested_output_length": ("tokens", lambda r: r.max_tokens),
    "time_per_output_token": ("s", metrics.inter_token_latency),
    **{
        name: PER_REQUEST[name]
        for name in (
            "time_to_first_token",
            "request_latency",
            "inter_token_latency",
            "full_response_inter_token_latency",
            "input_sequence_length",
            "output_sequence_length",
        )
    },
}
"""Distributions of an InferenceX point."""

POINT_INVERSES: dict[str, PerRequest] = {
    "interactivity": metrics.inter_token_latency,
    "full_response_interactivity": metrics.full_response_itl,
    "e2e_normalised_interactivity": lambda r: (
        r.last_token / r.output_tokens if r.last_token is not None and r.output_tokens else None
    ),
}
"""Speeds of an InferenceX point: 1 / the same statistic of these latencies, so P90 is the slow tail."""
