"""What the replay client itself costs, and whether a known server is measured as it is.

    python benchmarks/replay_client.py [--lanes 2000] [--seconds 60] [--scale 1/16]

Client and server (`constant_server.py`, whose log is the truth) have a core each.

1. *A known server*: first token after 500 ms, 20 ms a token, 8 lanes: what the run says, what the log says.
2. *Many open sessions*: `--lanes` live sessions with recorded waits: the client's lag, lateness and CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

from benchmarks.machine import processor_name
from flashpoint.agentx.archive import read_archive
from flashpoint.agentx.metrics import percentile, successful
from flashpoint.agentx.summary import summarize
from flashpoint.agentx.traces.corpus import write_recipe
from flashpoint.agentx.traces.recipe import Recipe

ROOT = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def on_core(core: int) -> Any:
    """Pin a process to a core, where the machine has that many."""
    cores = sorted(os.sched_getaffinity(0))
    return lambda: os.sched_setaffinity(0, {cores[core % len(cores)]})


def replay(work: Path, recipe: Recipe, ttft: float, gap: float, options: dict[str, Any]) -> dict[str, Any]:
    """One level against the constant-rate server; figures, lag and CPU."""
    log, corpus, out = work / "server.jsonl", work / "corpus.json", work / "run"
    write_recipe(recipe, corpus)
    command = [sys.executable, ROOT / "benchmarks/constant_server.py", "--log", log]
    server = subprocess.Popen(
        [*map(str, command), "--ttft", str(ttft), "--gap", str(gap)],
        stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, preexec_fn=on_core(1),
    )  # fmt: skip
    try:
        assert server.stdout
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        command = [
            sys.executable,
            "-m",
            "flashpoint",
            "replay",
            "--url",
            url,
            "--corpus",
            corpus,
            "--out",
            out,
        ]
        done = subprocess.run(
            [*map(str, command), *given],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            preexec_fn=on_core(0),
            check=False,
        )
        seconds = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    finally:
        server.kill()
        server.wait()
    if done.returncode:
        raise SystemExit(done.stderr + done.stdout)
    archive = read_archive(out)
    info, level = archive.run.levels[0], summarize(archive).levels[0]
    lines = {line["request_id"]: line for line in map(json.loads, log.read_text().splitlines())}
    records = [r for r in successful(archive.records) if r.request_id in lines]
    truth = [lines[r.request_id] for r in records]
    long = [(r, line) for r, line in zip(records, truth, strict=True) if line["tokens"] > 1]
    true_itl = percentile([(t["last"] - t["first"]) / (t["tokens"] - 1) for _, t in long], 90)
    true_ttft = percentile([t["first"] - t["read"] for t in truth], 50)
    tokens = sum(t["tokens"] + t["prompt_tokens"] for t in truth)
    window = max(t["last"] for t in truth) - min(t["read"] for t in truth)
    return {
        "requests": level.ok,
        "errors": level.errors,
        "ttft_p50_ms": [1000 * (level.ttft_p50 or 0), 1000 * (true_ttft or 0)],
        "itl_p90_ms": [1000 * (level.itl_p90 or 0), 1000 * (true_itl or 0)],
        "total_throughput": [level.total_throughput, tokens / window],
        "client_lag_ms": None if info.client_lag is None else _ms(info.client_lag),
        "lateness_ms": None if info.lateness is None else _ms(info.lateness),
        "requests_per_second": level.ok / (level.window_seconds or 1),
        "tokens_per_second": level.output_throughput,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "wall_seconds": seconds,
        "peak_memory_mib": after.ru_maxrss / 1024,
    }


def _ms(lag: Any) -> dict[str, float]:
    return {name: round(1000 * value, 3) for name, value in lag.model_dump().items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lanes", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--scale", type=Fraction, default=Fraction(1, 16))
    options = parser.parse_args()
    result: dict[str, Any] = {"processor": processor_name(), "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as folder:
        known, many = Path(folder) / "known", Path(folder) / "many"
        known.mkdir()
        many.mkdir()
        small = Recipe(sessions=16, seed=1, scale=Fraction(1, 8), max_turns=60)
        quick = {
            "concurrency": 8,
            "duration": 40,
            "warmup_requests": 1,
            "session_idle_cap": 0,
            "system_idle_cap": 0,
        }
        result["known_server"] = replay(known, small, 0.5, 0.02, quick)
        load = {"concurrency": options.lanes, "duration": options.seconds, "warmup_requests": 1}
        corpus = Recipe(sessions=393, seed=1, scale=options.scale)
        result["many_sessions"] = {"lanes": options.lanes} | replay(many, corpus, 0.5, 0.02, load)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
