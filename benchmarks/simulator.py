"""How many agentic requests a second of one core simulates: 100 sessions of 30 turns on 16 lanes (W).

    python benchmarks/simulator.py [--layout TP4] [--lanes 16] [--drafts 5] [--model FOLDER] [--json]
    python benchmarks/simulator.py --aisimulate [VENV] [--drafts 0]

W: about 161 M prompt and 0.77 M answer tokens in 3,000 requests, each session once, on V4.1-Flash at GB300.
With --aisimulate, AISimulate plays the very same requests in the same run, on V4-Flash: that is the nearest
model it has tables for. `--model v4-flash-sized` gives ours its sizes too (benchmarks/aisimulate.py).
Seconds are the CPU's; requests_per_cpu_second counts reading and playing them, not start-up.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import aisimulate
from flashpoint.agentx import metrics
from flashpoint.agentx.records import RequestRecord
from flashpoint.agentx.run_levels import LevelContext
from flashpoint.agentx.schedule.lanes import Lanes, ScheduleConfig
from flashpoint.agentx.schedule.play import Play
from flashpoint.agentx.traces.format import Call, Trace, parse_trace, trace_json
from flashpoint.agentx.traces.streams import build_session
from flashpoint.hardware.virtual_clock import VirtualClock
from flashpoint.simulate.config import DeploymentConfig
from flashpoint.simulate.deployment import Deployment
from flashpoint.simulate.level import VirtualLevel

SESSIONS, TURNS = 100, 30


def session(number: int) -> Trace:
    """A session whose prompts grow from about 25K to 75K tokens, with answers of 258 tokens on average."""
    rng = random.Random(number)
    tokens, t, calls = rng.randint(20_000, 30_000), 0.0, []
    for _ in range(TURNS):
        answer = max(1, round(rng.lognormvariate(5.2, 0.85)))
        calls.append(
            Call(t, "m", tokens, answer, np.arange(tokens // 64, dtype=np.int64), api_time=answer / 100)
        )
        t += answer / 100 + rng.lognormvariate(0.8, 1.0)
        tokens += answer + round(rng.lognormvariate(7.0, 0.9))
    return Trace(f"w-{number}", tuple(calls))


def write_sessions(folder: Path) -> Path:
    """W as a file of traces, one a line."""
    written = folder / "w.jsonl"
    written.write_bytes(b"".join(trace_json(session(number)) + b"\n" for number in range(SESSIONS)))
    return written


class Once(Lanes):
    """Lanes on which each of the sessions is played once; an idle lane stays idle when none is left."""

    def __init__(self, config: ScheduleConfig, traces: Sequence[Trace]) -> None:
        self._left = [build_session(trace) for trace in reversed(traces)]
        super().__init__(config, self._left.pop, "w")

    def _follow(self, over: Play, now: float) -> None:
        if self._left:
            super()._follow(over, now)


def play(config: DeploymentConfig, path: Path, lanes: int) -> dict[str, float]:
    """Play every session of a file once; what it cost, and what it predicts.

    Start-up is all CPU time of the process until it reads the file: the interpreter, imports, making W.
    """
    start_up = time.process_time()
    traces = [parse_trace(line, str(path)) for line in path.read_bytes().splitlines()]
    clock = VirtualClock()
    deployment = Deployment(config)
    fleet, cores = deployment.fleet(clock, 42)
    schedule = ScheduleConfig(lanes, 42, (0.0, 0.0), 0, session_idle_cap=None, system_idle_cap=None)
    context = LevelContext(Once(schedule, traces), 0, "w", 0.0, clock, lambda record: None)
    level = VirtualLevel(fleet, cores, context, token_times=False)
    began = time.process_time()
    level.run(1e9, 1e9, lambda: None)
    ended = time.process_time()
    done = [record for record in level.records if record.status == "ok"]
    return {
        "requests": len(done),
        "requests_per_cpu_second": len(done) / (ended - start_up),
        "playing_seconds": ended - began,
        "reading_seconds": began - start_up,
        "start_up_seconds": start_up,
        "all_cpu_seconds": ended,
        "steps": sum(core.stats().steps for core in cores),
        "max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **predicted(done),
    }


def predicted(records: Sequence[RequestRecord]) -> dict[str, float]:
    """Figures that AISimulate reports too, in its definitions; seconds, and tokens of all accelerators."""

    def of(p: float, values: Sequence[float | None]) -> float:
        return metrics.percentile([v for v in values if v is not None], p) or 0.0

    seconds = max(r.end for r in records) - min(r.start for r in records)
    per_token = [metrics.full_response_itl(r) for r in records]
    answers = sum(r.output_tokens or 0 for r in records)
    return {
        "prompt_tokens": sum(r.prompt_tokens or 0 for r in records),
        "output_tokens": answers,
        "hit_share": metrics.cache_hit_share(records) or 0.0,
        "virtual_seconds": seconds,
        "output_tokens_per_s": answers / seconds,
        **{f"ttft_p{p}": of(p, [r.ttft for r in records]) for p in (50, 90, 99)},
        **{f"per_token_p{p}": of(p, per_token) for p in (50, 90, 99)},
        **{f"e2e_p{p}": of(p, [r.end - r.start for r in records]) for p in (50, 90, 99)},
    }


def main() -> None:
    """Print requests per CPU second and the predictions, ours and AISimulate's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layout", default="TP4")
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--routing", default="session_sticky")
    parser.add_argument("--drafts", type=int, default=5)
    parser.add_argument("--model", default="deepseek-v4.1-flash")
    parser.add_argument("--aisimulate", type=Path, nargs="?", const=aisimulate.ENVIRONMENT, metavar="VENV")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="w-") as folder:
        work = Path(folder)
        written = write_sessions(work)
        model = aisimulate.v4_flash_sized(work) if options.model == "v4-flash-sized" else options.model
        config = DeploymentConfig(
            model=str(model),
            layout=options.layout,
            routing=options.routing,
            drafts=options.drafts,
            step_tokens=aisimulate.STEP_TOKENS,
        )
        result = {"flashpoint": play(config, written, options.lanes)}
        if options.aisimulate is not None:
            if options.drafts:
                parser.error(
                    "--aisimulate needs --drafts 0: its V4-Flash tables are for steps without drafts"
                )
            result["aisimulate"] = aisimulate.play(
                options.aisimulate, written, options.layout, options.lanes, work
            )
    print(json.dumps(result) if options.json else table(result))


def table(result: dict[str, dict[str, float]]) -> str:
    """A line a figure, and ours over theirs."""
    ours, theirs = result["flashpoint"], result.get("aisimulate", {})
    lines = [f"{'':24}{'flashpoint':>14}" + (f"{'AISimulate':>14}{'ratio':>8}" if theirs else "")]
    for name in [*ours, *(n for n in theirs if n not in ours)]:
        cells = [
            f"{side[name]:,.4g}" if name in side else "" for side in ((ours, theirs) if theirs else (ours,))
        ]
        both = name in ours and theirs.get(name)
        ratio = f"{ours[name] / theirs[name]:8.2f}" if both else ""
        lines.append(f"{name:24}" + "".join(f"{cell:>14}" for cell in cells) + ratio)
    return "\n".join(lines)


if __name__ == "__main__":
    main()
