"""Sparse attention in row tiles that stay in cache, with batched matrix products."""

from __future__ import annotations

import torch
from torch import Tensor

from flashpoint.ops.rows import Rows

# Floats of gathered keys per tile: 4 MiB, the fastest of 2^16 … 2^22 on the machine of docs/log.md.
_TILE_FLOATS = 1 << 20


def sparse_attention(
    q: Tensor,
    window_kv: Tensor,
    window_index: Tensor,
    entries: Rows,
    entry_index: Tensor,
    sink: Tensor,
    scale: float,
) -> Tensor:
    """As `reference.sparse_attention`."""
    rows, _, width = q.shape
    keys_per_row = window_index.shape[1] + entry_index.shape[1]
    tile = max(1, _TILE_FLOATS // (keys_per_row * width))
    out = torch.empty_like(q)
    for start in range(0, rows, tile):
        stop = min(start + tile, rows)
        part = slice(start, stop)
        out[part] = _tile(q[part], window_kv, window_index[part], entries, entry_index[part], sink, scale)
    return out


def _tile(
    q: Tensor,
    window_kv: Tensor,
    window_index: Tensor,
    entries: Rows,
    entry_index: Tensor,
    sink: Tensor,
    scale: float,
) -> Tensor:
    (rows, window), width = window_index.shape, q.shape[-1]
    selected = entry_index.shape[1]
    keys = torch.empty(rows, window + selected, width, dtype=torch.float32, device=q.device)
    keys[:, :window] = window_kv.index_select(0, window_index.clamp(min=0).flatten()).view(
        rows, window, width
    )
    keys[:, window:] = entries[entry_index.clamp(min=0)]
    absent = torch.cat((window_index, entry_index), dim=1) < 0
    bias = torch.zeros(rows, 1, window + selected, dtype=torch.float32, device=q.device)
    if bool(absent.any()):
        # What an unused index happens to fetch may be another request's NaN, and 0 · NaN is NaN.
        keys.masked_fill_(absent.unsqueeze(-1), 0.0)
        bias.masked_fill_(absent.unsqueeze(1), float("-inf"))
    scores = torch.baddbmm(bias, q.float(), keys.transpose(1, 2), alpha=scale)
    peak = scores.amax(-1, keepdim=True).clamp_(min=-1e30)
    weights = scores.sub_(peak).exp_()
    denominator = weights.sum(-1, keepdim=True).add_(torch.exp(sink.view(1, -1, 1) - peak))
    if q.dtype != torch.float32:
        weights = weights.to(q.dtype).float()
    return torch.bmm(weights, keys).div_(denominator).to(q.dtype)
