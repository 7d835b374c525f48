"""From a checkpoint folder to a model ready to run, whatever its architecture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from flashpoint.cache.spec import CacheSpec
from flashpoint.errors import InvalidValue
from flashpoint.models.deepseek_v41.cache_spec import cache_spec
from flashpoint.models.deepseek_v41.config import ModelConfig, load_config
from flashpoint.models.deepseek_v41.engram_hash import build_engram_hash
from flashpoint.models.deepseek_v41.loader import load_weights
from flashpoint.models.deepseek_v41.model import DeepseekV41
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.ops.backends import Ops, ops_for


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with what the engine must know of it."""

    folder: Path
    config: ModelConfig
    model: DeepseekV41
    cache_spec: CacheSpec


def load_model(
    folder: Path,
    numerics: Numerics,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
    ops: Ops | None = None,
) -> LoadedModel:
    """Read config, tokenizer map and weights of `folder`. Raises CheckpointError listing every problem,
    InvalidValue for a device that is not there.

    `progress(done, total)` is called with bytes read. `ops` None takes the fastest set for the device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise InvalidValue("device", device, "cpu, because torch finds no CUDA device here")
    config = load_config(folder)
    engram_hash = build_engram_hash(config, folder / "tokenizer.json")
    weights = load_weights(folder, config, numerics.dtype, torch.device(device), progress)
    model = DeepseekV41(config.text, weights, engram_hash, numerics, ops or ops_for(device))
    return LoadedModel(folder, config, model, cache_spec(config.text, numerics.entry_format))
