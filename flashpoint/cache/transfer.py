"""What moves between tiers, as data: the scheduler orders it in a StepPlan, an executor carries it out.

Three tiers keep finished blocks: the device pool, a host-memory pool, and runs on disk. A transfer is started
with the step whose plan holds it and lands some steps later; until then both ends belong to it alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from flashpoint.cache.block_pool import BlockIds

Content = npt.NDArray[np.int32]
"""What decides the content of blocks: int32 [tokens]. Token ids, and negative values drawn from an image's
digest where an image stands."""


class Tier(IntEnum):
    """Where a block is, fastest first."""

    DEVICE = 0
    HOST = 1
    DISK = 2


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive blocks of one chain, as they are stored on disk: one file each.

    key: chained hash after the run's last block; it names the file.
    parent: chained hash before its first block (of the namespace alone, when the run begins a chain).
    namespace: what else decides the content (adapter, cache format); part of every hash.
    content: int32 [blocks · block_tokens].
    """

    key: bytes
    parent: bytes
    namespace: bytes
    content: Content = field(repr=False)


@dataclass(frozen=True, slots=True)
class Save:
    """Copy device blocks to host blocks, int32 [n] each, pairwise."""

    transfer_id: int
    device: BlockIds
    host: BlockIds


@dataclass(frozen=True, slots=True)
class Load:
    """Copy host blocks to device blocks, int32 [n] each, pairwise."""

    transfer_id: int
    host: BlockIds
    device: BlockIds


@dataclass(frozen=True, slots=True)
class Store:
    """Write host blocks, int32 [n] in chain order, to disk as `run`."""

    transfer_id: int
    host: BlockIds
    run: Run


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read blocks `first` … `first + len(host) - 1` of the stored run `key` into host blocks."""

    transfer_id: int
    key: bytes
    first: int
    host: BlockIds


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete the stored run `key`; it lands like any other transfer."""

    transfer_id: int
    key: bytes


Transfer = Save | Load | Store | Fetch | Remove


@dataclass(frozen=True, slots=True)
class Landed:
    """A transfer is over. error: why it failed (nothing of its target may be used), None for success."""

    transfer_id: int
    error: str | None = None
