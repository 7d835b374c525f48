"""How many agentic requests a second of one core simulates: 100 sessions of 30 turns on 16 lanes (W).

    python benchmarks/simulator.py [--layout TP4] [--lanes 16] [--json]

W: about 150 M prompt and 0.79 M answer tokens in 3,000 requests, on V4.1-Flash at GB300 TP4 (the spec's
peers-on-this-machine.md (b) gives AISimulate 0.13's times for the same size). Reads no clock but the CPU's.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import random
import resource
import time

import numpy as np

from flashpoint.agentx.run_levels import LevelContext
from flashpoint.agentx.schedule.lanes import Lanes, ScheduleConfig
from flashpoint.agentx.traces.format import Call, Trace
from flashpoint.agentx.traces.streams import build_session
from flashpoint.hardware.virtual_clock import VirtualClock
from flashpoint.simulate.config import DeploymentConfig
from flashpoint.simulate.deployment import Deployment
from flashpoint.simulate.level import VirtualLevel

SESSIONS, TURNS = 100, 30


def session(number: int) -> Trace:
    """A session whose prompts grow from about 25K to 75K tokens, with answers of 263 tokens on average."""
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


def digest(level: VirtualLevel) -> str:
    """Of all requests and steps: two versions of the simulator with the same digest did the same."""
    total = hashlib.blake2b(digest_size=8)
    for record in level.records:
        total.update(repr(record.scalars()).encode())
    for row in level.steps().to_pylist():
        total.update(repr(row).encode())
    return total.hexdigest()


def show(result: dict[str, float | str], *, as_json: bool) -> None:
    """Print what was measured."""
    if as_json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:24} {value if isinstance(value, str) else f'{value:,.6g}'}")


def main() -> None:
    """Play every session once and print requests per CPU second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layout", default="TP4")
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    sessions = [build_session(session(number)) for number in range(SESSIONS)]
    clock = VirtualClock()
    deployment = Deployment(DeploymentConfig(layout=options.layout))
    fleet, cores = deployment.fleet(clock, 42)
    schedule = ScheduleConfig(
        options.lanes, start_window=(0.0, 0.0), warmup_requests=0, session_idle_cap=None
    )
    lanes = Lanes(schedule, itertools.cycle(sessions).__next__, "w")
    level = VirtualLevel(
        fleet, cores, LevelContext(lanes, 0, "w", 0.0, clock, lambda record: None), token_times=False
    )
    began = time.process_time()
    level.run(1e9, 1e9, lambda: None if len(level.records) < SESSIONS * TURNS else _stop())
    seconds = time.process_time() - began
    done = [record for record in level.records if record.status == "ok"]
    steps = sum(core.stats().steps for core in cores)
    result = {
        "requests": len(done),
        "prompt_tokens": sum(record.prompt_tokens or 0 for record in done),
        "output_tokens": sum(record.output_tokens or 0 for record in done),
        "hit_share": sum(r.cached_tokens or 0 for r in done) / sum(r.prompt_tokens or 1 for r in done),
        "virtual_seconds": clock.now(),
        "steps": steps,
        "cpu_seconds": seconds,
        "requests_per_cpu_second": len(done) / seconds,
        "max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "digest": digest(level),
    }
    show(result, as_json=options.json)


def _stop():
    from flashpoint.agentx.recording import INTERRUPTED

    return INTERRUPTED


if __name__ == "__main__":
    main()
