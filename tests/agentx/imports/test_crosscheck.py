"""Every figure of the official harness, recomputed from its records."""

import pytest

from flashpoint.agentx.imports.crosscheck import TOLERANCE, Finding, crosscheck
from flashpoint.agentx.imports.official import read_official
from tests.agentx.imports.fixtures import OFFICIAL, RUNS, aggregate, changed_copy

SPREAD = {
    "avg",
    "min",
    "max",
    "std",
    "sum",
    "count",
    "p1",
    "p5",
    "p10",
    "p25",
    "p50",
    "p75",
    "p90",
    "p95",
    "p99",
}
MUST_DISTRIBUTIONS = (
    "time_to_first_token", "time_to_second_token", "inter_token_latency", "full_response_inter_token_latency",
    "request_latency", "input_sequence_length", "output_sequence_length", "output_token_throughput_per_user",
    "e2e_output_token_throughput", "prefill_throughput_per_user", "usage_prompt_cache_read_tokens",
    "osl_mismatch_diff_pct", "output_token_count", "inter_chunk_latency", "effective_latency",
    "credit_to_start_latency",
)  # fmt: skip
MUST_SCALARS = (
    "total_output_tokens", "request_count", "benchmark_duration", "request_throughput",
    "output_token_throughput", "input_token_throughput", "total_token_throughput", "total_isl", "total_osl",
    "total_usage_prompt_tokens", "overall_usage_prompt_cache_read_pct", "osl_mismatch_count",
    "effective_concurrency_avg", "effective_concurrency_p90",
)  # fmt: skip


@pytest.mark.parametrize("run", RUNS)
def test_every_recomputed_figure_equals_the_official_one(run):
    findings = crosscheck(read_official(OFFICIAL / run, 1, {}))
    assert [f.figure for f in findings if f.equal is False] == []
    equal = {f.figure for f in findings if f.equal}
    wanted = {f"{metric}_{statistic}" for metric in MUST_DISTRIBUTIONS for statistic in SPREAD}
    assert (wanted | set(MUST_SCALARS)) - equal == set()
    # The clock's coarseness excuses only what the harness takes as a difference of epoch times.
    excused = {
        f.figure for f in findings if f.equal and f.difference is not None and f.difference > TOLERANCE
    }
    assert all(name.startswith(("credit_to_start_latency", "effective_latency")) for name in excused)


@pytest.mark.parametrize("run", RUNS)
def test_every_official_figure_is_in_the_list(run):
    findings = {f.figure: f for f in crosscheck(read_official(OFFICIAL / run, 1, {}))}
    metrics = {name for name, value in aggregate(run).items() if isinstance(value, dict) and "unit" in value}
    assert len(metrics) > 60
    assert all(any(name == m or name.startswith(f"{m}_") for name in findings) for m in metrics)
    assert all((f.recomputed is None) == bool(f.reason) for f in findings.values())
    assert "traces" in (findings["theoretical_prefix_cache_hit_avg"].reason or "")


def test_errors_are_counted_in_a_stopped_run():
    findings = {f.figure: f for f in crosscheck(read_official(OFFICIAL / "server-errors", 1, {}))}
    for name, value in (
        ("error_request_count", 3),
        ("completed_request_count", 10),
        ("request_error_rate", 0.3),
    ):
        assert findings[name].recomputed == pytest.approx(value) and findings[name].equal


@pytest.mark.parametrize(
    "metric, figure",
    [("request_latency", "request_latency_max"), ("time_to_first_token", "time_to_first_token_sum")],
)
def test_a_changed_record_is_found(tmp_path, metric, figure):
    def slower(line):
        if line["metrics"]:
            line["metrics"][metric]["value"] *= 1.00001

    folder = changed_copy("stops-short", tmp_path / "r", slower)
    findings = {f.figure: f for f in crosscheck(read_official(folder, 1, {}))}
    assert findings[figure].equal is False
    assert findings[figure].difference == pytest.approx(1e-5, rel=0.01)


def test_without_server_series_the_phase_is_unknown(tmp_path):
    folder = changed_copy("8-lanes", tmp_path / "r")
    (folder / "server_metrics_export.json").unlink()
    findings = {f.figure: f for f in crosscheck(read_official(folder, 1, {}))}
    assert findings["effective_concurrency_avg"].equal is None
    assert "phase" in (findings["effective_concurrency_avg"].reason or "")
    assert findings["total_token_throughput"].equal


def test_no_usage_no_invented_counts(tmp_path):
    def forget(line):
        kept = (
            "time_to_first_token",
            "request_latency",
            "time_to_first_output_token",
            "full_decode_duration",
        )
        line["metrics"] = {name: line["metrics"][name] for name in kept if name in line["metrics"]}

    imported = read_official(changed_copy("stops-short", tmp_path / "r", forget), 1, {})
    findings = {f.figure: f for f in crosscheck(imported)}
    assert findings["time_to_first_token_p90"].equal
    for name in (
        "total_isl",
        "total_token_throughput",
        "total_usage_total_tokens",
        "inter_token_latency_p50",
    ):
        assert findings[name].recomputed is None and findings[name].reason
    assert findings["osl_mismatch_count"].recomputed is None


@pytest.mark.parametrize(
    "official, recomputed, resolution, equal",
    [
        (1.0, 1.0 + 0.9e-6, 0.0, True),
        (1.0, 1.0 + 1.1e-6, 0.0, False),
        (-2.0, -2.0, 0.0, True),
        (0.0, 0.0, 0.0, True),
        (0.0, 1e-12, 0.0, False),
        (1.0, 1.5, 0.5, True),
        (1.0, None, 0.0, None),
    ],
)
def test_what_equal_means(official, recomputed, resolution, equal):
    assert Finding("f", "s", official, recomputed, None, resolution).equal is equal


def test_reasoning_is_no_part_of_the_harness_s_output_tokens(tmp_path):
    """A server that reports reasoning: the harness leaves it out of `output_token_count`, and so do we."""

    def half(line):
        line["metrics"]["output_token_count"]["value"] //= 2

    official = read_official(OFFICIAL / "8-lanes", 1, {})
    measured = {r.request_id for r in official.records if r.phase == "measured" and r.status == "ok"}
    expected = sum(n // 2 for request_id, n in official.without_reasoning.items() if request_id in measured)
    folder = changed_copy("8-lanes", tmp_path / "run", line=half)
    found = {f.figure: f for f in crosscheck(read_official(folder, 1, {}))}
    assert found["total_output_tokens"].recomputed == expected
    assert found["total_osl"].recomputed == sum(official.without_reasoning[r] for r in measured)
