"""How long a rank's step takes on a machine, and what it waits for.

A family of kernels takes the longer of its memory traffic and its mathematics, and the latencies of its
launches on top: kernels wait for each other. With early loads a kernel's weights are on their way while the
kernel before it still runs, so that a family takes the longer of the two sums. Exchanges and the CPU link
come in between. Source: the project's spec, performance-model.md sections 6 and 9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from flashpoint.hardware.collectives import exchange_seconds, transfer_seconds
from flashpoint.hardware.machine import Machine
from flashpoint.models.work import Family, KernelWork, Precision, StepWork

Resource = Literal["memory", "math", "link", "latency", "host"]
PRECISIONS: tuple[Precision, ...] = ("fp4", "fp8", "bf16", "fp32")


@dataclass(frozen=True, slots=True)
class CostOptions:
    """graphs: kernels are launched from CUDA graphs.  early_loads, fused_reductions: see DecodePath."""

    graphs: bool = True
    early_loads: bool = False
    fused_reductions: bool = False


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step, by family and by what they were spent on. Families do not hold exchanges.

    floors: seconds it would take if one resource, at its physical peak, were all that counts; over `seconds`
        that is the share of the machine's limit that the step reaches.
    """

    seconds: float
    families: Mapping[Family, float]
    resources: Mapping[Resource, float]
    floors: Mapping[Resource, float]

    @property
    def binding(self) -> Resource:
        """What most of the time was spent on."""
        return max(self.resources, key=self.resources.__getitem__)


def step_time(work: StepWork, machine: Machine, options: CostOptions) -> StepTime:
    """Seconds of `work` on `machine`."""
    latency = machine.kernel_latency + (0.0 if options.graphs else machine.launch_gap)
    families: dict[Family, float] = {}
    resources: dict[Resource, float] = {"memory": 0.0, "math": 0.0, "link": 0.0, "latency": 0.0, "host": 0.0}
    dispatched = sum(transfer_seconds(e, machine) for e in work.exchanges if e.kind == "all_to_all")
    for family, kernels in work.kernels.items():
        memory = memory_seconds(family, kernels, machine)
        math = math_seconds(family, kernels, machine)
        # Dispatch and combine run inside the experts' kernel: what they move hides behind it (MegaMoE).
        moved = dispatched if family == "moe" else 0.0
        busy, waits = max(memory, math, moved), kernels.kernels * latency
        if options.early_loads:
            seconds = max(busy, waits)
            resources["latency"] += seconds - busy
        else:
            seconds = busy + waits
            resources["latency"] += waits
        spent_on: Resource = "link" if moved > max(memory, math) else "memory" if memory >= math else "math"
        resources[spent_on] += busy
        host = kernels.host_bytes / machine.host_bandwidth
        resources["host"] += host
        families[family] = seconds + host
    exchanged = 0.0
    for exchange in work.exchanges:
        seconds = exchange_seconds(exchange, machine)
        if exchange.kind == "all_to_all":
            seconds -= transfer_seconds(exchange, machine)
        elif exchange.ranks > 1 and not (exchange.kind == "all_reduce" and options.fused_reductions):
            seconds += exchange.count * latency  # a fused reduction is part of the next kernel
        resources["link"] += seconds
        exchanged += seconds
    resources["latency"] += machine.step_overhead
    total = sum(families.values()) + exchanged + machine.step_overhead
    return StepTime(total, families, resources, floors(work, machine))


def floors(work: StepWork, machine: Machine) -> dict[Resource, float]:
    """See StepTime. No efficiency enters: nothing on this machine is faster."""
    kernels = work.kernels.values()
    sent = sum(exchange.count * exchange.bytes for exchange in work.exchanges)
    return {
        "memory": sum(k.device_bytes for k in kernels) / machine.memory_bandwidth,
        "math": sum(n / peak(machine, p) for k in kernels for p, n in k.flops.items()),
        "link": sent / machine.link_bandwidth if sent else 0.0,
        "host": sum(k.host_bytes for k in kernels) / machine.host_bandwidth,
    }


def memory_seconds(family: Family, kernels: KernelWork, machine: Machine) -> float:
    """Seconds of a family's device memory traffic."""
    share = machine.moe_memory_share if family == "moe" else machine.memory_share
    return kernels.device_bytes / (machine.memory_bandwidth * share)


def math_seconds(family: Family, kernels: KernelWork, machine: Machine) -> float:
    """Seconds of a family's multiplications. A machine without a precision uses the next wider one."""
    share = machine.moe_math_share if family == "moe" else machine.math_share
    return sum(flops / peak(machine, precision) for precision, flops in kernels.flops.items()) / share


def peak(machine: Machine, precision: Precision) -> float:
    """FLOP/s of a precision, or of the next wider one that the machine has."""
    for candidate in PRECISIONS[PRECISIONS.index(precision) :]:
        if value := getattr(machine, candidate):
            return float(value)
    raise ValueError(f"{machine.name} multiplies in no precision")
