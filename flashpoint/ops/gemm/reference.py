"""`y = x · Wᵀ` with optional activation quantisation (spec 3.1)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

# BLAS takes other kernels for a few rows, which sum in another order; and a token must not depend on how many
# rows its batch has. From this many rows on, a row's result was the same to the bit for every count tried
# (with one thread from 4 on, with two from 12).
MIN_ROWS = 16


def at_least_min_rows(x: Tensor) -> Tensor:
    """x [T, …] with zero rows appended up to MIN_ROWS; callers drop the surplus results."""
    missing = MIN_ROWS - x.shape[0]
    return x if missing <= 0 else torch.cat((x, x.new_zeros(missing, *x.shape[1:])))


def linear(x: Tensor, weight: Tensor, quantise: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """x [T, K], weight [N, K] -> [T, N] in x's dtype, accumulated in fp32."""
    inputs = x if quantise is None else quantise(x)
    return F.linear(at_least_min_rows(inputs), weight)[: len(x)]


def grouped_linear(x: Tensor, weight: Tensor) -> Tensor:
    """Block-diagonal product (spec 3.7): x [T, groups, K], weight [groups, N, K] -> [T, groups, N]."""
    return torch.einsum("tgk,gnk->tgn", at_least_min_rows(x), weight)[: len(x)]
