"""How much CPU time and memory a rack takes to simulate: 2,048 sessions on 72 GPUs for some minutes.

    python -m benchmarks.simulator_rack [--minutes 60] [--scale 0.1] [--json]

The synthetic corpus (seed 1, full size, as many sessions as lanes) on V4.1-Flash at GB300, 36 replicas of
DEP2. `--scale` multiplies replicas and lanes together: 0.1 against 1 says how cost grows with size. All of it
is counted: making the sessions, the warm-up (primers of a whole prompt each, three more turns), the minutes
measured. Nothing is extrapolated: an hour is measured with `--minutes 60`. Reads no clock but the CPU's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import time

from flashpoint.agentx.run_levels import LevelContext
from flashpoint.agentx.schedule.lanes import Lanes, ScheduleConfig
from flashpoint.agentx.traces.corpus import recipe_corpus
from flashpoint.agentx.traces.recipe import Recipe
from flashpoint.hardware.virtual_clock import VirtualClock
from flashpoint.simulate.config import DeploymentConfig
from flashpoint.simulate.deployment import Deployment
from flashpoint.simulate.level import VirtualLevel
from flashpoint.simulate.play import Sessions

LAYOUT, REPLICAS, LANES = "DEP2", 36, 2048


def digest(level: VirtualLevel) -> str:
    """Of all requests and steps: two versions of the simulator with the same digest did the same."""
    total = hashlib.blake2b(digest_size=8)
    for record in level.records:
        total.update(repr(record.scalars()).encode())
    for row in level.steps().to_pylist():
        total.update(repr(row).encode())
    return total.hexdigest()


def main() -> None:
    """Play the level and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="simulated minutes behind the warm-up")
    parser.add_argument("--scale", type=float, default=1.0, help="of replicas and lanes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    replicas = max(1, round(REPLICAS * options.scale))
    lanes = round(LANES * replicas / REPLICAS)
    began = time.process_time()
    deployment = Deployment(DeploymentConfig(layout=LAYOUT, replicas=replicas))
    clock = VirtualClock()
    fleet, cores = deployment.fleet(clock, 42)
    sessions = Sessions(recipe_corpus(Recipe(sessions=lanes, seed=1)))
    schedule = Lanes(ScheduleConfig(lanes, warmup_requests=3), sessions.feed(), "rack")
    context = LevelContext(schedule, 0, "rack", 0.0, clock, lambda record: None)
    level = VirtualLevel(fleet, cores, context, token_times=False)
    level.run(60 * options.minutes, 1e9, lambda: None)
    seconds = time.process_time() - began

    done = [record for record in level.records if record.status == "ok"]
    measured = [record for record in done if record.phase == "measured"]
    steps = sum(core.stats().steps for core in cores)
    result = {
        "accelerators": deployment.accelerators,
        "lanes": lanes,
        "sessions_started": schedule.sessions_started,
        "simulated_seconds": clock.now(),
        "measured_seconds": clock.now() - (schedule.measured_from or clock.now()),
        "requests": len(done),
        "measured_requests": len(measured),
        "prompt_tokens": sum(record.prompt_tokens or 0 for record in done),
        "output_tokens": sum(record.output_tokens or 0 for record in done),
        "hit_share": sum(r.cached_tokens or 0 for r in done) / sum(r.prompt_tokens or 1 for r in done),
        "rank_steps": steps,
        "plans": level.steps().num_rows,
        "cpu_seconds": seconds,
        "requests_per_cpu_second": len(done) / seconds,
        "max_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "digest": digest(level),
    }
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:24} {value if isinstance(value, str) else f'{value:,.6g}'}")


if __name__ == "__main__":
    main()
