"""Which engine a request goes to, where several serve the same model. Pure: no clock, no I/O."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Literal, get_args

from flashpoint.errors import InvalidValue

Policy = Literal["session_sticky", "prefix_aware", "round_robin", "least_loaded"]

PREFIX_WEIGHT = 4.0
"""What a cached prompt is worth, in requests that an engine may be ahead of the least loaded one."""


class Router:
    """Chooses among `engines` engines, numbered from 0.

    session_sticky: a session stays where it began, which is where the fewest requests were.
    prefix_aware: the engine with the largest cached share of the prompt, less its load.
    round_robin: one after the other.  least_loaded: the fewest requests open, ties to the lowest number.
    """

    def __init__(self, policy: Policy, engines: int) -> None:
        if policy not in get_args(Policy):
            raise InvalidValue("routing", policy, f"one of {', '.join(get_args(Policy))}")
        if engines < 1:
            raise InvalidValue("engines", engines, "at least 1")
        self._policy = policy
        self._engines = engines
        self._turn = itertools.cycle(range(engines))
        self._home: dict[str, int] = {}

    def choose(self, session: str, loads: Sequence[int], cached_share: Callable[[int], float]) -> int:
        """The engine for a request of `session`.

        loads: open requests of each engine.  cached_share(engine): share of the prompt that it holds, 0 to 1.
        """
        if self._policy == "round_robin":
            return next(self._turn)
        if self._policy == "session_sticky":
            if session not in self._home:
                self._home[session] = _least(loads)
            return self._home[session]
        if self._policy == "prefix_aware":
            worth = [PREFIX_WEIGHT * cached_share(engine) - load for engine, load in enumerate(loads)]
            return max(range(self._engines), key=worth.__getitem__)
        return _least(loads)

    def forget(self, session: str) -> None:
        """The session is over."""
        self._home.pop(session, None)


def _least(loads: Sequence[int]) -> int:
    return min(range(len(loads)), key=loads.__getitem__)
