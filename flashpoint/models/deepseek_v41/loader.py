"""Fills `ModelWeights` from a checkpoint folder, tensor by tensor.

Backbone tensors are dequantised straight into their final place; the Engram tables stay memory-mapped. Draft
and vision tensors must be there and of the right form, but are not loaded: this build computes neither.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch
from torch import Tensor

from flashpoint.checkpoint.folder import CheckpointFolder, open_checkpoint
from flashpoint.checkpoint.progress import ByteProgress
from flashpoint.errors import CheckpointError
from flashpoint.models.deepseek_v41.config import ModelConfig
from flashpoint.models.deepseek_v41.engram_table import StoredEngramTable
from flashpoint.models.deepseek_v41.manifest import TensorSpec, manifest_problems, tensor_manifest
from flashpoint.models.deepseek_v41.weights import (
    Attention,
    Compressor,
    Engram,
    HyperConnection,
    Indexer,
    Layer,
    Linear,
    ModelWeights,
    MoE,
)
from flashpoint.ops.quantization.weights import dequantize_fp4_rows, dequantize_fp8_blocks

log = logging.getLogger(__name__)

_NOT_LOADED = ("drafts", "vision")
_SCAN_BYTES = 1 << 26


def load_weights(
    folder: Path,
    config: ModelConfig,
    compute: torch.dtype,
    device: torch.device | str = "cpu",
    progress: ByteProgress | None = None,
) -> ModelWeights:
    """Load the backbone in dtype `compute` (fp32 or bf16) onto `device`.

    Peak memory is the result plus the largest single tensor. Raises CheckpointError: before any weight is
    read, listing every damaged file and every missing, surplus, wrong-shape or wrong-dtype tensor; and after
    reading, listing every tensor that holds NaN or infinity.
    """
    checkpoint = open_checkpoint(folder)
    manifest = tensor_manifest(config)
    problems = manifest_problems(checkpoint, manifest)
    if problems:
        raise CheckpointError(folder, problems)
    skipped = sum(spec.part in _NOT_LOADED for spec in manifest.values())
    if skipped:
        log.info(
            "%s: %d draft and vision tensors are present and not loaded (not built yet)", folder, skipped
        )

    reader = _Reader(checkpoint, manifest, compute, device, progress)
    text = config.text
    weights = ModelWeights(
        embed=reader.tensor("embed.weight", compute),
        layers=tuple(_layer(reader, config, layer) for layer in range(text.num_hidden_layers)),
        norm=reader.tensor("norm.weight", torch.float32),
        head=reader.tensor("head.weight", torch.float32),
        compute=compute,
    )
    if reader.not_finite:
        raise CheckpointError(folder, [f"{name}: holds NaN or infinity" for name in reader.not_finite])
    return weights


def _layer(r: _Reader, config: ModelConfig, layer: int) -> Layer:
    text = config.text
    prefix = f"layers.{layer}."
    return Layer(
        attn_norm=r.tensor(f"{prefix}attn_norm.weight", torch.float32),
        ffn_norm=r.tensor(f"{prefix}ffn_norm.weight", torch.float32),
        hc_attn=_hyper_connection(r, f"{prefix}hc_attn_"),
        hc_ffn=_hyper_connection(r, f"{prefix}hc_ffn_"),
        attention=_attention(r, config, layer),
        moe=_moe(r, config, f"{prefix}ffn."),
        engram=_engram(r, f"{prefix}engram.") if layer in text.engram_layer_ids else None,
    )


def _hyper_connection(r: _Reader, prefix: str) -> HyperConnection:
    fn, base, scale = (r.tensor(prefix + name, torch.float32) for name in ("fn", "base", "scale"))
    return HyperConnection(fn=fn, base=base, scale=scale)


def _attention(r: _Reader, config: ModelConfig, layer: int) -> Attention:
    text = config.text
    prefix = f"layers.{layer}.attn."
    source = layer in text.kv_source_layer_ids
    wo_a = r.linear(f"{prefix}wo_a").weight
    return Attention(
        sink=r.tensor(f"{prefix}attn_sink", torch.float32),
        wq_a=r.linear(f"{prefix}wq_a"),
        q_norm=r.tensor(f"{prefix}q_norm.weight", torch.float32),
        wq_b=r.linear(f"{prefix}wq_b"),
        wkv=r.linear(f"{prefix}wkv"),
        kv_norm=r.tensor(f"{prefix}kv_norm.weight", torch.float32),
        wo_a=wo_a.view(text.o_groups, text.o_lora_rank, -1),
        wo_b=r.linear(f"{prefix}wo_b"),
        compressor=_compressor(r, f"{prefix}compressor.", text.compress_ratios[layer]) if source else None,
        indexer=_indexer(r, f"{prefix}indexer.", source) if layer in text.index_source_layer_ids else None,
    )


def _compressor(r: _Reader, prefix: str, ratio: int) -> Compressor:
    dtype = torch.float32 if ratio > 1 else r.compute
    return Compressor(
        wkv=r.tensor(f"{prefix}wkv.weight", dtype),
        wgate=r.tensor(f"{prefix}wgate.weight", dtype) if ratio > 1 else None,
        norm=r.tensor(f"{prefix}norm.weight", torch.float32),
    )


def _indexer(r: _Reader, prefix: str, source: bool) -> Indexer:
    return Indexer(
        wq_b=r.linear(f"{prefix}wq_b"),
        weights_proj=r.tensor(f"{prefix}weights_proj.weight", r.compute),
        wk=r.tensor(f"{prefix}wk.weight", r.compute) if source else None,
        k_norm=r.tensor(f"{prefix}k_norm.weight", torch.float32) if source else None,
    )


def _moe(r: _Reader, config: ModelConfig, prefix: str) -> MoE:
    text = config.text
    experts, hidden, width = text.n_routed_experts, text.hidden_size, text.moe_intermediate_size
    w13 = r.empty(experts, 2 * width, hidden)
    w2 = r.empty(experts, hidden, width)
    for expert in range(experts):
        name = f"{prefix}experts.{expert}."
        r.fill(w13[expert, :width], f"{name}w1")
        r.fill(w13[expert, width:], f"{name}w3")
        r.fill(w2[expert], f"{name}w2")
    shared_w13 = r.empty(2 * width, hidden)
    r.fill(shared_w13[:width], f"{prefix}shared_experts.w1")
    r.fill(shared_w13[width:], f"{prefix}shared_experts.w3")
    return MoE(
        gate=r.tensor(f"{prefix}gate.weight", torch.float32),
        bias=r.tensor(f"{prefix}gate.bias", torch.float32),
        w13=w13,
        w2=w2,
        quantized=config.quantized,
        shared_w13=Linear(shared_w13, config.quantized),
        shared_w2=r.linear(f"{prefix}shared_experts.w2"),
    )


def _engram(r: _Reader, prefix: str) -> Engram:
    return Engram(
        table=r.table(f"{prefix}embed"),
        wkv=r.linear(f"{prefix}wkv"),
        q_weight=r.tensor(f"{prefix}q_weight", torch.float32),
        k_weight=r.tensor(f"{prefix}k_weight", torch.float32),
    )


class _Reader:
    """Takes tensors out of the folder in the wanted dtype, noting those that are not finite."""

    def __init__(
        self,
        checkpoint: CheckpointFolder,
        manifest: dict[str, TensorSpec],
        compute: torch.dtype,
        device: torch.device | str,
        progress: ByteProgress | None,
    ) -> None:
        self.compute = compute
        self.not_finite: list[str] = []
        self._checkpoint = checkpoint
        self._manifest = manifest
        self._device = device
        self._progress = progress
        self._done = 0
        self._total = sum(spec.nbytes for spec in manifest.values() if spec.part not in _NOT_LOADED)

    def empty(self, *shape: int) -> Tensor:
        """Room for weights of the compute dtype."""
        return torch.empty(shape, dtype=self.compute, device=self._device)

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        """An unquantised tensor, copied out of the file."""
        target = torch.empty(self._manifest[name].shape, dtype=dtype, device=self._device)
        self._read(target, name)
        return target

    def linear(self, prefix: str) -> Linear:
        """A dense matrix in either stored form, in the compute dtype."""
        target = self.empty(*self._manifest[f"{prefix}.weight"].shape)
        self.fill(target, prefix)
        return Linear(target, quantized=f"{prefix}.scale" in self._manifest)

    def fill(self, target: Tensor, prefix: str) -> None:
        """Write `prefix.weight`, dequantised, into `target`."""
        name, scale_name = f"{prefix}.weight", f"{prefix}.scale"
        if scale_name not in self._manifest:
            self._read(target, name)
            return
        stored, scale = self._checkpoint.tensor(name), self._checkpoint.tensor(scale_name)
        dequantize = dequantize_fp4_rows if stored.dtype == torch.int8 else dequantize_fp8_blocks
        weight = dequantize(stored, scale, self.compute)
        if not _is_finite(weight):
            self.not_finite.append(scale_name if _has_nan_code(scale) else name)
        target.copy_(weight)
        self._advance(name, scale_name)

    def table(self, prefix: str) -> StoredEngramTable:
        """An Engram table left in the file; it is read once, in pieces, to see that all of it is finite."""
        name, scale_name = f"{prefix}.weight", f"{prefix}.scale"
        codes = self._checkpoint.tensor(name)
        scale = self._checkpoint.tensor(scale_name) if scale_name in self._manifest else None
        self._scan(name, codes)
        if scale is not None:
            self._scan(scale_name, scale)
        return StoredEngramTable(codes, scale, self.compute, self._device)

    def _scan(self, name: str, stored: Tensor) -> None:
        bad = False
        pieces = stored.reshape(-1).split(_SCAN_BYTES // stored.dtype.itemsize)
        for piece in pieces:
            bad = bad or (_has_nan_code(piece) if stored.dtype.itemsize == 1 else not _is_finite(piece))
            self._report(piece.nbytes)
        if bad:
            self.not_finite.append(name)

    def _read(self, target: Tensor, name: str) -> None:
        stored = self._checkpoint.tensor(name)
        if not _is_finite(stored):
            self.not_finite.append(name)
        target.copy_(stored)
        self._advance(name)

    def _advance(self, *names: str) -> None:
        for name in names:
            self._checkpoint.release(name)
        self._report(sum(self._manifest[name].nbytes for name in names))

    def _report(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)


def _is_finite(x: Tensor) -> bool:
    """Whether no element is NaN or infinite, without a mask as large as `x`."""
    low, high = torch.aminmax(x)
    return bool(torch.isfinite(low) & torch.isfinite(high))


def _has_nan_code(codes: Tensor) -> bool:
    """Whether E4M3 codes hold 0x7F or 0xFF, or UE8M0 bytes hold 0xFF."""
    if codes.dtype == torch.float8_e4m3fn and codes.view(torch.int8).max() == 0x7F:
        return True
    return bool(codes.view(torch.uint8).max() == 0xFF)
