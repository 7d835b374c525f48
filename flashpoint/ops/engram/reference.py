"""Row ids of the n-gram memory (spec 7.3)."""

from __future__ import annotations

import torch
from torch import Tensor


def ngram_rows(
    token_ids: Tensor,
    history: Tensor,
    token_map: Tensor,
    pad: int,
    multipliers: Tensor,
    primes: Tensor,
    offsets: Tensor,
    image_token_id: int | None = None,
) -> Tensor:
    """Table rows each token reads: int64 [T, layers, slots].

    token_ids int64 [T], of any mix of sequences.  history int64 [T, max_ngram-1]: the ids before each token,
    newest first, -1 where the sequence had not begun.  The rest are `EngramHash`'s constants as tensors.

    A look-back is blocked, i.e. reads `pad`, where there is no token, where the token is an image's, and
    behind any blocked look-back. The token itself blocks in the same way.
    """
    layers, max_ngram = multipliers.shape
    heads = primes.shape[1] // (max_ngram - 1)
    window = torch.cat([token_ids[:, None], history], dim=1)
    blocked = window < 0
    if image_token_id is not None:
        blocked = blocked | (window == image_token_id)
    blocked = blocked.cummax(dim=1).values
    compressed = torch.where(blocked, pad, token_map[window.clamp(min=0)])

    hashed = compressed[:, None, 0] * multipliers[None, :, 0]
    rows = torch.empty(len(token_ids), layers, primes.shape[1], dtype=torch.int64, device=token_ids.device)
    for back in range(1, max_ngram):
        hashed = hashed ^ (compressed[:, None, back] * multipliers[None, :, back])
        slots = slice((back - 1) * heads, back * heads)
        rows[:, :, slots] = hashed[:, :, None] % primes[None, :, slots] + offsets[None, :, slots]
    return rows
