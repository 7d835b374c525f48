"""What this machine can do: memory bandwidth and GEMM rate, measured, for `share of the limit` figures."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Machine:
    """bytes/s of a streaming read larger than the caches, FLOP/s of a large fp32 product."""

    name: str
    threads: int
    read_bytes_per_s: float
    gemm_flops_per_s: float


def best_of(run: Callable[[], object], repeats: int = 5) -> float:
    """Shortest wall seconds of `run` in `repeats` tries, after one that does not count."""
    run()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def measure_machine() -> Machine:
    """Measure with torch's current thread count."""
    big = torch.randn(1 << 26)
    square = torch.randn(2048, 2048)
    read = big.numel() * 4 / best_of(big.sum)
    gemm = 2 * 2048**3 / best_of(lambda: square @ square)
    return Machine(processor_name(), torch.get_num_threads(), read, gemm)


def processor_name() -> str:
    """Model name and core count, as the system tells them."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return f"{name}, {os.cpu_count()} CPUs, {torch.backends.cpu.get_cpu_capability()}"
