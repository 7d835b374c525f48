"""What the weights take in memory, as loaded."""

from __future__ import annotations

from flashpoint.models.deepseek_v41.config import ModelConfig, TextConfig
from flashpoint.models.deepseek_v41.manifest import tensor_manifest
from flashpoint.models.deepseek_v41.numerics import Numerics

_FP32 = 4


def weight_bytes(config: ModelConfig, numerics: Numerics) -> tuple[int, int]:
    """(bytes in memory, bytes left in the file) of the weights as `loader.py` keeps them.

    Engram tables stay in the file; drafts and vision are not loaded.
    """
    loaded = mapped = 0
    for name, spec in tensor_manifest(config).items():
        if spec.part == "engram tables":
            mapped += spec.nbytes
        elif spec.part not in ("drafts", "vision") and not name.endswith("bias_vl"):
            loaded += spec.parameters * (_FP32 if _kept_wide(name, config.text) else numerics.dtype.itemsize)
    return loaded, mapped


def _kept_wide(name: str, text: TextConfig) -> bool:
    """True for tensors that are fp32 in every run."""
    if ".compressor.w" in name:
        return text.compress_ratios[int(name.split(".")[1])] > 1
    return (
        name.endswith(("norm.weight", "attn_sink", "gate.weight", "gate.bias", ".q_weight", ".k_weight"))
        or ".hc_" in name
        or name == "head.weight"
    )
