"""Rotary embedding over adjacent pairs, fp32, with YaRN for compressed layers (spec 3.3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def plain_frequencies(dim: int, base: float) -> Tensor:
    """fp32 [dim/2]: base^(-2i/dim), for window-only layers."""
    return 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))


def yarn_frequencies(
    dim: int, base: float, factor: float, beta_fast: float, beta_slow: float, original_context: int
) -> Tensor:
    """fp32 [dim/2]: interpolated by `factor` below the ramp, untouched above it; no attention scale."""

    def turning_dim(rotations: float) -> float:
        return dim * math.log(original_context / (rotations * 2 * math.pi)) / (2 * math.log(base))

    frequencies = plain_frequencies(dim, base)
    low = max(math.floor(turning_dim(beta_fast)), 0)
    high = min(math.ceil(turning_dim(beta_slow)), dim - 1)
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return frequencies / factor * ramp + frequencies * (1 - ramp)


def rope_table(positions: Tensor, frequencies: Tensor) -> Tensor:
    """positions int64 [T] -> exp(j · angle), complex64 [T, dim/2]; the angle is the fp32 product."""
    angles = positions.float().unsqueeze(-1) * frequencies
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: Tensor, table: Tensor, inverse: bool = False) -> Tensor:
    """Rotate the last `dim` of x [T, D] or [T, heads, D] by its row's angle; the rest is copied.

    Adjacent pairs are one complex number. `inverse` rotates back (the conjugate). Computed in fp32, rounded
    to x's dtype.
    """
    turn = table.conj() if inverse else table
    if x.ndim == 3:
        turn = turn.unsqueeze(1)
    out = x.clone()
    tail = out[..., -2 * table.shape[-1] :]
    pairs = torch.view_as_complex(tail.float().unflatten(-1, (-1, 2)))
    tail.copy_(torch.view_as_real(pairs * turn).flatten(-2))
    return out
