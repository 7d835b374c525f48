"""From settings to an engine ready to start: load the model, allocate the pools."""

from __future__ import annotations

import logging
from pathlib import Path

from flashpoint.cache.config import TierConfig
from flashpoint.checkpoint.progress import byte_progress
from flashpoint.engine.config import EngineConfig
from flashpoint.engine.service import EngineService
from flashpoint.executor.config import ExecutorConfig
from flashpoint.executor.torch_executor import TorchExecutor, set_threads
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.load import load_model

log = logging.getLogger(__name__)


def build_engine(
    checkpoint: Path, engine: EngineConfig, executor: ExecutorConfig, tiers: TierConfig
) -> EngineService:
    """An engine over `checkpoint`, not started. Raises CheckpointError, InvalidValue."""
    set_threads(executor.threads)
    numerics = Numerics(executor.numerics, executor.compute_dtype)
    with byte_progress(f"loading {checkpoint.name}") as progress:
        loaded = load_model(checkpoint, numerics, executor.device, progress)
    return EngineService(TorchExecutor(loaded, engine, tiers), engine)
