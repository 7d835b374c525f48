"""A real CPU run and its simulation: the same steps, and nearly the same times.

    python benchmarks/identity.py [--requests 120] [--measure-seconds 60] [--json]

Measures this machine (`flashpoint hardware measure`) on random requests, replays other requests, of sessions,
into the real engine over `micro`, and plays the same sessions in virtual time on the measured profile. Steps,
hits and preemptions must be equal; total tok/s and P90 interactivity should be within 20 %. Both are in CPU
seconds of one thread: wall time, but for what other processes take. Exit 1 where something differs by more.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from flashpoint.agentx import metrics
from flashpoint.agentx.in_process import InProcessLevel
from flashpoint.agentx.prompts.prompter import Prompter
from flashpoint.agentx.prompts.source import TokenSource
from flashpoint.agentx.prompts.text import agent_text
from flashpoint.agentx.prompts.tokenizer import load_tokenizer
from flashpoint.agentx.recording import INTERRUPTED
from flashpoint.agentx.run_levels import LevelContext
from flashpoint.agentx.schedule.lanes import Lanes, ScheduleConfig
from flashpoint.agentx.traces.recipe import Recipe, generate_session
from flashpoint.agentx.traces.streams import build_session
from flashpoint.cache.config import TierConfig
from flashpoint.engine.clock import CpuClock
from flashpoint.engine.config import EngineConfig
from flashpoint.executor.build import build_core, load_for_engine
from flashpoint.executor.config import ExecutorConfig
from flashpoint.executor.measure_machine import fit_machine, measure_limits, micro_checkpoint, timed_steps
from flashpoint.hardware.virtual_clock import VirtualClock
from flashpoint.simulate.config import DeploymentConfig
from flashpoint.simulate.deployment import Deployment
from flashpoint.simulate.level import VirtualLevel

RECIPE = Recipe(sessions=24, seed=11, scale=Fraction(1, 64), max_turns=16)
LANES = 4
COLUMNS = ("prefill_tokens", "decode_tokens", "replay_tokens", "waiting", "preemptions")
CACHE_TOKENS = 2_560
ENGINE = EngineConfig(max_step_tokens=512, max_running=8, cache_tokens=CACHE_TOKENS, max_waiting=100)


def lanes() -> Lanes:
    """Nothing in them depends on time, so that schedules can be compared step by step."""
    sessions = [build_session(generate_session(RECIPE, i)) for i in range(RECIPE.sessions)]
    alone = [session for session in sessions if len(session.streams) == 1]
    config = ScheduleConfig(
        LANES, 3, (0.0, 0.0), warmup_requests=1, session_idle_cap=0.0, system_idle_cap=0.0
    )
    return Lanes(config, itertools.cycle(alone).__next__, "identity")


def steps(level) -> list[tuple[int, ...]]:
    """Step by step, however many a row stands for."""
    rows = []
    for row in level.steps().to_pylist():
        alone = {**row, "preemptions": 0}
        rows += [tuple(alone[name] for name in COLUMNS)] * (row["steps"] - 1)
        rows.append(tuple(row[name] for name in COLUMNS))
    return rows


def figures(records, requests: int) -> dict[str, float]:
    """Of the same first requests of both runs: total tok/s, P90 interactivity, P50 TTFT, hit share."""
    done = records[:requests]
    seconds = max(r.end for r in done) - min(r.start for r in done)
    tokens = sum((r.prompt_tokens or 0) + (r.output_tokens or 0) for r in done)
    return {
        "total_tokens_per_s": tokens / seconds,
        "interactivity_p90": metrics.interactivity(done, 90) or 0.0,
        "ttft_p50": metrics.ttft_percentile(done, 50) or 0.0,
        "hit_share": metrics.cache_hit_share(done) or 0.0,
    }


def play_real(folder: Path, requests: int) -> InProcessLevel:
    """The real engine, in CPU seconds."""
    loaded, sized = load_for_engine(folder, ENGINE, ExecutorConfig(threads=1), TierConfig())
    clock = CpuClock()
    tokenizer = load_tokenizer(folder)
    prompter = Prompter(TokenSource(tokenizer.encode(agent_text(0, 200_000)), 3), tokenizer)
    context = LevelContext(lanes(), 0, "real", clock.now(), clock, lambda record: None)
    level = InProcessLevel(build_core(loaded, sized, TierConfig(), clock), prompter, context)
    level.run(1e6, 1e6, lambda: INTERRUPTED if len(level.records) >= requests else None)
    level.close()
    return level


def play_virtual(folder: Path, machine, requests: int) -> VirtualLevel:
    """The same scheduler, in virtual time."""
    config = DeploymentConfig(
        model=str(folder),
        formats="float32",
        layout="TP1",
        step_tokens=ENGINE.max_step_tokens,
        sequences=ENGINE.max_running,
        cache_tokens=CACHE_TOKENS,
        drafts=0,
        skew=1.0,
        early_loads=False,
        fused_reductions=False,
        shared_in_routed=False,
    )
    clock = VirtualClock()
    fleet, cores = Deployment(config, machine).fleet(clock, 3)
    context = LevelContext(lanes(), 0, "virtual", 0.0, clock, lambda record: None)
    level = VirtualLevel(fleet, cores, context, token_times=False, check_every=1)
    level.run(1e6, 1e6, lambda: INTERRUPTED if len(level.records) >= requests else None)
    return level


def main() -> int:
    """Measure, replay, simulate, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--measure-seconds", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    with micro_checkpoint() as folder:
        limits = measure_limits("this CPU", 1)
        # Before and after: other work on the machine comes and goes.
        timed = timed_steps(folder, 1, options.measure_seconds / 2)
        real = play_real(folder, options.requests)
        timed += timed_steps(folder, 1, options.measure_seconds / 2)
        measured = fit_machine(limits, timed)
        virtual = play_virtual(folder, measured.machine, options.requests)
    count = min(len(steps(real)), len(steps(virtual)))
    same = next((i for i in range(count) if steps(real)[i] != steps(virtual)[i]), count)
    requests = min(len(real.records), len(virtual.records), options.requests)
    figures_real, figures_virtual = figures(real.records, requests), figures(virtual.records, requests)
    ratios = {name: figures_virtual[name] / value for name, value in figures_real.items() if value}
    result = {
        "steps_compared": count,
        "steps_equal": same,
        "preemptions": sum(row[-1] for row in steps(real)[:count]),
        "requests": requests,
        "real": figures_real,
        "virtual": figures_virtual,
        "ratio": ratios,
        "fit": [{"what": r.what, "median": r.median, "p90": r.p90} for r in measured.residuals],
    }
    print(json.dumps(result) if options.json else json.dumps(result, indent=1))
    near = all(abs(ratios[name] - 1) <= 0.2 for name in ("total_tokens_per_s", "interactivity_p90"))
    return 0 if same == count and near else 1


if __name__ == "__main__":
    sys.exit(main())
