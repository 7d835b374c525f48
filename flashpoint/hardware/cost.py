"""How long a rank's step takes on a machine, and what it waits for.

A family of kernels takes the longer of its memory traffic and its mathematics, and the latencies of its
launches on top: kernels wait for each other. With early loads weights are on their way while the kernel
before still runs: behind the latencies, as far as they last. Exchanges and the CPU link come in between.
Source: the project's spec, performance-model.md sections 6 and 9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from flashpoint.engine.plan import StepCounts
from flashpoint.errors import InvalidValue
from flashpoint.hardware.collectives import exchange_seconds, transfer_seconds
from flashpoint.hardware.machine import Machine
from flashpoint.models.work import Family, Precision, StepWork

Resource = Literal["memory", "math", "link", "latency", "host"]
PRECISIONS: tuple[Precision, ...] = ("fp4", "fp8", "bf16", "fp32")
NOTHING = StepCounts()


@dataclass(frozen=True, slots=True)
class CostOptions:
    """graphs: kernels are launched from CUDA graphs.  early_loads, fused_reductions: see DecodePath."""

    graphs: bool = True
    early_loads: bool = False
    fused_reductions: bool = False


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step, by family and by what they were spent on. Families do not hold exchanges.

    floors: seconds it would take if one resource, at its physical peak, were all that counts (no efficiency
        enters); over `seconds` that is the share of the machine's limit that the step reaches.
    counts: what the step asked of the machine.
    """

    seconds: float
    families: Mapping[Family, float]
    resources: Mapping[Resource, float]
    floors: Mapping[Resource, float]
    counts: StepCounts = NOTHING

    @property
    def binding(self) -> Resource:
        """What most of the time was spent on."""
        return max(self.resources, key=self.resources.__getitem__)


@dataclass(frozen=True, slots=True)
class _Rates:
    """What a family's kernels reach: s a byte, s a FLOP, and s a kernel of ramps and latency."""

    byte: float
    flop: dict[Precision, float]
    memory_ramp: float
    math_ramp: float
    latency: float


class Limits:
    """The physical limits of a machine, without any efficiency; calling it gives `StepTime.floors`.

    Raises InvalidValue for a machine without memory or host bandwidth.
    """

    def __init__(self, machine: Machine) -> None:
        for name in ("memory_bandwidth", "host_bandwidth"):
            if not getattr(machine, name) > 0:
                raise InvalidValue(f"{machine.name}, {name}", getattr(machine, name), "bytes/s, above 0")
        self._machine = machine
        self._flop = [1 / peak(machine, precision) for precision in PRECISIONS]

    def __call__(self, counts: StepCounts) -> dict[Resource, float]:
        """Seconds that each resource would take, were it all that counts."""
        m, (fp4, fp8, bf16, fp32) = self._machine, self._flop
        math = counts.flops_fp4 * fp4 + counts.flops_fp8 * fp8
        math += counts.flops_bf16 * bf16 + counts.flops_fp32 * fp32
        return {
            "memory": counts.memory_bytes / m.memory_bandwidth,
            "math": math,
            "link": counts.link_bytes / m.link_bandwidth if m.link_bandwidth else 0.0,
            "host": counts.host_bytes / m.host_bandwidth,
        }


class StepPricer:
    """Prices steps on one machine; calling it with a step's work gives its time."""

    def __init__(self, machine: Machine, options: CostOptions) -> None:
        self.machine = machine
        self.limits = Limits(machine)
        self._options = options
        gap = 0.0 if options.graphs else machine.launch_gap
        self._latency = machine.kernel_latency + gap
        self._flop = {p: 1 / peak(machine, p) for p in PRECISIONS}
        self._byte = 1 / machine.memory_bandwidth
        self._host_byte = 1 / machine.host_bandwidth
        reached = self._byte / machine.locality
        self._dense = _Rates(
            reached / machine.memory_share,
            {p: self._flop[p] / _math_share(machine, p, grouped=False) for p in PRECISIONS},
            machine.memory_ramp * reached / machine.memory_share,
            machine.math_ramp,
            self._latency,
        )
        self._grouped = _Rates(
            reached / machine.moe_memory_share,
            {p: self._flop[p] / _math_share(machine, p, grouped=True) for p in PRECISIONS},
            0.0,
            0.0,
            machine.moe_kernel_latency + gap,
        )

    def __call__(self, work: StepWork) -> StepTime:
        """Seconds of `work`."""
        machine, early_loads = self.machine, self._options.early_loads
        families: dict[Family, float] = {}
        memory_spent = math_spent = link_spent = 0.0
        latency_spent = machine.step_overhead
        host_spent = 0.0
        behind_experts = "moe" in work.kernels
        dispatched = sum(transfer_seconds(e, machine) for e in work.exchanges if e.kind == "all_to_all")
        for family, kernels in work.kernels.items():
            grouped = family == "moe"
            rates = self._grouped if grouped else self._dense
            moved = kernels.device_bytes
            memory, math = moved * rates.byte, 0.0
            for precision, flops in kernels.flops.items():
                math += flops * rates.flop[precision]
            waits = kernels.kernels * rates.latency
            if early_loads:
                weights = kernels.weight_bytes * rates.byte
                memory_path = memory - weights + max(weights, waits)
            else:
                memory_path = memory + (kernels.kernels * rates.memory_ramp if moved else 0.0) + waits
            math_path = math + (kernels.kernels * rates.math_ramp if math else 0.0) + waits
            # Dispatch and combine run inside the experts' kernel: what they move hides behind it (MegaMoE).
            link_path = (dispatched if grouped else 0.0) + waits
            seconds = max(memory_path, math_path, link_path)
            if seconds == memory_path:
                memory_spent += memory
                latency_spent += seconds - memory
            elif seconds == math_path:
                math_spent += math
                latency_spent += seconds - math
            else:
                link_spent += dispatched
                latency_spent += waits
            host = kernels.host_bytes * self._host_byte
            families[family] = seconds + host
            host_spent += host
        exchanged = 0.0
        for exchange in work.exchanges:
            seconds = exchange_seconds(exchange, machine)
            if exchange.kind == "all_to_all":
                if behind_experts:
                    seconds -= transfer_seconds(exchange, machine)
            elif exchange.ranks > 1 and exchange.kind == "all_reduce" and not self._options.fused_reductions:
                seconds += exchange.count * self._latency  # a fused reduction is part of the next kernel
            exchanged += seconds
        counts = work.counts()
        return StepTime(
            sum(families.values()) + exchanged + machine.step_overhead,
            families,
            {
                "memory": memory_spent,
                "math": math_spent,
                "link": link_spent + exchanged,
                "latency": latency_spent,
                "host": host_spent,
            },
            self.limits(counts),
            counts,
        )


def peak(machine: Machine, precision: Precision) -> float:
    """FLOP/s of a precision, or of the next wider one. Raises InvalidValue where the machine has neither."""
    return float(getattr(machine, _multiplied_in(machine, precision)))


def _multiplied_in(machine: Machine, precision: Precision) -> Precision:
    for candidate in PRECISIONS[PRECISIONS.index(precision) :]:
        if getattr(machine, candidate):
            return candidate
    raise InvalidValue(
        f"{machine.name}, numbers", "no FLOP/s in fp32", "the widest precision it multiplies in"
    )


def _math_share(machine: Machine, precision: Precision, *, grouped: bool) -> float:
    used = _multiplied_in(machine, precision)
    of_experts = "moe_" if grouped and used in ("fp4", "fp8") else ""
    return float(getattr(machine, f"{of_experts}math_share_{used}"))
