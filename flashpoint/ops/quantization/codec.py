"""How cached vectors are written and read back: packed rows (spec 10.1), one codec per kind of cache."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashpoint.ops.quantization import reference

POISON = 0xFF
"""A byte that, all over a row, decodes to NaN in every format."""


@dataclass(frozen=True, slots=True)
class Codec:
    """A packed row format.

    encode: float [..., K] -> uint8 [..., bytes].
    decode: (uint8 [P, bytes], int64 index [...]) -> fp32 [..., K], the rows that the index names.
    """

    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Codecs:
    """The three formats: window latents, index keys, compressed entries."""

    window: Codec
    index: Codec
    entry: Codec


def _gathered(decode: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def decode_rows(rows: Tensor, index: Tensor) -> Tensor:
        values = decode(rows.index_select(0, index.flatten()))
        return values.view(*index.shape, values.shape[-1])

    return decode_rows


PLAIN = Codecs(
    window=Codec(reference.encode_window, _gathered(reference.decode_window)),
    index=Codec(reference.encode_index, _gathered(reference.decode_index)),
    entry=Codec(reference.encode_entry, _gathered(reference.decode_entry)),
)


def native_codecs(library: ctypes.CDLL) -> Codecs:
    """The same over the compiled kernels, to the bit."""
    return Codecs(
        window=_native(library, "window", reference.FP8_GROUP, reference.FP8_GROUP + 1),
        index=_native(library, "index", reference.INDEX_GROUP, reference.INDEX_GROUP // 2 + 1),
        entry=_native(library, "entry", reference.ENTRY_GROUP, reference.ENTRY_GROUP // 2 + 1),
    )


def _native(library: ctypes.CDLL, name: str, group: int, group_bytes: int) -> Codec:
    """The codec whose groups of `group` values take `group_bytes` bytes."""
    encoder = _kernel(library, f"flashpoint_encode_{name}", 2, 2)
    decoder = _kernel(library, f"flashpoint_decode_{name}", 3, 2)

    def encode(x: Tensor) -> Tensor:
        width = x.shape[-1]
        if width % group:
            raise ValueError(f"last dimension {width} is not a multiple of the group {group}")
        wide = x.float().contiguous()
        out = torch.empty(*x.shape[:-1], width // group * group_bytes, dtype=torch.uint8)
        encoder(wide.data_ptr(), out.data_ptr(), wide.numel() // width, width)
        return out

    def decode(rows: Tensor, index: Tensor) -> Tensor:
        if rows.dtype != torch.uint8 or not rows.is_contiguous() or rows.shape[-1] % group_bytes:
            raise ValueError(f"rows must be dense uint8 [rows, a multiple of {group_bytes}]")
        width = rows.shape[-1] // group_bytes * group
        wanted = index.contiguous()
        if wanted.numel() and not 0 <= int(wanted.min()) <= int(wanted.max()) < len(rows):
            raise IndexError(f"the index names rows outside 0 … {len(rows) - 1}")
        out = torch.empty(*index.shape, width, dtype=torch.float32)
        decoder(rows.data_ptr(), wanted.data_ptr(), out.data_ptr(), wanted.numel(), width)
        return out

    return Codec(encode, decode)


def _kernel(library: ctypes.CDLL, name: str, pointers: int, sizes: int) -> Any:
    kernel = getattr(library, name)
    kernel.restype = None
    kernel.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_int64] * sizes
    return kernel
