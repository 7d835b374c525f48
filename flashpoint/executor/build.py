"""From settings to an engine ready to start: load the model, allocate the pools."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import psutil
import torch

from flashpoint.cache.config import TierConfig
from flashpoint.checkpoint.progress import byte_progress
from flashpoint.engine.clock import Clock
from flashpoint.engine.config import EngineConfig
from flashpoint.engine.core import EngineCore
from flashpoint.engine.memory_plan import DEFAULT_CACHE_TOKENS, MemoryPlan, ModelMemory, plan_memory
from flashpoint.engine.scheduler import Scheduler
from flashpoint.engine.service import EngineService
from flashpoint.executor.config import ExecutorConfig
from flashpoint.executor.torch_executor import TorchExecutor, set_threads
from flashpoint.hardware.step_counter import StepCounter
from flashpoint.models.deepseek_v41.cache_spec import cache_spec
from flashpoint.models.deepseek_v41.config import load_config
from flashpoint.models.deepseek_v41.memory import weight_bytes
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.deepseek_v41.work import V41Work
from flashpoint.models.deepseek_v41.work_formats import computed_formats
from flashpoint.models.deepseek_v41.work_rows import RowSums
from flashpoint.models.deepseek_v41.workspace import workspace_bytes
from flashpoint.models.load import LoadedModel, load_model

log = logging.getLogger(__name__)


def build_engine(
    checkpoint: Path, engine: EngineConfig, executor: ExecutorConfig, tiers: TierConfig
) -> EngineService:
    """An engine over `checkpoint`, not started. Raises CheckpointError, InvalidValue; what does not fit into
    memory is refused before anything is loaded."""
    loaded, engine = load_for_engine(checkpoint, engine, executor, tiers)
    return EngineService(TorchExecutor(loaded, engine, tiers), engine)


def build_core(loaded: LoadedModel, engine: EngineConfig, tiers: TierConfig, clock: Clock) -> EngineCore:
    """An engine without threads over a model that `load_for_engine` gave, with empty caches; it counts its
    steps."""
    executor = TorchExecutor(loaded, engine, tiers, step_counter(loaded))
    return EngineCore(Scheduler(engine, executor.capacity, executor.stored), executor, clock)


def step_counter(loaded: LoadedModel) -> StepCounter[RowSums]:
    """What steps of a loaded model ask of this machine."""
    numerics, config = loaded.model.numerics, loaded.config
    formats = computed_formats(
        config.text, numerics.compute, numerics.entry_format, quantized=config.quantized
    )
    return StepCounter(V41Work(config.text, formats, drafts=False))


def load_for_engine(
    checkpoint: Path, engine: EngineConfig, executor: ExecutorConfig, tiers: TierConfig
) -> tuple[LoadedModel, EngineConfig]:
    """The model in memory, and the engine's settings with the size of its cache. Raises as `build_engine`."""
    plan = memory_plan(checkpoint, engine, executor, tiers)
    for row in plan.rows():
        log.info("memory: %-18s %10s  %s", *row)
    engine = dataclasses.replace(engine, cache_tokens=plan.cache_tokens)
    set_threads(executor.threads)
    numerics = Numerics(executor.numerics, executor.compute_dtype)
    with byte_progress(f"loading {checkpoint.name}") as progress:
        return load_model(checkpoint, numerics, executor.device, progress), engine


def memory_plan(
    checkpoint: Path, engine: EngineConfig, executor: ExecutorConfig, tiers: TierConfig
) -> MemoryPlan:
    """How memory will be divided, by the checkpoint's config alone. Raises CheckpointError, InvalidValue."""
    config = load_config(checkpoint)
    numerics = Numerics(executor.numerics, executor.compute_dtype)
    weights, mapped = weight_bytes(config, numerics)
    context = engine.max_context or config.text.max_position_embeddings
    if engine.memory_limit is None or engine.cache_tokens is not None:  # no sequence outgrows the pool
        context = min(context, engine.cache_tokens or DEFAULT_CACHE_TOKENS)
    workspace = workspace_bytes(config.text, engine.max_step_tokens, engine.max_running, context)
    model = ModelMemory(weights, workspace, mapped)
    spec = cache_spec(config.text, numerics.entry_format)
    return plan_memory(engine, spec, model, tiers.host_memory, available_memory(executor.device))


def available_memory(device: str) -> int:
    """Bytes that could be had now: free memory of the CUDA device, else what the system calls available."""
    if device == "cuda" and torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    return psutil.virtual_memory().available
