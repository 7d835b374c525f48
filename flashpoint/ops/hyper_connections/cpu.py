"""Hyper-connections with few passes: in-place Sinkhorn on a [4, 4, T] layout, batched small products."""

from __future__ import annotations

import torch
from torch import Tensor

from flashpoint.ops.gemm.reference import linear
from flashpoint.ops.hyper_connections.reference import split


def mix(
    stream: Tensor, fn: Tensor, base: Tensor, scale: Tensor, iterations: int, eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference.mix`."""
    flat = stream.flatten(1).float()
    mean_square = torch.linalg.vector_norm(flat, dim=-1, keepdim=True).square_().div_(flat.shape[1])
    mixes = linear(flat, fn).mul_(mean_square.add_(norm_eps).rsqrt_())
    pre, post, logits = split(mixes, base, scale, eps)
    # Tokens last: every pass of the iteration then runs over contiguous memory.
    comb = logits.permute(1, 2, 0).softmax(1).add_(eps).contiguous()
    comb.div_(comb.sum(0, keepdim=True).add_(eps))
    for _ in range(iterations - 1):
        comb.div_(comb.sum(1, keepdim=True).add_(eps))
        comb.div_(comb.sum(0, keepdim=True).add_(eps))
    return pre, post, comb.permute(2, 0, 1)


def collapse(stream: Tensor, pre: Tensor) -> Tensor:
    """As `reference.collapse`."""
    return torch.bmm(pre.unsqueeze(1), stream.float()).squeeze(1).to(stream.dtype)


def expand(stream: Tensor, output: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """As `reference.expand`."""
    # One product over five rows: the output joins the four old copies as a fifth source.
    sources = torch.cat((stream.float(), output.float().unsqueeze(1)), dim=1)
    shares = torch.cat((comb, post.unsqueeze(1)), dim=1)
    return torch.bmm(shares.transpose(1, 2), sources).to(stream.dtype)
