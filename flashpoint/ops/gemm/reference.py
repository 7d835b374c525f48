"""`y = x · Wᵀ` with optional activation quantisation (spec 3.1)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def linear(x: Tensor, weight: Tensor, quantise: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """x [T, K], weight [N, K] -> [T, N] in x's dtype, accumulated in fp32."""
    return F.linear(x if quantise is None else quantise(x), weight)


def grouped_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Block-diagonal product (spec 3.7): x [T, groups, K], weight [groups, N, K] -> [T, groups, N]."""
    return torch.einsum("tgk,gnk->tgn", x, weight)
