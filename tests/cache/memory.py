"""The three tiers as plain dictionaries, and what every cache must obey: the tests' model of a machine."""

from __future__ import annotations

import numpy as np

from flashpoint.cache.block_cache import BlockCache
from flashpoint.cache.transfer import Fetch, Landed, Load, Remove, Run, Save, Store, Tier


class Memory:
    """What is in each block: the chain of contents up to it, as a tuple. Carries transfers out one by one.

    A transfer's target is poisoned when it starts, so that reading it early shows.
    """

    def __init__(self, disk: dict[bytes, tuple[Run, list]] | None = None) -> None:
        self.device: dict[int, object] = {}
        self.host: dict[int, object] = {}
        self.disk = {} if disk is None else disk
        self.started: list = []

    def start(self, transfers) -> None:
        for transfer in transfers:
            self.started.append(transfer)
            if isinstance(transfer, Save):
                self.host.update(dict.fromkeys(transfer.host.tolist(), "poison"))
            elif isinstance(transfer, Load):
                self.device.update(dict.fromkeys(transfer.device.tolist(), "poison"))
            elif isinstance(transfer, Fetch):
                self.host.update(dict.fromkeys(transfer.host.tolist(), "poison"))

    def land(self, index: int = 0, error: str | None = None) -> Landed:
        """Carry out one started transfer; a failing one leaves its target poisoned."""
        transfer = self.started.pop(index)
        if error is None:
            match transfer:
                case Save():
                    for d, h in zip(transfer.device.tolist(), transfer.host.tolist(), strict=True):
                        self.host[h] = self.device[d]
                case Load():
                    for h, d in zip(transfer.host.tolist(), transfer.device.tolist(), strict=True):
                        self.device[d] = self.host[h]
                case Store():
                    blocks = [self.host[h] for h in transfer.host.tolist()]
                    self.disk[transfer.run.key] = (transfer.run, blocks)
                case Fetch():
                    _, blocks = self.disk[transfer.key]
                    for i, h in enumerate(transfer.host.tolist()):
                        self.host[h] = blocks[transfer.first + i]
                case Remove():
                    self.disk.pop(transfer.key, None)
        return Landed(transfer.transfer_id, error)


def chain(content, block_tokens: int, namespace: bytes = b"") -> list:
    """What the memory of each whole block of `content` must hold."""
    blocks = len(content) // block_tokens
    return [(namespace, tuple(content[: (i + 1) * block_tokens].tolist())) for i in range(blocks)]


def check(cache: BlockCache, leases, memory: Memory | None = None) -> None:
    """Everything the module docstrings of the cache promise; `leases` are all that are open."""
    tree, tiers, size = cache._tree, cache._tiers, cache._tree.size
    held: list[int] = []
    locks: dict[int, int] = {}
    ends = [lease.end for lease in leases] + ([cache._pin] if cache._pin is not None else [])
    copied = [moving for moving in tiers._in_flight.values() if moving.copies]
    ends += [moving.segment for moving in copied if isinstance(moving.transfer, Save)]
    for end in ends:
        for link in tree.ancestry(end):
            locks[id(link)] = locks.get(id(link), 0) + 1
    evictable = [0, 0, 0]
    host: list[int] = []
    live: dict[bytes, int] = {}
    for segment in tree:
        assert segment.locks == locks.get(id(segment), 0)
        parent = segment.parent
        assert parent.parent is None or parent.tier <= segment.tier
        assert len(segment.content) == size(segment) * cache.block_tokens > 0
        assert parent.children[segment.content.values[: cache.block_tokens].tobytes()] is segment
        assert segment.children_at == [sum(c.tier is t for c in segment.children.values()) for t in Tier]
        if segment.tier is not Tier.DISK:
            assert len(segment.blocks) == size(segment)
        if segment.idle:
            evictable[segment.tier] += size(segment)
        {Tier.DEVICE: held, Tier.HOST: host, Tier.DISK: []}[segment.tier].extend(
            segment.blocks.values.tolist()
        )
        if segment.stored is not None:
            live[segment.stored.key] = live.get(segment.stored.key, 0) + size(segment)
            assert segment.stored.first + size(segment) <= tiers._run_blocks[segment.stored.key]
        if memory is not None and not segment.moving:
            path = [segment, *tree.ancestry(segment.parent)][::-1]
            content = np.concatenate([link.content.values for link in path])
            expected = chain(content, cache.block_tokens, tree.namespace_of(segment))[-size(segment) :]
            if segment.tier is not Tier.DISK:
                store = memory.device if segment.tier is Tier.DEVICE else memory.host
                assert [store[b] for b in segment.blocks.values.tolist()] == expected
            if segment.stored is not None:
                first = segment.stored.first
                assert memory.disk[segment.stored.key][1][first : first + size(segment)] == expected
    assert evictable == tree.evictable
    assert live == tiers._run_live
    assert sum(tiers._run_blocks.values()) == tiers.disk_used <= tiers._disk_blocks
    for tier in Tier:  # whatever can go is on offer
        ends_there = {id(s) for s in tree if s.tier is tier and s.idle and not s.children_at[tier]}
        assert {id(segment) for segment in tree.queues[tier]} == ends_there
    for lease in leases:
        path = [*tree.ancestry(lease.end)][::-1]
        shared = [block for link in path for block in link.blocks.values.tolist()]
        assert lease.table.values[: lease.shared].tolist() == shared
        held += lease.table.values[lease.shared :].tolist()
    assert len(set(held)) == len(held)
    assert len(held) + tiers.leaving + cache._pool.free_count + _unsettled(tiers, Load) == cache._pool.total
    assert len(set(host)) == len(host)
    host_leaving = sum(len(m.leaves) for m in tiers._in_flight.values() if not isinstance(m.transfer, Save))
    host_leaving += sum(len(m.transfer.host) for m in copied if isinstance(m.transfer, Save))
    host_leaving += _unsettled(tiers, Save, Fetch)
    host_leaving += sum(  # forgotten while a copy of them was written
        len(m.segment.blocks) for m in copied if isinstance(m.transfer, Store) and not len(m.leaves)
        and m.segment.parent is None
    )  # fmt: skip
    assert len(host) + host_leaving + tiers.host_free == tiers._host.total


def _unsettled(tiers, *kinds) -> int:
    """Blocks reserved for segments that were forgotten while they moved."""
    return sum(
        len(moving.segment.blocks)
        for moving in tiers._in_flight.values()
        if isinstance(moving.transfer, kinds) and not moving.copies and moving.segment.parent is None
    )
