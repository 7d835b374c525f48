"""flashpoint replay beside the official AgentX harness: the same traces, seed, lanes and server.

    python benchmarks/vs_agentx_harness.py [--short] [--traces DIR] [--tokenizer DIR] [--harness VENV]

1. *Sessions and prompts*: streams, waits, theoretical hits and the messages of every turn, text by text.
2. *A constant-rate server*: which requests were sent, with which messages and when, and the metrics of both;
   every metric recomputed by flashpoint from the official records against the official aggregate.
3. *A real engine*: the same on `micro`, served by flashpoint.
4. *The client's own cost*: 32 lanes without waits, 5 ms to the first token, 0.5 ms gaps.

The harness lives in an environment of its own (1.1 GB), made on the first run. `--short` uses small traces
and short windows, and leaves out 3 and 4.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flashpoint.agentx.archive import read_archive
from flashpoint.agentx.imports.run import import_run
from flashpoint.agentx.metrics import percentile
from flashpoint.agentx.prompts.conversation import Conversation
from flashpoint.agentx.prompts.source import TokenSource
from flashpoint.agentx.prompts.tokenizer import load_tokenizer
from flashpoint.agentx.records import RequestRecord
from flashpoint.agentx.summary import summarize
from flashpoint.agentx.traces.corpus import open_corpus
from flashpoint.agentx.traces.streams import Session, build_session

ROOT = Path(__file__).parents[1]
VERSION = "1.0.12"
SEED = 42
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
Key = tuple[str, int, str]
"""Stream, turn, phase."""


def harness(folder: Path) -> Path:
    """The environment of the official harness, made if it is not there."""
    if not (folder / "bin" / "aiperf").exists():
        print(f"installing agentx-harness {VERSION} into {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, f"agentx-harness=={VERSION}"], check=True)
    return folder


# Sessions and prompts


def compare_sessions(venv: Path, traces: Path, tokenizer: Path, work: Path) -> dict[str, Any]:
    """Every stream and turn of `traces` as the harness makes them and as we do.

    Leaves the token array that the harness cuts prompts from as `corpus.npy` in `work`.
    """
    dump = work / "dump.json"
    script = ROOT / "benchmarks/peers/agentx_harness_dump.py"
    subprocess.run(
        [venv / "bin/python", script, traces, tokenizer, str(SEED), work / "corpus.npy", dump],
        check=True,
        env=os.environ | {"AIPERF_DATASET_WEKA_PARALLEL_WORKERS": "1"},
        capture_output=True,
    )
    official = {conversation["id"]: conversation for conversation in json.loads(dump.read_text())}
    source = TokenSource(np.load(work / "corpus.npy"), SEED)
    reader = load_tokenizer(tokenizer)
    ours: dict[str, Any] = {}
    for trace in open_corpus(traces):
        session = build_session(trace)
        tokens = source.session(session.id, trace.block_size)
        for number, stream in enumerate(session.streams):
            conversation = Conversation(stream, tokens)
            ours[stream.id] = [
                _turn(session, number, turn, conversation.advance(), reader)
                for turn in range(len(stream.turns))
            ]
    differences = []
    for name in official.keys() | ours.keys():
        theirs = [_official_turn(turn) for turn in official.get(name, {"turns": []})["turns"]]
        if theirs != ours.get(name, []):
            differences.append(name)
    turns = sum(map(len, ours.values()))
    return {"streams": len(ours), "turns": turns, "different_streams": sorted(differences)}


def _turn(session: Session, number: int, position: int, messages: Any, reader: Any) -> dict[str, Any]:
    turn = session.streams[number].turns[position]
    text = json.dumps([[m.role, reader.decode(m.tokens)] for m in messages], ensure_ascii=False)
    return {
        "t": round(turn.call.t, 6),
        "delay": None if turn.delay is None else round(turn.delay, 6),
        "max_tokens": turn.call.forced_output,
        "blocks": [turn.hit_blocks, len(turn.call.hash_ids)],
        "after": sorted([session.streams[stream].id, before] for stream, before in turn.after),
        "messages": hashlib.sha256(text.encode()).hexdigest(),
    }


def _official_turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "t": round(turn["t"], 6),
        "delay": None if turn["delay"] is None else round(turn["delay"], 6),
        "max_tokens": turn["max_tokens"],
        "blocks": [turn["hit"], turn["blocks"]],
        "after": sorted(turn["after"]),
        "messages": turn["messages"],
    }


# Both tools against one server


@contextlib.contextmanager
def constant_server(log: Path, ttft: float, gap: float) -> Iterator[str]:
    """The constant-rate server as a process; its URL."""
    command = [sys.executable, ROOT / "benchmarks/constant_server.py", "--log", log]
    process = subprocess.Popen(
        [*map(str, command), "--ttft", str(ttft), "--gap", str(gap)],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        assert process.stdout
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def micro_server(work: Path, log: Path) -> Iterator[str]:
    """`micro` served by flashpoint on one core."""
    checkpoint = work / "micro"
    if not checkpoint.exists():
        init = [
            sys.executable,
            "-m",
            "flashpoint",
            "checkpoint",
            "init",
            "--preset",
            "micro",
            str(checkpoint),
        ]
        subprocess.run(init, check=True, env=ENVIRONMENT, capture_output=True)
    command = [
        sys.executable,
        "-m",
        "flashpoint",
        "serve",
        str(checkpoint),
        "--port",
        "8179",
        "--threads",
        "1",
    ]
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--cache-tokens", "262144"], stderr=file, stdout=file, env=ENVIRONMENT
        )
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen("http://127.0.0.1:8179/health", timeout=5),
            ):
                break
            time.sleep(0.3)
        yield "http://127.0.0.1:8179"
    finally:
        process.terminate()
        process.wait()


class Setting:
    """What both tools are told."""

    def __init__(
        self,
        traces: Path,
        tokenizer: Path,
        corpus: Path,
        lanes: int,
        duration: float,
        warmup: int,
        idle: float,
    ) -> None:
        self.traces, self.tokenizer, self.corpus = traces, tokenizer, corpus
        self.lanes, self.duration, self.warmup, self.idle = lanes, duration, warmup, idle

    def official(self, venv: Path, url: str, model: str, out: Path) -> float:
        """Run the harness into `out`; CPU seconds of its processes."""
        sessions = len(open_corpus(self.traces))
        command = [
            venv / "bin/aiperf", "profile", "--scenario", "inferencex-agentx-mvp", "--url", url,
            "--endpoint", "/v1/chat/completions", "--endpoint-type", "chat", "--streaming", "--model", model,
            "--tokenizer", self.tokenizer, "--input-file", self.traces, "--custom-dataset-type", "weka_trace",
            "--concurrency", self.lanes, "--benchmark-duration", self.duration, "--benchmark-grace-period", 0,
            "--random-seed", SEED, "--failed-request-threshold", 0.1, "--trajectory-start-min-ratio", 0.25,
            "--trajectory-start-max-ratio", 0.75, "--warmup-requests-per-lane", self.warmup,
            "--warmup-grace-period", 600, "--trace-idle-gap-cap-seconds", self.idle,
            "--use-server-token-count", "--no-gpu-telemetry", "--num-dataset-entries", sessions,
            "--slice-duration", 1.0,
            "--server-metrics", f"{url}/metrics", "--unsafe-override", "--output-artifact-dir", out,
            "--ui", "none",
        ]  # fmt: skip
        environment = os.environ | {"AIPERF_DATASET_MMAP_CACHE_ENABLED": "false"}
        return _cpu_seconds(command, environment, out.with_suffix(".txt"))

    def flashpoint(self, url: str, out: Path) -> float:
        """Run the replay into `out`; its CPU seconds."""
        command = [
            sys.executable, "-m", "flashpoint", "replay", "--url", url, "--corpus", self.traces, "--out", out,
            "--concurrency", self.lanes, "--duration", self.duration, "--seed", SEED,
            "--warmup-requests", self.warmup, "--session-idle-cap", self.idle, "--tokenizer", self.tokenizer,
            "--prompt-text", self.corpus,
        ]  # fmt: skip
        return _cpu_seconds(command, ENVIRONMENT, out.with_suffix(".txt"))


def _cpu_seconds(command: list[Any], environment: Mapping[str, str], log: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with log.open("w") as file:
        done = subprocess.run(list(map(str, command)), env=environment, stdout=file, stderr=file, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with {done.returncode}; see {log}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def key(record: RequestRecord) -> Key:
    """What a request is, whichever tool sent it."""
    return record.stream, record.turn, record.phase


FIGURES = (
    "ok", "total_throughput", "output_throughput", "uncached_input_throughput", "interactivity_p50",
    "interactivity_p90", "e2e_normalised_interactivity_p90", "ttft_p50", "ttft_p90", "itl_p90", "e2e_p90",
    "cache_hit_share",
)  # fmt: skip


def compare_runs(official: Path, ours: Path, work: Path, traces: Path) -> dict[str, Any]:
    """Requests and metrics of two runs, and the official records against the official aggregate."""
    imported = import_run(official, work / f"{official.name}-archive")
    theirs, mine = read_archive(work / f"{official.name}-archive"), read_archive(ours)
    their_keys = {key(r): r for r in theirs.records}
    sent = [sum(r.status == "ok" for r in archive.records) for archive in (theirs, mine)]
    my_keys = {key(r): r for r in mine.records if r.status == "ok"}
    common = their_keys.keys() & my_keys.keys()
    equal_lengths = sum(
        their_keys[k].prompt_tokens == my_keys[k].prompt_tokens
        and their_keys[k].output_tokens == my_keys[k].output_tokens
        for k in common
    )
    levels = summarize(theirs).levels[0], summarize(mine).levels[0]
    checked = [f for f in imported.findings if f.equal is not None]
    return {
        "requests": [len(their_keys), len(my_keys), len(common)],
        "measured": [sum(k[2] == "measured" for k in keys) for keys in (their_keys, my_keys, common)],
        "sent": sent,
        "common_with_equal_lengths": equal_lengths,
        "largest_prompt_difference": max(
            (abs((their_keys[k].prompt_tokens or 0) - (my_keys[k].prompt_tokens or 0)) for k in common),
            default=0,
        ),
        "start_difference_p50_ms": _start_difference(their_keys, my_keys),
        "figures": {name: [getattr(level, name) for level in levels] for name in FIGURES},
        "official_figures_recomputed": len(checked),
        "official_figures_differing": [f.figure for f in checked if not f.equal],
        "theoretical_hit": _theoretical_hit(official, theirs.records, traces),
    }


def _start_difference(theirs: Mapping[Key, RequestRecord], mine: Mapping[Key, RequestRecord]) -> float | None:
    """Median of how much later we sent a common request, from each run's first measured one. Unit: ms."""
    zeros = [
        min((r.start for k, r in keys.items() if k[2] == "measured"), default=0.0) for keys in (theirs, mine)
    ]
    common = [k for k in theirs.keys() & mine.keys() if k[2] == "measured"]
    moved = percentile([(mine[k].start - zeros[1]) - (theirs[k].start - zeros[0]) for k in common], 50)
    return None if moved is None else moved * 1000


def _theoretical_hit(official: Path, theirs: Sequence[RequestRecord], traces: Path) -> dict[str, Any]:
    """(hit, all) blocks of the official run's requests from our sessions, and what the harness says."""
    turns = {
        (stream.id, position): turn
        for trace in open_corpus(traces)
        for stream in build_session(trace).streams
        for position, turn in enumerate(stream.turns)
    }
    sent = [turns[r.stream, r.turn] for r in theirs if r.phase == "measured" and r.status == "ok"]
    stated = json.loads((official / "profile_export_aiperf.json").read_text())["theoretical_prefix_cache_hit"]
    return {
        "ours": [sum(t.hit_blocks for t in sent), sum(len(t.call.hash_ids) for t in sent)],
        "official": [stated["sum"], stated["count"]],
    }


def same_messages(logs: tuple[Path, Path], runs: tuple[Path, Path]) -> dict[str, int]:
    """How many common requests reached the server with the same messages, by its own log."""
    keys = [{r.request_id: key(r) for r in read_archive(run).records} for run in runs]
    seen = []
    for log, names in zip(logs, keys, strict=True):
        lines = map(json.loads, log.read_text().splitlines())
        seen.append({names[line["request_id"]]: line for line in lines if line["request_id"] in names})
    common = seen[0].keys() & seen[1].keys()
    return {
        "common": len(common),
        "same_messages": sum(seen[0][k]["messages"] == seen[1][k]["messages"] for k in common),
    }


def added_by_client(log: Path, run: Path) -> dict[str, float | None]:
    """What a client adds to TTFT and ITL beyond the server's own log. Unit: ms."""
    lines = {line["request_id"]: line for line in map(json.loads, log.read_text().splitlines())}
    ttft, itl = [], []
    for record in read_archive(run).records:
        line = lines.get(record.request_id)
        if line is None or record.ttft is None or record.phase != "measured" or record.status != "ok":
            continue
        ttft.append(record.ttft - (line["first"] - line["read"]))
        if line["tokens"] > 1 and record.last_token is not None:
            itl.append(
                (record.last_token - record.ttft - (line["last"] - line["first"])) / (line["tokens"] - 1)
            )
    names = {"ttft": ttft, "itl": itl}
    return {
        f"{name}_{label}_ms": _milliseconds(percentile(values, p))
        for name, values in names.items()
        for label, p in (("p50", 50), ("p90", 90))
    }


def _milliseconds(value: float | None) -> float | None:
    return None if value is None else value * 1000


def both(venv: Path, setting: Setting, work: Path, ttft: float, gap: float) -> dict[str, Any]:
    """Both tools against the constant-rate server."""
    logs = work / "official.jsonl", work / "flashpoint.jsonl"
    runs = work / "official", work / "flashpoint"
    cpu = []
    with constant_server(logs[0], ttft, gap) as url:
        cpu.append(setting.official(venv, url, "mock", runs[0]))
    with constant_server(logs[1], ttft, gap) as url:
        cpu.append(setting.flashpoint(url, runs[1]))
    found = compare_runs(*runs, work, setting.traces)
    archives = work / "official-archive", runs[1]
    return {
        "server": {"ttft_ms": ttft * 1000, "gap_ms": gap * 1000},
        "lanes": setting.lanes,
        "seconds": setting.duration,
        **found,
        "server_log": same_messages(logs, archives),
        "added_by_official_client": added_by_client(logs[0], archives[0]),
        "added_by_flashpoint": added_by_client(logs[1], archives[1]),
        "cpu_seconds": cpu,
        "requests_per_cpu_second": [
            count / seconds for count, seconds in zip(found["sent"], cpu, strict=True)
        ],
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run what was asked for; returns and prints the results."""
    shared = ROOT.parent / "shared"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--tokenizer", type=Path, default=shared / "official-run/tokenizer")
    parser.add_argument("--harness", type=Path, default=ROOT / ".harness")
    options = parser.parse_args(arguments)
    traces = options.traces or (
        ROOT / "tests/agentx/data/smoke" if options.short else shared / "traces/scaled16"
    )
    venv = harness(options.harness)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="vs-harness-") as folder:
        work = Path(folder)
        result["sessions"] = compare_sessions(venv, traces, options.tokenizer, work)
        corpus = work / "corpus.npy"
        lanes, seconds = (2, 20.0) if options.short else (8, 60.0)
        setting = Setting(traces, options.tokenizer, corpus, lanes, seconds, 3, 20.0)
        (work / "constant").mkdir()
        result["constant_rate"] = both(venv, setting, work / "constant", 0.03, 0.004)
        if not options.short:
            result["micro"] = on_micro(venv, setting, work)
            (work / "cost").mkdir()
            hurry = Setting(traces, options.tokenizer, corpus, 32, 30.0, 1, 0.0)
            result["client_cost"] = both(venv, hurry, work / "cost", 0.005, 0.0005)
    print(json.dumps(result, indent=2))
    return result


def on_micro(venv: Path, setting: Setting, work: Path) -> dict[str, Any]:
    """Both tools against `micro`, with its own tokenizer, the server started anew for each."""
    folder = work / "on-micro"
    folder.mkdir()
    with micro_server(folder, folder / "first.log") as url:
        setting = Setting(
            setting.traces, folder / "micro", folder / "corpus.npy", 4, setting.duration, setting.warmup, 20.0
        )
        sessions = compare_sessions(venv, setting.traces, folder / "micro", folder)
        setting.official(venv, url, "micro", folder / "official")
    with micro_server(folder, folder / "second.log") as url:
        setting.flashpoint(url, folder / "flashpoint")
    found = compare_runs(folder / "official", folder / "flashpoint", folder, setting.traces)
    return {"sessions": sessions, **found}


if __name__ == "__main__":
    main()
