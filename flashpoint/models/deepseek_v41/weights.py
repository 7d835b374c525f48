"""The model's weights as the forward pass reads them; `loader.py` fills these from a checkpoint.

Quantised weights are dequantised once at load: E4M3 x 2^k and E2M1 x 2^k are exact in bf16 and fp32, so
products are those of the stored form. `compute` below is the run's dtype (fp32 or bf16).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Linear:
    """`y = x · weightᵀ`, weight compute dtype [out, in].

    quantized: stored as FP8 or FP4, so that `quantized` numerics put FP8 activation quantisation before it
    (spec 3.1).
    """

    weight: Tensor
    quantized: bool


@dataclass(frozen=True, slots=True)
class HyperConnection:
    """Mixer of one sublayer (spec 5.1), all fp32: fn [24, 4·hidden], base [24], scale [3]."""

    fn: Tensor
    base: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True)
class Compressor:
    """Entry maker of a KV source (spec 3.5). wkv [head_dim, hidden] and wgate (None at ratio 1): fp32 at
    ratio 2, compute dtype at ratio 1. norm fp32 [head_dim]."""

    wkv: Tensor
    wgate: Tensor | None
    norm: Tensor


@dataclass(frozen=True, slots=True)
class Indexer:
    """Selector of an index source (spec 4). weights_proj [heads, hidden] compute dtype; wk [index_head_dim,
    head_dim] compute dtype and k_norm fp32 only at KV sources."""

    wq_b: Linear
    weights_proj: Tensor
    wk: Tensor | None
    k_norm: Tensor | None


@dataclass(frozen=True, slots=True)
class Attention:
    """Spec 3.2 and 3.7. sink fp32 [heads]; norms fp32.

    wo_a compute dtype [groups, o_lora_rank, heads·head_dim / groups]; the reference leaves it unquantised.
    """

    sink: Tensor
    wq_a: Linear
    q_norm: Tensor
    wq_b: Linear
    wkv: Linear
    kv_norm: Tensor
    wo_a: Tensor
    wo_b: Linear
    compressor: Compressor | None
    indexer: Indexer | None


@dataclass(frozen=True, slots=True)
class MoE:
    """Spec 6. gate fp32 [experts, hidden], bias fp32 [experts].

    w13 compute dtype [experts, 2·width, hidden]: rows 0…width-1 are w1 (gate), the rest w3 (up); w2
    [experts, hidden, width]. `quantized` as in Linear, for the routed experts. The shared expert likewise.
    """

    gate: Tensor
    bias: Tensor
    w13: Tensor
    w2: Tensor
    quantized: bool
    shared_w13: Linear
    shared_w2: Linear


class EngramTable(Protocol):
    """Rows of an n-gram memory, left where they are stored (memory-mapped)."""

    def lookup(self, rows: Tensor) -> Tensor:
        """Rows int64 [tokens, slots] -> compute dtype [tokens, slots · engram_head_dim], in slot order."""
        ...


@dataclass(frozen=True, slots=True)
class Engram:
    """Spec 7.4. wkv [5·hidden, slots·engram_head_dim]; q_weight and k_weight fp32 [4, hidden]."""

    table: EngramTable
    wkv: Linear
    q_weight: Tensor
    k_weight: Tensor


@dataclass(frozen=True, slots=True)
class Layer:
    """One backbone layer. Norm weights fp32 [hidden]."""

    attn_norm: Tensor
    ffn_norm: Tensor
    hc_attn: HyperConnection
    hc_ffn: HyperConnection
    attention: Attention
    moe: MoE
    engram: Engram | None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """The backbone. embed compute dtype [vocab, hidden]; norm fp32 [hidden]; head fp32 [vocab, hidden]."""

    embed: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor
    compute: torch.dtype
