"""Stored forms of quantised weights (spec 3.1, 6.3), to and from floats.

Dense FP8:   E4M3 codes [N, K], one UE8M0 scale per 32x32 block, [ceil(N/32), ceil(K/32)].
MXFP4:       two E2M1 codes per int8 byte, low nibble first, [N, K/2]; a UE8M0 scale per row and 32 elements.
Table rows:  E4M3 codes [N, K], one UE8M0 scale per row and 32 elements.

UE8M0 byte e means 2^(e-127), and 255 is NaN; it is always read as a byte, never converted by value. Values
times powers of two are exact in bf16 and fp32, so dequantising to either loses nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashpoint.ops.quantization.reference import (
    FP4_MAX,
    FP8_MAX,
    pack_fp4,
    power_of_two_scale,
    value_e2m1,
)

BLOCK = 32
# Below these a block is all zeros for any purpose; the bounds keep the scale a normal fp32 number.
_FP8_AMAX_FLOOR = FP8_MAX * 2.0**-126
_FP4_AMAX_FLOOR = FP4_MAX * 2.0**-126

_SCALE_VALUES = torch.tensor([2.0 ** (byte - 127) for byte in range(255)] + [float("nan")])
_BYTES = torch.arange(256, dtype=torch.uint8)
_FP4_PAIRS = value_e2m1(torch.stack((_BYTES & 15, _BYTES >> 4), dim=-1))


def ue8m0_values(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes of type float8_e8m0fnu -> their powers of two; NaN for byte 255."""
    return _SCALE_VALUES.to(dtype)[scale.view(torch.uint8).int()]


def ue8m0_bytes(scale: Tensor) -> Tensor:
    """Positive normal fp32 powers of two -> float8_e8m0fnu."""
    return (scale.view(torch.int32) >> 23).to(torch.uint8).view(torch.float8_e8m0fnu)


def dequantize_fp8_blocks(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Dense FP8 -> dtype [N, K]."""
    rows, columns = codes.shape
    blocks = ue8m0_values(scale, dtype).repeat_interleave(BLOCK, dim=1)[:, :columns]
    return codes.to(dtype).mul_(blocks.repeat_interleave(BLOCK, dim=0)[:rows])


def dequantize_fp4_rows(packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """MXFP4 int8 [N, K/2] -> dtype [N, K]."""
    # A byte's two values are looked up as one integer of twice the width.
    pair_type = {torch.bfloat16: torch.int32, torch.float32: torch.int64}[dtype]
    pairs = _FP4_PAIRS.to(dtype).view(pair_type).squeeze(-1)
    values = pairs[packed.view(torch.uint8).int()].view(dtype)
    values.unflatten(-1, (-1, BLOCK)).mul_(ue8m0_values(scale, dtype).unsqueeze(-1))
    return values


def dequantize_fp8_rows(codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Table rows E4M3 [..., K] with scale [..., K/32] -> dtype [..., K]."""
    values = codes.to(dtype)
    values.unflatten(-1, (-1, BLOCK)).mul_(ue8m0_values(scale, dtype).unsqueeze(-1))
    return values


def quantize_fp8_blocks(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] -> dense FP8 (codes, scale); scale 2^ceil(log2(amax/448)) of each block."""
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.view(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    amax = blocks.abs().amax(dim=(1, 3)).clamp_(min=_FP8_AMAX_FLOOR)
    scale = power_of_two_scale(amax, 1.0 / FP8_MAX)
    codes = (blocks / scale[:, None, :, None]).clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return codes.view(padded.shape)[:rows, :columns].contiguous(), ue8m0_bytes(scale)


def quantize_fp4_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] -> MXFP4 (int8 [N, K/2], scale [N, K/32]); scale 2^ceil(log2(amax/6)). K a multiple of 32."""
    groups = weight.float().unflatten(-1, (-1, BLOCK))
    scale = power_of_two_scale(groups.abs().amax(-1).clamp_(min=_FP4_AMAX_FLOOR), 1.0 / FP4_MAX)
    codes = _e2m1_codes((groups / scale.unsqueeze(-1)).clamp_(-FP4_MAX, FP4_MAX)).flatten(-2)
    return pack_fp4(codes).view(torch.int8), ue8m0_bytes(scale)


def _e2m1_codes(x: Tensor) -> Tensor:
    """As `reference.round_e2m1`, by arithmetic: the grid's step is 0.5 below 2, 1 below 4, then 2."""
    size = x.abs()
    above = torch.where(size < 4, size.round().add_(2), (size * 0.5).round_().add_(4))
    codes = torch.where(size < 2, (size * 2).round_(), above).to(torch.uint8)
    return codes.add_(torch.signbit(x).to(torch.uint8), alpha=8)


def quantize_fp8_rows(table: Tensor) -> tuple[Tensor, Tensor]:
    """[N, K] -> table rows (codes, scale [N, K/32]); scale 2^ceil(log2(amax/448)). K a multiple of 32."""
    groups = table.float().unflatten(-1, (-1, BLOCK))
    scale = power_of_two_scale(groups.abs().amax(-1).clamp_(min=_FP8_AMAX_FLOOR), 1.0 / FP8_MAX)
    codes = (groups / scale.unsqueeze(-1)).clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return codes.flatten(-2), ue8m0_bytes(scale)
