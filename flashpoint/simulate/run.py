"""`flashpoint simulate`: agent sessions played into a deployment in virtual time, archived as a real run."""

from __future__ import annotations

import hashlib
import json

from rich.console import Console

from flashpoint.agentx.progress import OnEvent
from flashpoint.agentx.replay_config import LoadConfig
from flashpoint.agentx.run_levels import EngineRun, LevelContext, run_levels
from flashpoint.agentx.run_parts import plain
from flashpoint.agentx.summary import RunSummary
from flashpoint.errors import InvalidValue
from flashpoint.hardware.virtual_clock import VirtualClock
from flashpoint.simulate.config import DeploymentConfig
from flashpoint.simulate.deployment import Deployment
from flashpoint.simulate.level import VirtualLevel


def run_simulation(
    load: LoadConfig,
    config: DeploymentConfig,
    console: Console | None = None,
    deployment: Deployment | None = None,
    on_event: OnEvent = lambda event: None,
) -> RunSummary:
    """Simulate every level of `load` on the deployment, archive it, and return the archive's figures.

    The same options give the same requests to the bit. `deployment`: instead of the one that `config` says.
    on_event: told how far the run is.
    """
    deployment = deployment or Deployment(config)
    count = deployment.accelerators
    if load.accelerators not in (1, count):
        raise InvalidValue("accelerators", load.accelerators, f"{count}, as layouts and replicas say")
    settings = plain(load, config)
    del settings["out"]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
    run = EngineRun(
        max_context=deployment.max_context,
        model=config.model,
        place=f"virtual {deployment.machine.name}",
        settings=plain(config) | {"machine": deployment.machine.as_json()},
        run_id=digest[:12],
        accelerators=count,
    )
    clock = VirtualClock()

    def make_level(context: LevelContext) -> VirtualLevel:
        fleet, cores = deployment.fleet(clock, load.seed)
        return VirtualLevel(fleet, cores, context, token_times=config.token_times, floors=deployment.limits)

    return run_levels(load, run, clock, make_level, console, on_event)
