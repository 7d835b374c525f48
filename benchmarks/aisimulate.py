"""AISimulate (NVIDIA, PyPI) in an environment of its own, and what it is asked.

Its dependencies for recommending (JAX and more) are left out: `predict` and the step estimator work without.
`benchmarks/simulator.py` and `benchmarks/vs_aisimulate.py` compare flashpoint with it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from flashpoint.agentx.traces.format import Call, Trace, trace_json
from flashpoint.parallel.layout import parse_layout

VERSION = "0.13.0.dev202610270000000085"
NEEDED = (
    "numpy", "pandas", "pydantic", "pyyaml", "pyarrow", "scipy", "psutil<8", "ijson", "prettytable",
    "plotext<6", "tqdm", "packaging", "munch",
)  # fmt: skip
ENVIRONMENT = Path(__file__).parents[1] / ".aisimulate"
STEP_TOKENS = 8192
"""Rows of a step at most, its default; ours is set to the same."""
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}

V4_FLASH = {
    "num_hidden_layers": 43,
    "hidden_size": 4096,
    "q_lora_rank": 1024,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "index_n_heads": 64,
    "engram_layer_ids": [],
    "engram_num_embeddings": [],
}
"""Sizes of DeepSeek-V4-Flash's config.json that V4.1's structure can take (aisimulate ships the file)."""


def environment(folder: Path) -> Path:
    """The Python of AISimulate's environment, made if it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"installing aisimulate {VERSION} into {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--only-binary=:all:"]
        subprocess.run([*pip, "--no-deps", f"aisimulate=={VERSION}"], check=True)
        subprocess.run([*pip, *NEEDED], check=True)
    return python


def v4_flash_sized(folder: Path) -> Path:
    """A config.json of V4.1's structure with V4-Flash's sizes, in a new folder inside `folder`.

    Unlike V4-Flash it shares caches between layers, has ratios 1 and 2 instead of 4 and 128, picks entries in
    every layer behind the first two, and prefills with its first half only.
    """
    released = resources.files("flashpoint.models.deepseek_v41") / "released_config.json"
    config = json.loads(released.read_text())
    text = config["text_config"]
    more = V4_FLASH["num_hidden_layers"] - text["num_hidden_layers"]
    last = text["num_hidden_layers"]
    ratios = text["compress_ratios"]
    text["compress_ratios"] = ratios[:last] + [ratios[last - 1]] * more + ratios[last:]
    text.update(V4_FLASH)
    made = folder / "v4-flash-sized"
    made.mkdir()
    (made / "config.json").write_text(json.dumps(config))
    return made


def parallelism(layout: str) -> dict[str, int]:
    """A layout of ours in its words."""
    spread = parse_layout(layout)
    return {
        "tensor": spread.tp,
        "attention_data": spread.dp,
        "moe_tensor": spread.tp if spread.ep == 1 else 1,
        "moe_expert": spread.ep,
    }


def predict(
    folder: Path, work: Path, traffic: dict[str, Any], layout: str, engine: dict[str, Any] | None = None
) -> tuple[dict[str, Any] | str, float]:
    """Its report, or the message with which it refuses; and its CPU seconds, start-up included."""
    config = {
        "traffic": traffic,
        "engine": {
            "mode": "aggregated",
            "model": "deepseek-ai/DeepSeek-V4-Flash",
            "hardware": "gb300",
            "backend": "vllm",
            "workers": {
                "aggregated": {
                    "parallelism": parallelism(layout),
                    "scheduler": {"max_batched_tokens": STEP_TOKENS, "max_sequences": 256},
                }
            },
            **(engine or {}),
        },
    }
    written = work / "aisimulate.json"  # JSON is YAML
    written.write_text(json.dumps(config))
    command = [environment(folder), "-m", "aisimulate", "predict", "-c", written, "--overwrite"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [*command, "--output-dir", work / "out", "--format", "json"],
        env=ONE_THREAD,
        check=False,
        capture_output=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "failed" in line or "error" in line]
        return (said or done.stderr.splitlines() or ["(nothing)"])[0].replace(str(folder), "VENV"), seconds
    report: dict[str, Any] = json.loads((work / "out" / "prediction.json").read_text())
    return report, seconds


def replay(path: Path, lanes: int) -> dict[str, Any]:
    """The traffic that plays the sessions of a file, each once."""
    return {
        "source": {"type": "trace", "paths": [str(path)], "format": "weka"},
        "load": {"type": "trace_timestamps", "agentic_lanes": lanes},
    }


def play(folder: Path, path: Path, layout: str, lanes: int, work: Path) -> dict[str, float]:
    """Play a file as `benchmarks.simulator.play` does: what it cost, and what it predicts of V4-Flash.

    Start-up is what a single short request costs it: imports, tables, the engine. Playing is the time that
    it reports itself, of the clock and not the CPU's: other work on the machine lengthens it. Reading is the
    rest.
    """
    call = Call(0.0, "m", 64, 1, np.zeros(1, dtype=np.int64))
    (work / "one.jsonl").write_bytes(trace_json(Trace("one", (call,))) + b"\n")
    _, start_up = predict(folder, work, replay(work / "one.jsonl", 1), layout)
    report, seconds = predict(folder, work, replay(path, lanes), layout)
    if isinstance(report, str):
        raise SystemExit(report)
    done, playing = report["completed_requests"], report["wall_time_ms"] / 1e3
    names = {"ttft": "ttft", "per_token": "tpot", "e2e": "e2e_latency"}
    ranks = {50: "median", 90: "p90", 99: "p99"}
    return {
        "requests": done,
        "requests_per_cpu_second": done / (seconds - start_up),
        "playing_seconds": playing,
        "reading_seconds": seconds - start_up - playing,
        "start_up_seconds": start_up,
        "all_cpu_seconds": seconds,
        "prompt_tokens": report["total_input_tokens"],
        "output_tokens": report["total_output_tokens"],
        "hit_share": report["prefix_cache_reused_ratio"],
        "virtual_seconds": report["duration_ms"] / 1e3,
        "output_tokens_per_s": report["output_throughput_tok_s"],
        **{
            f"{ours}_p{p}": report[f"{rank}_{theirs}_ms"] / 1e3
            for ours, theirs in names.items()
            for p, rank in ranks.items()
        },
    }
