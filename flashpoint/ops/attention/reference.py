"""Attention over a window and selected compressed entries, with a sink (spec 3.6)."""

from __future__ import annotations

import torch
from torch import Tensor

from flashpoint.ops.rows import Rows


def sparse_attention(
    q: Tensor,
    window_kv: Tensor,
    window_index: Tensor,
    entries: Rows,
    entry_index: Tensor,
    sink: Tensor,
    scale: float,
) -> Tensor:
    """Each row attends to the rows of `window_kv` and of `entries` that its indices name.

    q [T, heads, D]; window_kv [R, D] and window_index int64 [T, W]; entries [E, D] and entry_index int64
    [T, K]; -1 means no key. sink fp32 [heads], an unscaled logit that only joins the denominator. Scores
    and sums are fp32; probabilities are rounded to q's dtype before they weigh the values.
    Returns [T, heads, D] in q's dtype.
    """
    keys = torch.cat((window_kv[window_index.clamp(min=0)], entries[entry_index.clamp(min=0)]), dim=1).float()
    absent = torch.cat((window_index, entry_index), dim=1) < 0
    # What an unused index happens to fetch may be another request's NaN, and 0 · NaN is NaN.
    keys = keys.masked_fill(absent.unsqueeze(-1), 0.0)
    scores = torch.einsum("thd,tkd->thk", q.float(), keys) * scale
    scores = scores.masked_fill(absent.unsqueeze(1), float("-inf"))
    peak = scores.amax(-1, keepdim=True).clamp(min=-1e30)
    weights = torch.exp(scores - peak)
    denominator = weights.sum(-1, keepdim=True) + torch.exp(sink.view(1, -1, 1) - peak)
    out = torch.einsum("thk,tkd->thd", weights.to(q.dtype).float(), keys)
    return (out / denominator).to(q.dtype)
