"""InferenceX points alone, as a curve, and beside the harness's output."""

import json
import shutil

import numpy as np
import pytest

from flashpoint.agentx.archive import read_archive
from flashpoint.agentx.imports.imported import ImportFailed
from flashpoint.agentx.imports.inferencex import point_figures
from flashpoint.agentx.imports.run import import_run
from flashpoint.errors import InvalidValue
from tests.agentx.imports.fixtures import OFFICIAL, raw_lines


def spread(values):
    return {"mean": np.mean(values), "std": np.std(values)} | {
        f"p{p}": np.percentile(values, p) for p in (50, 75, 90, 95)
    }


def speeds(latencies):
    return {name: 1 / value for name, value in spread(latencies).items() if name != "std"}


def made_point(run="8-lanes", gpus=4, **fields):
    """The point that InferenceX's rules give for a run, computed with numpy from the raw lines alone."""
    lines = [line for line in raw_lines(run) if line["metadata"]["benchmark_phase"] == "profiling"]
    lines = [line for line in lines if not line.get("error")]

    def column(name):
        return np.array([line["metrics"][name]["value"] for line in lines if name in line["metrics"]])

    start = min(line["metadata"]["request_start_ns"] for line in lines)
    seconds = (max(line["metadata"]["request_end_ns"] for line in lines) - start) / 1e9
    isl, osl = column("input_sequence_length"), column("output_sequence_length")
    tokens = {"input": isl.sum(), "output": osl.sum(), "total": isl.sum() + osl.sum()}
    itl, full = column("inter_token_latency") / 1e3, column("full_response_inter_token_latency") / 1e3
    latency = column("request_latency") / 1e3
    point = {
        "hw": "b200", "framework": "vllm", "precision": "fp4", "model": "a-model", "spec_decoding": "none",
        "conc": 8, "num_gpus": gpus, "tp": gpus, "scenario_type": "agentic-coding", "disagg": False,
        "kv_offload_backend": {"name": "lmcache", "version": "0.5"},
        "num_requests_successful": len(lines), "num_requests_total": len(lines),
        "request_accounting": {"records_profiled": len(lines), "error_categories": {}},
        "request_metrics": {
            "qps": {},
            "latency": {
                "ttft": spread(column("time_to_first_token") / 1e3), "e2el": spread(latency),
                "itl": spread(itl), "tpot": spread(itl), "intvty": speeds(itl),
                "full_response_itl": spread(full), "full_response_intvty": speeds(full),
                "e2e_norm_intvty": speeds(latency / osl),
            },
            "tokens": {"input": spread(isl), "output_actual": spread(osl), "output_expected": spread(osl)},
            "throughput": {
                **{name: {"tokens_per_second": count / seconds} for name, count in tokens.items()},
                "duration_seconds": seconds,
                "per_gpu": {f"{name}_tput_tps": count / seconds / gpus for name, count in tokens.items()},
            },
            "cache": {"theoretical_cache_hit_rate": 0.9658},
        },
        "server_metrics": {"cache": {"gpu_cache_hit_rate": 0.93, "cpu_cache_hit_rate": None},
                           "kv_cache": {"gpu_usage_pct": 0.5}},
    }  # fmt: skip
    return point | fields


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def test_a_point_alone(tmp_path):
    point = made_point()
    source = write(tmp_path / "bmk_agentic_x.json", point)
    result = import_run(source, tmp_path / "out", description={"owner": "me", "hw": "b200-x4"})
    archive = read_archive(tmp_path / "out")
    (level,) = archive.run.levels
    assert archive.records == [] and result.findings == [] and result.equal
    assert (archive.run.source, archive.run.accelerators, level.concurrency) == ("inferencex", 4, 8)
    assert (level.sessions_started, level.window, level.requests) == (None, None, 0)
    assert level.reported["time_to_first_token_p90"] == point["request_metrics"]["latency"]["ttft"]["p90"]
    assert level.reported["interactivity_p90"] == point["request_metrics"]["latency"]["intvty"]["p90"]
    assert level.reported["total_token_throughput_per_accelerator"] == pytest.approx(
        level.reported["total_token_throughput"] / 4
    )
    assert level.reported["server_gpu_cache_hit_rate"] == 0.93
    assert "server_cpu_cache_hit_rate" not in level.reported
    described = archive.run.server.description
    assert described["framework"] == "vllm" and described["kv_offload_backend"] == "lmcache 0.5"
    assert described["hw"] == "b200-x4" and described["owner"] == "me" and "conc" not in described
    (figures,) = result.summary.levels
    assert figures.total_throughput is None and "no request records" in figures.warnings[0]


def test_flat_metric_keys():
    flat = {"conc": 4, "metrics": {"p90_ttft": 0.5, "median_intvty": 80.0, "mean_e2el": 3.0, "p99.9_itl": 0.1,
            "tput_per_gpu": 900.0, "std_qps": 2.0, "p90_unheard": 1.0}}  # fmt: skip
    assert point_figures(flat) == {
        "time_to_first_token_p90": 0.5, "interactivity_p50": 80.0, "request_latency_avg": 3.0,
        "inter_token_latency_p99.9": 0.1, "total_token_throughput_per_accelerator": 900.0,
        "requests_per_second_slice_std": 2.0,
    }  # fmt: skip


def test_points_of_one_system_are_levels_of_one_run(tmp_path):
    for conc in (16, 2, 8):
        write(tmp_path / "in" / f"bmk_agentic_{conc}.json", made_point(conc=conc))
    write(tmp_path / "in" / "other.json", {"not": "a point"})
    import_run(tmp_path / "in", tmp_path / "out")
    assert [level.concurrency for level in read_archive(tmp_path / "out").run.levels] == [2, 8, 16]

    write(tmp_path / "in" / "bmk_agentic_32.json", made_point(conc=32, precision="fp8"))
    with pytest.raises(InvalidValue, match=r"precision: got 'fp8'; expected 'fp4', as the other points have"):
        import_run(tmp_path / "in", tmp_path / "out2")
    assert not (tmp_path / "out2").exists()


@pytest.mark.parametrize(
    "fields, given, count",
    [
        ({"num_gpus": 8}, None, 8),
        ({"num_gpus": None, "tp": 4, "pp": 2, "pcp_size": 2, "dcp_size": 4}, None, 16),
        ({"num_gpus": None, "tp": None}, 3, 3),
        ({"num_gpus": None, "disagg": True}, 12, 12),
        ({"num_gpus": 8}, 8, 8),
    ],
)
def test_accelerators_of_a_point(tmp_path, fields, given, count):
    source = write(tmp_path / "p.json", made_point(**fields))
    import_run(source, tmp_path / "out", given)
    assert read_archive(tmp_path / "out").run.accelerators == count


@pytest.mark.parametrize("fields, given", [({"num_gpus": None, "disagg": True}, None), ({"num_gpus": 8}, 4)])
def test_accelerators_unknown_or_contradicted(tmp_path, fields, given):
    source = write(tmp_path / "p.json", made_point(**fields))
    with pytest.raises(InvalidValue, match=r"^accelerators: got"):
        import_run(source, tmp_path / "out", given)


@pytest.mark.parametrize("count", [0, 2.5])
def test_no_such_number_of_accelerators(tmp_path, count):
    source = write(tmp_path / "p.json", made_point(num_gpus=count))
    with pytest.raises(InvalidValue, match=r"num_gpus: got"):
        import_run(source, tmp_path / "out")


@pytest.mark.parametrize("below", ["", "aiperf_artifacts", "results/aiperf_artifacts"])
def test_a_point_beside_the_harness_output(tmp_path, below):
    bundle = tmp_path / "bundle"
    shutil.copytree(OFFICIAL / "8-lanes", bundle / below)
    write(bundle / "bmk_agentic_x.json", made_point())
    result = import_run(bundle, tmp_path / "out")
    archive = read_archive(tmp_path / "out")
    assert len(archive.records) == 240 and archive.run.accelerators == 4
    assert archive.run.source == "agentx-harness"
    assert archive.run.server.description["hw"] == "b200"
    assert [f.figure for f in result.findings if f.equal is False] == []
    of_point = {f.figure.removeprefix("inferencex."): f for f in result.findings if "inferencex." in f.figure}
    for name in (
        "interactivity_p90", "interactivity_avg", "full_response_interactivity_p90", "request_latency_p95",
        "e2e_normalised_interactivity_p90", "time_per_output_token_p50", "total_token_throughput",
        "total_token_throughput_per_accelerator", "benchmark_duration", "requested_output_length_p75",
        "request_count",
    ):  # fmt: skip
        assert of_point[name].equal, name
    assert of_point["server_gpu_cache_hit_rate"].equal is None
    # The harness's own figure of the same name stays the harness's.
    assert archive.run.levels[0].reported["total_token_throughput"] == pytest.approx(11216.2277)


def test_a_wrong_tail_in_a_point_is_found(tmp_path):
    point = made_point()
    itl = [line["metrics"]["inter_token_latency"]["value"] / 1e3
           for line in raw_lines("8-lanes") if "inter_token_latency" in line["metrics"]]  # fmt: skip
    point["request_metrics"]["latency"]["intvty"]["p90"] = float(np.percentile(1 / np.array(itl), 90))
    shutil.copytree(OFFICIAL / "8-lanes", tmp_path / "b")
    write(tmp_path / "b" / "bmk_agentic_x.json", point)
    result = import_run(tmp_path / "b", tmp_path / "out")
    assert [f.figure for f in result.findings if f.equal is False] == ["inferencex.interactivity_p90"]
    assert not result.equal


def test_a_point_of_another_run(tmp_path):
    shutil.copytree(OFFICIAL / "8-lanes", tmp_path / "b")
    write(tmp_path / "b" / "bmk_agentic_x.json", made_point(conc=16))
    with pytest.raises(InvalidValue, match=r"conc: got 16; expected 8"):
        import_run(tmp_path / "b", tmp_path / "out")


@pytest.mark.parametrize("content", ["{", "[1]", '{"conc": 4}', '{"request_metrics": {}}'])
def test_not_a_point(tmp_path, content):
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(ImportFailed, match=r"p.json"):
        import_run(tmp_path / "p.json", tmp_path / "out", 1)
