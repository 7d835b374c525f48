"""Which implementation of each op a model runs with. `docs/ops.md` has the table.

`REFERENCE` is the definition; every other set must equal it on ragged, odd-sized input (tests/ops).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from flashpoint.ops.attention import cpu as attention_cpu
from flashpoint.ops.attention import reference as attention_reference
from flashpoint.ops.hyper_connections import cpu as hyper_cpu
from flashpoint.ops.hyper_connections import reference as hyper_reference
from flashpoint.ops.hyper_connections.native import NativeMix
from flashpoint.ops.indexer import cpu as indexer_cpu
from flashpoint.ops.indexer import reference as indexer_reference
from flashpoint.ops.moe import cpu as moe_cpu
from flashpoint.ops.moe import reference as moe_reference
from flashpoint.ops.native.build import native_library
from flashpoint.ops.quantization import cpu as quantization_cpu
from flashpoint.ops.quantization import reference as quantization_reference
from flashpoint.ops.quantization.codec import PLAIN, Codecs, native_codecs
from flashpoint.ops.quantization.native import native_qdq


@dataclass(frozen=True, slots=True)
class Ops:
    """The ops that have more than one implementation; signatures are those of each `reference.py`."""

    fp8_qdq: Callable[[Tensor], Tensor]
    index_qdq: Callable[[Tensor], Tensor]
    codecs: Codecs
    sparse_attention: Callable[..., Tensor]
    select_entries: Callable[..., tuple[Tensor, Tensor | None]]
    experts: Callable[..., Tensor]
    mix: Callable[..., tuple[Tensor, Tensor, Tensor]]
    collapse: Callable[[Tensor, Tensor], Tensor]
    expand: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


REFERENCE = Ops(
    fp8_qdq=quantization_reference.fp8_qdq,
    index_qdq=quantization_reference.index_qdq,
    codecs=PLAIN,
    sparse_attention=attention_reference.sparse_attention,
    select_entries=indexer_reference.select_entries,
    experts=moe_reference.experts,
    mix=hyper_reference.mix,
    collapse=hyper_reference.collapse,
    expand=hyper_reference.expand,
)

TORCH = Ops(
    fp8_qdq=quantization_cpu.fp8_qdq,
    index_qdq=quantization_cpu.index_qdq,
    codecs=PLAIN,
    sparse_attention=attention_cpu.sparse_attention,
    select_entries=indexer_cpu.select_entries,
    experts=moe_cpu.experts,
    mix=hyper_cpu.mix,
    collapse=hyper_cpu.collapse,
    expand=hyper_cpu.expand,
)


def ops_for(device: str) -> Ops:
    """The fastest set for `cpu` or `cuda`: on a CPU with a C++ compiler, its kernels replace torch's."""
    library = native_library() if device == "cpu" else None
    if library is None:
        return TORCH
    fp8_qdq, index_qdq = native_qdq(library)
    return dataclasses.replace(
        TORCH,
        mix=NativeMix(library),
        fp8_qdq=fp8_qdq,
        index_qdq=index_qdq,
        codecs=native_codecs(library),
    )
