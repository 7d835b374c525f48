"""Records, run and series of the official harness's output."""

import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest

from flashpoint.agentx import metrics
from flashpoint.agentx.imports.imported import ImportFailed
from flashpoint.agentx.imports.official import read_official
from tests.agentx.imports.fixtures import OFFICIAL, RUNS, aggregate, changed_copy, raw_lines


def read(run):
    return read_official(OFFICIAL / run, 1, {})


@pytest.mark.parametrize("run", RUNS)
def test_a_record_per_line_with_its_ids_and_times(run):
    lines, records = raw_lines(run), read(run).records
    assert len(records) == len(lines)
    first = min(line["metadata"]["credit_issued_ns"] for line in lines)
    for line, record in zip(lines, records, strict=True):
        metadata = line["metadata"]
        assert record.request_id == metadata["x_request_id"]
        assert record.correlation_id == metadata["x_correlation_id"]
        assert record.stream == metadata["conversation_id"]
        assert record.session == metadata["source_trace_id"]
        assert (record.turn, record.depth) == (metadata["turn_index"], metadata["agent_depth"])
        assert (record.phase == "measured") == (metadata["benchmark_phase"] == "profiling")
        assert record.start == pytest.approx((metadata["request_start_ns"] - first) / 1e9, abs=1e-9)
        assert record.due == pytest.approx((metadata["credit_issued_ns"] - first) / 1e9, abs=1e-9)
        assert record.end >= record.start + (record.last_token or 0.0)
        assert (record.depth > 0) == (record.stream != record.session)


@pytest.mark.parametrize("run", RUNS)
def test_inter_token_latency_of_every_request_is_the_official_one(run):
    checked = 0
    for line, record in zip(raw_lines(run), read(run).records, strict=True):
        for name, ours in (
            ("inter_token_latency", metrics.inter_token_latency),
            ("full_response_inter_token_latency", metrics.full_response_itl),
            ("time_to_second_token", metrics.time_to_second_token),
        ):
            official = line["metrics"].get(name)
            value = ours(record)
            assert (official is None) == (value is None)
            if official is not None and value is not None:
                assert value == pytest.approx(official["value"] / 1e3, rel=1e-9)
                checked += 1
    assert checked >= 21


def test_token_arrivals_are_the_recorded_chunks():
    for line, record in zip(raw_lines("8-lanes"), read("8-lanes").records, strict=True):
        gaps = line["metrics"].get("inter_chunk_latency", {"value": []})["value"]
        assert record.chunks == len(gaps) + 1 == record.output_tokens
        assert np.diff(record.token_offsets) == pytest.approx(np.array(gaps) / 1e3, abs=1e-12)
        assert record.token_offsets[-1] == pytest.approx(record.last_token)


def test_without_chunk_times_no_token_arrival_is_invented(tmp_path):
    folder = changed_copy(
        "8-lanes", tmp_path / "r", lambda line: line["metrics"].pop("inter_chunk_latency", 0)
    )
    records = read_official(folder, 1, {}).records
    several = [record for record in records if (record.output_tokens or 0) > 1]
    assert several and all(len(record.token_offsets) == 0 and record.chunks == 0 for record in several)
    assert metrics.pooled_itl_percentiles(several, 50) == [None]
    assert metrics.inter_token_latency(several[0]) is not None


def test_the_length_asked_for_comes_from_the_deviation():
    records = [r for r in read("stops-short").records if r.phase == "measured"]
    # The server of this run generates half of what is asked for, rounded down, and at least one token.
    assert all(r.max_tokens is not None and r.max_tokens // 2 == r.output_tokens for r in records)


def test_failed_requests():
    failed = [r for r in read("server-errors").records if r.status == "error"]
    assert len(failed) == 3
    for record in failed:
        assert record.http_status == 500 and record.error and "boom" in record.error
        assert (record.ttft, record.output_tokens, record.max_tokens) == (None, None, None)


def test_other_ends_of_a_request(tmp_path):
    def mark(line):
        line["metadata"]["was_cancelled"] = line["metadata"]["session_num"] == 1
        line["metadata"]["context_overflow_skip"] = line["metadata"]["session_num"] == 2

    records = read_official(changed_copy("stops-short", tmp_path / "r", mark), 1, {}).records
    ends = [record.status for record in records]
    numbers = [line["metadata"]["session_num"] for line in raw_lines("stops-short")]
    assert ends.count("cancelled") == numbers.count(1) > 0
    assert ends.count("overflow") == numbers.count(2) > 0


@pytest.mark.parametrize("run", RUNS)
def test_a_lane_plays_one_session_at_a_time(run):
    imported = read(run)
    plays = defaultdict(list)
    for record in imported.records:
        plays[record.lane, record.session, record.play].append(record)
    assert len(plays) == imported.levels[0].sessions_started
    lanes = {lane for lane, _, _ in plays}
    assert lanes == set(range(imported.levels[0].concurrency))
    for lane in lanes:
        spans = sorted(
            (min(r.due for r in records), max(r.start + (r.last_token or 0) for r in records))
            for (of, _, _), records in plays.items()
            if of == lane
        )
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_lanes_do_not_depend_on_the_order_of_lines(tmp_path):
    folder = changed_copy("8-lanes", tmp_path / "r")
    lines = raw_lines("8-lanes")
    (folder / "profile_export.jsonl").write_text("\n".join(json.dumps(line) for line in reversed(lines)))
    places = [{r.request_id: (r.lane, r.play) for r in read_official(f, 1, {}).records}
              for f in (folder, OFFICIAL / "8-lanes")]  # fmt: skip
    assert places[0] == places[1]


def test_what_was_run():
    imported = read("8-lanes")
    level, run = imported.levels[0], imported.run
    assert level.concurrency == 8 and level.duration == 150.0 and level.status == "complete"
    assert level.invalid == ["unsafe_override"]
    assert run.source == "agentx-harness" and run.versions["aiperf"] == "1.0.12"
    assert run.config["seed"] == 42 and run.config["scenario"] == "inferencex-agentx-mvp"
    assert run.command[:3] == ["aiperf", "profile", "--scenario"]
    assert run.server.url == "http://127.0.0.1:8177" and run.server.model == "mock-model"
    assert run.corpus.path == "scaled16" and run.corpus.sessions == 16
    assert run.started == "2026-12-01T03:59:05.491+00:00"
    assert level.measured_from is not None
    measured = min(r.due for r in imported.records if r.phase == "measured" and r.due is not None)
    assert 0 < measured - level.measured_from < 0.1


def test_a_run_that_the_harness_stopped():
    imported = read("server-errors")
    assert imported.run.status == imported.levels[0].status == "stopped"
    assert imported.levels[0].invalid == ["unsafe_override", "run_cancelled"]
    assert "run_cancelled" in (imported.run.status_detail or "")


@pytest.mark.parametrize("run", RUNS)
def test_reported_figures_in_seconds_and_shares(run):
    figures, official = read(run).levels[0].reported, aggregate(run)
    assert figures["time_to_first_token_p90"] == pytest.approx(official["time_to_first_token"]["p90"] / 1e3)
    assert figures["benchmark_duration"] == official["benchmark_duration"]["avg"]
    assert figures["overall_usage_prompt_cache_read_pct"] == pytest.approx(
        figures["total_usage_prompt_cache_read_tokens"] / figures["total_usage_prompt_tokens"]
    )
    blocks = official["theoretical_prefix_cache_hit"]
    assert figures["theoretical_prefix_cache_hit_avg"] == pytest.approx(blocks["sum"] / blocks["count"])
    assert figures["theoretical_prefix_cache_hit_sum"] == blocks["sum"]
    assert not any("warmup" in name for name in figures)


@pytest.mark.parametrize("run", RUNS)
def test_server_series(run):
    imported = read(run)
    assert imported.series is not None
    rows = imported.series.to_pylist()
    counts = [row for row in rows if row["name"] == "vllm:prompt_tokens_total"]
    values = [row["value"] for row in counts]
    assert values[0] == 0.0 and values == sorted(values)
    assert [row["t"] for row in rows] == sorted(row["t"] for row in rows)
    # The server counted what the requests of both phases were charged, but for those cut at the end.
    charged = sum(record.prompt_tokens or 0 for record in imported.records)
    assert charged <= values[-1] <= charged * 1.01
    assert json.loads(counts[0]["labels"])["endpoint"] == "http://127.0.0.1:8177/metrics"
    assert any(row["name"] == "vllm:num_requests_running" for row in rows)


def test_secrets_stay_out(tmp_path):
    def add(content):
        content["run_info"]["cli_command"] += " --api-key s3cret --header=Auth:s3cret --url http://u:s3cret@h"
        content["input_config"]["endpoint"] |= {"api_key": "s3cret", "urls": ["http://u:s3cret@host/"]}

    run = read_official(changed_copy("stops-short", tmp_path / "r", figures=add), 1, {}).run
    assert "s3cret" not in run.model_dump_json()
    assert run.server.url == "http://host/"
    assert "--api-key" in run.command


def test_files_that_cannot_be_read(tmp_path):
    folder = changed_copy("stops-short", tmp_path / "r")
    records = folder / "profile_export.jsonl"
    whole = records.read_text()

    records.write_text(whole[:-200])
    with pytest.raises(ImportFailed, match=r"profile_export.jsonl, line 34: not JSON"):
        read_official(folder, 1, {})
    records.write_text(whole.replace('"turn_index":', '"turn":', 1))
    with pytest.raises(ImportFailed, match=r"line 1: metadata.turn_index: got None; expected int"):
        read_official(folder, 1, {})
    records.write_text(whole.replace('"benchmark_phase":"warmup"', '"benchmark_phase":"rest"', 1))
    with pytest.raises(ImportFailed, match=r"benchmark_phase: got 'rest'; expected warmup or profiling"):
        read_official(folder, 1, {})
    records.write_text(whole.replace('"unit":"ms"', '"unit":"s"'))
    with pytest.raises(ImportFailed, match=r"request 0?\w+-.*: metrics.\w+: got .*; expected a value in ms"):
        read_official(folder, 1, {})
    records.write_text(whole)
    series = folder / "server_metrics_export.json"
    kept = series.read_text()
    series.write_text(kept.replace('"start_ns"', '"begin_ns"'))
    with pytest.raises(ImportFailed, match=r"server_metrics_export.json: not in the form"):
        read_official(folder, 1, {})
    series.write_text(kept)
    records.write_text("\n")
    with pytest.raises(ImportFailed, match="holds no request"):
        read_official(folder, 1, {})
