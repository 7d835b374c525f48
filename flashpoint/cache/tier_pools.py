"""The slower places of a block cache: a host-memory pool and runs on disk.

Moves start here and are carried out by the executor (`transfer.py`); whoever asks for room gets what is free
now, never waits. What a slower tier has no room for is forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from flashpoint.cache.block_pool import BlockIds, BlockPool
from flashpoint.cache.chain_hash import chain_keys, root_key
from flashpoint.cache.prefix_tree import NOTHING, PrefixTree, Segment, StoredPart
from flashpoint.cache.transfer import Fetch, Landed, Load, Remove, Run, Save, Store, Tier, Transfer

log = logging.getLogger(__name__)

RUN_BLOCKS = 512
"""Blocks of one file at most, so that a read-ahead reads little it does not need."""


@dataclass(frozen=True, slots=True)
class _Moving:
    """A transfer in flight. leaves: ids to give back to the pool of the tier it came from.

    copies: the segment stays where it is, locked while it is read; what lands is a copy of its first state.
    """

    transfer: Transfer
    segment: Segment | None
    leaves: BlockIds
    copies: bool = False


class TierPools:
    """Host blocks, disk runs and the transfers between the tiers of one PrefixTree.

    host_blocks, disk_blocks: room, in blocks; 0 for no such tier.
    leaving: device blocks that are free once a save has landed.
    failures: transfers that failed so far (a damaged file, a full disk); each is logged with its cause.
    """

    def __init__(self, tree: PrefixTree, device: BlockPool, host_blocks: int, disk_blocks: int) -> None:
        self._tree = tree
        self._device = device
        self._host = BlockPool(host_blocks)
        self._disk_blocks = disk_blocks
        self._disk_used = 0
        self._run_blocks: dict[bytes, int] = {}
        self._run_live: dict[bytes, int] = {}  # blocks of each run that the tree still refers to
        self._ordered: list[Transfer] = []
        self._in_flight: dict[int, _Moving] = {}
        self._next_id = 0
        self.leaving = 0
        self.failures = 0

    @property
    def present(self) -> bool:
        """True when there is a slower tier at all."""
        return self._host.total > 0

    @property
    def in_flight(self) -> bool:
        """True while a transfer has not landed."""
        return bool(self._in_flight)

    @property
    def copying(self) -> bool:
        """True while device blocks are kept only until they have been copied for the disk."""
        return any(m.copies and isinstance(m.transfer, Save) for m in self._in_flight.values())

    @property
    def host_free(self) -> int:
        """Host blocks that are free now."""
        return self._host.free_count

    @property
    def disk_used(self) -> int:
        """Blocks of all runs on disk."""
        return self._disk_used

    def take_orders(self) -> tuple[Transfer, ...]:
        """Transfers to start with the next step; each is returned once."""
        ordered, self._ordered = tuple(self._ordered), []
        return ordered

    # Slower

    def demote(self, segment: Segment, count: int, patient: bool) -> bool:
        """Take up to `count` blocks (at least 1) off the end of a device segment: to host, or to where disk
        has them already, or, without room there, out of the cache. Those saved are free once that landed.

        `patient`: rather than forget blocks, do nothing and return False while host blocks are on their way
        to disk.
        """
        if segment.stored is not None and not segment.children_at[Tier.HOST]:
            self._leave_to_disk(self._tail(segment, count))
            return True
        self._make_host_room(count)
        if self._host.free_count:
            self._save(self._tail(segment, min(count, self._host.free_count)))
        elif patient and self._storing():
            self._tree.offer(segment)
            return False
        else:
            self.cut(segment, count)
        return True

    def keep_host_room(self, count: int) -> None:
        """Start to empty host blocks until `count` are free or about to be."""
        self._make_host_room(count - self._storing())

    def forget(self, segment: Segment) -> None:
        """Drop an idle segment and all that continues it, wherever it is, and free its blocks."""
        for child in list(segment.children.values()):
            self.forget(child)
        self._tree.drop(segment)
        self._discard_stored(segment.stored, self._tree.size(segment))
        if not segment.moving:  # else both ends are freed when the transfer lands
            self._free(segment)

    def cut(self, segment: Segment, count: int) -> None:
        """Forget up to `count` blocks at the end of an idle segment, and what continues them."""
        if segment.children or segment.stored is not None or count >= self._tree.size(segment):
            self.forget(self._tail(segment, count))
        else:
            self._pool_of(segment.tier).free(self._tree.trim(segment, count))

    def _storing(self) -> int:
        """Host blocks that are free once what is being stored now has landed."""
        return sum(
            len(moving.leaves) for moving in self._in_flight.values() if isinstance(moving.transfer, Store)
        )

    def _save(self, part: Segment) -> None:
        device, host = part.blocks.values, self._host.allocate(self._tree.size(part))
        self._tree.depart(part, Tier.HOST, host)
        part.origin = Tier.HOST
        self.leaving += len(device)
        self._order(Save(self._next_id, device, host), part, device)

    def _make_host_room(self, count: int) -> None:
        """Take idle host segments to disk, or out of the cache, until `count` blocks are free or about to."""
        leaving = 0
        while self._host.free_count + leaving < count:
            segment = self._tree.queues[Tier.HOST].take()
            if segment is None:
                return
            if segment.stored is not None:
                self._leave_to_disk(segment)
            elif self._disk_blocks:
                leaving += self._store(self._tail(segment, RUN_BLOCKS))
            else:
                self.cut(segment, count - self._host.free_count)

    def _store(self, part: Segment) -> int:
        """Blocks that are on their way to disk; 0 when there was no room and they were forgotten."""
        count = self._tree.size(part)
        if not self._make_disk_room(count):
            self.forget(part)
            return 0
        key, host = self._tree.key_of(part), part.blocks.values
        if key in self._run_blocks:  # the same blocks, computed again, are in a run that other blocks keep
            self.forget(part)
            return 0
        self._run_blocks[key] = count
        self._disk_used += count
        part.stored = self._refer(key, count, 0)
        self._tree.depart(part, Tier.DISK, NOTHING)
        part.origin = Tier.DISK
        self._order(Store(self._next_id, host, self._run(part)), part, host)
        for ancestor in reversed([*self._tree.ancestry(part)][1:]):
            self._back_up(ancestor)
        return count

    def _run(self, segment: Segment) -> Run:
        key, parent = self._tree.key_of(segment), self._parent_key(segment)
        return Run(key, parent, self._tree.namespace_of(segment), segment.content.values.copy())

    # What is on disk is worth nothing after a restart unless its prefix is there as well

    def _back_up(self, segment: Segment) -> None:
        """Start to write a copy of a segment to disk, while it stays where it is; where there is no room for
        that now, later."""
        size = self._tree.size(segment)
        if segment.stored is not None or segment.moving or self._backing_up(segment):
            return
        if segment.tier is Tier.HOST:
            host = segment.blocks.values
            self._tree.depart(segment, Tier.HOST, host)  # nobody may touch what is read until it is written
            self._store_copy(segment, host, NOTHING)
        elif size <= self._host.free_count:
            self._tree.lock(segment)
            device, staged = segment.blocks.values, self._host.allocate(size)
            self._order(Save(self._next_id, device, staged), segment, NOTHING, copies=True)

    def _store_copy(self, segment: Segment, host: BlockIds, staged: BlockIds) -> None:
        """Write a copy of the segment, which is in `host`, to disk; `staged` of these are free afterwards."""
        key, size = self._tree.key_of(segment), self._tree.size(segment)
        if key in self._run_blocks or not self._make_disk_room(size):
            self._end_copy(segment, staged)
            return
        self._run_blocks[key] = size
        self._disk_used += size
        self._order(Store(self._next_id, host, self._run(segment)), segment, staged, copies=True)

    def _land_copy(self, moving: _Moving, segment: Segment, failed: bool) -> None:
        transfer = moving.transfer
        if isinstance(transfer, Save):
            self._tree.unlock(segment)
            # Cut meanwhile, it has another end than the copy; and then nothing asks for this copy.
            if failed or self._tree.size(segment) != len(transfer.host):
                self._host.free(transfer.host)
            else:
                self._store_copy(segment, transfer.host, transfer.host)
        elif isinstance(transfer, Store):
            run = transfer.run
            self._run_live[run.key] = 0
            still = segment.parent is not None and np.array_equal(segment.content.values, run.content)
            if failed or not still or segment.stored is not None:
                self._discard_stored(StoredPart(run.key, 0), 0)
            else:
                segment.stored = self._refer(run.key, len(transfer.host), 0)
            self._end_copy(segment, moving.leaves)

    def _end_copy(self, segment: Segment, staged: BlockIds) -> None:
        if staged.size:
            self._host.free(staged)
        elif segment.parent is not None:  # the copy was read from the segment's own host blocks
            self._tree.arrive(segment)
        else:
            self._free(segment)

    def _backing_up(self, segment: Segment) -> bool:
        return any(m.copies and m.segment is segment for m in self._in_flight.values())

    def _make_disk_room(self, count: int) -> bool:
        while self._disk_used + count > self._disk_blocks:
            segment = self._tree.queues[Tier.DISK].take()
            if segment is None:
                return False
            self.forget(segment)
        return True

    # Faster

    def fetch(self, segment: Segment) -> bool:
        """Start to read a disk segment into host memory; False, and nothing, when there is no room for it."""
        count, stored = self._tree.size(segment), segment.stored
        if stored is None:
            raise ValueError("a segment on disk without a run")
        self._make_host_room(count)
        if self._host.free_count < count:
            return False
        host = self._host.allocate(count)
        self._tree.depart(segment, Tier.HOST, host)
        self._order(Fetch(self._next_id, stored.key, stored.first, host), segment, NOTHING)
        return True

    def load(self, segment: Segment, device: BlockIds) -> None:
        """Start to copy a host segment into `device` blocks."""
        host = segment.blocks.values
        self._tree.depart(segment, Tier.DEVICE, device)
        self._order(Load(self._next_id, host, device), segment, host)

    def replace(self, segment: Segment, device: BlockIds) -> None:
        """A slower segment has been computed again: `device` blocks hold it now."""
        if segment.tier is Tier.HOST:
            self._host.free(segment.blocks.values)
        self._tree.depart(segment, Tier.DEVICE, device)
        segment.origin = Tier.DEVICE
        self._tree.arrive(segment)

    # Landing

    def land(self, landed: Iterable[Landed]) -> None:
        """Take note of transfers that are over. What failed is forgotten: a miss, never a wrong hit."""
        for item in landed:
            moving = self._in_flight.pop(item.transfer_id)
            if item.error is not None:
                self.failures += 1
                log.warning("%s failed: %s", _describe(moving.transfer), item.error)
            if isinstance(moving.transfer, Remove) or moving.segment is None:
                continue
            if moving.copies:
                self._land_copy(moving, moving.segment, failed=item.error is not None)
                continue
            self._give_back(moving)
            self._settle_landed(moving.segment, failed=item.error is not None)

    def _give_back(self, moving: _Moving) -> None:
        if isinstance(moving.transfer, Save):
            self.leaving -= len(moving.leaves)
            self._device.free(moving.leaves)
        else:
            self._host.free(moving.leaves)

    def _settle_landed(self, segment: Segment, failed: bool) -> None:
        if segment.parent is None:  # forgotten in flight
            self._free(segment)
            return
        self._tree.arrive(segment)
        if failed:
            self.forget(segment)
            return
        self._tree.merge(segment)
        parent = segment.parent
        if parent.parent is not None:
            self._tree.merge(parent)

    # Disk bookkeeping

    def adopt(self, runs: Iterable[Run]) -> None:
        """Put runs found on disk into the tree; those whose prefix is lost are removed."""
        continuing: dict[bytes, list[Run]] = {}
        for run in runs:
            continuing.setdefault(run.parent, []).append(run)
            self._run_blocks[run.key] = len(run.content) // self._tree.block_tokens
            self._run_live[run.key] = 0
            self._disk_used += self._run_blocks[run.key]
        namespaces = {run.namespace for runs in continuing.values() for run in runs}
        open_ends = [(self._tree.root(namespace), root_key(namespace)) for namespace in namespaces]
        while open_ends:
            end, key = open_ends.pop()
            for run in continuing.pop(key, ()):
                keys = chain_keys(key, run.content, self._tree.block_tokens)
                self._hang(end, run)
                for index, block_key in enumerate(keys):
                    if block_key in continuing:
                        content = run.content[: (index + 1) * self._tree.block_tokens]
                        open_ends.append((self._tree.follow(end, content)[-1], block_key))
        for run in (run for orphans in continuing.values() for run in orphans):
            self._discard_stored(StoredPart(run.key, 0), 0)
        self._make_disk_room(0)

    def _hang(self, end: Segment, run: Run) -> None:
        """Add what the tree does not have yet of a run that continues `end`."""
        path = self._tree.follow(end, run.content)
        known = sum(self._tree.size(segment) for segment in path)
        rest = run.content[known * self._tree.block_tokens :]
        if rest.size:
            stored = self._refer(run.key, len(rest) // self._tree.block_tokens, known)
            self._tree.add_stored(path[-1] if path else end, rest, stored)
        else:
            self._discard_stored(StoredPart(run.key, 0), 0)

    def _refer(self, key: bytes, count: int, first: int) -> StoredPart:
        self._run_live[key] = self._run_live.get(key, 0) + count
        return StoredPart(key, first)

    def _discard_stored(self, stored: StoredPart | None, count: int) -> None:
        """`count` blocks of a run are referred to no longer; a run without any is removed."""
        if stored is None:
            return
        self._run_live[stored.key] -= count
        if not self._run_live[stored.key]:
            del self._run_live[stored.key]
            self._disk_used -= self._run_blocks.pop(stored.key)
            self._order(Remove(self._next_id, stored.key), None, NOTHING)

    # Helpers

    def _tail(self, segment: Segment, count: int) -> Segment:
        """The segment cut to its last `count` blocks, if it has more; the rest is a new one before it."""
        keep = self._tree.size(segment) - count
        if keep > 0:
            self._tree.split(segment, keep)
        return segment

    def _leave_to_disk(self, segment: Segment) -> None:
        """Give up a copy in memory of what is on disk."""
        self._free(segment)
        self._tree.depart(segment, Tier.DISK, NOTHING)
        segment.origin = Tier.DISK
        self._tree.arrive(segment)

    def _free(self, segment: Segment) -> None:
        if segment.tier is not Tier.DISK:
            self._pool_of(segment.tier).free(segment.blocks.values)

    def _pool_of(self, tier: Tier) -> BlockPool:
        return self._device if tier is Tier.DEVICE else self._host

    def _order(
        self, transfer: Transfer, segment: Segment | None, leaves: BlockIds, copies: bool = False
    ) -> None:
        self._ordered.append(transfer)
        self._in_flight[self._next_id] = _Moving(transfer, segment, leaves, copies)
        self._next_id += 1

    def _parent_key(self, segment: Segment) -> bytes:
        if segment.parent is None:
            raise ValueError("a dropped segment has no parent")
        return self._tree.key_of(segment.parent)


def _describe(transfer: Transfer) -> str:
    name = type(transfer).__name__.lower()
    if isinstance(transfer, Store):
        return f"{name} of run {transfer.run.key.hex()}"
    if isinstance(transfer, Fetch | Remove):
        return f"{name} of run {transfer.key.hex()}"
    return f"{name} of {len(transfer.host)} blocks"
