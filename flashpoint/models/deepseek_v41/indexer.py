"""Which compressed entries each row attends to, per index source (spec 4.2 to 4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from flashpoint.models.deepseek_v41 import weights as w
from flashpoint.models.deepseek_v41.batch import RaggedBatch
from flashpoint.models.deepseek_v41.caches import Caches
from flashpoint.models.deepseek_v41.tap import Tap
from flashpoint.ops.gemm.reference import linear
from flashpoint.ops.rope.reference import rotate

if TYPE_CHECKING:
    from flashpoint.models.deepseek_v41.attention import AttentionContext


@dataclass(frozen=True, slots=True)
class Selection:
    """The newest index source's choice, which Reuse layers take unchanged.

    positions int64 [T, K]: entries within the sequence, ascending, -1 = unused.
    pool_rows int64 [T, K]: the same as rows of the KV source's pool.
    candidate_blocks int64 [T, C] | None: blocks later sources may choose from, once published.
    """

    positions: Tensor
    pool_rows: Tensor
    candidate_blocks: Tensor | None


def select(
    context: AttentionContext,
    layer: int,
    indexer: w.Indexer,
    x: Tensor,
    q_latent: Tensor,
    rope: Tensor,
    batch: RaggedBatch,
    caches: Caches,
    previous: Selection | None,
    tap: Tap,
) -> Selection:
    """Score the KV source's keys with this layer's query and take the best `index_topk`."""
    c, ops = context.config, context.ops
    source = c.kv_source_of[layer]
    if source is None:
        raise ValueError(f"layer {layer} has an indexer but no KV source")
    q = context.linear(q_latent, indexer.wq_b).unflatten(-1, (c.index_n_heads, c.index_head_dim))
    q = rotate(q, rope)
    if context.numerics.quantize:
        q = ops.index_qdq(q)
    weights = linear(x, indexer.weights_proj) * (c.index_head_dim**-0.5 * c.index_n_heads**-0.5)
    q = tap(f"layers.{layer}.index_q", q)
    weights = tap(f"layers.{layer}.index_weights", weights)

    publishes = layer == c.candidate_source_layer_id
    restricted = (
        previous.candidate_blocks if previous is not None and layer > c.candidate_source_layer_id else None
    )
    rows = batch.entries[c.compress_ratios[layer]]
    positions, blocks = ops.select_entries(
        q,
        weights,
        caches.index_keys[source],
        rows.key_rows,
        batch.row_offsets,
        rows.visible,
        c.index_topk,
        c.candidate_block_size,
        publish=c.candidate_topk_blocks if publishes else 0,
        candidates=restricted,
    )
    positions = tap(f"layers.{layer}.topk_idxs", positions)
    if blocks is not None:
        blocks = tap(f"layers.{layer}.candidate_blocks", blocks)
    return Selection(
        positions,
        _pool_rows(positions, rows.key_rows, batch.sequence),
        blocks if blocks is not None else restricted,
    )


def _pool_rows(positions: Tensor, key_rows: Tensor, sequence: Tensor) -> Tensor:
    if key_rows.shape[1] == 0:
        return positions
    rows = key_rows[sequence.unsqueeze(1), positions.clamp(min=0)]
    return rows.masked_fill(positions < 0, -1)
