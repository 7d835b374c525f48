"""In which forms a step's numbers are stored and multiplied: as served, or as computed here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flashpoint.models.deepseek_v41.cache_spec import EntryFormat, entry_bytes, index_key_bytes, window_bytes
from flashpoint.models.deepseek_v41.config import TextConfig
from flashpoint.models.work import Precision


@dataclass(frozen=True, slots=True)
class WorkFormats:
    """Bytes of a stored number, and the precision of each family's multiplications.

    expert, dense, head, router, wide: bytes of a weight of the routed experts, of the other matrices, of the
        head and embedding, of routers, and of mixers.
    pair, single: of the matrices that make entries of two tokens, and of those that make entries of one and
        index keys.  table: bytes of a number in an Engram table.
    entry, key, window: bytes of a cached vector.  activation: bytes of an activation between kernels.
    routed: bytes that a routed row moves per number of its input and of an expert's width.
    """

    expert: float
    dense: float
    head: float
    router: float
    wide: float
    pair: float
    single: float
    table: float
    entry: int
    key: int
    window: int
    activation: float
    routed: float
    expert_math: Precision
    dense_math: Precision
    attention_math: Precision
    index_math: Precision
    wide_math: Precision
    head_math: Precision
    pair_math: Precision
    single_math: Precision


def released_formats(config: TextConfig, expert_math: Precision = "fp8") -> WorkFormats:
    """The official form (spec 3.1, 6.3, 10.1): MXFP4 experts, FP8 elsewhere, FP4 caches.

    expert_math: fp8 for MXFP8 activations on FP4 weights (MegaMoE), fp4 for FP4 activations
        (performance-model 7).
    """
    return WorkFormats(
        expert=0.5 + 1 / 32,
        dense=1 + 1 / 1024,
        head=2.0,
        router=2.0,
        wide=4.0,
        pair=2.0,
        single=2.0,
        table=1 + 1 / 32,
        entry=entry_bytes(config.head_dim, "codes"),
        key=index_key_bytes(config.index_head_dim, "codes"),
        window=window_bytes(config.head_dim, "codes"),
        activation=2.0,
        routed=3.0,
        expert_math=expert_math,
        dense_math="fp8",
        attention_math="bf16",
        index_math="fp4",
        wide_math="bf16",
        head_math="bf16",
        pair_math="bf16",
        single_math="bf16",
    )


def computed_formats(
    config: TextConfig,
    compute: Literal["float32", "bfloat16"],
    entry_format: EntryFormat,
    *,
    quantized: bool = True,
) -> WorkFormats:
    """As the torch executor keeps and multiplies numbers (`weights.py`, `caches.py`), not as a file does.

    Weights are dequantised to `compute` at load; head, routers, mixers and pair compressors are fp32 always.
    Engram tables stay as stored.  compute, entry_format: those of `Numerics`.
    quantized: the checkpoint is in the official form, its tables are not BF16.
    """
    size, math = _FLOATS[compute]
    return WorkFormats(
        expert=size,
        dense=size,
        head=4.0,
        router=4.0,
        wide=4.0,
        pair=4.0,
        single=size,
        table=1 + 1 / 32 if quantized else 2.0,
        entry=entry_bytes(config.head_dim, entry_format),
        key=index_key_bytes(config.index_head_dim, entry_format),
        window=window_bytes(config.head_dim, entry_format),
        activation=size,
        routed=2 * size,
        expert_math=math,
        dense_math=math,
        attention_math="fp32",
        index_math="fp32",
        wide_math="fp32",
        head_math="fp32",
        pair_math="fp32",
        single_math=math,
    )


_FLOATS: dict[str, tuple[float, Precision]] = {"float32": (4.0, "fp32"), "bfloat16": (2.0, "bf16")}
