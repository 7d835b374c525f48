"""Which cache blocks are free and which are taken. Knows ids only: neither bytes nor owners' names."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BlockIds = npt.NDArray[np.int32]


class BlockPoolError(RuntimeError):
    """A caller took more than there is, or gave back what it did not hold: a bug, not an input."""


class BlockPool:
    """`total` blocks with ids 0 … total-1, each free or taken (INV-1: free + taken == total).

    Deterministic: the blocks freed last are handed out first.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        # Ids from `_fresh` on have never been taken. Those given back are a stack, the last of them goes out
        # next; memory for it is touched only as far as it grows.
        self._fresh = 0
        self._stack = np.empty(total, dtype=np.int32)
        self._returned = 0
        self._taken = np.zeros(total, dtype=np.bool_)

    @property
    def free_count(self) -> int:
        """Blocks that can be allocated now."""
        return self._returned + self.total - self._fresh

    @property
    def taken_count(self) -> int:
        """Blocks that someone holds."""
        return self._fresh - self._returned

    def allocate(self, count: int) -> BlockIds:
        """Take `count` blocks and return their ids, int32 [count]. BlockPoolError when too few are free."""
        if not 0 <= count <= self.free_count:
            raise BlockPoolError(
                f"cannot allocate {count} blocks: {self.free_count} of {self.total} are free"
            )
        again = min(count, self._returned)
        rest = self._returned - again
        ids = self._stack[rest : self._returned][::-1].copy()
        self._returned = rest
        if again < count:
            fresh = np.arange(self._fresh, self._fresh + count - again, dtype=np.int32)
            self._fresh += count - again
            ids = np.concatenate([ids, fresh]) if again else fresh
        self._taken[ids] = True
        return ids

    def free(self, ids: BlockIds) -> None:
        """Give `ids` back. BlockPoolError, and no change, when one is foreign, repeated or already free."""
        if ids.size == 0:
            return
        if ids.min() < 0 or ids.max() >= self.total:
            raise BlockPoolError(f"cannot free {ids.tolist()}: the pool's ids are 0 to {self.total - 1}")
        if np.unique(ids).size != ids.size:
            raise BlockPoolError(f"cannot free {ids.tolist()}: an id appears twice")
        if not self._taken[ids].all():
            raise BlockPoolError(f"cannot free {ids[~self._taken[ids]].tolist()}: already free")
        self._taken[ids] = False
        self._stack[self._returned : self._returned + ids.size] = ids[::-1]
        self._returned += ids.size
