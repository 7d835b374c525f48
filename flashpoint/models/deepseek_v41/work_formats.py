"""In which forms a step's numbers are stored and multiplied: as served, or as computed here."""

from __future__ import annotations

from dataclasses import dataclass

from flashpoint.models.deepseek_v41.config import TextConfig
from flashpoint.models.work import Precision


@dataclass(frozen=True, slots=True)
class WorkFormats:
    """Bytes of a stored number, and the precision of each family's multiplications.

    expert, dense, head, wide: bytes of a weight of the routed experts, of the other matrices, of the head and
        embedding, and of routers and mixers.  entry, key, window: bytes of a cached vector.
    activation: bytes of an activation between kernels.
    """

    expert: float
    dense: float
    head: float
    wide: float
    entry: int
    key: int
    window: int
    activation: float
    expert_math: Precision
    dense_math: Precision
    attention_math: Precision
    index_math: Precision
    wide_math: Precision


def released_formats(config: TextConfig, expert_math: Precision = "fp8") -> WorkFormats:
    """The official form (spec 3.1, 6.3, 10.1): MXFP4 experts, FP8 elsewhere, FP4 caches.

    expert_math: fp8 for MXFP8 activations on FP4 weights (MegaMoE), fp4 for FP4 activations
        (performance-model 7).
    """
    width, key = config.head_dim, config.index_head_dim
    return WorkFormats(
        expert=0.5 + 1 / 32,
        dense=1 + 1 / 1024,
        head=2.0,
        wide=4.0,
        entry=width // 2 + width // 16,
        key=key // 2 + key // 32,
        window=width + width // 32,
        activation=2.0,
        expert_math=expert_math,
        dense_math="fp8",
        attention_math="bf16",
        index_math="fp4",
        wide_math="bf16",
    )


def plain_formats(
    config: TextConfig, weight_bytes: int, entry_format_bytes: int, math: Precision
) -> WorkFormats:
    """One float type for weights, and caches of `entry_format_bytes` a number: the torch executor's."""
    return WorkFormats(
        expert=weight_bytes,
        dense=weight_bytes,
        head=4.0,
        wide=4.0,
        entry=config.head_dim * entry_format_bytes,
        key=config.index_head_dim * entry_format_bytes,
        window=config.head_dim * entry_format_bytes,
        activation=4.0,
        expert_math=math,
        dense_math=math,
        attention_math=math,
        index_math=math,
        wide_math="fp32",
    )
