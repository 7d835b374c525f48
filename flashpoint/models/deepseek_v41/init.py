"""Random checkpoints in the official format (`flashpoint checkpoint init`).

Weights are drawn so that the model is well conditioned: logits of standard deviation one to two, routing that
uses all experts, index scores with real margins, and quantisation scales that differ from block to block.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from flashpoint.checkpoint.header import TORCH_DTYPES
from flashpoint.checkpoint.progress import ByteProgress
from flashpoint.checkpoint.writer import write_checkpoint
from flashpoint.errors import InvalidValue
from flashpoint.models.deepseek_v41.config import ModelConfig
from flashpoint.models.deepseek_v41.manifest import TensorSpec, tensor_manifest
from flashpoint.models.deepseek_v41.outliers import OutlierChannels, add_outliers
from flashpoint.models.deepseek_v41.preset_tokenizers import tokenizer_config
from flashpoint.models.deepseek_v41.presets import PRESETS, StoredForm, preset_files
from flashpoint.ops.quantization.weights import quantize_fp4_rows, quantize_fp8_blocks, quantize_fp8_rows

_PIECE_ELEMENTS = 1 << 24
_BLOCK = 32


def init_checkpoint(
    preset: str,
    out: Path,
    form: StoredForm | None = None,
    outliers: bool = False,
    seed: int = 0,
    progress: ByteProgress | None = None,
) -> ModelConfig:
    """Write the checkpoint of a preset to the new or empty folder `out`; the same arguments, the same bytes.

    form None takes the preset's own (nano and micro unquantised, mini quantised). At most one tensor, or a
    16-million-element piece of a larger one, is in memory at a time. Raises InvalidValue for an unknown
    preset or form, CheckpointError when `out` is in use or the disk is full; then nothing is left behind.
    """
    if preset not in PRESETS:
        raise InvalidValue("preset", preset, f"one of {', '.join(PRESETS)}")
    if form not in (None, "bf16", "quantized"):
        raise InvalidValue("form", form, "bf16 or quantized")
    chosen = PRESETS[preset]
    files = preset_files(chosen, form or chosen.form)
    manifest = tensor_manifest(files.config)
    weights = _RandomWeights(files.config, manifest, seed, outliers)
    max_length = files.config.text.max_position_embeddings
    write_checkpoint(
        out,
        manifest,
        weights.pieces,
        {
            "config.json": files.config_json.encode(),
            "tokenizer.json": files.tokenizer_json.encode(),
            "tokenizer_config.json": tokenizer_config(max_length).encode(),
        },
        chosen.shards,
        progress,
    )
    return files.config


# Standard deviation x sqrt(input width) of matrices that differ from 1, by the end of their name.
_GAINS = {
    "head.weight": 1.5,
    "attn.wq_b.weight": 1.3,
    "attn.wo_a.weight": 1.5,
    "attn.wo_b.weight": 1.5,
    "compressor.wgate.weight": 1.5,
    ".w1.weight": 1.3,
    ".w2.weight": 1.3,
    ".w3.weight": 1.3,
}

# (mean, standard deviation) of the rest.
_PLAIN = {
    "norm.weight": (1.0, 0.1),
    "engram.q_weight": (1.0, 0.2),
    "engram.k_weight": (1.0, 0.2),
    "attn_sink": (0.0, 1.0),
    "gate.bias": (0.0, 0.05),
    "_base": (0.0, 0.5),
    "_scale": (0.75, 0.1),
    "embed.weight": (0.0, 1.0),
}

# Standard deviation of the logarithm of a scale group's size.
_GROUP_SPREAD = 0.5


class _RandomWeights:
    """Draws each tensor from its own stream, seeded by its name, so the order of drawing does not matter."""

    def __init__(
        self, config: ModelConfig, manifest: dict[str, TensorSpec], seed: int, outliers: bool
    ) -> None:
        self._config = config
        self._manifest = manifest
        self._seed = seed
        self._channels = (
            OutlierChannels.choose(config, self._generator("outlier channels")) if outliers else None
        )
        self._scales: dict[str, list[Tensor]] = {}

    def pieces(self, name: str) -> Iterator[Tensor]:
        """The stored tensor `name`, in pieces of whole rows. A scale is made with its weight, before it."""
        spec = self._manifest[name]
        if spec.dtype == "F8_E8M0":
            yield from self._scales.pop(name)
            return
        scale_name = f"{name.removesuffix('.weight')}.scale"
        generator = self._generator(name)
        for values in self._floats(name, spec, generator):
            if scale_name not in self._manifest:
                yield values.to(TORCH_DTYPES[spec.dtype])
                continue
            if spec.dtype == "I8":
                codes, scale = quantize_fp4_rows(values)
            elif name.endswith("engram.embed.weight"):
                codes, scale = quantize_fp8_rows(values)
            else:
                codes, scale = quantize_fp8_blocks(values)
            self._scales.setdefault(scale_name, []).append(scale)
            yield codes

    def _generator(self, name: str) -> torch.Generator:
        digest = hashlib.blake2b(f"{self._seed}/{name}".encode(), digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)

    def _floats(self, name: str, spec: TensorSpec, generator: torch.Generator) -> Iterator[Tensor]:
        """fp32 values in pieces of rows: a multiple of 64, so that scale blocks are never cut."""
        shape = (spec.shape[0], 2 * spec.shape[1]) if spec.dtype == "I8" else spec.shape
        width = shape[1] if len(shape) > 1 else 1
        rows = max(_PIECE_ELEMENTS // width // 64, 1) * 64
        for start in range(0, shape[0], rows):
            values = torch.randn((min(rows, shape[0] - start), *shape[1:]), generator=generator)
            mean, deviation = _distribution(name, width)
            values.mul_(deviation).add_(mean)
            if f"{name.removesuffix('.weight')}.scale" in self._manifest:
                _spread_scales(values, generator)
            if self._channels is not None and (start == 0 or name.endswith("engram.embed.weight")):
                add_outliers(name, values, self._config, self._channels)
            yield values


def _distribution(name: str, width: int) -> tuple[float, float]:
    """(mean, standard deviation) of a tensor's elements."""
    for ending, (mean, deviation) in _PLAIN.items():
        if name.endswith(ending):
            return mean, deviation
    gain = next((gain for ending, gain in _GAINS.items() if name.endswith(ending)), 1.0)
    return 0.0, gain / math.sqrt(width)


def _spread_scales(values: Tensor, generator: torch.Generator) -> None:
    """Give each group of 32 rows and of 32 columns a size of its own, the mean square kept."""
    for axis, size in enumerate(values.shape):
        groups = torch.randn(-(-size // _BLOCK), generator=generator).mul_(_GROUP_SPREAD).exp_()
        groups.div_(groups.square().mean().sqrt())
        values.mul_(groups.repeat_interleave(_BLOCK)[:size].unsqueeze(1 - axis))
