"""`config.json` of DeepSeek-V4.1-Flash, read strictly (spec section 1).

A field that asks for something this build does not compute is refused by name: a config that is silently
half-understood gives plausible, wrong text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flashpoint.errors import CheckpointError

# Written by tools around the model; they say nothing about what is computed.
_IRRELEVANT_TOP = {"architectures", "transformers_version", "torch_dtype", "auto_map", "_name_or_path"}
_IRRELEVANT_TEXT = {"use_cache", "initializer_range", "torch_dtype", "dtype", "transformers_version"}

Positive = Field(gt=0)


class _Strict(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )


class RopeScaling(_Strict):
    """YaRN numbers of the layers with a compression ratio above 0 (spec 3.3)."""

    rope_type: Literal["yarn"]
    factor: float = Field(ge=1)
    beta_fast: float = Field(gt=0)
    beta_slow: float = Field(gt=0)
    original_max_position_embeddings: int = Positive


class QuantizationConfig(_Strict):
    """The official stored form: FP8 32x32 with UE8M0 scales, MXFP4 routed experts (spec 3.1, 6.3)."""

    quant_method: Literal["fp8"]
    activation_scheme: Literal["dynamic"]
    weight_block_size: tuple[Literal[32], Literal[32]] = Field(strict=False)
    scale_fmt: Literal["ue8m0"]
    expert_dtype: Literal["fp4"]


class VisionConfig(_Strict):
    """Shapes of the vision tower. Only its tensors are listed; images are not computed by this build."""

    model_type: Literal["deepseek_v41_vision"] = "deepseek_v41_vision"
    num_hidden_layers: int = Positive
    hidden_size: int = Positive
    num_attention_heads: int = Positive
    intermediate_size: int = Positive
    patch_size: int = Positive
    rope_theta: float = Field(gt=0)
    downsample_ratio: int = Positive
    max_image_tokens: int = Positive
    min_pixels: int = Positive
    max_wh_ratio: float | None = None


class TextConfig(_Strict):
    """`text_config`: names and meanings of spec 1.1. `layer L` below counts from 0."""

    model_type: Literal["deepseek_v41_text"]
    vocab_size: int = Positive
    hidden_size: int = Positive
    num_hidden_layers: int = Positive
    num_attention_heads: int = Positive
    num_key_value_heads: Literal[1]
    head_dim: int = Field(gt=0, multiple_of=32)
    qk_rope_head_dim: int = Field(gt=0, multiple_of=2)
    q_lora_rank: int = Positive
    o_lora_rank: int = Positive
    o_groups: int = Positive
    sliding_window: int = Field(ge=2)
    compress_ratios: tuple[Literal[0, 1, 2], ...] = Field(strict=False)
    kv_source_layer_ids: tuple[int, ...] = Field(strict=False, min_length=1)
    index_source_layer_ids: tuple[int, ...] = Field(strict=False, min_length=1)
    candidate_source_layer_id: int
    candidate_topk_blocks: int = Positive
    candidate_block_size: int = Positive
    index_n_heads: int = Positive
    index_head_dim: int = Field(gt=0, multiple_of=32)
    index_topk: int = Positive
    rope_theta: float = Field(gt=0)
    compress_rope_theta: float = Field(gt=1)
    rope_scaling: RopeScaling
    max_position_embeddings: int = Positive
    rms_norm_eps: float = Field(gt=0)
    attention_bias: Literal[False] = False
    attention_dropout: float = Field(default=0.0, ge=0, le=0)
    hidden_act: Literal["silu"]
    swiglu_limit: float = Field(gt=0)
    moe_intermediate_size: int = Positive
    n_routed_experts: int = Positive
    n_shared_experts: Literal[1]
    num_experts_per_tok: int = Positive
    scoring_func: Literal["sqrtsoftplus"]
    topk_method: Literal["noaux_tc"]
    norm_topk_prob: Literal[True]
    routed_scaling_factor: float = Field(gt=0)
    gate_temp: float = Field(default=1.0, ge=1, le=1)
    hc_mult: Literal[4]
    hc_sinkhorn_iters: int = Field(gt=0, le=1000)
    hc_eps: float = Field(gt=0)
    engram_layer_ids: tuple[int, ...] = Field(strict=False)
    engram_num_embeddings: tuple[int, ...] = Field(strict=False)
    engram_max_ngram_size: int = Field(ge=2)
    engram_n_heads: int = Positive
    engram_head_dim: int = Field(gt=0, multiple_of=32)
    engram_vocab_size: int = Positive
    engram_compressed_vocab_size: int = Positive
    engram_pad_token_id: int = Field(ge=0)
    num_nextn_predict_layers: int = Field(ge=0)
    dspark_block_size: int | None = None
    dspark_noise_token_id: int | None = None
    dspark_target_layer_ids: tuple[int, ...] | None = Field(default=None, strict=False)
    dspark_markov_rank: int | None = None
    dspark_n_routed_experts: int | None = None
    dspark_num_experts_per_tok: int | None = None
    tie_word_embeddings: Literal[False] = False

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = [*_schedule_problems(self), *_width_problems(self), *_draft_problems(self)]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def kv_source_of(self) -> tuple[int | None, ...]:
        """Per backbone layer, the layer whose compressed entries it reads; None for window-only layers."""
        return _newest_preceding(self, self.kv_source_layer_ids)

    @property
    def index_source_of(self) -> tuple[int | None, ...]:
        """Per backbone layer, the layer whose selection it uses; None for window-only layers."""
        return _newest_preceding(self, self.index_source_layer_ids)

    @property
    def engram_slots(self) -> int:
        """Table rows looked up per token and Engram layer: n-gram sizes x heads (24 at release)."""
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads

    def layer_kind(self, layer: int) -> str:
        """`window`, `full`, `reindex` or `reuse` (spec 1.3)."""
        if self.compress_ratios[layer] == 0:
            return "window"
        if layer in self.kv_source_layer_ids:
            return "full"
        return "reindex" if layer in self.index_source_layer_ids else "reuse"


class ModelConfig(_Strict):
    """The whole `config.json`."""

    model_type: Literal["deepseek_v41"]
    dtype: Literal["bfloat16"] = "bfloat16"
    bos_token_id: int = Field(ge=0)
    eos_token_id: int = Field(ge=0)
    pad_token_id: int = Field(ge=0)
    image_token_id: int | None = None
    tie_word_embeddings: Literal[False] = False
    text_config: TextConfig
    vision_config: VisionConfig | None = None
    quantization_config: QuantizationConfig | None = None

    @model_validator(mode="after")
    def _ids_in_vocabulary(self) -> Self:
        vocab = self.text_config.vocab_size
        problems = [
            f"{name}: got {token}; expected an id from 0 to {vocab - 1}"
            for name in ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id")
            if (token := getattr(self, name)) is not None and not 0 <= token < vocab
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def text(self) -> TextConfig:
        """The language model's part."""
        return self.text_config

    @property
    def quantized(self) -> bool:
        """True when weights are stored in the official FP8 / MXFP4 form."""
        return self.quantization_config is not None


def _newest_preceding(config: TextConfig, sources: tuple[int, ...]) -> tuple[int | None, ...]:
    newest: int | None = None
    result: list[int | None] = []
    for layer in range(config.num_hidden_layers):
        if layer in sources:
            newest = layer
        result.append(newest if config.compress_ratios[layer] > 0 else None)
    return tuple(result)


def _schedule_problems(c: TextConfig) -> list[str]:
    layers = c.num_hidden_layers
    expected = layers + c.num_nextn_predict_layers
    if len(c.compress_ratios) != expected:
        return [
            f"compress_ratios: has {len(c.compress_ratios)} entries; expected {expected} "
            "(num_hidden_layers + num_nextn_predict_layers)"
        ]
    problems = []
    for name in ("kv_source_layer_ids", "index_source_layer_ids", "engram_layer_ids"):
        ids = getattr(c, name)
        if list(ids) != sorted(set(ids)) or any(not 0 <= i < layers for i in ids):
            problems.append(f"{name}: got {list(ids)}; expected ascending layers below {layers}")
    if problems:
        return problems
    for name in ("kv_source_layer_ids", "index_source_layer_ids"):
        problems += [
            f"{name}: layer {i} has compress_ratio 0; expected a layer with a ratio above 0"
            for i in getattr(c, name)
            if c.compress_ratios[i] == 0
        ]
    missing = sorted(set(c.kv_source_layer_ids) - set(c.index_source_layer_ids))
    if missing:
        problems.append(
            f"index_source_layer_ids: lacks the KV sources {missing}; a source must select from its own keys"
        )
    for layer, source in enumerate(c.kv_source_of):
        if c.compress_ratios[layer] and source is None:
            problems.append(f"kv_source_layer_ids: layer {layer} has a ratio but no source at or before it")
        elif source is not None and c.compress_ratios[layer] != c.compress_ratios[source]:
            problems.append(
                f"compress_ratios[{layer}]: got {c.compress_ratios[layer]}; expected "
                f"{c.compress_ratios[source]}, the ratio of its KV source {source}"
            )
    if c.candidate_source_layer_id != c.kv_source_layer_ids[-1]:
        problems.append(
            f"candidate_source_layer_id: got {c.candidate_source_layer_id}; expected the last KV source "
            f"{c.kv_source_layer_ids[-1]}"
        )
    draft_ratios = c.compress_ratios[layers:]
    if any(draft_ratios):
        problems.append(f"compress_ratios: draft layers have {list(draft_ratios)}; expected 0")
    if len(c.engram_num_embeddings) != len(c.engram_layer_ids):
        problems.append("engram_num_embeddings: expected one entry per engram_layer_ids")
    return problems


def _width_problems(c: TextConfig) -> list[str]:
    checks = [
        (c.qk_rope_head_dim <= c.head_dim, "qk_rope_head_dim: must not exceed head_dim"),
        (c.qk_rope_head_dim <= c.index_head_dim, "qk_rope_head_dim: must not exceed index_head_dim"),
        (c.num_attention_heads % c.o_groups == 0, "o_groups: must divide num_attention_heads"),
        (
            c.num_experts_per_tok <= c.n_routed_experts,
            "num_experts_per_tok: must not exceed n_routed_experts",
        ),
        (c.engram_pad_token_id < c.vocab_size, "engram_pad_token_id: must be below vocab_size"),
    ]
    return [message for holds, message in checks if not holds]


def _draft_problems(c: TextConfig) -> list[str]:
    if c.num_nextn_predict_layers == 0:
        return []
    needed = (
        "dspark_block_size",
        "dspark_noise_token_id",
        "dspark_target_layer_ids",
        "dspark_markov_rank",
        "dspark_n_routed_experts",
        "dspark_num_experts_per_tok",
    )
    missing = [f"{name}: missing; needed with draft layers" for name in needed if getattr(c, name) is None]
    if missing:
        return missing
    counts = (
        "dspark_block_size",
        "dspark_markov_rank",
        "dspark_n_routed_experts",
        "dspark_num_experts_per_tok",
    )
    problems = [f"{n}: got {getattr(c, n)}; expected at least 1" for n in counts if getattr(c, n) < 1]
    if not 0 <= (c.dspark_noise_token_id or 0) < c.vocab_size:
        problems.append(
            f"dspark_noise_token_id: got {c.dspark_noise_token_id}; expected an id of the vocabulary"
        )
    targets = c.dspark_target_layer_ids or ()
    if not targets or any(not 0 <= t < c.num_hidden_layers for t in targets):
        problems.append(
            f"dspark_target_layer_ids: got {list(targets)}; expected layers below {c.num_hidden_layers}"
        )
    return problems


def parse_config(raw: dict[str, Any], where: object = "config.json") -> ModelConfig:
    """Validate the parsed JSON of a `config.json`.

    Raises CheckpointError listing every field that is missing, malformed or asks for something not built.
    """
    data = {k: v for k, v in raw.items() if k not in _IRRELEVANT_TOP}
    text = data.get("text_config")
    if isinstance(text, dict):
        text = {k: v for k, v in text.items() if k not in _IRRELEVANT_TEXT}
        scaling = text.get("rope_scaling")
        if isinstance(scaling, dict) and "type" in scaling:
            # Both spellings are found in released files.
            text["rope_scaling"] = {**{k: v for k, v in scaling.items() if k != "type"}}
            if text["rope_scaling"].setdefault("rope_type", scaling["type"]) != scaling["type"]:
                both = f"type {scaling['type']!r} and rope_type {scaling['rope_type']!r}"
                raise CheckpointError(where, [f"text_config.rope_scaling: has {both}; expected one value"])
        data["text_config"] = text
    try:
        return ModelConfig.model_validate(data)
    except ValidationError as error:
        raise CheckpointError(where, [_describe(e) for e in error.errors()]) from None


def _describe(error: Any) -> str:
    field = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{field}: got {error['input']!r}; this build does not know the field"
    if error["type"] == "missing":
        return f"{field}: missing"
    if error["type"] == "value_error":
        return f"{field}: {error['ctx']['error']}"
    return f"{field}: got {error['input']!r}; {error['msg']}"


def load_config(folder: Path) -> ModelConfig:
    """Read `folder/config.json`. Raises CheckpointError when it is absent, not JSON or not usable."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(folder, ["config.json: missing"]) from None
    except OSError as error:
        raise CheckpointError(folder, [f"config.json: cannot be read ({error.strerror})"]) from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(folder, [f"config.json: not valid JSON ({error})"]) from None
    if not isinstance(raw, dict):
        raise CheckpointError(folder, ["config.json: expected a JSON object"])
    return parse_config(raw, path)
