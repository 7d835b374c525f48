"""The expert sublayer: routed experts and the shared one (spec 6)."""

from __future__ import annotations

from torch import Tensor

from flashpoint.models.deepseek_v41 import weights as w
from flashpoint.models.deepseek_v41.attention import AttentionContext
from flashpoint.models.deepseek_v41.tap import Tap
from flashpoint.ops.moe.reference import route, swiglu


def moe(context: AttentionContext, layer: int, weights: w.MoE, x: Tensor, tap: Tap) -> Tensor:
    """Expert output [T, hidden] of normed input x [T, hidden]."""
    c, ops = context.config, context.ops
    ids, share = route(x, weights.gate, weights.bias, c.num_experts_per_tok, c.routed_scaling_factor)
    ids = tap(f"layers.{layer}.moe_ids", ids)
    share = tap(f"layers.{layer}.moe_weights", share)
    quantise = ops.fp8_qdq if context.numerics.quantize and weights.quantized else None
    routed = ops.experts(x, ids, share, weights.w13, weights.w2, c.swiglu_limit, quantise)
    hidden = swiglu(context.linear(x, weights.shared_w13), c.swiglu_limit)
    return (routed + context.linear(hidden, weights.shared_w2).float()).to(x.dtype)
