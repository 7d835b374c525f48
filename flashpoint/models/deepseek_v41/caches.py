"""The model's state between steps, as tensors (groups of `cache_spec.py`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flashpoint.models.deepseek_v41.config import TextConfig
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.ops.quantization.codec import POISON, Codec, Codecs


class RowPool:
    """Vectors of one cache, read and written by row: packed codes in a quantised run, else the values.

    data: uint8 [rows, bytes] with a codec, dtype [rows, width] without.
    It starts as NaN: a read of what was never written shows at once.
    """

    def __init__(
        self, rows: int, width: int, dtype: torch.dtype, device: torch.device, codec: Codec | None
    ) -> None:
        self._codec = codec
        self._dtype = dtype
        if codec is None:
            self.data = torch.full((rows, width), float("nan"), dtype=dtype, device=device)
        else:
            packed = codec.encode(torch.zeros(1, width, device=device)).shape[1]
            self.data = torch.full((rows, packed), POISON, dtype=torch.uint8, device=device)

    def encode(self, values: Tensor) -> Tensor:
        """Float vectors [n, width] -> rows as they are stored."""
        return values if self._codec is None else self._codec.encode(values)

    def decode(self, rows: Tensor) -> Tensor:
        """Stored rows [n, …] -> the vectors they stand for, in the run's dtype."""
        return self._read(rows, torch.arange(len(rows), device=rows.device))

    def __getitem__(self, index: Tensor) -> Tensor:
        """The vectors of rows int64 [...]: [..., width] in the run's dtype."""
        return self._read(self.data, index)

    def __setitem__(self, index: Tensor, rows: Tensor) -> None:
        """Store encoded rows."""
        self.data[index] = rows

    def _read(self, rows: Tensor, index: Tensor) -> Tensor:
        if self._codec is None:
            return rows.index_select(0, index.flatten()).view(*index.shape, rows.shape[1])
        return self._codec.decode(rows, index).to(self._dtype)


@dataclass(frozen=True, slots=True)
class Caches:
    """Pools by layer.

    entries, index_keys: blocks · block_tokens / ratio rows, paged, for KV sources.
    windows: slots · sliding_window rows, rings, for every layer.
    tails: fp32 [slots, 2, head_dim], the waiting (kv, score) row of ratio-2 sources.
    """

    entries: dict[int, RowPool]
    index_keys: dict[int, RowPool]
    windows: list[RowPool]
    tails: dict[int, Tensor]

    def block_views(self, blocks: int) -> list[Tensor]:
        """The paged pools as uint8 views [blocks, bytes of one block in that pool], in a fixed order: what a
        tier copies. The bytes of a row over all views are the spec's `block_bytes`."""
        pools = [pool.data for group in (self.entries, self.index_keys) for _, pool in sorted(group.items())]
        return [pool.view(torch.uint8).view(blocks, -1) for pool in pools]


def allocate_caches(
    config: TextConfig,
    blocks: int,
    block_tokens: int,
    slots: int,
    numerics: Numerics,
    codecs: Codecs,
    device: torch.device,
) -> Caches:
    """Empty pools; `codecs` serve a quantised run."""

    def pool(rows: int, width: int, codec: Codec) -> RowPool:
        return RowPool(rows, width, numerics.dtype, device, codec if numerics.quantize else None)

    def entry_rows(layer: int) -> int:
        return blocks * block_tokens // config.compress_ratios[layer]

    sources = config.kv_source_layer_ids
    return Caches(
        entries={s: pool(entry_rows(s), config.head_dim, codecs.entry) for s in sources},
        index_keys={s: pool(entry_rows(s), config.index_head_dim, codecs.index) for s in sources},
        windows=[
            pool(slots * config.sliding_window, config.head_dim, codecs.window)
            for _ in range(config.num_hidden_layers)
        ],
        tails={
            s: torch.full((slots, 2, config.head_dim), float("nan"), dtype=torch.float32, device=device)
            for s in sources
            if config.compress_ratios[s] == 2
        },
    )
