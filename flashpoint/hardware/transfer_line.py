"""Cached blocks on their way between an accelerator's memory and the CPU's, in virtual time."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from flashpoint.cache.transfer import Landed, Load, Save, Transfer


class TransferLine:
    """One transfer after the other, in the order given; the real counterpart is `executor/mover.py`."""

    def __init__(self, seconds_per_block: float) -> None:
        self._seconds_per_block = seconds_per_block
        self._free = 0.0
        self._moving: deque[tuple[float, int]] = deque()

    def start(self, transfers: Iterable[Transfer], now: float) -> float:
        """Transfers begin at `now`, or when those before them are over. Returns the seconds they take."""
        taken = 0.0
        for transfer in transfers:
            if not isinstance(transfer, Save | Load):
                raise NotImplementedError("a disk tier in virtual time: profiles know no disk")
            seconds = len(transfer.device) * self._seconds_per_block
            self._free = max(now, self._free) + seconds
            self._moving.append((self._free, transfer.transfer_id))
            taken += seconds
        return taken

    @property
    def next_landing(self) -> float:
        """When the next transfer is over; infinity where none moves."""
        return self._moving[0][0] if self._moving else math.inf

    def landed(self, now: float) -> tuple[Landed, ...]:
        """Transfers that are over by `now` and were not told of before."""
        over = []
        while self._moving and self._moving[0][0] <= now:
            over.append(Landed(self._moving.popleft()[1]))
        return tuple(over)
