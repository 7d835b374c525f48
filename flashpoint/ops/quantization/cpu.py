"""Quantise-dequantise by arithmetic on whole tensors: no 8-bit casts, no table look-ups.

Bit-identical to `reference.py`. A float rounds to a grid of step `2^k` by `round(x / step) · step`, and
torch rounds halves to even, which is the even code on every grid used here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashpoint.ops.quantization.reference import (
    FP4_MAX,
    FP8_GROUP,
    FP8_MAX,
    INDEX_GROUP,
    power_of_two_scale,
)


def _power_below(x: Tensor, lowest: int) -> Tensor:
    """2^max(floor(log2 |x|), lowest), elementwise fp32."""
    exponent = ((x.view(torch.int32) >> 23) & 0xFF).clamp_(min=lowest + 127)
    return (exponent << 23).view(torch.float32)


def _round_e4m3(x: Tensor) -> Tensor:
    step = _power_below(x, -6).mul_(0.125)
    return torch.div(x, step).round_().mul_(step)


def _round_e2m1(x: Tensor) -> Tensor:
    step = _power_below(x, 0).mul_(0.5)
    return torch.div(x, step).round_().mul_(step)


def fp8_qdq(x: Tensor) -> Tensor:
    """As `reference.fp8_qdq`."""
    groups = x.float().unflatten(-1, (-1, FP8_GROUP))
    scale = power_of_two_scale(groups.abs().amax(-1, keepdim=True).clamp_(min=1e-4), 1.0 / FP8_MAX)
    return _round_e4m3((groups / scale).clamp_(-FP8_MAX, FP8_MAX)).mul_(scale).flatten(-2).to(x.dtype)


def index_qdq(x: Tensor) -> Tensor:
    """As `reference.index_qdq`."""
    groups = x.float().unflatten(-1, (-1, INDEX_GROUP))
    amax = groups.abs().amax(-1, keepdim=True).clamp_(min=FP4_MAX * 2.0**-126)
    scale = power_of_two_scale(amax, 1.0 / FP4_MAX)
    return _round_e2m1((groups / scale).clamp_(-FP4_MAX, FP4_MAX)).mul_(scale).flatten(-2).to(x.dtype)
