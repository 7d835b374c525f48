"""Blocks of running sequences and of everything worth keeping, under one roof.

A sequence holds a lease: a block table whose first blocks belong to the prefix tree, shared with whoever has
the same content, and whose rest is its own. As its blocks fill they are published, which moves them from the
rest to the shared part: another sequence may hit them while the first still runs. Published blocks stay when
the lease ends, until room is needed.

INV-1: every block is free, in one lease's own part, in the tree, or leaving with a transfer.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

import numpy as np

from flashpoint.cache.block_pool import BlockPool
from flashpoint.cache.eviction import EvictionPolicy, LeastRecentlyUsed
from flashpoint.cache.int32_buffer import Int32Buffer
from flashpoint.cache.prefix_tree import NOTHING, PrefixTree, Segment
from flashpoint.cache.tier_pools import TierPools
from flashpoint.cache.transfer import Content, Landed, Run, Tier, Transfer

SPARE_SHARE = 32
"""With slower tiers, one block in so many is emptied ahead of need: a step seldom waits for a save."""


class Lease:
    """A sequence's hold on blocks.

    table: block ids, in order of position.
    shared: how many of them, the first ones, belong to the tree.  end: the segment they end with.
    hit_blocks: blocks found in the cache, and by the tier they were found in, fastest first.
    """

    __slots__ = ("end", "hit_blocks", "hits_by_tier", "shared", "table")

    def __init__(self, table: Int32Buffer, end: Segment, hits_by_tier: tuple[int, int, int]) -> None:
        self.table = table
        self.end = end
        self.hits_by_tier = hits_by_tier
        self.shared = self.hit_blocks = sum(hits_by_tier)


class BlockCache:
    """All blocks of one engine. Not thread safe; knows ids and contents, never bytes.

    keep: False turns the prefix cache off: nothing is published, found or kept (INV-13).
    host_blocks, disk_blocks: slower tiers, 0 for none.  stored: what the disk tier holds already.
    """

    def __init__(
        self,
        blocks: int,
        block_tokens: int,
        keep: bool = True,
        host_blocks: int = 0,
        disk_blocks: int = 0,
        stored: Iterable[Run] = (),
        policy: EvictionPolicy | None = None,
    ) -> None:
        self.block_tokens = block_tokens
        self._keep = keep
        self._pool = BlockPool(blocks)
        self._tree = PrefixTree(block_tokens, policy or LeastRecentlyUsed())
        self._tiers = TierPools(self._tree, self._pool, host_blocks, disk_blocks)
        self._tiers.adopt(stored)
        self._spare = blocks // SPARE_SHARE if self._tiers.present else 0
        self._host_spare = host_blocks // SPARE_SHARE if disk_blocks else 0
        self._pin: Segment | None = None
        self._short = False  # an asker waits for room: each block taken meanwhile has another one emptied

    @property
    def free_blocks(self) -> int:
        """Blocks a lease could get without taking any from another lease: free, cached and leaving ones."""
        return self._pool.free_count + self._tree.evictable[Tier.DEVICE] + self._tiers.leaving

    @property
    def ready_blocks(self) -> int:
        """Blocks that leases can take one by one, as long as nothing lands, without a wait for a slower tier
        and without anything being moved to one for it."""
        if not self._tiers.present:
            return self.free_blocks
        if self._short:
            return 0
        ready = self._pool.free_count
        if self._tree.evictable[Tier.DEVICE]:
            ready = min(ready, ready + self._tiers.leaving - self._spare // 2)
        return max(0, ready)

    @property
    def cached_blocks(self) -> int:
        """Device blocks that only the cache holds."""
        return self._tree.evictable[Tier.DEVICE]

    @property
    def in_flight(self) -> bool:
        """True while a transfer has not landed."""
        return self._tiers.in_flight

    @property
    def failed_transfers(self) -> int:
        """Transfers that failed so far."""
        return self._tiers.failures

    # Leases

    def acquire(self, namespace: bytes, content: Content, blocks: int, least_hit: int) -> Lease | None:
        """A lease of `blocks` blocks that begins with what is known of `content` int32 [tokens].

        A prefix of fewer than `least_hit` blocks does not count. None when it has to wait: for room, or for
        blocks that are on their way from a slower tier; ask again after a step. What was found stays pinned
        until then, for one asker at a time (`unpin`).
        """
        self.unpin()
        found = self._tree.match(namespace, content) if self._keep else []
        if sum(self._tree.size(segment) for segment in found) < least_hit:
            found = []
        self._pin = found[-1] if found else self._tree.root(namespace)
        self._tree.lock(self._pin)
        if any(segment.moving for segment in found):
            return None
        path = self._fetch(found)
        if path is None:
            return None
        known = sum(self._tree.size(segment) for segment in path if segment.tier is Tier.DEVICE)
        if blocks - known > self.free_blocks:
            return None
        if not self._make_room(blocks - known, patient=True):
            self._short = True
            return None
        slower = [segment for segment in path if segment.tier is Tier.HOST]
        if slower:
            for segment in slower:
                self._tiers.load(segment, self._pool.allocate(self._tree.size(segment)))
            return None
        return self._lease(namespace, path, blocks)

    def known(self, namespace: bytes, content: Content) -> int:
        """Blocks at the beginning of `content` int32 [tokens] that are on the device now."""
        return self._tree.known(namespace, content) if self._keep else 0

    def unpin(self) -> None:
        """Let go of what a waiting asker has found."""
        self._short = False
        if self._pin is not None:
            self._tree.unlock(self._pin)
            self._pin = None

    def grow(self, lease: Lease, blocks: int) -> bool:
        """Make the table `blocks` long; False, and no change, when that many are not free now."""
        missing = blocks - len(lease.table)
        if missing > 0:
            if not self._make_room(missing, patient=False):
                return False
            lease.table.extend(self._pool.allocate(missing))
        return True

    def could_grow(self, lease: Lease, blocks: int) -> bool:
        """True when `grow` can succeed once transfers in flight have landed."""
        return blocks - len(lease.table) <= self.free_blocks or self._tiers.copying

    def publish(self, lease: Lease, content: Content) -> None:
        """`content` int32 [tokens] is computed: share its whole blocks.

        Where the tree has the same content already, the lease takes those blocks and gives up its own.
        """
        whole = len(content) // self.block_tokens
        while self._keep and lease.shared < whole:
            rest = content[lease.shared * self.block_tokens : whole * self.block_tokens]
            child, common = self._tree.step(lease.end, rest)
            if child is None:
                self._append(lease, rest)
            elif child.moving:
                return  # its blocks are not there yet: try again later
            else:
                whole_child = common == self._tree.size(child)
                self._join(lease, child if whole_child else self._tree.split(child, common))

    def release(self, lease: Lease, sound: bool = True) -> None:
        """End a lease. Its own blocks are free; published ones stay, unless what it computed is not `sound`:
        then those it published and nobody else uses are forgotten."""
        self._pool.free(lease.table.values[lease.shared :])
        self._tree.unlock(lease.end)
        published = 0 if sound else lease.shared - lease.hit_blocks
        end = lease.end
        while published > 0 and end.idle and not end.children:
            above, count = end.parent, min(published, self._tree.size(end))
            self._tiers.cut(end, count)
            published -= count
            if above is None:
                raise ValueError("a lease cannot have published a root")
            end = above

    # Tiers

    def read_ahead(self, namespace: bytes, content: Content) -> None:
        """Start to read what disk has of `content`, so that it is in memory when its turn comes."""
        if not self._tiers.disk_used or not self._keep:
            return
        path = self._tree.match(namespace, content)
        if path and not any(segment.moving for segment in path):
            self._tree.lock(path[-1])  # or making room could take what it makes room for
            self._fetch(path)
            self._tree.unlock(path[-1])

    def take_transfers(self) -> tuple[Transfer, ...]:
        """Transfers to start with the next step, in order. Starts to empty some blocks ahead of need."""
        about = self._pool.free_count + self._tiers.leaving
        if about < self._spare // 2:  # in one go: every save cuts a segment
            self._evict(self._spare - about, patient=True)
        self._tiers.keep_host_room(self._host_spare)
        return self._tiers.take_orders()

    def land(self, landed: Iterable[Landed]) -> None:
        """Take note of transfers that are over."""
        landed = list(landed)
        if any(item.error is not None for item in landed):
            self.unpin()  # what failed is forgotten, so nobody may hold it
        self._tiers.land(landed)

    def _fetch(self, path: list[Segment]) -> list[Segment] | None:
        """The path as far as it is in memory; None when more of it is on its way there."""
        on_disk = [segment for segment in path if segment.tier is Tier.DISK]
        # In order, as far as there is room: what comes after may follow when this has gone to the device.
        started = [*takewhile(self._tiers.fetch, on_disk)]
        return None if started else path[: len(path) - len(on_disk)]

    def _lease(self, namespace: bytes, path: list[Segment], blocks: int) -> Lease:
        hits = [0, 0, 0]
        for segment in path:
            hits[segment.origin] += self._tree.size(segment)
            segment.origin = Tier.DEVICE
        end = path[-1] if path else self._tree.root(namespace)
        if end is self._pin:
            self._pin = None  # the asker's hold becomes the lease's
        else:
            self._tree.lock(end)
            self.unpin()
        table = Int32Buffer(np.concatenate([segment.blocks.values for segment in path]) if path else NOTHING)
        table.extend(self._pool.allocate(blocks - len(table)))
        return Lease(table, end, (hits[0], hits[1], hits[2]))

    # Publishing

    def _append(self, lease: Lease, content: Content) -> None:
        """Hand the lease's next own blocks to the tree."""
        count = len(content) // self.block_tokens
        own = lease.table.values[lease.shared : lease.shared + count]
        end = lease.end
        if end.parent is not None and end.locks == 1 and not end.children and end.stored is None:
            self._tree.extend(end, content, own)
        else:
            self._advance(lease, self._tree.add(end, content, own, Tier.DEVICE))
        lease.shared += count

    def _join(self, lease: Lease, segment: Segment) -> None:
        """Go on with a segment that has the content of the lease's next own blocks."""
        stop = lease.shared + self._tree.size(segment)
        own, rest = lease.table.values[lease.shared : stop], lease.table.values[stop:]
        if segment.tier is Tier.DEVICE:
            self._pool.free(own)
        else:
            self._tiers.replace(segment, own)
        lease.table.truncate(lease.shared)
        lease.table.extend(segment.blocks.values)
        lease.table.extend(rest)
        lease.shared = stop
        self._advance(lease, segment)

    def _advance(self, lease: Lease, segment: Segment) -> None:
        self._tree.relock(lease.end, segment)
        lease.end = segment

    # Room

    def _make_room(self, count: int, patient: bool) -> bool:
        """True when `count` blocks are free now; else what can go is on its way.

        `patient`: wait for a slow disk rather than forget blocks that have nowhere to go yet. Who decodes
        does not wait for a disk.
        """
        self._evict(count - self._pool.free_count - self._tiers.leaving, patient)
        return self._pool.free_count >= count

    def _evict(self, count: int, patient: bool) -> None:
        """Take `count` blocks out of the device tier, ends of the least used chains first."""
        target = self._pool.free_count + self._tiers.leaving + count
        while (missing := target - self._pool.free_count - self._tiers.leaving) > 0:
            segment = self._tree.queues[Tier.DEVICE].take()
            if segment is None or not self._tiers.demote(segment, missing, patient):
                return
