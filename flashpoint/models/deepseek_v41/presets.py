"""Configs of generated checkpoints: small in size, complete in kind.

Each has every layer kind of the released schedule, and shapes that exercise what toy shapes do not (spec
pitfall 27): contexts far longer than the window, more entries than the indexer selects, fewer candidates than
entries, 16 or more experts with 6 chosen, widths that are not multiples of 128, two or more indexers of each
kind.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flashpoint.models.deepseek_v41.config import ModelConfig, parse_config
from flashpoint.models.deepseek_v41.engram_hash import build_token_map, hash_primes
from flashpoint.models.deepseek_v41.preset_tokenizers import small_tokenizer, v4_tokenizer

PresetName = Literal["nano", "micro", "mini"]
StoredForm = Literal["bf16", "quantized"]


@dataclass(frozen=True, slots=True)
class Preset:
    """`text` holds what differs from the released text config; shards is the number of weight files."""

    name: PresetName
    form: StoredForm
    shards: int
    text: dict[str, Any]


PRESETS: dict[str, Preset] = {
    "nano": Preset(
        name="nano",
        form="bf16",
        shards=2,
        text={
            "vocab_size": 768,
            "hidden_size": 96,
            "moe_intermediate_size": 32,
            "num_hidden_layers": 9,
            "num_attention_heads": 4,
            "head_dim": 64,
            "qk_rope_head_dim": 32,
            "q_lora_rank": 32,
            "o_lora_rank": 32,
            "o_groups": 2,
            "max_position_embeddings": 65536,
            "original_max_position_embeddings": 4096,
            "n_routed_experts": 16,
            "sliding_window": 16,
            "compress_ratios": [0, 2, 2, 2, 1, 1, 1, 1, 1],
            "kv_source_layer_ids": [1, 3, 4],
            "index_source_layer_ids": [1, 3, 4, 6, 8],
            "candidate_source_layer_id": 4,
            "candidate_topk_blocks": 6,
            "candidate_block_size": 4,
            "index_n_heads": 8,
            "index_head_dim": 32,
            "index_topk": 16,
            "engram_layer_ids": [0, 3],
            "engram_vocab_size": 250,
            "engram_n_heads": 2,
            "engram_head_dim": 32,
        },
    ),
    "micro": Preset(
        name="micro",
        form="bf16",
        shards=4,
        text={
            "vocab_size": 1024,
            "hidden_size": 320,
            "moe_intermediate_size": 96,
            "num_hidden_layers": 12,
            "num_attention_heads": 8,
            "head_dim": 96,
            "qk_rope_head_dim": 32,
            "q_lora_rank": 160,
            "o_lora_rank": 96,
            "o_groups": 4,
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 8192,
            "n_routed_experts": 24,
            "sliding_window": 64,
            "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1],
            "kv_source_layer_ids": [2, 4, 6],
            "index_source_layer_ids": [2, 4, 6, 8, 10],
            "candidate_source_layer_id": 6,
            "candidate_topk_blocks": 24,
            "candidate_block_size": 8,
            "index_n_heads": 8,
            "index_head_dim": 64,
            "index_topk": 64,
            "engram_layer_ids": [1, 4],
            "engram_vocab_size": 2000,
            "engram_n_heads": 4,
            "engram_head_dim": 32,
        },
    ),
    "mini": Preset(
        name="mini",
        form="quantized",
        shards=6,
        text={
            "vocab_size": 129280,
            "hidden_size": 1056,
            "moe_intermediate_size": 416,
            "num_hidden_layers": 18,
            "num_attention_heads": 16,
            "head_dim": 160,
            "qk_rope_head_dim": 32,
            "q_lora_rank": 352,
            "o_lora_rank": 224,
            "o_groups": 4,
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 8192,
            "n_routed_experts": 40,
            "sliding_window": 128,
            "compress_ratios": [0, 0, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0],
            "kv_source_layer_ids": [2, 5, 9],
            "index_source_layer_ids": [2, 5, 9, 12, 15],
            "candidate_source_layer_id": 9,
            "candidate_topk_blocks": 64,
            "candidate_block_size": 8,
            "index_n_heads": 16,
            "index_head_dim": 96,
            "index_topk": 256,
            "engram_layer_ids": [1, 5],
            "engram_vocab_size": 120_000,
            "engram_n_heads": 8,
            "engram_head_dim": 64,
            "num_nextn_predict_layers": 1,
            "dspark_block_size": 5,
            "dspark_noise_token_id": 128799,
            "dspark_target_layer_ids": [15, 16, 17],
            "dspark_markov_rank": 96,
            "dspark_n_routed_experts": 16,
            "dspark_num_experts_per_tok": 3,
        },
    ),
}

_COMMON_TEXT: dict[str, Any] = {
    "model_type": "deepseek_v41_text",
    "num_key_value_heads": 1,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "rms_norm_eps": 1e-20,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "swiglu_limit": 10.0,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-06,
    "engram_max_ngram_size": 4,
    "engram_pad_token_id": 2,
    "num_nextn_predict_layers": 0,
    "tie_word_embeddings": False,
}

_QUANTIZATION: dict[str, Any] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}

_ROPE_FACTOR = 16


@dataclass(frozen=True, slots=True)
class PresetFiles:
    """A preset worked out: the validated config, and the text of `config.json` and `tokenizer.json`."""

    config: ModelConfig
    config_json: str
    tokenizer_json: str


def preset_files(preset: Preset, form: StoredForm) -> PresetFiles:
    """Config and tokenizer of a preset in a stored form.

    The Engram sizes follow from the tokenizer and the hash primes, as they do in the released checkpoint.
    """
    vocab_size = preset.text["vocab_size"]
    tokenizer_json = v4_tokenizer() if preset.name == "mini" else small_tokenizer(vocab_size)
    text = {**_COMMON_TEXT, **preset.text}
    text["rope_scaling"] = {
        "rope_type": "yarn",
        "factor": _ROPE_FACTOR,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": text.pop("original_max_position_embeddings"),
    }
    text["engram_compressed_vocab_size"] = _distinct_keys(tokenizer_json, vocab_size)
    text["engram_num_embeddings"] = [1] * len(text["engram_layer_ids"])
    raw: dict[str, Any] = {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "tie_word_embeddings": False,
        "text_config": text,
    }
    if form == "quantized":
        raw["quantization_config"] = _QUANTIZATION
    text["engram_num_embeddings"] = hash_primes(parse_config(raw).text).sum(axis=1).tolist()
    return PresetFiles(parse_config(raw), json.dumps(raw, indent=1) + "\n", tokenizer_json)


def _distinct_keys(tokenizer_json: str, vocab_size: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_text(tokenizer_json, encoding="utf-8")
        return int(build_token_map(path, vocab_size).max()) + 1
