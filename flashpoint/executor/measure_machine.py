"""Writes a profile of the machine this runs on: its limits, and what the torch executor reaches of them.

Limits are the fastest product and the fastest read. What is reached comes from steps of random requests over
a checkpoint, priced like every other machine's (hardware/cost.py): the profile then holds for steps of other
sizes and other sessions, on that machine and with that number of threads. CPUs only. One thread is timed in
CPU seconds, which other processes disturb less.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count, cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
import torch

from flashpoint.cache.config import TierConfig
from flashpoint.engine.clock import Clock, CpuClock, WallClock
from flashpoint.engine.config import EngineConfig
from flashpoint.engine.core import EngineCore, StepRecord
from flashpoint.engine.request import Request
from flashpoint.engine.sampling import SamplingParams
from flashpoint.engine.scheduler import Scheduler
from flashpoint.errors import InvalidValue
from flashpoint.executor.build import load_for_engine, step_counter
from flashpoint.executor.config import ExecutorConfig
from flashpoint.executor.torch_executor import TorchExecutor
from flashpoint.hardware.cost import CostOptions, StepPricer
from flashpoint.hardware.curve_fit import Floats, Range, Residual, fit, residual
from flashpoint.hardware.machine import NUMBERS, Machine, Number
from flashpoint.models.deepseek_v41.init import init_checkpoint
from flashpoint.models.work import StepWork

PRODUCT_WIDTHS = (256, 512, 1024, 2048)
READ_BYTES = tuple(1 << power for power in range(18, 28))
ENGINE = EngineConfig(max_step_tokens=512, max_running=8, cache_tokens=65_536)
LONGEST_PROMPT, LONGEST_ANSWER = 6000, 100
STEPS_PER_LOAD = 25
"""Steps until another number of requests runs at once: batches of all sizes tell what is paid per step."""
FEWEST_STEPS = 50
FITTED = {
    "memory_share": Range(0.5, 0.01, 1.0),
    "math_share_fp32": Range(0.5, 0.01, 1.0),
    "moe_memory_share": Range((0.5, 0.05), 0.01, 1.0),
    "kernel_latency": Range((3e-5, 3e-6), 1e-7, 1e-2),
    "moe_kernel_latency": Range(3e-5, 1e-7, 1e-2),
    "step_overhead": Range(1e-3, 1e-6, 1.0),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """A profile, and how well it tells the steps it was fitted to."""

    machine: Machine
    residuals: tuple[Residual, ...]


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One real step: its work, how many rows it had, and its seconds."""

    work: StepWork
    rows: int
    seconds: float


def measure_machine(
    checkpoint: Path,
    name: str,
    threads: int,
    seconds: float,
    progress: Callable[[float], None] = lambda share: None,
) -> Measured:
    """Measure with `threads` threads for about `seconds` s; `progress` hears the share that is done.

    Raises InvalidValue for threads that the machine does not have or a negative time, CheckpointError for a
    checkpoint that cannot be loaded.
    """
    if not 0 <= seconds < float("inf"):
        raise InvalidValue("seconds", seconds, "a number of at least 0")
    limits = measure_limits(name, threads)
    return fit_machine(limits, timed_steps(checkpoint, threads, seconds, progress))


@contextmanager
def micro_checkpoint() -> Iterator[Path]:
    """A checkpoint of the preset `micro`, for as long as it is needed."""
    with TemporaryDirectory() as folder:
        init_checkpoint("micro", Path(folder) / "micro")
        yield Path(folder) / "micro"


def clock_for(threads: int) -> Clock:
    """The clock that steps of so many threads are timed with."""
    return CpuClock() if threads == 1 else WallClock()


def fastest_product(clock: Clock) -> float:
    """FLOP/s of the fastest fp32 product of square matrices."""
    return max(2 * n**3 / _median(_product(n), clock) for n in PRODUCT_WIDTHS)


def fastest_read(clock: Clock) -> float:
    """bytes/s of the fastest sum over a buffer: of one that fits into a cache, as small models do."""
    buffer = torch.randn(READ_BYTES[-1] // 4)
    return max(size / _median(_read(buffer, size), clock) for size in READ_BYTES)


def timed_steps(
    checkpoint: Path, threads: int, seconds: float, progress: Callable[[float], None] = lambda share: None
) -> list[TimedStep]:
    """Steps of random requests for `seconds` s, `FEWEST_STEPS` at least: prompts of 32 tokens to
    `LONGEST_PROMPT`, one to eight at a time."""
    loaded, engine = load_for_engine(checkpoint, ENGINE, ExecutorConfig(threads=threads), TierConfig())
    executor = TorchExecutor(loaded, engine)
    core = EngineCore(Scheduler(engine, executor.capacity, ()), executor, clock_for(threads))
    counter, vocab_size = step_counter(loaded), loaded.config.text.vocab_size
    records: list[StepRecord] = []
    core.add_observer(records.append)
    rng = np.random.default_rng(0)
    numbers, steps = count(), list[TimedStep]()
    load = 1
    began = time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds or len(steps) < FEWEST_STEPS:
        progress(min(1.0, elapsed / seconds) if seconds else 1.0)
        if len(steps) % STEPS_PER_LOAD == 0:
            load = int(rng.integers(1, ENGINE.max_running + 1))
        while core.stats().running + core.stats().waiting < load:
            core.submit(_random_request(f"measure-{next(numbers)}", vocab_size, rng))
        plan = core.begin()
        if plan is None:
            continue
        core.finish(executor.execute(plan))
        steps.append(TimedStep(counter.work(plan), plan.rows, records[-1].seconds))
    core.close()
    return steps


def _random_request(request_id: str, vocab_size: int, rng: np.random.Generator) -> Request:
    length = round(np.exp(rng.uniform(np.log(32), np.log(LONGEST_PROMPT))))
    answer = int(rng.integers(1, LONGEST_ANSWER + 1))
    prompt = rng.integers(3, vocab_size, length).astype(np.int32)
    return Request(request_id, prompt, SamplingParams(max_tokens=answer, min_tokens=answer, temperature=0.0))


def _product(width: int) -> Callable[[], object]:
    a, b = torch.randn(width, width), torch.randn(width, width)
    return lambda: a @ b


def _read(buffer: torch.Tensor, size: int) -> Callable[[], object]:
    parts = cycle(buffer.split(size // 4)[:1] if size < READ_BYTES[-1] // 8 else buffer.split(size // 4))
    return lambda: next(parts).sum()


def _median(run: Callable[[], object], clock: Clock) -> float:
    """Median seconds over a tenth of a second, three times at least, the first not counted."""
    run()
    taken: list[float] = []
    end = clock.now() + 0.1
    while len(taken) < 3 or (clock.now() < end and len(taken) < 1000):
        began = clock.now()
        run()
        taken.append(clock.now() - began)
    return float(np.median(taken))


def measure_limits(name: str, threads: int) -> Machine:
    """The machine's limits, before anything is fitted: shares 1, latencies 0, no links.

    Raises InvalidValue for threads that the machine does not have.
    """
    available = os.cpu_count() or 1
    if not 1 <= threads <= available:
        raise InvalidValue("threads", threads, f"1 to {available}, the CPUs of this machine")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        clock = clock_for(threads)
        flops, reads = fastest_product(clock), fastest_read(clock)
    finally:
        torch.set_num_threads(before)
    source = (
        f"flashpoint hardware measure, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {processor()}, "
        f"{threads} thread(s), torch {torch.__version__}"
    )

    def measured(value: float, source: str = source) -> Number:
        return Number(value=float(f"{value:.4g}"), kind="measured", source=source)

    def absent(value: float) -> Number:
        return Number(value=value, kind="prior", source="nothing of it here", low=value, high=value)

    nothing = {number: absent(float("share" in number)) for number in NUMBERS}
    memory = float(psutil.virtual_memory().total)
    limits = {"fp32": flops, "memory": memory, "memory_bandwidth": reads, "host_bandwidth": reads}
    numbers = {
        **nothing,
        **{number: measured(value) for number, value in limits.items()},
        "domain": measured(1, "one CPU"),
        "locality": measured(1, "one domain"),
    }
    return Machine.of(name, numbers, "A CPU; the bandwidth is that of the cache level that reads fastest.")


def fit_machine(limits: Machine, steps: list[TimedStep]) -> Measured:
    """The machine with what `steps` reached of its limits."""
    source = limits.numbers["fp32"].source
    taken = np.array([step.seconds for step in steps])

    def predict(numbers: dict[str, float]) -> Floats:
        changed: dict[str, Any] = {**numbers}
        pricer = StepPricer(replace(limits, **changed), CostOptions())
        return np.array([pricer(step.work).seconds for step in steps])

    found = fit(predict, taken, FITTED)
    predicted = predict(found)
    decodes = np.array([step.rows for step in steps]) <= ENGINE.max_running
    residuals = tuple(
        residual(what, predicted[chosen], taken[chosen])
        for what, chosen in (("decode steps", decodes), ("prefill steps", ~decodes))
        if chosen.any()
    )
    numbers = {
        name: Number(value=float(f"{value:.4g}"), kind="measured", source=source)
        for name, value in found.items()
    }
    return Measured(limits.with_numbers(numbers), residuals)


def processor() -> str:
    """The CPU's name, as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
