"""What a model keeps between steps, as data.

The model declares (`models/*/cache_spec.py`); pools, scheduler and planners obey. Nothing here knows
an architecture or a tensor library.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

GroupKind = Literal["paged", "ring", "tail", "history"]


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """One kind of state, owned by `layers`.

    kind:
        `paged`   entries addressed by token position through a block table, shareable by prefix;
        `ring`    the last `entries` tokens of a sequence, one ring per layer;
        `tail`    at most `entries` rows waiting for their group to fill;
        `history` the last `entries` token ids, read from the request itself (no pool).
    entry_bytes: bytes of one entry of one layer.
    tokens_per_entry: tokens that share one entry (the compression ratio); 1 for the other kinds.
    replay_tokens: tokens that must be recomputed after a prefix hit to rebuild this group; 0 when
        the group itself is cached.
    """

    name: str
    kind: GroupKind
    layers: tuple[int, ...]
    entry_bytes: int
    tokens_per_entry: int = 1
    entries: int = 0
    prefix_cacheable: bool = False
    replay_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """All groups of a model.

    prefill_tail: the last tokens of a prefill that must run every layer; what lies before may skip the layers
        behind the last paged group (spec 2.3). None: the model has no such layers.
    """

    groups: tuple[CacheGroup, ...]
    prefill_tail: int | None = None

    def group(self, name: str) -> CacheGroup:
        """The group called `name`; KeyError lists the names there are."""
        for group in self.groups:
            if group.name == name:
                return group
        raise KeyError(f"no cache group {name!r}; there are {[g.name for g in self.groups]}")

    @property
    def block_multiple(self) -> int:
        """A block's token count must be a multiple of this, so that no entry spans two blocks."""
        return math.lcm(*(g.tokens_per_entry for g in self.groups if g.kind == "paged"))

    @property
    def bytes_per_token(self) -> float:
        """Bytes a token keeps in the paged groups, all layers (spec 10.1: 890 at release)."""
        return sum(
            g.entry_bytes * len(g.layers) / g.tokens_per_entry for g in self.groups if g.kind == "paged"
        )

    @property
    def bytes_per_sequence(self) -> int:
        """Bytes a running sequence keeps whatever its length (windows, tails)."""
        return sum(
            g.entry_bytes * g.entries * len(g.layers) for g in self.groups if g.kind in ("ring", "tail")
        )

    @property
    def replay_tokens(self) -> int:
        """Tokens computed again after a prefix hit so that every group is there (spec 2.4: approximately)."""
        return max((g.replay_tokens for g in self.groups), default=0)

    @property
    def exact_replay_tokens(self) -> int:
        """Tokens computed again after a prefix hit so that every group is there exactly: each layer's ring
        looks back on the layer before it (spec 2.5)."""
        return max(((g.entries - 1) * len(g.layers) for g in self.groups if g.replay_tokens), default=0)

    def block_bytes(self, block_tokens: int) -> int:
        """Bytes of one block of `block_tokens` tokens over all paged groups."""
        return sum(
            g.entry_bytes * len(g.layers) * (block_tokens // g.tokens_per_entry)
            for g in self.groups
            if g.kind == "paged"
        )
