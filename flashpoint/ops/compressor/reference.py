"""Pooling of a token pair into one entry (spec 3.5)."""

from __future__ import annotations

import torch
from torch import Tensor


def pool_pair(first_kv: Tensor, first_score: Tensor, second_kv: Tensor, second_score: Tensor) -> Tensor:
    """Per channel, softmax over the two tokens' scores weighs their kv. All fp32 [groups, D]."""
    share = torch.softmax(torch.stack((first_score, second_score)), dim=0)
    return share[0] * first_kv + share[1] * second_kv
