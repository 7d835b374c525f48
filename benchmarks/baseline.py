"""The authors' algorithm as plainly as PyTorch allows: one sequence, dense caches, no batching, no tiling.

What the engine's speed is compared with (`benchmarks/engine_speed.py`), and a second statement of the forward
pass: `tests/models/deepseek_v41/test_baseline.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from flashpoint.models.deepseek_v41.config import TextConfig
from flashpoint.models.deepseek_v41.engram_hash import EngramHash
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.deepseek_v41.weights import Attention, Indexer, Layer, Linear, ModelWeights
from flashpoint.ops.compressor.reference import pool_pair
from flashpoint.ops.engram.gate import inject
from flashpoint.ops.engram.reference import ngram_rows
from flashpoint.ops.hyper_connections import reference as hyper
from flashpoint.ops.indexer.reference import index_scores, mask_invisible, mask_outside
from flashpoint.ops.moe.reference import experts, route, swiglu
from flashpoint.ops.norm.reference import rms_norm
from flashpoint.ops.quantization import cpu as quantization
from flashpoint.ops.quantization import reference
from flashpoint.ops.rope.reference import plain_frequencies, rope_table, rotate, yarn_frequencies


def linear(x: Tensor, weight: Tensor, quantise: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """The plain product: few rows are not padded, as the engine's are for its batch invariance."""
    return F.linear(x if quantise is None else quantise(x), weight)


class PlainModel:
    """One sequence at a time. `forward(ids)` appends tokens and returns their logits [len(ids), vocab]."""

    def __init__(
        self, config: TextConfig, weights: ModelWeights, engram: EngramHash, numerics: Numerics
    ) -> None:
        self.c, self.w, self.numerics = config, weights, numerics
        self.engram = [
            torch.from_numpy(a) for a in (engram.token_map, engram.multipliers, engram.primes, engram.offsets)
        ]
        self.engram_pad = engram.pad
        yarn = config.rope_scaling
        self.window_frequencies = plain_frequencies(config.qk_rope_head_dim, config.rope_theta)
        self.compressed_frequencies = yarn_frequencies(
            config.qk_rope_head_dim,
            config.compress_rope_theta,
            yarn.factor,
            yarn.beta_fast,
            yarn.beta_slow,
            yarn.original_max_position_embeddings,
        )
        self.reset()

    def reset(self) -> None:
        """Forget the sequence."""
        c = self.c
        self.ids: list[int] = []
        self.window = [torch.zeros(0, c.head_dim) for _ in range(c.num_hidden_layers)]
        self.entries = {s: torch.zeros(0, c.head_dim) for s in c.kv_source_layer_ids}
        self.keys = {s: torch.zeros(0, c.index_head_dim) for s in c.kv_source_layer_ids}
        self.tail: dict[int, tuple[Tensor, Tensor] | None] = dict.fromkeys(c.kv_source_layer_ids)

    @torch.inference_mode()
    def forward(self, ids: list[int]) -> Tensor:
        """Every layer on every token of `ids`."""
        c = self.c
        start = len(self.ids)
        self.ids += ids
        positions = torch.arange(start, len(self.ids))
        self.positions = positions
        self.ropes = {
            False: rope_table(positions, self.window_frequencies),
            True: rope_table(positions, self.compressed_frequencies),
        }
        rows = self._engram_rows(start)
        stream = self.w.embed[torch.tensor(ids)].unsqueeze(1).repeat(1, hyper.COPIES, 1)
        pre = torch.zeros(len(ids), hyper.COPIES)
        pre[:, 0] = 1.0
        self.selected: Tensor | None = None
        self.candidates: Tensor | None = None
        for index, layer in enumerate(self.w.layers):
            if layer.engram is not None:
                looked_up = layer.engram.table.lookup(rows[:, c.engram_layer_ids.index(index)])
                memory = self._linear(looked_up, layer.engram.wkv)
                stream = inject(stream, memory, layer.engram.q_weight, layer.engram.k_weight, c.rms_norm_eps)
            stream, pre = self._layer(index, layer, stream, pre)
        hidden = rms_norm(hyper.collapse(stream, pre), self.w.norm, c.rms_norm_eps)
        return hidden.float() @ self.w.head.T

    def _engram_rows(self, start: int) -> Tensor:
        count = self.c.engram_max_ngram_size - 1
        padded = torch.tensor([-1] * count + self.ids)
        previous = torch.stack([padded[start + count - b : len(padded) - b] for b in range(1, count + 1)], 1)
        token_map, *constants = self.engram
        return ngram_rows(padded[start + count :], previous, token_map, self.engram_pad, *constants)

    def _linear(self, x: Tensor, layer: Linear) -> Tensor:
        quantise = quantization.fp8_qdq if self.numerics.quantize and layer.quantized else None
        return linear(x, layer.weight, quantise)

    def _layer(self, index: int, layer: Layer, stream: Tensor, pre: Tensor) -> tuple[Tensor, Tensor]:
        c = self.c
        for hc, norm, sublayer in (
            (layer.hc_attn, layer.attn_norm, self._attention),
            (layer.hc_ffn, layer.ffn_norm, self._experts),
        ):
            next_pre, post, comb = hyper.mix(
                stream, hc.fn, hc.base, hc.scale, c.hc_sinkhorn_iters, c.hc_eps, c.rms_norm_eps
            )
            x = rms_norm(hyper.collapse(stream, pre), norm, c.rms_norm_eps)
            stream, pre = hyper.expand(stream, sublayer(index, layer, x), post, comb), next_pre
        return stream, pre

    def _experts(self, index: int, layer: Layer, x: Tensor) -> Tensor:
        c, m = self.c, layer.moe
        ids, share = route(x, m.gate, m.bias, c.num_experts_per_tok, c.routed_scaling_factor)
        quantise = quantization.fp8_qdq if self.numerics.quantize and m.quantized else None
        out = experts(x, ids, share, m.w13, m.w2, c.swiglu_limit, quantise)
        return out + self._linear(swiglu(self._linear(x, m.shared_w13), c.swiglu_limit), m.shared_w2)

    def _attention(self, index: int, layer: Layer, x: Tensor) -> Tensor:
        c, a = self.c, layer.attention
        source = c.kv_source_of[index]
        rope = self.ropes[source is not None]
        q_latent = rms_norm(self._linear(x, a.wq_a), a.q_norm, c.rms_norm_eps)
        q = rotate(self._linear(q_latent, a.wq_b).unflatten(-1, (c.num_attention_heads, -1)), rope)
        kv = rotate(rms_norm(self._linear(x, a.wkv), a.kv_norm, c.rms_norm_eps), rope)
        if self.numerics.quantize:
            kv = quantization.fp8_qdq(kv)
        self.window[index] = torch.cat((self.window[index], kv))
        back = torch.arange(1 - c.sliding_window, 1)
        keys = self.positions[:, None] + back
        index_list = keys.masked_fill(keys < 0, -1)
        kv_all = self.window[index]
        if source is not None:
            if a.compressor is not None:
                self._compress(index, a, x)
            if a.indexer is not None:
                self._select(index, source, a.indexer, x, q_latent, rope)
            selected = self.selected
            assert selected is not None
            # One key list, as the authors' kernel takes it: window first, entries behind.
            shifted = torch.where(selected >= 0, selected + len(kv_all), -1)
            kv_all = torch.cat((kv_all, self.entries[source]))
            index_list = torch.cat((index_list, shifted), dim=1)
        out = _sparse_attention(q, kv_all, index_list, a.sink, c.head_dim**-0.5)
        out = rotate(out, rope, inverse=True)
        grouped = torch.einsum("tgk,gnk->tgn", out.flatten(1).unflatten(-1, (c.o_groups, -1)), a.wo_a)
        return self._linear(grouped.flatten(1), a.wo_b)

    def _compress(self, index: int, a: Attention, x: Tensor) -> None:
        c, compressor, indexer = self.c, a.compressor, a.indexer
        assert compressor is not None and indexer is not None
        assert indexer.wk is not None and indexer.k_norm is not None
        if compressor.wgate is None:
            pooled = linear(x, compressor.wkv)
        else:
            kv, score = linear(x.float(), compressor.wkv), linear(x.float(), compressor.wgate)
            if (tail := self.tail[index]) is not None:
                kv, score = torch.cat((tail[0], kv)), torch.cat((tail[1], score))
            pairs = len(kv) // 2
            self.tail[index] = (kv[2 * pairs :], score[2 * pairs :]) if len(kv) % 2 else None
            kv, score = (t[: 2 * pairs].unflatten(0, (pairs, 2)) for t in (kv, score))
            pooled = pool_pair(kv[:, 0], score[:, 0], kv[:, 1], score[:, 1]).to(x.dtype)
        latent = rms_norm(pooled, compressor.norm, c.rms_norm_eps)
        first = len(self.entries[index])
        places = torch.arange(first, first + len(latent)) * c.compress_ratios[index]
        rope = rope_table(places, self.compressed_frequencies)
        key = rotate(rms_norm(linear(latent, indexer.wk), indexer.k_norm, c.rms_norm_eps), rope)
        entry = rotate(latent, rope)
        if self.numerics.quantize:
            key, entry = quantization.index_qdq(key), reference.entry_qdq(entry)
        self.keys[index] = torch.cat((self.keys[index], key))
        self.entries[index] = torch.cat((self.entries[index], entry))

    def _select(self, index: int, source: int, w: Indexer, x: Tensor, q_latent: Tensor, rope: Tensor) -> None:
        c = self.c
        q = rotate(self._linear(q_latent, w.wq_b).unflatten(-1, (c.index_n_heads, -1)), rope)
        if self.numerics.quantize:
            q = quantization.index_qdq(q)
        weights = linear(x, w.weights_proj) * (c.index_head_dim**-0.5 * c.index_n_heads**-0.5)
        visible = (self.positions + 1) // c.compress_ratios[index]
        scores = mask_invisible(index_scores(q, weights, self.keys[source]), visible)
        if index == c.candidate_source_layer_id:
            self.candidates = _candidates(scores, visible, c.candidate_block_size, c.candidate_topk_blocks)
        elif index > c.candidate_source_layer_id:
            assert self.candidates is not None
            scores = mask_outside(scores, self.candidates, c.candidate_block_size)
        best = scores.topk(min(c.index_topk, scores.shape[1]), dim=-1)
        self.selected = best.indices.masked_fill(best.values == float("-inf"), -1)


def _candidates(scores: Tensor, visible: Tensor, size: int, count: int) -> Tensor:
    blocks = -(-scores.shape[1] // size)
    padded = torch.nn.functional.pad(scores, (0, blocks * size - scores.shape[1]), value=float("-inf"))
    best = padded.unflatten(-1, (blocks, size)).amax(-1)
    rows = torch.nonzero(visible > 0).flatten()
    best[rows, (visible[rows] - 1) // size] = float("inf")
    top = best.topk(min(count, blocks), dim=-1)
    return top.indices.masked_fill(top.values == float("-inf"), -1)


def _sparse_attention(q: Tensor, kv: Tensor, index: Tensor, sink: Tensor, scale: float) -> Tensor:
    keys = kv[index.clamp(min=0)]
    scores = torch.einsum("thd,tkd->thk", q, keys) * scale
    scores = scores.masked_fill((index < 0).unsqueeze(1), float("-inf"))
    peak = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - peak)
    denominator = weights.sum(-1, keepdim=True) + torch.exp(sink.view(1, -1, 1) - peak)
    return torch.einsum("thk,tkd->thd", weights, keys) / denominator
