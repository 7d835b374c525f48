"""Outcomes of levels that were never played."""

from flashpoint.simulate.config import DeploymentConfig
from flashpoint.simulate.plan import Planned
from flashpoint.simulate.play import Outcome


def made_outcome(total, speed):
    """A level of that throughput and P90 interactivity."""
    return Outcome(1, 1, total, 1.0, speed, speed, 0.1, 0.2, 0.9, {"memory": 1.0}, {"memory": 0.5})


def made_planned(total, speed):
    """A point of a plan."""
    return Planned(DeploymentConfig(), made_outcome(total, speed), 1000.0, 1.0)
