"""A corpus of small sessions, and options with which a replay of it takes seconds."""

from fractions import Fraction
from typing import Any

from flashpoint.agentx.traces.recipe import Recipe

SMALL = Recipe(sessions=12, seed=3, scale=Fraction(1, 64), max_turns=40)
QUICK: dict[str, Any] = {
    "duration": 1.5,
    "warmup_requests": 1,
    "session_idle_cap": 0.05,
    "system_idle_cap": 0.05,
}
