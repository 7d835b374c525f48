"""Every tensor a checkpoint of a given config must hold (spec 11): name, shape, dtype, part."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from flashpoint.checkpoint.folder import CheckpointFolder
from flashpoint.checkpoint.header import tensor_bytes
from flashpoint.errors import CheckpointError
from flashpoint.models.deepseek_v41.config import ModelConfig, TextConfig, VisionConfig

BLOCK = 32

Part = Literal[
    "embedding and head",
    "norms",
    "attention",
    "compressors",
    "indexers",
    "routed experts",
    "shared experts",
    "routers",
    "hyper-connections",
    "engram tables",
    "engram projections",
    "drafts",
    "vision",
]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of the manifest: shape in the stored form, dtype as safetensors codes it."""

    shape: tuple[int, ...]
    dtype: str
    part: Part

    @property
    def nbytes(self) -> int:
        """Stored bytes."""
        return tensor_bytes(self.dtype, self.shape)

    @property
    def parameters(self) -> int:
        """Weights it stands for: two per byte of packed FP4, none for a quantisation scale."""
        if self.dtype == "F8_E8M0":
            return 0
        return math.prod(self.shape) * (2 if self.dtype == "I8" else 1)


def tensor_manifest(config: ModelConfig) -> dict[str, TensorSpec]:
    """Name -> spec of every tensor, in the order of the forward pass; drafts and vision come last.

    The form follows `quantization_config`: absent means BF16 throughout, except the tensors that are F32 in
    either form (sinks, router biases, hyper-connections). Raises CheckpointError when the quantised form
    cannot hold the widths.
    """
    builder = _Builder(config)
    text = config.text
    builder.plain("embed.weight", (text.vocab_size, text.hidden_size), "embedding and head")
    for layer in range(text.num_hidden_layers):
        _block(builder, f"layers.{layer}.", text.n_routed_experts)
        _layer_extras(builder, f"layers.{layer}.", layer)
    builder.plain("norm.weight", (text.hidden_size,), "embedding and head")
    builder.plain("head.weight", (text.vocab_size, text.hidden_size), "embedding and head")
    for stage in range(text.num_nextn_predict_layers):
        _draft_stage(builder, stage)
    if config.vision_config is not None:
        _vision(builder, config.vision_config, text.hidden_size)
    if builder.problems:
        raise CheckpointError("config.json", builder.problems)
    return builder.tensors


def manifest_problems(folder: CheckpointFolder, manifest: dict[str, TensorSpec]) -> list[str]:
    """Every tensor that is missing, surplus, or of another shape or dtype than the manifest says."""
    problems = []
    for name, spec in manifest.items():
        entry = folder.entries.get(name)
        if entry is None:
            problems.append(f"{name}: missing; expected {spec.dtype} {list(spec.shape)}")
            continue
        if entry.shape != spec.shape:
            problems.append(f"{name}: has shape {list(entry.shape)}; expected {list(spec.shape)}")
        if entry.dtype != spec.dtype:
            problems.append(f"{name}: has dtype {entry.dtype}; expected {spec.dtype}")
    problems += [
        f"{name}: surplus; the config asks for no such tensor"
        for name in folder.entries
        if name not in manifest
    ]
    return problems


class _Builder:
    """Collects specs; `linear` and `expert` choose the stored form."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.tensors: dict[str, TensorSpec] = {}
        self.problems: list[str] = []

    def plain(self, name: str, shape: tuple[int, ...], part: Part, dtype: str = "BF16") -> None:
        self.tensors[name] = TensorSpec(shape, dtype, part)

    def linear(self, prefix: str, out: int, width: int, part: Part) -> None:
        """Dense matrix: FP8 with a scale per 32x32 block, or BF16."""
        if not self.config.quantized:
            self.plain(f"{prefix}.weight", (out, width), part)
            return
        self._check_groups(prefix, width)
        self.plain(f"{prefix}.weight", (out, width), part, "F8_E4M3")
        self.plain(f"{prefix}.scale", (-(-out // BLOCK), -(-width // BLOCK)), part, "F8_E8M0")

    def expert(self, prefix: str, out: int, width: int, part: Part) -> None:
        """Routed expert matrix: packed FP4 with a scale per row and 32 elements, or BF16."""
        if not self.config.quantized:
            self.plain(f"{prefix}.weight", (out, width), part)
            return
        self._check_groups(prefix, width)
        self.plain(f"{prefix}.weight", (out, width // 2), part, "I8")
        self.plain(f"{prefix}.scale", (out, width // BLOCK), part, "F8_E8M0")

    def table(self, prefix: str, rows: int, width: int, part: Part) -> None:
        """Engram table: FP8 with a scale per 32 elements of a row, or BF16."""
        if not self.config.quantized:
            self.plain(f"{prefix}.weight", (rows, width), part)
            return
        self.plain(f"{prefix}.weight", (rows, width), part, "F8_E4M3")
        self.plain(f"{prefix}.scale", (rows, width // BLOCK), part, "F8_E8M0")

    def _check_groups(self, prefix: str, width: int) -> None:
        # Activations are quantised in groups of 32 along the input as well, for dense and expert matrices.
        if width % BLOCK:
            self.problems.append(
                f"{prefix}: input width {width}; expected a multiple of {BLOCK} in the quantised form"
            )


def _block(b: _Builder, prefix: str, experts: int, part: Part | None = None) -> None:
    """The tensors every block has (spec 11.2). A `part` given replaces the parts of the single tensors."""
    c = b.config.text
    hidden, width = c.hidden_size, c.moe_intermediate_size
    head_width = c.num_attention_heads * c.head_dim
    for name in ("attn_norm", "ffn_norm"):
        b.plain(f"{prefix}{name}.weight", (hidden,), part or "norms")
    mixes = (2 + c.hc_mult) * c.hc_mult
    for name in ("attn", "ffn"):
        hc: Part = part or "hyper-connections"
        b.plain(f"{prefix}hc_{name}_fn", (mixes, c.hc_mult * hidden), hc, "F32")
        b.plain(f"{prefix}hc_{name}_base", (mixes,), hc, "F32")
        b.plain(f"{prefix}hc_{name}_scale", (3,), hc, "F32")

    attention: Part = part or "attention"
    b.plain(f"{prefix}attn.attn_sink", (c.num_attention_heads,), attention, "F32")
    b.linear(f"{prefix}attn.wq_a", c.q_lora_rank, hidden, attention)
    b.plain(f"{prefix}attn.q_norm.weight", (c.q_lora_rank,), attention)
    b.linear(f"{prefix}attn.wq_b", head_width, c.q_lora_rank, attention)
    b.linear(f"{prefix}attn.wkv", c.head_dim, hidden, attention)
    b.plain(f"{prefix}attn.kv_norm.weight", (c.head_dim,), attention)
    b.linear(f"{prefix}attn.wo_a", c.o_groups * c.o_lora_rank, head_width // c.o_groups, attention)
    b.linear(f"{prefix}attn.wo_b", hidden, c.o_groups * c.o_lora_rank, attention)

    router: Part = part or "routers"
    b.plain(f"{prefix}ffn.gate.weight", (experts, hidden), router)
    b.plain(f"{prefix}ffn.gate.bias", (experts,), router, "F32")
    if b.config.vision_config is not None:
        b.plain(f"{prefix}ffn.gate.bias_vl", (experts,), router, "F32")
    shapes = {"w1": (width, hidden), "w2": (hidden, width), "w3": (width, hidden)}
    for expert in range(experts):
        for name, (out, into) in shapes.items():
            b.expert(f"{prefix}ffn.experts.{expert}.{name}", out, into, part or "routed experts")
    for name, (out, into) in shapes.items():
        b.linear(f"{prefix}ffn.shared_experts.{name}", out, into, part or "shared experts")


def _layer_extras(b: _Builder, prefix: str, layer: int) -> None:
    """Compressor, indexer and Engram of the layers that have them (spec 11.3)."""
    c = b.config.text
    source = layer in c.kv_source_layer_ids
    if source:
        b.plain(f"{prefix}attn.compressor.wkv.weight", (c.head_dim, c.hidden_size), "compressors")
        if c.compress_ratios[layer] > 1:
            b.plain(f"{prefix}attn.compressor.wgate.weight", (c.head_dim, c.hidden_size), "compressors")
        b.plain(f"{prefix}attn.compressor.norm.weight", (c.head_dim,), "compressors")
    if layer in c.index_source_layer_ids:
        b.linear(f"{prefix}attn.indexer.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank, "indexers")
        b.plain(f"{prefix}attn.indexer.weights_proj.weight", (c.index_n_heads, c.hidden_size), "indexers")
        if source:
            b.plain(f"{prefix}attn.indexer.wk.weight", (c.index_head_dim, c.head_dim), "indexers")
            b.plain(f"{prefix}attn.indexer.k_norm.weight", (c.index_head_dim,), "indexers")
    if layer in c.engram_layer_ids:
        rows = c.engram_num_embeddings[c.engram_layer_ids.index(layer)]
        b.table(f"{prefix}engram.embed", rows, c.engram_head_dim, "engram tables")
        out = (c.hc_mult + 1) * c.hidden_size
        b.linear(f"{prefix}engram.wkv", out, c.engram_slots * c.engram_head_dim, "engram projections")
        for name in ("q_weight", "k_weight"):
            b.plain(f"{prefix}engram.{name}", (c.hc_mult, c.hidden_size), "engram projections")


def _draft_stage(b: _Builder, stage: int) -> None:
    """One draft block; the first holds the input projection, the last the heads (spec 11.4)."""
    c = b.config.text
    draft = _draft_sizes(c)
    prefix = f"mtp.{stage}."
    _block(b, prefix, draft.experts, "drafts")
    if stage == 0:
        b.linear(f"{prefix}main_proj", c.hidden_size, draft.taps * c.hidden_size, "drafts")
        b.plain(f"{prefix}main_norm.weight", (c.hidden_size,), "drafts")
    if stage == c.num_nextn_predict_layers - 1:
        b.plain(f"{prefix}norm.weight", (c.hidden_size,), "drafts")
        for name in ("embed", "head"):
            b.plain(f"{prefix}markov_head.{name}.weight", (c.vocab_size, draft.markov_rank), "drafts")
        b.plain(f"{prefix}confidence_head.proj.weight", (1, c.hidden_size + draft.markov_rank), "drafts")


@dataclass(frozen=True, slots=True)
class _DraftSizes:
    experts: int
    taps: int
    markov_rank: int


def _draft_sizes(c: TextConfig) -> _DraftSizes:
    experts, taps, rank = c.dspark_n_routed_experts, c.dspark_target_layer_ids, c.dspark_markov_rank
    if experts is None or taps is None or rank is None:
        raise CheckpointError("config.json", ["dspark_*: missing; needed with draft layers"])
    return _DraftSizes(experts, len(taps), rank)


def _vision(b: _Builder, v: VisionConfig, hidden: int) -> None:
    """Tower, aligner and the delimiter vectors (spec 11.1, 11.5)."""
    shapes: dict[str, tuple[int, ...]] = {
        "vision.patch_embed.proj.weight": (v.hidden_size, 3 * v.patch_size**2),
        "vision.patch_embed.proj.bias": (v.hidden_size,),
        "vision.norm.weight": (v.hidden_size,),
        "aligner.w1.weight": (hidden, v.hidden_size * v.downsample_ratio**2),
        "aligner.w1.bias": (hidden,),
        "aligner.w2.weight": (hidden, hidden),
        "aligner.w2.bias": (hidden,),
        "image_start": (hidden,),
        "image_end": (hidden,),
        "image_newline": (hidden,),
    }
    for block in range(v.num_hidden_layers):
        prefix = f"vision.blocks.{block}."
        shapes |= {
            f"{prefix}norm1.weight": (v.hidden_size,),
            f"{prefix}norm2.weight": (v.hidden_size,),
            f"{prefix}attn.wqkv.weight": (3 * v.hidden_size, v.hidden_size),
            f"{prefix}attn.wqkv.bias": (3 * v.hidden_size,),
            f"{prefix}attn.wo.weight": (v.hidden_size, v.hidden_size),
            f"{prefix}attn.wo.bias": (v.hidden_size,),
            f"{prefix}mlp.w1.weight": (2 * v.intermediate_size, v.hidden_size),
            f"{prefix}mlp.w2.weight": (v.hidden_size, v.intermediate_size),
        }
    for name, shape in shapes.items():
        b.plain(name, shape, "vision")
