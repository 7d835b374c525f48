"""Manifold-constrained hyper-connections, all in fp32 (spec 5)."""

from __future__ import annotations

import torch
from torch import Tensor

COPIES = 4


def mix(
    stream: Tensor, fn: Tensor, base: Tensor, scale: Tensor, iterations: int, eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Mixing weights of a sublayer from the stream it is about to change (spec 5.1).

    stream [T, 4, D]; fn fp32 [24, 4·D]; base [24]; scale [3]; `iterations` Sinkhorn rounds.
    Returns pre [T, 4] (for the *next* sublayer), post [T, 4] and comb [T, 4 (source), 4 (destination)], fp32.
    """
    flat = stream.flatten(1).float()
    mixes = (flat @ fn.T) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + norm_eps)
    pre, post, comb = split(mixes, base, scale, eps)
    return pre, post, sinkhorn(comb, iterations, eps)


def split(mixes: Tensor, base: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """mixes [T, 24] -> pre [T, 4], post [T, 4], comb logits [T, 4, 4]."""
    pre = torch.sigmoid(mixes[:, :4] * scale[0] + base[:4]) + eps
    post = 2 * torch.sigmoid(mixes[:, 4:8] * scale[1] + base[4:8])
    comb = (mixes[:, 8:] * scale[2] + base[8:]).unflatten(-1, (COPIES, COPIES))
    return pre, post, comb


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Nearly doubly stochastic [T, 4, 4] from logits: softmax over rows, then columns, then both in turn."""
    comb = logits.softmax(-1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return comb


def collapse(stream: Tensor, pre: Tensor) -> Tensor:
    """stream [T, 4, D], pre fp32 [T, 4] -> the sublayer's input [T, D], in the stream's dtype (spec 5.2)."""
    return (stream.float() * pre.unsqueeze(-1)).sum(1).to(stream.dtype)


def expand(stream: Tensor, output: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """The stream after a sublayer: new copy j = post_j · output + Σ_i comb[i, j] · old copy i (spec 5.2).

    stream [T, 4, D], output [T, D], post fp32 [T, 4], comb fp32 [T, 4, 4] -> [T, 4, D].
    """
    mixed = torch.einsum("tij,tid->tjd", comb, stream.float())
    return (post.unsqueeze(-1) * output.float().unsqueeze(1) + mixed).to(stream.dtype)
