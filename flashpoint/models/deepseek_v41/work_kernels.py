"""How many kernels a layer is, as counted in the authors' and in vLLM's public code (spec 13.3, 13.4).

Counted are launches that wait for each other. Side streams (compressor projection, mixer GEMM, Engram
prefetch) are not. What a switch of the specialised path saves is the kernels that it removes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flashpoint.models.work import Family


@dataclass(frozen=True, slots=True)
class DecodePath:
    """Dependent kernels.

    layer: of any layer, by family.  indexer: more where an indexer runs.  candidates: more where candidate
        blocks are chosen.  source: more where entries are made.  engram: of an Engram layer.
    head: norm, GEMM and sampling.  draft_token: of each draft's Markov step.
    fused_reductions: all-reduces are part of the boundary kernels and cost no launch of their own.
    early_loads: a kernel loads its weights while the one before it still runs.
    """

    layer: Mapping[Family, int] = field(default_factory=dict)
    indexer: int = 4
    candidates: int = 2
    source: int = 2
    engram: int = 4
    head: int = 4
    draft_token: int = 2
    fused_reductions: bool = False
    early_loads: bool = False


STANDARD = DecodePath({"gemm": 6, "attention": 2, "moe": 5, "hyper_connections": 2})
"""15 kernels a layer: query and latent projections, norm, wq_b, rope and store, wo_a, wo_b; attention and
inverse rope; router, top-k, two GEMMs, weighted sum; a boundary kernel before each sublayer."""

SPECIALISED = DecodePath(
    {"gemm": 5, "attention": 1, "moe": 3, "hyper_connections": 2}, fused_reductions=True, early_loads=True
)
"""11 kernels a layer: norms inside GEMMs, inverse rope inside attention, top-k inside the router, the shared
expert as one more routed expert, the weighted sum inside the next boundary kernel."""


def decode_path(*, fused_reductions: bool, shared_in_routed: bool, early_loads: bool) -> DecodePath:
    """A path between the two: each switch by itself.

    fused_reductions: norm and inverse rope inside their neighbours, weighted sum and all-reduce inside the
        boundary kernels.  shared_in_routed: the shared expert in the routed GEMMs, top-k in the router.
    """
    return DecodePath(
        {
            "gemm": 5 if fused_reductions else 6,
            "attention": 1 if fused_reductions else 2,
            "moe": 5 - fused_reductions - shared_in_routed,
            "hyper_connections": 2,
        },
        fused_reductions=fused_reductions,
        early_loads=early_loads,
    )
