"""Router and experts (spec 6)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812  (the name everybody uses)
from torch import Tensor

from flashpoint.ops.gemm.reference import linear

Quantise = Callable[[Tensor], Tensor]


def route(x: Tensor, gate: Tensor, bias: Tensor, top_k: int, scale: float) -> tuple[Tensor, Tensor]:
    """x [T, D], gate fp32 [E, D], bias fp32 [E] -> (expert ids int64 [T, k], weights fp32 [T, k]).

    The bias decides who is chosen and never weighs; ties go to the lower expert id (spec 6.1).
    """
    # fp64 because vector and remainder loops of fp32 functions differ in the last bit: a token's route must
    # not depend on where in the batch it stands.
    score = torch.sqrt(F.softplus(linear(x.float(), gate).double(), threshold=20.0)).float()
    ids = torch.sort(score + bias, dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = score.gather(1, ids)
    return ids, weights / (weights.sum(-1, keepdim=True) + 1e-20) * scale


def swiglu(gate_up: Tensor, limit: float, weight: Tensor | None = None) -> Tensor:
    """silu(min(gate, limit)) · clamp(up, ±limit), times `weight` [T, 1] if given (spec 6.2).

    gate_up [T, 2·I], gate first -> [T, I] in its dtype.
    """
    gate, up = gate_up.float().chunk(2, dim=-1)
    hidden = F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    return (hidden if weight is None else weight * hidden).to(gate_up.dtype)


def experts(
    x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, limit: float, quantise: Quantise | None
) -> Tensor:
    """Weighted sum of the chosen experts, fp32 [T, D].

    x [T, D]; ids, weights [T, k] from `route`; w13 [E, 2·I, D], w2 [E, D, I]; `quantise` is applied to the
    input of both products (FP8 activations in front of FP4 weights), None leaves them alone.
    """
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    inputs = x if quantise is None else quantise(x)
    for expert in range(w13.shape[0]):
        rows, place = torch.where(ids == expert)
        if len(rows) == 0:
            continue
        hidden = swiglu(F.linear(inputs[rows], w13[expert]), limit, weights[rows, place, None])
        if quantise is not None:
            hidden = quantise(hidden)
        out[rows] += F.linear(hidden, w2[expert]).float()
    return out
