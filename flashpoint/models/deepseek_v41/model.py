"""The forward pass of a ragged batch (spec 0.3).

Prefill, a piece of a prefill, decode and any mixture are this one call: a chunk is some rows of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flashpoint.engine.plan import Chunk
from flashpoint.models.deepseek_v41.attention import (
    AttentionContext,
    AttentionRows,
    StepState,
    attend,
    write_keys,
)
from flashpoint.models.deepseek_v41.batch import RaggedBatch, build_batch
from flashpoint.models.deepseek_v41.caches import Caches, allocate_caches
from flashpoint.models.deepseek_v41.config import TextConfig
from flashpoint.models.deepseek_v41.engram import EngramRows, engram
from flashpoint.models.deepseek_v41.engram_hash import EngramHash
from flashpoint.models.deepseek_v41.moe import moe
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.deepseek_v41.tap import Tap, no_tap
from flashpoint.models.deepseek_v41.weights import HyperConnection, Layer, ModelWeights
from flashpoint.ops.backends import Ops
from flashpoint.ops.gemm.reference import linear
from flashpoint.ops.hyper_connections.reference import COPIES
from flashpoint.ops.norm.reference import rms_norm


class DeepseekV41:
    """The text model over loaded weights. Holds no state between calls; that lives in `Caches`."""

    def __init__(
        self, config: TextConfig, weights: ModelWeights, engram_hash: EngramHash, numerics: Numerics, ops: Ops
    ) -> None:
        self.config = config
        self.weights = weights
        self.numerics = numerics
        self.device = weights.embed.device
        self._ops = ops
        self._context = AttentionContext.of(config, numerics, ops, self.device)
        self._engram_rows = EngramRows(engram_hash, self.device)

    def allocate_caches(self, blocks: int, block_tokens: int, slots: int) -> Caches:
        """Empty pools for `blocks` blocks of `block_tokens` tokens and `slots` sequences."""
        return allocate_caches(
            self.config, blocks, block_tokens, slots, self.numerics, self._ops.codecs, self.device
        )

    def build_batch(self, chunks: Sequence[Chunk], block_tokens: int) -> RaggedBatch:
        """Index tensors of a step's chunks (at least one)."""
        return build_batch(chunks, self.config, block_tokens, self.device)

    @torch.inference_mode()
    def forward(self, batch: RaggedBatch, caches: Caches, logit_rows: Tensor, tap: Tap = no_tap) -> Tensor:
        """Logits fp32 [len(logit_rows), vocab] of the named rows of the step.

        Every layer runs on every row and writes its caches ("full" semantics, spec 2.1), save that the layers
        behind the last KV source run on the batch's decoder rows alone where it names some (spec 2.3).
        Raises ValueError, before anything is written, for a logit row that is none of them.
        """
        c, decoder = self.config, batch.decoder
        if decoder is not None:
            logit_rows = decoder.places(logit_rows)
        embedded = tap("embed", self.weights.embed[batch.token_ids])
        stream = embedded.unsqueeze(1).repeat(1, COPIES, 1)
        pre = torch.zeros(len(embedded), COPIES, dtype=torch.float32, device=self.device)
        pre[:, 0] = 1.0
        state = StepState.of(self._context, batch)
        engram_rows = tap("engram_hash_ids", self._engram_rows.of_batch(batch))
        for index, layer in enumerate(self.weights.layers):
            if layer.engram is not None:
                memory = engram_rows[:, c.engram_layer_ids.index(index)]
                stream = tap(
                    f"layers.{index}.engram_out", engram(self._context, layer.engram, stream, memory)
                )
            x = tap(f"layers.{index}.attn_in", self._sublayer_input(stream, pre, layer.attn_norm))
            rows = write_keys(self._context, index, layer.attention, x, batch, caches, state, tap)
            if decoder is not None and index == c.kv_source_layer_ids[-1]:
                # All rows have left what later tokens need; the rest is for the decoder rows (spec 2.2).
                if decoder.batch is None:
                    return torch.empty(0, c.vocab_size, device=self.device)
                batch, stream, rows = decoder.batch, stream[decoder.rows], rows.only(decoder)
                state = StepState.of(self._context, batch)
            stream, pre = self._finish_layer(index, layer, stream, rows, batch, caches, state, tap)
        return self._logits(stream[logit_rows], pre[logit_rows], tap)

    def _finish_layer(
        self,
        index: int,
        layer: Layer,
        stream: Tensor,
        rows: AttentionRows,
        batch: RaggedBatch,
        caches: Caches,
        state: StepState,
        tap: Tap,
    ) -> tuple[Tensor, Tensor]:
        """(stream, pre) after a layer whose keys are written. `pre` is one sublayer late: each collapse uses
        what the mixer before computed (spec 5.3)."""
        name = f"layers.{index}"
        pre, post, comb = self._mix(layer.hc_attn, stream)
        out = attend(self._context, index, layer.attention, rows, batch, caches, state, tap)
        stream = self._ops.expand(stream, tap(f"{name}.attn_out", out), post, comb)

        next_pre, post, comb = self._mix(layer.hc_ffn, stream)
        x = tap(f"{name}.ffn_in", self._sublayer_input(stream, pre, layer.ffn_norm))
        out = moe(self._context, index, layer.moe, x, tap)
        stream = self._ops.expand(stream, tap(f"{name}.ffn_out", out), post, comb)
        return tap(f"{name}.out", stream), tap(f"{name}.pre_mix_out", next_pre)

    def _mix(self, hc: HyperConnection, stream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        c = self.config
        return self._ops.mix(stream, hc.fn, hc.base, hc.scale, c.hc_sinkhorn_iters, c.hc_eps, c.rms_norm_eps)

    def _sublayer_input(self, stream: Tensor, pre: Tensor, norm: Tensor) -> Tensor:
        return rms_norm(self._ops.collapse(stream, pre), norm, self.config.rms_norm_eps)

    def _logits(self, stream: Tensor, pre: Tensor, tap: Tap) -> Tensor:
        hidden = tap("final_hidden_prenorm", self._ops.collapse(stream, pre))
        hidden = tap("final_hidden", rms_norm(hidden, self.weights.norm, self.config.rms_norm_eps))
        return linear(hidden.float(), self.weights.head)
