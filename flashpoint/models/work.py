"""What a step asks of a machine, counted and not timed: models fill these in, hardware prices them.

Everything is per rank (one accelerator) and per step. FLOPs count 2 per multiply-add; bytes are those that
must move, each once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, Literal, NamedTuple, Protocol, Self, TypeVar

from flashpoint.engine.plan import StepCounts
from flashpoint.parallel.layout import Layout

Precision = Literal["fp4", "fp8", "bf16", "fp32"]
Family = Literal["moe", "attention", "gemm", "hyper_connections", "indexer", "engram", "head", "draft"]


class KernelWork(NamedTuple):
    """The kernels of one family in one step.

    flops: by the precision of the inputs.
    weight_bytes, cache_bytes, activation_bytes: device memory traffic.
    host_bytes: over the link to the CPU's memory (Engram rows).
    kernels: launches that wait for each other; kernels that run beside them are not counted.
    """

    flops: Mapping[Precision, float] = MappingProxyType({})
    weight_bytes: float = 0.0
    cache_bytes: float = 0.0
    activation_bytes: float = 0.0
    host_bytes: float = 0.0
    kernels: int = 0

    @property
    def device_bytes(self) -> float:
        """All traffic of the device's own memory."""
        return self.weight_bytes + self.cache_bytes + self.activation_bytes


@dataclass(frozen=True, slots=True)
class Exchange:
    """Collectives of one kind in one step: `count` of them in a row, each with `bytes` sent by a rank.

    all_to_all: bytes that leave a rank for others.  all_reduce, all_gather, reduce_scatter: the size of the
    whole vector.  ranks: how many take part.
    """

    kind: Literal["all_to_all", "all_reduce", "all_gather", "reduce_scatter"]
    bytes: float
    ranks: int
    count: int


class StepWork(NamedTuple):
    """One rank's step."""

    kernels: Mapping[Family, KernelWork]
    exchanges: tuple[Exchange, ...] = ()

    def counts(self) -> StepCounts:
        """All of it, whichever kernels it falls to."""
        flops: dict[Precision, float] = {"fp4": 0.0, "fp8": 0.0, "bf16": 0.0, "fp32": 0.0}
        memory = link = host = kernels = 0.0
        for family in self.kernels.values():
            for precision, number in family.flops.items():
                flops[precision] += number
            memory += family.weight_bytes + family.cache_bytes + family.activation_bytes
            host += family.host_bytes
            kernels += family.kernels
        for exchange in self.exchanges:
            link += exchange.count * exchange.bytes
        return StepCounts(
            flops["fp4"], flops["fp8"], flops["bf16"], flops["fp32"], memory, link, host, kernels
        )


class Sums(Protocol):
    """Sums over rows of what their cost depends on (their positions). They add up over chunks."""

    @property
    def rows(self) -> int:
        """How many rows."""
        ...

    def __add__(self, other: Self) -> Self: ...

    def toward(self, other: Self, share: float) -> Self:
        """Sums between these (share 0) and `other` (share 1)."""
        ...


S = TypeVar("S", bound=Sums)


class StepShape(NamedTuple, Generic[S]):
    """What one rank computes in a step.

    encoder: rows that run the layers up to the last KV source.  decoder: rows that run those behind it.
    head_rows: rows whose logits are needed.  drafted: sequences that get draft tokens after the step.
    group_encoder_rows, group_decoder_rows: rows of all ranks that share the experts, this one included.
    """

    encoder: S
    decoder: S
    head_rows: int
    drafted: int
    group_encoder_rows: int
    group_decoder_rows: int


class ModelWork(Protocol[S]):
    """Counts the steps of one model."""

    def sums(self, first: int, rows: int) -> S:
        """Sums of `rows` rows at positions `first`, `first` + 1, …"""
        ...

    def sums_of(self, firsts: Sequence[int], rows: int) -> S:
        """Sums of many sequences, each with `rows` rows from its own first position on."""
        ...

    def load(self, rows: S) -> float:
        """A measure of how busy a rank is with its rows, to find the busiest one."""
        ...

    def step(self, shape: StepShape[S], layout: Layout) -> StepWork:
        """The work of the busiest rank of `layout` that computes `shape`."""
        ...
