"""A run in numbers: what the table, the JSON output and the report show, all computed from the archive."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashpoint.agentx import metrics
from flashpoint.agentx.archive import Archive, LevelInfo, RunInfo
from flashpoint.agentx.curves.bootstrap import Interval, level_intervals
from flashpoint.agentx.records import RequestRecord
from flashpoint.agentx.validity import LAG_SHARE, Finding, check_level, lag_distortion


@dataclass(frozen=True)
class LevelSummary:
    """The figures of one concurrency level; None where the records do not support a figure."""

    level: int
    concurrency: int
    status: str
    requests: int
    ok: int
    errors: int
    cancelled: int
    overflows: int
    sessions_started: int | None
    window_seconds: float | None
    total_throughput: float | None
    output_throughput: float | None
    uncached_input_throughput: float | None
    interactivity_p50: float | None
    interactivity_p90: float | None
    e2e_normalised_interactivity_p90: float | None
    itl_p50: float | None
    itl_p90: float | None
    pooled_itl_p50: float | None
    pooled_itl_p90: float | None
    ttft_p50: float | None
    ttft_p90: float | None
    ttft_answer_p50: float | None
    ttft_answer_p90: float | None
    e2e_p50: float | None
    e2e_p90: float | None
    cache_hit_share: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    mean_in_flight: float | None
    client_lag_p90: float | None
    repeat: int
    theoretical_hit_share: float | None
    intervals: dict[str, Interval]
    """The middle 95 % over resampled sessions of the headline figures, by their names here."""
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class RunSummary:
    """One run: what it was (`run`), its levels in figures, and what the rules say of each level."""

    path: Path
    run: RunInfo
    levels: tuple[LevelSummary, ...]
    validity: tuple[tuple[Finding, ...], ...]

    @property
    def exit_code(self) -> int:
        """0: the run is complete; 130: interrupted; 1: the server was lost, or no request succeeded."""
        if self.run.status == "interrupted":
            return 130
        return 0 if self.run.status == "complete" and any(level.ok for level in self.levels) else 1

    def as_dict(self) -> dict[str, Any]:
        """The summary as plain data, for `--json`."""
        return {
            "archive": str(self.path),
            "status": self.run.status,
            "status_detail": self.run.status_detail,
            "model": self.run.server.model,
            "url": self.run.server.url,
            "accelerators": self.run.accelerators,
            "levels": [
                dataclasses.asdict(level)
                | {"validity": [dataclasses.asdict(finding) for finding in findings]}
                for level, findings in zip(self.levels, self.validity, strict=True)
            ],
        }


def summarize(archive: Archive) -> RunSummary:
    """All figures of an archive."""
    run = archive.run
    levels, findings = [], []
    for info in run.levels:
        records = archive.level(info.level)
        levels.append(summarize_level(info, records, run.accelerators))
        findings.append(tuple(check_level(run, info, records)))
    return RunSummary(archive.path, run, tuple(levels), tuple(findings))


def summarize_level(info: LevelInfo, records: list[RequestRecord], accelerators: int) -> LevelSummary:
    """All figures of one concurrency level."""
    pooled_p50, pooled_p90 = metrics.pooled_itl_percentiles(records, 50, 90)
    records = [record for record in records if record.phase == "measured"]
    statuses = [record.status for record in records]
    return LevelSummary(
        level=info.level,
        concurrency=info.concurrency,
        status=info.status,
        requests=len(records),
        ok=statuses.count("ok"),
        errors=statuses.count("error"),
        cancelled=statuses.count("cancelled"),
        overflows=statuses.count("overflow"),
        sessions_started=info.sessions_started,
        window_seconds=metrics.window_seconds(records),
        total_throughput=metrics.total_throughput(records, accelerators),
        output_throughput=metrics.output_throughput(records, accelerators),
        uncached_input_throughput=metrics.uncached_input_throughput(records, accelerators),
        interactivity_p50=metrics.interactivity(records, 50),
        interactivity_p90=metrics.interactivity(records, 90),
        e2e_normalised_interactivity_p90=metrics.e2e_normalised_interactivity(records, 90),
        itl_p50=metrics.itl_percentile(records, 50),
        itl_p90=metrics.itl_percentile(records, 90),
        pooled_itl_p50=pooled_p50,
        pooled_itl_p90=pooled_p90,
        ttft_p50=metrics.ttft_percentile(records, 50),
        ttft_p90=metrics.ttft_percentile(records, 90),
        ttft_answer_p50=metrics.ttft_answer_percentile(records, 50),
        ttft_answer_p90=metrics.ttft_answer_percentile(records, 90),
        e2e_p50=metrics.e2e_percentile(records, 50),
        e2e_p90=metrics.e2e_percentile(records, 90),
        cache_hit_share=metrics.cache_hit_share(records),
        prompt_tokens=metrics.prompt_tokens(records),
        cached_tokens=metrics.cached_tokens(records),
        output_tokens=metrics.output_tokens(records),
        mean_in_flight=metrics.mean_in_flight(records),
        client_lag_p90=info.client_lag.p90 if info.client_lag else None,
        repeat=info.repeat,
        theoretical_hit_share=metrics.theoretical_hit_share(records),
        intervals=level_intervals(records, accelerators),
        warnings=tuple(_warnings(info, records)),
    )


def _warnings(info: LevelInfo, records: list[RequestRecord]) -> list[str]:
    """What a reader must know before trusting the figures of a level."""
    if info.reported and not records:
        return ["no request records: the source gives aggregate figures alone"]
    done = metrics.successful(records)
    if not done:
        return ["no request succeeded"]
    found = []
    failed = sum(record.status == "error" for record in records)
    if failed:
        found.append(f"{failed} of {len(records)} requests failed and are not in the figures")
    uncounted = sum(record.output_tokens is None or record.prompt_tokens is None for record in done)
    if uncounted:
        found.append(f"the server sent no usage for {uncounted} requests: no throughput can be given")
    elif metrics.cached_tokens(done) is None:
        found.append("the server reports no cached tokens: no cache hit share can be given")
    short = sum(
        r.output_tokens is not None and r.max_tokens is not None and r.output_tokens < r.max_tokens
        for r in done
    )
    if short:
        found.append(f"{short} answers are shorter than asked for (end of text was not ignored)")
    lumps = sum(record.chunks == 1 and (record.output_tokens or 0) > 1 for record in done)
    if lumps:
        found.append(f"{lumps} answers of several tokens came in one chunk: their token latency reads as 0")
    found += _lag_warning(info, done)
    return found


def _lag_warning(info: LevelInfo, done: list[RequestRecord]) -> list[str]:
    distorted = [
        f"{name} by up to {share:.1%}"
        for name, share in lag_distortion(info, done).items()
        if share > LAG_SHARE
    ]
    if not distorted or info.client_lag is None:
        return []
    lag = info.client_lag.p90 * 1e3
    return [f"the client was {lag:.1f} ms late (P90), which distorts P90 {' and '.join(distorted)}"]
