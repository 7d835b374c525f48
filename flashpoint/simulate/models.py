"""Which models can be simulated."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from flashpoint.errors import InvalidValue
from flashpoint.models.deepseek_v41.config import ModelConfig, load_config, parse_config

RELEASED = "deepseek-v4.1-flash"


def load_model_config(model: str) -> ModelConfig:
    """The released model by name, or that of a checkpoint's config.json. Raises InvalidValue."""
    if model.lower() == RELEASED:
        released = resources.files("flashpoint.models.deepseek_v41") / "released_config.json"
        return parse_config(json.loads(released.read_text()))
    if model.lower() == "minimax-m3":
        raise NotImplementedError(
            "minimax-m3: the work of its steps is not counted yet; see docs/simulate.md"
        )
    path = Path(model)
    if not path.exists():
        raise InvalidValue("model", model, f"{RELEASED}, or a checkpoint folder")
    return load_config(path)
