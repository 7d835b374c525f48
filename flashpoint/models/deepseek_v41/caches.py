"""The model's state between steps, as tensors (groups of `cache_spec.py`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flashpoint.models.deepseek_v41.config import TextConfig


@dataclass(frozen=True, slots=True)
class Caches:
    """Pools by layer. Values are stored dequantised, in the run's dtype.

    entries, index_keys: [blocks · block_tokens / ratio, width], paged, for KV sources.
    windows: [slots · sliding_window, head_dim], rings, for every layer.
    tails: fp32 [slots, 2, head_dim], the waiting (kv, score) row of ratio-2 sources.
    """

    entries: dict[int, Tensor]
    index_keys: dict[int, Tensor]
    windows: list[Tensor]
    tails: dict[int, Tensor]

    def block_views(self, blocks: int) -> list[Tensor]:
        """The paged pools as uint8 views [blocks, bytes of one block in that pool], in a fixed order: what a
        tier copies. The bytes of a row over all views are the spec's `block_bytes`."""
        pools = [pool for group in (self.entries, self.index_keys) for _, pool in sorted(group.items())]
        return [pool.view(torch.uint8).view(blocks, -1) for pool in pools]


def allocate_caches(
    config: TextConfig, blocks: int, block_tokens: int, slots: int, dtype: torch.dtype, device: torch.device
) -> Caches:
    """Empty pools. They start as NaN: a read of what was never written shows at once."""

    def pool(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.full(shape, float("nan"), dtype=dtype, device=device)

    def entry_rows(layer: int) -> int:
        return blocks * block_tokens // config.compress_ratios[layer]

    sources = config.kv_source_layer_ids
    return Caches(
        entries={s: pool(entry_rows(s), config.head_dim) for s in sources},
        index_keys={s: pool(entry_rows(s), config.index_head_dim) for s in sources},
        windows=[
            pool(slots * config.sliding_window, config.head_dim) for _ in range(config.num_hidden_layers)
        ],
        tails={
            s: pool(slots, 2, config.head_dim, dtype=torch.float32)
            for s in sources
            if config.compress_ratios[s] == 2
        },
    )
