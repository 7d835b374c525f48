"""How a looked-up n-gram memory joins the residual stream (spec 7.4)."""

from __future__ import annotations

import torch
from torch import Tensor


def inject(stream: Tensor, memory: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> Tensor:
    """Add the gated memory value to every copy of the stream.

    stream [T, 4, D]; memory [T, 5·D]: one key per copy, then the value; q_weight, k_weight fp32 [4, D].
    Statistics are per copy, all in fp32; the result has the stream's dtype.
    """
    rows, copies, width = stream.shape
    wide = stream.float()
    keys = memory[:, : copies * width].float().view(rows, copies, width)
    value = memory[:, copies * width :].float().unsqueeze(1)
    dot = (wide * (q_weight * k_weight) * keys).sum(-1)
    dot = dot * torch.rsqrt(wide.square().mean(-1) + eps) * torch.rsqrt(keys.square().mean(-1) + eps)
    dot = dot * width**-0.5
    signed_root = torch.copysign(dot.abs().clamp(min=1e-6).sqrt(), dot)
    # Vector and remainder loops of fp32 sigmoid differ in the last bit; in fp64 a token's gate does not
    # depend on where in the batch it stands.
    gate = torch.sigmoid(signed_root.double()).float()
    return (wide + gate.unsqueeze(-1) * value).to(stream.dtype)
