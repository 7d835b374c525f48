"""Time as the engine sees it: seconds, monotone, wall or virtual."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Anything that tells the time in seconds and never runs backwards."""

    def now(self) -> float:
        """Seconds since an arbitrary start."""
        ...


class WallClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Seconds of `time.monotonic`."""
        return time.monotonic()

    def wait_until(self, moment: float) -> None:
        """Sleep until it is `moment`."""
        time.sleep(max(0.0, moment - self.now()))


class CpuClock:
    """CPU seconds of this process: of one busy thread the wall clock, less what other processes took."""

    def __init__(self) -> None:
        self._waited = 0.0

    def now(self) -> float:
        """CPU seconds of the process, and what `wait_until` jumped over."""
        return time.process_time() + self._waited

    def wait_until(self, moment: float) -> None:
        """Jump there."""
        self._waited += max(0.0, moment - self.now())
