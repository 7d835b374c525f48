"""The prefix index: a tree of the contents that are kept, and where their blocks are.

A segment is a run of consecutive blocks; a path from the root spells a prefix. Children of a segment differ
in their first block, so a prompt follows at most one of them, and following costs one look-up per segment and
a comparison of arrays. Contents are compared, never only their hashes: a wrong hit is impossible.

What holds, whatever is done:
* A segment is at least as fast as its children (`Tier`): the device part of a path is its beginning.
* Who locks a segment locks its ancestors; nothing locked or in transit is evicted.
* Only ends go: a segment leaves a tier when no child of it is left there (no suffix without its prefix,
  INV-12).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from flashpoint.cache.chain_hash import chain_keys, root_key
from flashpoint.cache.eviction import EvictionPolicy, EvictionQueue
from flashpoint.cache.int32_buffer import Int32Buffer
from flashpoint.cache.transfer import Content, Tier

NOTHING = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Blocks of a run on disk: they begin at block `first` of the run `key`."""

    key: bytes
    first: int


class Segment:
    """Consecutive blocks of one chain, all in one place.

    content: int32 [blocks · block_tokens].  blocks: their ids in the pool of `tier`; empty on DISK.
    parent: None for a root, and for a segment that has been dropped.
    locks: leases that end at this segment or below it.
    moving: a transfer of these blocks is in flight.
    stored: where they are on disk, as well if `tier` is a faster one.
    origin: the tier they were found in since they were last used; tells which tier a hit is owed to.
    children_at: number of children per tier.
    last_used: tick of the last lease or match.  offer: see EvictionQueue.
    key: chained hash after the last block, once someone needed it.
    """

    __slots__ = (
        "blocks",
        "children",
        "children_at",
        "content",
        "key",
        "last_used",
        "locks",
        "moving",
        "offer",
        "origin",
        "parent",
        "stored",
        "tier",
    )

    def __init__(
        self,
        parent: Segment | None,
        content: Content,
        blocks: Content,
        tier: Tier,
        stored: StoredPart | None = None,
    ) -> None:
        self.parent = parent
        self.content = Int32Buffer(content)
        self.blocks = Int32Buffer(blocks)
        self.tier = tier
        self.stored = stored
        self.origin = tier
        self.locks = 0
        self.moving = False
        self.children: dict[bytes, Segment] = {}
        self.children_at = [0, 0, 0]
        self.last_used = 0
        self.offer = 0
        self.key: bytes | None = None

    @property
    def idle(self) -> bool:
        """True when no lease needs it and nothing moves it."""
        return not self.locks and not self.moving


class PrefixTree:
    """Segments of every namespace. Knows where blocks are, not who pays for them (`block_cache.py`).

    evictable: per tier, blocks in idle segments. All of them can be evicted, ends first.
    queues: per tier, the segments that can go now.
    """

    def __init__(self, block_tokens: int, policy: EvictionPolicy) -> None:
        self.block_tokens = block_tokens
        self.evictable = [0, 0, 0]
        self.queues = tuple(EvictionQueue(policy, partial(_is_end, tier=tier)) for tier in Tier)
        self._roots: dict[bytes, Segment] = {}
        self._tick = 0

    def namespace_of(self, segment: Segment) -> bytes:
        """The namespace whose chain a segment belongs to."""
        root = segment
        while root.parent is not None:
            root = root.parent
        return next(namespace for namespace, candidate in self._roots.items() if candidate is root)

    def root(self, namespace: bytes) -> Segment:
        """Where the chains of a namespace begin."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = Segment(None, NOTHING, NOTHING, Tier.DEVICE)
            root.key = root_key(namespace)
        return root

    def __iter__(self) -> Iterator[Segment]:
        """Every segment, parents first; roots are not among them."""
        open_segments = [child for root in self._roots.values() for child in root.children.values()]
        while open_segments:
            segment = open_segments.pop()
            yield segment
            open_segments += segment.children.values()

    def size(self, segment: Segment) -> int:
        """Blocks of a segment."""
        return len(segment.content) // self.block_tokens

    # Following a content

    def match(self, namespace: bytes, content: Content) -> list[Segment]:
        """The segments that spell the longest known prefix of `content` int32 [tokens], in whole blocks.

        The last one is split where the prefix ends, unless it is in transit: then the match ends before it.
        """
        root = self._roots.get(namespace)
        return [] if root is None else self.follow(root, content)

    def known(self, namespace: bytes, content: Content) -> int:
        """Blocks of the longest known prefix of `content` int32 [tokens] on the device; changes nothing."""
        segment, blocks = self._roots.get(namespace), 0
        while segment is not None:
            child, common = self.step(segment, content[blocks * self.block_tokens :])
            if child is None or child.tier is not Tier.DEVICE:
                break
            blocks += common
            segment = child if common == self.size(child) else None
        return blocks

    def follow(self, segment: Segment, content: Content) -> list[Segment]:
        """As `match`, from a segment's end on."""
        path: list[Segment] = []
        while True:
            child, common = self.step(segment, content)
            if child is None:
                return path
            if common < self.size(child):
                if child.moving:
                    return path
                child = self.split(child, common)
            path.append(child)
            segment, content = child, content[common * self.block_tokens :]

    def step(self, segment: Segment, content: Content) -> tuple[Segment | None, int]:
        """(the child that begins as `content` does, blocks they have in common); (None, 0) without one."""
        child = segment.children.get(self._first(content)) if segment.children else None
        if child is None:
            return None, 0
        own = child.content.values[: len(content)]
        differs = own != content[: len(own)]
        first_difference = int(differs.argmax())
        common = first_difference if differs[first_difference] else len(own)
        return child, common // self.block_tokens

    # Growing

    def add(self, parent: Segment, content: Content, blocks: Content, tier: Tier) -> Segment:
        """A new child of `parent`; no child may begin with the same block."""
        return self._attach(Segment(parent, content, blocks, tier))

    def add_stored(self, parent: Segment, content: Content, stored: StoredPart) -> Segment:
        """A new child of `parent` that is on disk only."""
        return self._attach(Segment(parent, content, NOTHING, Tier.DISK, stored))

    def extend(self, segment: Segment, content: Content, blocks: Content) -> None:
        """Append blocks to a segment that has no children."""
        segment.content.extend(content)
        segment.blocks.extend(blocks)
        segment.key = None

    def split(self, segment: Segment, at: int) -> Segment:
        """Cut a segment that does not move after `at` blocks; returns the new first part.

        `segment` itself becomes the rest: its children and whoever ends at it stay with it.
        """
        parent, cut = _parent(segment), at * self.block_tokens
        content, blocks, stored = segment.content.values, segment.blocks.values, segment.stored
        head = Segment(parent, content[:cut], blocks[:at], segment.tier, stored)
        head.locks, head.last_used, head.origin = segment.locks, segment.last_used, segment.origin
        rest = content[cut:]
        head.children[self._first(rest)] = segment
        head.children_at[segment.tier] = 1
        parent.children[self._first(content)] = head
        segment.parent = head
        segment.content, segment.blocks = Int32Buffer(rest), Int32Buffer(blocks[at:])
        if stored is not None:
            segment.stored = StoredPart(stored.key, stored.first + at)
        return head

    def merge(self, segment: Segment) -> None:
        """Take a segment's only child into it, where both are idle and in the same place."""
        children = list(segment.children.values())
        if len(children) != 1:
            return
        child = children[0]
        if not (segment.idle and child.idle and segment.tier == child.tier and self._adjoin(segment, child)):
            return
        segment.content.extend(child.content.values)
        segment.blocks.extend(child.blocks.values)
        segment.children, segment.children_at, segment.key = child.children, child.children_at, child.key
        for grandchild in segment.children.values():
            grandchild.parent = segment
        segment.last_used = max(segment.last_used, child.last_used)
        child.parent = None
        self.offer(segment)

    # Using

    def lock(self, segment: Segment) -> None:
        """Keep a segment and its ancestors where they are, and count them as used now."""
        tick = self._tick = self._tick + 1
        for link in self.ancestry(segment):
            link.last_used = tick
            if not link.locks and not link.moving:
                self.evictable[link.tier] -= self.size(link)
            link.locks += 1

    def unlock(self, segment: Segment) -> None:
        """Undo one `lock`."""
        tick = self._tick = self._tick + 1
        for link in self.ancestry(segment):
            link.last_used = tick
            link.locks -= 1
            if not link.locks and not link.moving:
                self.evictable[link.tier] += self.size(link)
                self.offer(link)

    def relock(self, held: Segment, further: Segment) -> None:
        """Turn a lock of `held` into one of `further`, which is below it."""
        for link in self.ancestry(further):
            if link is held:
                return
            if link.idle:
                self.evictable[link.tier] -= self.size(link)
            link.locks += 1
            link.last_used = self._tick

    def ancestry(self, segment: Segment) -> Iterator[Segment]:
        """The segment and those above it, the root left out."""
        while segment.parent is not None:
            yield segment
            segment = segment.parent

    # Moving

    def depart(self, segment: Segment, tier: Tier, blocks: Content) -> None:
        """A segment leaves for `tier`, where `blocks` are reserved for it: in transit until `arrive`."""
        if segment.idle:
            self.evictable[segment.tier] -= self.size(segment)
        segment.moving = True
        self.place(segment, tier, blocks)

    def arrive(self, segment: Segment) -> None:
        """The transfer has landed."""
        segment.moving = False
        if segment.idle:
            self.evictable[segment.tier] += self.size(segment)
            self.offer(segment)

    def place(self, segment: Segment, tier: Tier, blocks: Content) -> None:
        """Say that a segment, locked or in transit, is in `blocks` of `tier` now."""
        parent = _parent(segment)
        parent.children_at[segment.tier] -= 1
        parent.children_at[tier] += 1
        segment.tier, segment.blocks = tier, Int32Buffer(blocks)
        self.offer(parent)

    # Shrinking

    def trim(self, segment: Segment, count: int) -> Content:
        """Cut the last `count` blocks, not all, off an idle segment without children; returns their ids."""
        keep = self.size(segment) - count
        cut = segment.blocks.values[keep:]
        segment.content.truncate(keep * self.block_tokens)
        segment.blocks.truncate(keep)
        segment.key = None
        self.evictable[segment.tier] -= count
        self.offer(segment)
        return cut

    def drop(self, segment: Segment) -> None:
        """Forget a segment without children; who holds its blocks is the caller's business."""
        parent = _parent(segment)
        if segment.children:
            raise ValueError("a segment with children cannot be dropped: they would have no prefix")
        if segment.idle:
            self.evictable[segment.tier] -= self.size(segment)
        del parent.children[self._first(segment.content.values)]
        parent.children_at[segment.tier] -= 1
        segment.parent = None
        self.offer(parent)

    def key_of(self, segment: Segment) -> bytes:
        """Chained hash after the segment's last block."""
        unnamed = []
        link: Segment = segment
        while link.key is None:
            unnamed.append(link)
            link = _parent(link)
        key = link.key
        for link in reversed(unnamed):
            key = link.key = chain_keys(key, link.content.values, self.block_tokens)[-1]
        return key

    def _attach(self, segment: Segment) -> Segment:
        parent = _parent(segment)
        parent.children[self._first(segment.content.values)] = segment
        parent.children_at[segment.tier] += 1
        segment.last_used = self._tick
        self.evictable[segment.tier] += self.size(segment)
        self.offer(segment)
        return segment

    def offer(self, segment: Segment) -> None:
        """Put an idle segment up for eviction if it is an end."""
        if _is_end(segment, segment.tier):
            self.queues[segment.tier].offer(segment)

    def _first(self, content: Content) -> bytes:
        return content[: self.block_tokens].tobytes()

    def _adjoin(self, first: Segment, second: Segment) -> bool:
        """True when one StoredPart, or none, describes both."""
        if first.stored is None or second.stored is None:
            return first.stored is second.stored
        return second.stored == StoredPart(first.stored.key, first.stored.first + self.size(first))


def _is_end(segment: Segment, tier: Tier) -> bool:
    """True when the segment can leave `tier` now."""
    return (
        segment.tier == tier and segment.idle and not segment.children_at[tier] and segment.parent is not None
    )


def _parent(segment: Segment) -> Segment:
    if segment.parent is None:
        raise ValueError("a root, or a dropped segment, has no parent")
    return segment.parent
