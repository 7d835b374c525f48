import pytest
import torch

from flashpoint.ops.quantization.reference import dequantize_fp4, round_e2m1, unpack_fp4
from flashpoint.ops.quantization.weights import (
    dequantize_fp4_rows,
    dequantize_fp8_blocks,
    dequantize_fp8_rows,
    quantize_fp4_rows,
    quantize_fp8_blocks,
    quantize_fp8_rows,
    ue8m0_bytes,
    ue8m0_values,
)
from tests.golden_data import units

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_golden_weights_dequantise_exactly(dtype: torch.dtype) -> None:
    u = units()
    fp8 = dequantize_fp8_blocks(u["fp8_weight.q"], u["fp8_weight.scale"], dtype)
    fp4 = dequantize_fp4_rows(u["fp4_weight.packed"], u["fp4_weight.scale"], dtype)
    assert fp8.dtype == fp4.dtype == dtype
    assert torch.equal(fp8.float(), u["fp8_weight.dq"])
    assert torch.equal(fp4.float(), u["fp4_weight.dq"])


def test_golden_weights_quantise_to_the_same_codes() -> None:
    u = units()
    codes, scale = quantize_fp8_blocks(u["fp8_weight.w"])
    assert torch.equal(codes.view(torch.uint8), u["fp8_weight.q"].view(torch.uint8))
    assert torch.equal(scale.view(torch.uint8), u["fp8_weight.scale"].view(torch.uint8))


@pytest.mark.parametrize("shape", [(32, 32), (48, 96), (1, 32), (70, 33), (100, 160)])
def test_fp8_blocks_of_any_shape_survive_a_round_trip(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(shape, generator=generator) * torch.exp(
        3 * torch.randn(shape[0], 1, generator=generator)
    )
    codes, scale = quantize_fp8_blocks(weight)
    assert scale.shape == (-(-shape[0] // 32), -(-shape[1] // 32))
    once = dequantize_fp8_blocks(codes, scale, torch.float32)
    largest = torch.nn.functional.pad(weight, (0, -shape[1] % 32, 0, -shape[0] % 32)).abs()
    largest = largest.unflatten(0, (-1, 32)).unflatten(2, (-1, 32)).amax((1, 3))
    largest = largest.repeat_interleave(32, 0).repeat_interleave(32, 1)[: shape[0], : shape[1]]
    assert ((once - weight).abs() <= weight.abs() / 16 + largest * 2.0**-15).all()
    again = dequantize_fp8_blocks(*quantize_fp8_blocks(once), torch.float32)
    assert torch.equal(again, once)
    assert torch.equal(dequantize_fp8_blocks(codes, scale, torch.bfloat16).float(), once)


def test_fp4_rows_survive_a_round_trip() -> None:
    weight = torch.randn(33, 96, generator=torch.Generator().manual_seed(4)) * 0.02
    packed, scale = quantize_fp4_rows(weight)
    assert packed.dtype == torch.int8 and packed.shape == (33, 48) and scale.shape == (33, 3)
    once = dequantize_fp4_rows(packed, scale, torch.float32)
    group_max = weight.unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True)
    assert ((once - weight).unflatten(-1, (-1, 32)).abs() <= group_max / 3 + 1e-9).all()
    assert torch.equal(dequantize_fp4_rows(*quantize_fp4_rows(once), torch.float32), once)


def test_low_nibble_is_the_even_element() -> None:
    one = ue8m0_bytes(torch.ones(1, 1))
    packed = torch.zeros(1, 16, dtype=torch.uint8)
    packed[0, 0] = 0x52  # high nibble 5 = 3.0, low nibble 2 = 1.0
    packed[0, 1] = 0xF8  # high nibble 15 = -6.0, low nibble 8 = -0.0
    values = dequantize_fp4_rows(packed.view(torch.int8), one, torch.float32)
    assert values[0, :4].tolist() == [1.0, 3.0, -0.0, -6.0]


def test_table_rows_have_a_scale_per_row() -> None:
    table = torch.randn(5, 64, generator=torch.Generator().manual_seed(5))
    table *= torch.tensor([1e-3, 1.0, 50.0, 0.0, 7.0])[:, None]
    codes, scale = quantize_fp8_rows(table)
    assert scale.shape == (5, 2)
    once = dequantize_fp8_rows(codes, scale, torch.float32)
    assert ((once - table).abs() <= table.abs() / 16 + table.abs().amax(1, keepdim=True) * 2.0**-15).all()
    assert not once[3].any()
    rows = torch.tensor([[0, 1], [2, 4]])
    gathered = dequantize_fp8_rows(codes[rows], scale[rows], torch.bfloat16)
    assert torch.equal(gathered.float(), once[rows])


@pytest.mark.parametrize("dtype", DTYPES)
def test_scale_bytes_are_powers_of_two_and_255_is_nan(dtype: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    values = ue8m0_values(every, dtype)
    assert values.dtype == dtype
    assert values[[0, 1, 127, 254]].tolist() == [2.0**-127, 2.0**-126, 1.0, 2.0**127]
    assert values[255].isnan() and values[:255].isfinite().all()
    assert torch.equal(ue8m0_bytes(values[1:255].float()).view(torch.uint8), torch.arange(1, 255).byte())


def test_faulty_codes_stay_visible_after_dequantising() -> None:
    codes, scale = quantize_fp8_blocks(torch.ones(32, 64))
    codes.view(torch.uint8)[0, 0] = 0x7F
    assert dequantize_fp8_blocks(codes, scale, torch.float32).isnan().sum() == 1
    packed, scale = quantize_fp4_rows(torch.ones(2, 32))
    scale.view(torch.uint8)[1, 0] = 0xFF
    assert dequantize_fp4_rows(packed, scale, torch.bfloat16).isnan().sum() == 32


def test_fp4_codes_are_the_reference_s_on_and_around_every_tie() -> None:
    ties = torch.arange(-48, 49) / 8
    around = torch.stack([ties, ties.nextafter(ties - 1), ties.nextafter(ties + 1)]).clamp(-6, 6)
    rows = torch.nn.functional.pad(around.flatten(), (0, -around.numel() % 31)).view(-1, 31)
    rows = torch.cat([rows, torch.full((len(rows), 1), 6.0)], dim=1)  # pins the scale of every group to one
    packed, scale = quantize_fp4_rows(rows)
    assert (scale.view(torch.uint8) == 127).all()
    codes = unpack_fp4(packed.view(torch.uint8))
    assert torch.equal(codes, round_e2m1(rows))
    assert torch.equal(
        dequantize_fp4_rows(packed, scale, torch.float32), dequantize_fp4(codes, scale.float())
    )
