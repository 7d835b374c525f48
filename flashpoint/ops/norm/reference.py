"""RMS normalisation in fp32, rounded once to the input's dtype (spec 0.2)."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D], weight fp32 [D] -> [..., D] in x's dtype."""
    wide = x.float()
    return (weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps))).to(x.dtype)
