"""Time that jumps: nothing sleeps, and the same run takes the same time everywhere."""

from __future__ import annotations


class VirtualClock:
    """Seconds from 0 on. Never runs backwards (the clock is monotone)."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Seconds since the start of the simulation."""
        return self._now

    def wait_until(self, moment: float) -> None:
        """Jump to `moment`; a moment that is past changes nothing."""
        self._now = max(self._now, moment)
