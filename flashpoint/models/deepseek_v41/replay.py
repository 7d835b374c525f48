"""Whether a model may run its decoder on the last rows of a prompt alone (spec 2.3)."""

from __future__ import annotations

from flashpoint.errors import InvalidValue
from flashpoint.models.deepseek_v41.config import TextConfig


def require_replay(config: TextConfig) -> None:
    """Raise InvalidValue naming `semantics` unless the layers behind the last KV source leave later tokens
    nothing but a window (spec 2.3, preconditions).

    That the last KV source selects, and publishes the candidates, is checked in every config already; draft
    windows are as long as all others.
    """
    last = config.kv_source_layer_ids[-1]
    late = [layer for layer in config.engram_layer_ids if layer >= last]
    ratio = config.compress_ratios[last]
    if late:
        reason = f"Engram at layers {late}, at or behind the last KV source {last}"
    elif ratio > 1:
        reason = f"ratio {ratio} at its last KV source {last}"
    else:
        return
    raise InvalidValue("semantics", "replay", f"full, because this model has {reason}")
