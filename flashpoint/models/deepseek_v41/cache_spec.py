"""What the model keeps between steps (spec 10), as data for pools, scheduler and planners."""

from __future__ import annotations

from typing import Literal

from flashpoint.cache.spec import CacheGroup, CacheSpec
from flashpoint.models.deepseek_v41.config import TextConfig

EntryFormat = Literal["codes", "float32", "bfloat16"]
"""How cached vectors are stored: the official packed codes, or dequantised in a float type."""

_FLOAT_BYTES = {"float32": 4, "bfloat16": 2}


def cache_spec(config: TextConfig, entry_format: EntryFormat) -> CacheSpec:
    """Groups of the backbone.

    `global_rN`, `index_keys_rN`: compressed entries and their index keys, one group per compression ratio N,
    shared by prefix.  `window`: the last `sliding_window` latents of every layer, rebuilt after a prefix hit
    by recomputing that many tokens (spec 2.4).  `compressor_tail`: the token that waits for its partner at
    each ratio-2 source, one fp32 (kv, score) row; empty at any block boundary.  `engram_history`: previous
    token ids.

    In codes at released widths an entry is 288 bytes, an index key 68 and a window latent 528 (spec 10.1).
    """
    sources: dict[int, tuple[int, ...]] = {}
    for layer in config.kv_source_layer_ids:
        ratio = config.compress_ratios[layer]
        sources[ratio] = (*sources.get(ratio, ()), layer)
    paged = [
        CacheGroup(name, "paged", layers, size, tokens_per_entry=ratio, prefix_cacheable=True)
        for ratio, layers in sorted(sources.items(), reverse=True)
        for name, size in (
            (f"global_r{ratio}", entry_bytes(config.head_dim, entry_format)),
            (f"index_keys_r{ratio}", index_key_bytes(config.index_head_dim, entry_format)),
        )
    ]
    window = CacheGroup(
        "window",
        "ring",
        tuple(range(config.num_hidden_layers)),
        window_bytes(config.head_dim, entry_format),
        entries=config.sliding_window,
        replay_tokens=config.sliding_window,
    )
    groups = [*paged, window]
    if 2 in sources:
        tail_bytes = 2 * config.head_dim * _FLOAT_BYTES["float32"]
        groups.append(CacheGroup("compressor_tail", "tail", sources[2], tail_bytes, entries=1))
    if config.engram_layer_ids:
        look_back = config.engram_max_ngram_size - 1
        groups.append(CacheGroup("engram_history", "history", config.engram_layer_ids, 0, entries=look_back))
    return CacheSpec(tuple(groups), prefill_tail=config.sliding_window)


def entry_bytes(width: int, entry_format: EntryFormat) -> int:
    """FP4 codes and one E4M3 scale per 16."""
    return width // 2 + width // 16 if entry_format == "codes" else width * _FLOAT_BYTES[entry_format]


def index_key_bytes(width: int, entry_format: EntryFormat) -> int:
    """FP4 codes and one UE8M0 scale per 32."""
    return width // 2 + width // 32 if entry_format == "codes" else width * _FLOAT_BYTES[entry_format]


def window_bytes(width: int, entry_format: EntryFormat) -> int:
    """E4M3 codes and one UE8M0 scale per 32."""
    return width + width // 32 if entry_format == "codes" else width * _FLOAT_BYTES[entry_format]
