"""Sequences with prefix hits and trimmed decoders: as the scheduler would plan them, and by a slow oracle."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from flashpoint.engine.plan import Chunk
from flashpoint.models.deepseek_v41.caches import Caches
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.load import load_model
from flashpoint.ops.backends import ops_for
from tests.golden_data import golden_checkpoints

NAMES = [name for name in golden_checkpoints() if name in ("tiny-a", "tiny-b", "tiny-c", "tiny-q")]


@cache
def model(name, mode="exact"):
    return load_model(golden_checkpoints()[name], Numerics(mode)).model


def tokens(name, seed, length):
    return np.random.default_rng(seed).integers(3, model(name).config.vocab_size, length).astype(np.int32)


@dataclass(frozen=True)
class Sequence:
    """A prompt and, forced, its answer.  hit: tokens whose entries are shared; replayed: how many of them are
    computed again; trimmed: only the prompt's last window runs the decoder ("replay" semantics)."""

    ids: np.ndarray
    prompt: int
    window: int
    hit: int = 0
    replayed: int = 0
    trimmed: bool = True

    @property
    def start(self) -> int:
        """s of spec 2.4."""
        return self.hit - self.replayed

    @property
    def decoder_start(self) -> int:
        """First position the decoder runs on."""
        return max(self.start, self.prompt - self.window) if self.trimmed else self.start

    def spans(self, rng) -> list[tuple[int, int, int]]:
        """(start, end, decoder rows) of each chunk: the prompt in random pieces, the last of which holds all
        decoder rows; then the answer token by token."""
        cuts = {self.start, self.prompt}
        room = (self.decoder_start if self.trimmed else self.prompt - 1) - self.start
        if room > 0:
            cuts |= {self.start + int(c) for c in rng.integers(1, room + 1, rng.integers(0, 5))}
        cuts |= set(range(self.prompt, len(self.ids) + 1))
        edges = sorted(cuts)
        spans = []
        for start, end in pairwise(edges):
            spans.append((start, end, max(0, end - max(start, self.decoder_start))))
        return spans


@dataclass
class Pools:
    """Caches and which blocks are taken; as the engine holds them."""

    model: object
    block_tokens: int
    blocks: int = 64
    slots: int = 6
    caches: Caches = field(init=False)
    free: list[int] = field(init=False)

    def __post_init__(self):
        self.caches = self.model.allocate_caches(self.blocks, self.block_tokens, self.slots)
        self.free = np.random.default_rng(self.blocks).permutation(self.blocks).tolist()

    def table(self, sequence, donor=None):
        """Block table of a sequence: the hit's blocks are the donor's."""
        count = -(-len(sequence.ids) // self.block_tokens)
        shared = [] if donor is None else donor[: sequence.hit // self.block_tokens].tolist()
        return np.array(shared + [self.free.pop() for _ in range(count - len(shared))], dtype=np.int32)

    def shared_bytes(self, table, hit):
        """The bytes of a hit's blocks in every paged pool."""
        blocks = torch.from_numpy(table[: hit // self.block_tokens].astype(np.int64))
        return [view[blocks].clone() for view in self.caches.block_views(self.blocks)]

    def stale(self, slot, value):
        """Fill a slot's rings and tails, as if another request had left them."""
        window = self.model.config.sliding_window
        for ring in self.caches.windows:
            rows = torch.arange(slot * window, (slot + 1) * window)
            ring[rows] = ring.encode(torch.full_like(ring[rows], value))
        for tail in self.caches.tails.values():
            tail[slot] = value

    def chunk(self, sequence, table, slot, span):
        start, end, kept = span
        return Chunk(
            "r",
            slot,
            start,
            sequence.ids[:end],
            table[: -(-end // self.block_tokens)],
            min(end, sequence.prompt),
            None,
            write_from=sequence.hit,
            window_start=sequence.start,
            decoder_rows=kept,
            decoder_start=sequence.decoder_start,
        )

    def play(self, running, rng, tap=lambda name, value: value):
        """Run [(sequence, table, slot), …] to their ends in random mixtures: per sequence the logits of the
        positions from its decoder_start on."""
        waiting = [sequence.spans(rng) for sequence, _, _ in running]
        logits = [[] for _ in running]
        while any(waiting):
            chosen = [i for i, spans in enumerate(waiting) if spans and rng.random() < 0.7]
            if not chosen:
                continue
            spans = [waiting[i].pop(0) for i in chosen]
            chunks = [self.chunk(*running[i], span) for i, span in zip(chosen, spans, strict=True)]
            batch = self.model.build_batch(chunks, self.block_tokens)
            kept = torch.arange(batch.row_offsets[-1]) if batch.decoder is None else batch.decoder.rows
            got = self.model.forward(batch, self.caches, kept, tap)
            for i, part in zip(chosen, got.split([kept for _, _, kept in spans]), strict=True):
                logits[i].append(part)
        return [torch.cat(parts) for parts in logits]


class FlooredAttention:
    """Sparse attention under explicit window floors: `begin` takes those of every layer, int64 [T] each."""

    def __init__(self, sparse_attention):
        self._sparse_attention = sparse_attention

    def begin(self, start, floors):
        self._start, self._floors = start, iter(floors)

    def __call__(self, q, window_kv, window_index, *rest):
        rows, window = window_index.shape
        keys = self._start + torch.arange(rows)[:, None] + torch.arange(1 - window, 1)
        hidden = keys < next(self._floors)[:, None]
        return self._sparse_attention(q, window_kv, window_index.masked_fill(hidden, -1), *rest)


@cache
def _oracle_model(name, mode):
    usual = ops_for("cpu")
    floored = FlooredAttention(usual.sparse_attention)
    ops = replace(usual, sparse_attention=floored)
    return load_model(golden_checkpoints()[name], Numerics(mode), ops=ops).model, floored


@dataclass(frozen=True)
class OracleRun:
    """Logits of the positions from decoder_start on; the pools, whose block table is 0, 1, 2, …"""

    logits: Tensor
    pages: list[Tensor]


def oracle(name, mode, block_tokens, sequence, donor=None) -> OracleRun:
    """Every layer on every computed row in one unchunked step, with the truncated windows spelt out as masks
    and the hit's entries copied from an earlier run."""
    m, floored = _oracle_model(name, mode)
    config, start = m.config, sequence.start
    blocks = -(-len(sequence.ids) // block_tokens)
    caches = m.allocate_caches(blocks, block_tokens, 1)
    pages = caches.block_views(blocks)
    shared = sequence.hit // block_tokens
    for mine, theirs in zip(pages, donor.pages if donor else pages, strict=True):
        mine[:shared] = theirs[:shared]
    chunk = Chunk(
        "oracle", 0, start, sequence.ids, np.arange(blocks), sequence.prompt, None, write_from=sequence.hit
    )
    encoder = torch.full((chunk.length,), start)
    decoder = encoder.clone()
    decoder[sequence.decoder_start - start :] = sequence.decoder_start
    last_source = config.kv_source_layer_ids[-1]
    floored.begin(
        start, [encoder if layer <= last_source else decoder for layer in range(config.num_hidden_layers)]
    )
    rows = torch.arange(sequence.decoder_start - start, chunk.length)
    return OracleRun(m.forward(m.build_batch([chunk], block_tokens), caches, rows), pages)
