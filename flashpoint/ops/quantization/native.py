"""Quantise-dequantise by C++ loops over groups; bit-identical to `reference.py`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flashpoint.ops.quantization.reference import FP8_GROUP, INDEX_GROUP


def native_qdq(library: ctypes.CDLL) -> tuple[Callable[[Tensor], Tensor], ...]:
    """(fp8_qdq, index_qdq) over the compiled kernels."""
    return (
        _over_groups(library.flashpoint_fp8_qdq, FP8_GROUP),
        _over_groups(library.flashpoint_index_qdq, INDEX_GROUP),
    )


def _over_groups(kernel: Any, group: int) -> Callable[[Tensor], Tensor]:
    kernel.restype = None
    kernel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]

    def qdq(x: Tensor) -> Tensor:
        if x.shape[-1] % group:
            raise ValueError(f"last dimension {x.shape[-1]} is not a multiple of the group {group}")
        wide = x.float().contiguous()
        out = torch.empty_like(wide)
        kernel(wide.data_ptr(), out.data_ptr(), wide.numel() // group)
        return out.to(x.dtype)

    return qdq
