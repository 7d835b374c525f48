"""The attention sublayer: window, shared compressed entries, grouped output (spec 3)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from flashpoint.models.deepseek_v41 import weights as w
from flashpoint.models.deepseek_v41.batch import DecoderRows, RaggedBatch
from flashpoint.models.deepseek_v41.caches import Caches
from flashpoint.models.deepseek_v41.compressor import write_entries
from flashpoint.models.deepseek_v41.config import TextConfig
from flashpoint.models.deepseek_v41.indexer import Selection, select
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.deepseek_v41.tap import Tap
from flashpoint.ops.backends import Ops
from flashpoint.ops.gemm.reference import grouped_linear, linear
from flashpoint.ops.norm.reference import rms_norm
from flashpoint.ops.rope.reference import plain_frequencies, rope_table, rotate, yarn_frequencies
from flashpoint.ops.rows import Rows


@dataclass(frozen=True, slots=True)
class AttentionContext:
    """What all layers of a model share: shapes, numerics, ops, rotation frequencies."""

    config: TextConfig
    numerics: Numerics
    ops: Ops
    window_frequencies: Tensor
    compressed_frequencies: Tensor

    @staticmethod
    def of(config: TextConfig, numerics: Numerics, ops: Ops, device: torch.device) -> AttentionContext:
        """Build both frequency sets: window-only layers know no YaRN, all others do (spec 3.3)."""
        dim, yarn = config.qk_rope_head_dim, config.rope_scaling
        compressed = yarn_frequencies(
            dim,
            config.compress_rope_theta,
            yarn.factor,
            yarn.beta_fast,
            yarn.beta_slow,
            yarn.original_max_position_embeddings,
        )
        return AttentionContext(
            config,
            numerics,
            ops,
            plain_frequencies(dim, config.rope_theta).to(device),
            compressed.to(device),
        )

    def linear(self, x: Tensor, layer: w.Linear) -> Tensor:
        """x · weightᵀ, with FP8 activations in front of quantised weights when the run quantises."""
        quantise = self.ops.fp8_qdq if self.numerics.quantize and layer.quantized else None
        return linear(x, layer.weight, quantise)


@dataclass(slots=True)
class StepState:
    """What earlier layers of the same forward pass left for later ones: rotation tables and the current
    selection (spec 1.3: one current slot each is enough)."""

    window_rope: Tensor
    compressed_rope: Tensor
    selection: Selection | None = field(default=None)

    @staticmethod
    def of(context: AttentionContext, batch: RaggedBatch) -> StepState:
        """Rotation tables for the batch's positions."""
        return StepState(
            rope_table(batch.positions, context.window_frequencies),
            rope_table(batch.positions, context.compressed_frequencies),
        )

    def rope(self, source: int | None) -> Tensor:
        """The rotation table of a layer that reads the entries of `source`, if any (spec 3.3)."""
        return self.window_rope if source is None else self.compressed_rope


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """Rows of a layer that are about to attend, its keys being written.

    x [T, hidden]: the normed input; shared_input: the same as wq_a and wkv read it.
    window_kv [R, head_dim] and window_index int64 [T, W]: the window keys, and which of them each row sees.
    """

    x: Tensor
    shared_input: Tensor
    window_kv: Tensor
    window_index: Tensor

    def only(self, decoder: DecoderRows) -> AttentionRows:
        """The decoder rows of the last KV source; their keys are still those of all rows."""
        rows = decoder.rows
        return replace(
            self, x=self.x[rows], shared_input=self.shared_input[rows], window_index=decoder.source_window
        )


def write_keys(
    context: AttentionContext,
    layer: int,
    weights: w.Attention,
    x: Tensor,
    batch: RaggedBatch,
    caches: Caches,
    state: StepState,
    tap: Tap,
) -> AttentionRows:
    """Write what later rows need of this layer: window keys and, at a KV source, compressed entries and index
    keys of normed input x [T, hidden]."""
    c, ops, numerics = context.config, context.ops, context.numerics
    # wq_a and wkv read the same activation: quantise it once.
    shared_input = ops.fp8_qdq(x) if numerics.quantize and weights.wq_a.quantized else x
    kv = rms_norm(linear(shared_input, weights.wkv.weight), weights.kv_norm, c.rms_norm_eps)
    kv = rotate(kv, state.rope(c.kv_source_of[layer]))
    window = caches.windows[layer]
    stored = window.encode(kv)
    kv = tap(f"layers.{layer}.window_kv", window.decode(stored))
    window_kv = torch.cat((window[batch.ring_rows], kv))
    window[batch.ring_targets] = stored[batch.ring_sources]
    if weights.compressor is not None and weights.indexer is not None:
        write_entries(context, layer, weights.compressor, weights.indexer, x, batch, caches, tap)
    return AttentionRows(x, shared_input, window_kv, batch.window_index)


def attend(
    context: AttentionContext,
    layer: int,
    weights: w.Attention,
    rows: AttentionRows,
    batch: RaggedBatch,
    caches: Caches,
    state: StepState,
    tap: Tap,
) -> Tensor:
    """Attention output [T, hidden] of rows whose keys are written; `batch` describes those rows."""
    c, ops = context.config, context.ops
    source = c.kv_source_of[layer]
    rope = state.rope(source)
    q_latent = rms_norm(linear(rows.shared_input, weights.wq_a.weight), weights.q_norm, c.rms_norm_eps)
    q = context.linear(q_latent, weights.wq_b).unflatten(-1, (c.num_attention_heads, c.head_dim))
    q = rotate(q, rope)

    if weights.indexer is not None:
        state.selection = select(
            context, layer, weights.indexer, rows.x, q_latent, rope, batch, caches, state.selection, tap
        )
    entries: Rows
    if source is None or state.selection is None:
        entries, entry_index = rows.window_kv[:0], rows.window_index[:, :0]
    else:
        entries, entry_index = caches.entries[source], state.selection.pool_rows

    out = ops.sparse_attention(
        q, rows.window_kv, rows.window_index, entries, entry_index, weights.sink, c.head_dim**-0.5
    )
    # Values carry their key's rotation; turning back by the query's position leaves the difference.
    out = rotate(out, rope, inverse=True)
    grouped = grouped_linear(out.flatten(1).unflatten(-1, (c.o_groups, -1)), weights.wo_a)
    return context.linear(grouped.flatten(1), weights.wo_b)
