"""Experts over rows sorted by expert: one gather, contiguous slices, one scattered sum."""

from __future__ import annotations

import torch
from torch import Tensor

from flashpoint.ops.gemm.reference import linear
from flashpoint.ops.moe.reference import Quantise, swiglu


def experts(
    x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, limit: float, quantise: Quantise | None
) -> Tensor:
    """As `reference.experts`."""
    top_k = ids.shape[1]
    order = torch.argsort(ids.flatten(), stable=True)
    rows = order // top_k
    counts = torch.bincount(ids.flatten(), minlength=w13.shape[0]).tolist()
    inputs = (x if quantise is None else quantise(x)).index_select(0, rows)
    weight = weights.flatten()[order].unsqueeze(-1)
    gate_up = torch.empty(len(order), w13.shape[1], dtype=x.dtype, device=x.device)
    start = 0
    for expert, count in enumerate(counts):
        if count:
            gate_up[start : start + count] = linear(inputs[start : start + count], w13[expert])
            start += count
    hidden = swiglu(gate_up, limit, weight)
    if quantise is not None:
        hidden = quantise(hidden)
    outputs = torch.empty(len(order), x.shape[1], dtype=x.dtype, device=x.device)
    start = 0
    for expert, count in enumerate(counts):
        if count:
            outputs[start : start + count] = linear(hidden[start : start + count], w2[expert])
            start += count
    # Rows come sorted by expert, so a token's results are always added in the order of their ids.
    return torch.zeros(x.shape, dtype=torch.float32, device=x.device).index_add_(0, rows, outputs.float())
