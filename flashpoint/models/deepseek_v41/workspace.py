"""What a step takes in memory on top of weights and caches."""

from __future__ import annotations

from flashpoint.models.deepseek_v41.config import TextConfig

_FP32 = 4
# Rows of a tile's floats, in `ops/attention/cpu.py` and `ops/indexer/cpu.py`; each holds a few such tensors.
_TILE_BYTES = 4 << 20


def workspace_bytes(text: TextConfig, rows: int, sequences: int, context: int) -> int:
    """An upper bound of what a step of `rows` rows allocates.

    sequences: that run at once.  context: tokens of the longest one. Values are counted as fp32, the widest
    they are anywhere; what a sublayer needs is free again when the next one runs.
    """
    wide = max(rows, sequences)
    hidden, heads, width = text.hidden_size, text.num_attention_heads, text.head_dim
    keys = text.sliding_window + text.index_topk
    entries = context  # at ratio 1; half of them at ratio 2
    chosen = text.index_topk + text.candidate_topk_blocks
    candidates = text.candidate_topk_blocks * text.candidate_block_size
    # Stream before and after, the mixer's input, and the collapsed and normed input of a sublayer.
    streams = wide * (4 * 4 + 3) * hidden * _FP32
    tables = 2 * sequences * entries * 8
    attention = (
        # Queries: projected, rotated (twice, as complex numbers), attended, rotated back, grouped.
        wide * 7 * heads * width * _FP32
        + (wide + sequences * text.sliding_window) * (2 * width * _FP32 + keys * 16)
        + 4 * max(_TILE_BYTES, keys * (width + heads) * _FP32)
    )
    selection = (
        wide * (4 * text.index_n_heads * text.index_head_dim * _FP32 + 6 * chosen * 8)
        + 6 * max(_TILE_BYTES, entries * text.index_n_heads * _FP32)
        + (2 * entries + 4 * candidates) * text.index_head_dim * _FP32
    )
    routed = wide * (text.num_experts_per_tok + 1)
    experts = routed * (3 * hidden + 6 * text.moe_intermediate_size) * _FP32
    lookups = wide * text.engram_slots
    engram = lookups * (len(text.engram_layer_ids) * 4 * 8 + 3 * text.engram_head_dim * _FP32)
    logits = sequences * 4 * text.vocab_size * _FP32
    return streams + tables + max(attention + selection, experts, engram, logits)
