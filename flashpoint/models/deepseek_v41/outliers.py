"""The statistics of real weights, put into random ones.

Trained models have a few channels 50 to 100 times larger than the rest, with small weights behind them;
experts that are never chosen; attention sinks that swallow a head; scales at both ends of their range. Ports
that were bit-exact on tame random weights have been wrong on these. The changes keep the model finite and its
output varied: whatever enlarges a channel shrinks the columns that read it to about three times a usual
channel's weight.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from flashpoint.models.deepseek_v41.config import ModelConfig

_READ = 3.0
_TINY = 2.0**-30
_FP8_MAX = 448.0

_READS_HIDDEN = re.compile(
    r"(attn\.(wq_a|wkv|compressor\.(wkv|wgate)|indexer\.weights_proj)|ffn\.gate|"
    r"ffn\.(shared_experts|experts\.\d+)\.w[13])\.weight$"
)
_READS_QUERY = re.compile(r"attn\.(indexer\.)?wq_b\.weight$")
_DENSE = re.compile(r"attn\.(wq_a|wq_b|wkv|wo_a|wo_b)\.weight$")


@dataclass(frozen=True, slots=True)
class OutlierChannels:
    """Which channels are large, and by how much; the same in every layer, as the residual stream carries
    them."""

    hidden: list[int]
    query: list[int]
    latent: list[int]
    expert: list[int]
    factor: float
    saturating_factor: float

    @classmethod
    def choose(cls, config: ModelConfig, generator: torch.Generator) -> OutlierChannels:
        """Two channels of each kind; those of the latent lie outside its rotated part."""
        text = config.text

        def two(width: int) -> list[int]:
            return torch.randperm(width, generator=generator)[:2].tolist()

        return cls(
            hidden=two(text.hidden_size),
            query=two(text.q_lora_rank),
            latent=two(text.head_dim - text.qk_rope_head_dim),
            expert=two(text.moe_intermediate_size),
            factor=float(50 + 50 * torch.rand((), generator=generator)),
            # A latent channel this large exceeds 6 x 448, the most an FP4 entry with an E4M3 scale can hold.
            saturating_factor=2000.0,
        )


def add_outliers(name: str, weight: Tensor, config: ModelConfig, channels: OutlierChannels) -> None:
    """Change one float weight in place, according to its name."""
    text = config.text
    f = channels.factor
    if name.endswith(("attn_norm.weight", "ffn_norm.weight")):
        weight[channels.hidden] *= f
    elif name.endswith("attn.q_norm.weight"):
        weight[channels.query] *= f
    elif name.endswith("attn.kv_norm.weight"):
        weight[channels.latent] *= f
    elif name.endswith("attn.compressor.norm.weight"):
        weight[channels.latent[0]] *= channels.saturating_factor
        weight[channels.latent[1]] *= f
    elif name.endswith("attn_sink"):
        weight[::4] = 10.0
        weight[1::4] = -20.0
    elif name.endswith("ffn.gate.bias"):
        dead = min(2, len(weight) - text.num_experts_per_tok)
        weight[len(weight) - dead :] = -1e4

    if _READS_HIDDEN.search(name):
        weight[:, channels.hidden] *= _READ / f
    if _READS_QUERY.search(name):
        weight[:, channels.query] *= _READ / f
    if name.endswith("attn.wq_b.weight"):
        weight.view(-1, text.head_dim, weight.shape[1])[:, channels.latent] *= _latent_reads(channels)
    if name.endswith("attn.wo_a.weight"):
        by_channel = weight.view(weight.shape[0], -1, text.head_dim)
        by_channel[:, :, channels.latent] *= _latent_reads(channels).squeeze(-1)
    if name.endswith("attn.indexer.wk.weight"):
        weight[:, channels.latent] *= _latent_reads(channels).squeeze(-1)

    if name.endswith("ffn.gate.weight"):
        weight[0] *= 40.0  # scores near zero or saturated, never between
    if name.endswith((".w1.weight", ".w3.weight")):
        weight[channels.expert[name.endswith(".w3.weight")]] *= f
    if name.endswith(".w2.weight"):
        weight[:, channels.expert] *= 0.25
    if name == "embed.weight":
        weight[: config.bos_token_id + 1] *= f
    if name.endswith("engram.embed.weight"):
        weight[::64] *= f
    if _DENSE.search(name):
        weight[:32, :32] *= _TINY
        _fill_code_range(weight)


def _latent_reads(channels: OutlierChannels) -> Tensor:
    """[2, 1]: what a reader's two latent columns are multiplied by."""
    return torch.tensor([_READ / channels.saturating_factor, _READ / channels.factor]).unsqueeze(-1)


def _fill_code_range(weight: Tensor) -> None:
    """Raise the largest element to 448 x 2^k, the last code of its block."""
    flat = weight.view(-1)
    at = int(flat.abs().argmax())
    peak = flat[at].abs()
    flat[at] = flat[at].sign() * _FP8_MAX * torch.exp2(torch.ceil(torch.log2(peak / _FP8_MAX)))
