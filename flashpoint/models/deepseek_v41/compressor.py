"""Compressed entries and index keys of a KV source layer (spec 3.5, 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flashpoint.models.deepseek_v41 import weights as w
from flashpoint.models.deepseek_v41.batch import EntryRows, RaggedBatch
from flashpoint.models.deepseek_v41.caches import Caches
from flashpoint.models.deepseek_v41.tap import Tap
from flashpoint.ops.compressor.reference import pool_pair
from flashpoint.ops.gemm.reference import linear
from flashpoint.ops.norm.reference import rms_norm
from flashpoint.ops.rope.reference import rope_table, rotate

if TYPE_CHECKING:
    from flashpoint.models.deepseek_v41.attention import AttentionContext


def write_entries(
    context: AttentionContext,
    layer: int,
    compressor: w.Compressor,
    indexer: w.Indexer,
    x: Tensor,
    batch: RaggedBatch,
    caches: Caches,
    tap: Tap,
) -> None:
    """Write the entries that this step's rows complete; keep a row that waits for its partner.

    The index key is taken from the latent before rotation: rotating first ruins recall silently.
    """
    c = context.config
    rows = batch.entries[c.compress_ratios[layer]]
    if compressor.wgate is None:
        pooled = linear(x[rows.done_rows], compressor.wkv)
    else:
        pooled = _pool_pairs(compressor, compressor.wgate, x, batch, rows, caches.tails[layer]).to(x.dtype)
    latent = rms_norm(pooled, compressor.norm, c.rms_norm_eps)
    rope = rope_table(rows.done_positions, context.compressed_frequencies)

    if indexer.wk is None or indexer.k_norm is None:
        raise ValueError(f"layer {layer} owns compressed KV but its indexer has no key projection")
    key = rotate(rms_norm(linear(latent, indexer.wk), indexer.k_norm, c.rms_norm_eps), rope)
    entry = rotate(latent, rope)
    for name, pool, vectors in (
        ("index_k", caches.index_keys[layer], key),
        ("compress_kv", caches.entries[layer], entry),
    ):
        stored = pool.encode(vectors)
        tap(f"layers.{layer}.{name}", pool.decode(stored))
        pool[rows.done_pool] = stored


def _pool_pairs(
    compressor: w.Compressor, wgate: Tensor, x: Tensor, batch: RaggedBatch, rows: EntryRows, tails: Tensor
) -> Tensor:
    wide = x.float()
    row_kv, row_score = linear(wide, compressor.wkv), linear(wide, wgate)
    waiting = tails[batch.slots]
    first_kv = torch.cat((waiting[:, 0], row_kv))[rows.first]
    first_score = torch.cat((waiting[:, 1], row_score))[rows.first]
    tails[rows.tail_slots, 0] = row_kv[rows.tail_rows]
    tails[rows.tail_slots, 1] = row_score[rows.tail_rows]
    return pool_pair(first_kv, first_score, row_kv[rows.done_rows], row_score[rows.done_rows])
