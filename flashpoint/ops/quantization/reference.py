"""Group quantisation as the model was trained with (spec 3.1, 3.2 step 6, 3.5 step 3, 4.1).

Each `quantize_*` returns (codes, scale); `dequantize_*` undoes it exactly in fp32; `*_qdq` is the two in a
row, in the input's dtype. Groups run along the last dimension, whose size must be a multiple of the group.

`encode_*` gives the same as packed rows, as caches hold them (spec 10.1): a row's codes, then its scales;
`decode_*` reads rows of fp32 back. decode(encode(x)) is `*_qdq(x)` to the bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

FP8_MAX = 448.0
FP8_GROUP = 32
FP4_MAX = 6.0
INDEX_GROUP = 32
ENTRY_GROUP = 16

_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
# Midpoints between neighbouring codes; a value on a midpoint goes to the even code.
_E2M1_MIDPOINTS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
_ODD_BELOW = torch.tensor([False, True, False, True, False, True, False])


def power_of_two_scale(amax: Tensor, reciprocal_max: float) -> Tensor:
    """2^ceil(log2(amax · reciprocal_max)) for positive fp32 `amax`, from the exponent bits; NaN for what is
    not finite."""
    bits = (amax.float() * torch.tensor(reciprocal_max, dtype=torch.float32)).view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32).masked_fill(~amax.isfinite(), float("nan"))


def _groups(x: Tensor, size: int) -> Tensor:
    return x.float().unflatten(-1, (-1, size))


def quantize_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., K] -> (codes e4m3 [..., K], scale fp32 powers of two [..., K/32]) (spec 3.1)."""
    groups = _groups(x, FP8_GROUP)
    scale = power_of_two_scale(groups.abs().amax(-1).clamp(min=1e-4), 1.0 / FP8_MAX)
    codes = (groups / scale.unsqueeze(-1)).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return codes.flatten(-2), scale


def dequantize_fp8(codes: Tensor, scale: Tensor) -> Tensor:
    """(codes e4m3 [..., K], scale [..., K/32]) -> fp32 [..., K]."""
    return (_groups(codes, FP8_GROUP) * scale.float().unsqueeze(-1)).flatten(-2)


def round_e2m1(x: Tensor) -> Tensor:
    """fp32 in [-6, 6] -> E2M1 codes uint8 0 … 15 (bit 3 is the sign), ties to the even code (spec 0.2)."""
    magnitude = x.abs().contiguous()
    code = torch.bucketize(magnitude, _E2M1_MIDPOINTS)  # x <= midpoint stays below
    tie = (code < 7) & (magnitude == _E2M1_MIDPOINTS[code.clamp(max=6)]) & _ODD_BELOW[code.clamp(max=6)]
    code = code + tie.to(code.dtype)
    return (code | (torch.signbit(x).to(code.dtype) << 3)).to(torch.uint8)


def value_e2m1(codes: Tensor) -> Tensor:
    """E2M1 codes -> fp32."""
    magnitude = _E2M1[(codes & 7).long()]
    return torch.where(codes >= 8, -magnitude, magnitude)


def pack_fp4(codes: Tensor) -> Tensor:
    """Codes [..., K] -> bytes [..., K/2]; the low nibble holds the even element."""
    pairs = codes.unflatten(-1, (-1, 2))
    return pairs[..., 0] | (pairs[..., 1] << 4)


def unpack_fp4(packed: Tensor) -> Tensor:
    """Bytes [..., K/2] -> codes [..., K]."""
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def quantize_index(x: Tensor) -> tuple[Tensor, Tensor]:
    """Index keys and queries: x [..., K] -> (E2M1 codes [..., K], power-of-two scale [..., K/32]) (4.1)."""
    groups = _groups(x, INDEX_GROUP)
    scale = power_of_two_scale(groups.abs().amax(-1).clamp(min=FP4_MAX * 2.0**-126), 1.0 / FP4_MAX)
    codes = round_e2m1((groups / scale.unsqueeze(-1)).clamp(-FP4_MAX, FP4_MAX))
    return codes.flatten(-2), scale


def quantize_entry(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compressed KV: x [..., K] -> (E2M1 codes [..., K], e4m3 scale [..., K/16]) (spec 3.5 step 3)."""
    groups = _groups(x, ENTRY_GROUP)
    amax = groups.abs().amax(-1).clamp(min=FP4_MAX * 2.0**-9)
    scale = (amax / FP4_MAX).clamp(max=FP8_MAX).masked_fill(~amax.isfinite(), float("nan"))
    scale = scale.to(torch.float8_e4m3fn)
    codes = round_e2m1((groups / scale.float().unsqueeze(-1)).clamp(-FP4_MAX, FP4_MAX))
    return codes.flatten(-2), scale


def dequantize_fp4(codes: Tensor, scale: Tensor) -> Tensor:
    """(E2M1 codes [..., K], scale [..., groups]) -> fp32 [..., K]; the group size follows from the shapes."""
    group = codes.shape[-1] // scale.shape[-1]
    return (value_e2m1(codes).unflatten(-1, (-1, group)) * scale.float().unsqueeze(-1)).flatten(-2)


def fp8_qdq(x: Tensor) -> Tensor:
    """Quantise to FP8 groups of 32 and back, in x's dtype."""
    return dequantize_fp8(*quantize_fp8(x)).to(x.dtype)


def index_qdq(x: Tensor) -> Tensor:
    """Quantise as index keys are stored and back, in x's dtype."""
    return dequantize_fp4(*quantize_index(x)).to(x.dtype)


def entry_qdq(x: Tensor) -> Tensor:
    """Quantise as compressed KV is stored and back, in x's dtype."""
    return dequantize_fp4(*quantize_entry(x)).to(x.dtype)


def encode_window(x: Tensor) -> Tensor:
    """fp32 [..., K] -> uint8 [..., K + K/32]: E4M3 codes, then one UE8M0 exponent per 32."""
    codes, scale = quantize_fp8(x)
    return torch.cat((codes.view(torch.uint8), _exponent_bytes(scale)), dim=-1)


def decode_window(rows: Tensor) -> Tensor:
    """Undo `encode_window`: uint8 [..., bytes] -> fp32 [..., K]."""
    width = rows.shape[-1] * FP8_GROUP // (FP8_GROUP + 1)
    codes = rows[..., :width].contiguous().view(torch.float8_e4m3fn)
    return dequantize_fp8(codes, _scale_of_exponent(rows[..., width:]))


def encode_index(x: Tensor) -> Tensor:
    """fp32 [..., K] -> uint8 [..., K/2 + K/32]: E2M1 codes, then one UE8M0 exponent per 32."""
    codes, scale = quantize_index(x)
    return torch.cat((pack_fp4(codes), _exponent_bytes(scale)), dim=-1)


def decode_index(rows: Tensor) -> Tensor:
    """Undo `encode_index`: uint8 [..., bytes] -> fp32 [..., K]."""
    packed = rows.shape[-1] * INDEX_GROUP // (INDEX_GROUP + 2)
    return dequantize_fp4(unpack_fp4(rows[..., :packed]), _scale_of_exponent(rows[..., packed:]))


def encode_entry(x: Tensor) -> Tensor:
    """fp32 [..., K] -> uint8 [..., K/2 + K/16]: E2M1 codes, then one E4M3 scale per 16."""
    codes, scale = quantize_entry(x)
    return torch.cat((pack_fp4(codes), scale.view(torch.uint8)), dim=-1)


def decode_entry(rows: Tensor) -> Tensor:
    """Undo `encode_entry`: uint8 [..., bytes] -> fp32 [..., K]."""
    packed = rows.shape[-1] * ENTRY_GROUP // (ENTRY_GROUP + 2)
    scale = rows[..., packed:].contiguous().view(torch.float8_e4m3fn)
    return dequantize_fp4(unpack_fp4(rows[..., :packed]), scale)


def _exponent_bytes(scale: Tensor) -> Tensor:
    """Powers of two fp32 -> UE8M0 bytes; NaN becomes 0xFF, which stands for it."""
    return ((scale.view(torch.int32) >> 23) & 0xFF).to(torch.uint8)


def _scale_of_exponent(exponents: Tensor) -> Tensor:
    """UE8M0 bytes -> fp32."""
    scale = (exponents.to(torch.int32) << 23).view(torch.float32)
    return scale.masked_fill(exponents == 0xFF, float("nan"))
