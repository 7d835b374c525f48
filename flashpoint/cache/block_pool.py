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
        # A stack: the first `_free_count` entries are the free ids, the last of them goes out next.
        self._stack = np.arange(total - 1, -1, -1, dtype=np.int32)
        self._free_count = total
        self._taken = np.zeros(total, dtype=np.bool_)

    @property
    def free_count(self) -> int:
        """Blocks that can be allocated now."""
        return self._free_count

    @property
    def taken_count(self) -> int:
        """Blocks that someone holds."""
        return self.total - self._free_count

    def allocate(self, count: int) -> BlockIds:
        """Take `count` blocks and return their ids, int32 [count]. BlockPoolError when too few are free."""
        if not 0 <= count <= self._free_count:
            raise BlockPoolError(
                f"cannot allocate {count} blocks: {self._free_count} of {self.total} are free"
            )
        rest = self._free_count - count
        ids = self._stack[rest : self._free_count][::-1].copy()
        self._free_count = rest
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
        self._stack[self._free_count : self._free_count + ids.size] = ids[::-1]
        self._free_count += ids.size
