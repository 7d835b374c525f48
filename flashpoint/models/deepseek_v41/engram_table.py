"""Tables of the n-gram memory, left memory-mapped in their stored form (spec 7.4 step 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from flashpoint.ops.quantization.weights import dequantize_fp8_rows


class StoredEngramTable:
    """Rows in the official form (E4M3 with UE8M0 scales) or BF16 (no scale), dequantised when gathered.

    codes [rows, width] and scale [rows, width/32] stay on the CPU, usually as views of a memory map; a
    look-up touches only the pages of its rows. Results are of dtype `compute` on `device`.
    """

    def __init__(
        self, codes: Tensor, scale: Tensor | None, compute: torch.dtype, device: torch.device | str
    ) -> None:
        self._codes = codes
        self._scale = scale
        self._compute = compute
        self._device = device

    def lookup(self, rows: Tensor) -> Tensor:
        """Rows int64 [tokens, slots] -> compute dtype [tokens, slots · width], in slot order."""
        wanted = rows.reshape(-1).cpu()
        codes = _gather(self._codes, wanted)
        if self._scale is None:
            values = codes.to(self._compute)
        else:
            values = dequantize_fp8_rows(codes, _gather(self._scale, wanted), self._compute)
        return values.view(rows.shape[0], rows.shape[1] * self._codes.shape[1]).to(self._device)


def _gather(table: Tensor, rows: Tensor) -> Tensor:
    # torch has no index_select for the 8-bit floats, so those rows are gathered as bytes.
    if table.dtype.itemsize > 1:
        return table.index_select(0, rows)
    return table.view(torch.uint8).index_select(0, rows).view(table.dtype)
