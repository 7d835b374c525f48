"""Codecs against the golden vectors, and the arithmetic versions against the table versions, to the bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.ops.native.build import native_library
from flashpoint.ops.quantization import codec, cpu, reference
from flashpoint.ops.quantization.native import native_qdq
from tests.golden_data import units

PLAIN = (reference.fp8_qdq, reference.index_qdq)
ARITHMETIC = (cpu.fp8_qdq, cpu.index_qdq)
NATIVE = native_qdq(native_library())
PAIRS = [*zip(ARITHMETIC, PLAIN, strict=True), *zip(NATIVE, PLAIN, strict=True)]


def test_fp8_codes_scale_and_values_equal_the_golden_ones():
    u = units()
    codes, scale = reference.quantize_fp8(u["fp8_act.x"])
    assert torch.equal(codes.view(torch.uint8), u["fp8_act.q"].view(torch.uint8))
    assert torch.equal(scale, u["fp8_act.scale"].float())
    assert torch.equal(reference.fp8_qdq(u["fp8_act.x"]), u["fp8_act.dq"])


def test_index_codes_scale_and_values_equal_the_golden_ones():
    u = units()
    codes, scale = reference.quantize_index(u["fp4_ue8m0_32.x"])
    assert torch.equal(reference.pack_fp4(codes), u["fp4_ue8m0_32.packed"])
    assert torch.equal(scale, u["fp4_ue8m0_32.scale"].float())
    assert torch.equal(reference.index_qdq(u["fp4_ue8m0_32.x"]), u["fp4_ue8m0_32.dq"])


def test_entry_codes_scale_and_values_equal_the_golden_ones():
    u = units()
    codes, scale = reference.quantize_entry(u["fp4_e4m3_16.x"])
    assert torch.equal(reference.pack_fp4(codes), u["fp4_e4m3_16.packed"])
    assert torch.equal(scale.view(torch.uint8), u["fp4_e4m3_16.scale"].view(torch.uint8))
    assert torch.equal(reference.entry_qdq(u["fp4_e4m3_16.x"]), u["fp4_e4m3_16.dq"])


def test_e2m1_ties_go_to_the_even_code():
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    even = torch.tensor([0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0])
    assert torch.equal(reference.value_e2m1(reference.round_e2m1(ties)), even)
    assert torch.equal(reference.value_e2m1(reference.round_e2m1(-ties)), -even)


def test_packing_is_undone_by_unpacking():
    codes = torch.randint(0, 16, (5, 64), dtype=torch.uint8)
    assert torch.equal(reference.unpack_fp4(reference.pack_fp4(codes)), codes)


@pytest.mark.parametrize(("fast", "plain"), PAIRS)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 9),
    groups=st.integers(1, 5),
    exponent=st.integers(-40, 30),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_fast_equals_reference_to_the_bit(fast, plain, seed, rows, groups, exponent, dtype):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 2, groups * 32, generator=generator) * 2.0**exponent
    # Outliers, exact grid points, ties and zeros in between.
    grid = torch.tensor([0.0, 0.25, 0.75, 1.25, 2.5, 3.5, 5.0, 6.0, 448.0, -448.0, 1e-9, 2.0**-9])
    picks = torch.randint(0, len(grid), x.shape, generator=generator)
    x = torch.where(torch.rand(x.shape, generator=generator) < 0.3, grid[picks] * 2.0 ** (exponent // 4), x)
    x = x.to(dtype)
    assert torch.equal(fast(x), plain(x))


@pytest.mark.parametrize(("fast", "plain"), PAIRS)
def test_inputs_are_left_alone_and_a_second_pass_changes_nothing(fast, plain):
    x = torch.randn(7, 96)
    kept = x.clone()
    once = fast(x)
    assert torch.equal(x, kept)
    assert torch.equal(fast(once), once)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("fast", "plain"), PAIRS)
def test_a_bad_number_stays_visible(fast, plain, bad):
    x = torch.randn(3, 64)
    x[1, 5] = bad
    assert torch.equal(fast(x).isnan(), plain(x).isnan())
    assert fast(x)[1, :32].isnan().any()


CODECS = {"window": reference.fp8_qdq, "index": reference.index_qdq, "entry": reference.entry_qdq}


def same_bits(a, b):
    """Equal to the bit; NaN equals NaN whatever its payload."""
    nan = torch.isnan(a) & torch.isnan(b)
    return torch.equal(a.view(torch.int32).masked_fill(nan, 0), b.view(torch.int32).masked_fill(nan, 0))


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize(
    "codecs", [codec.PLAIN, codec.native_codecs(native_library())], ids=["plain", "native"]
)
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 9),
    groups=st.integers(1, 5),
    exponent=st.integers(-40, 20),
    special=st.sampled_from([None, 0.0, -0.0, 448.0, 1e30, 2.5, float("nan"), float("inf")]),
)
def test_packed_rows_decode_to_quantised_values(name, codecs, seed, rows, groups, exponent, special):
    """Codes lose nothing: decode(encode(x)) is the quantise-dequantise, whichever codec wrote and read."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 32 * groups, generator=generator) * 2.0**exponent
    if special is not None:
        x[rows // 2, 3] = special
    fast, plain = getattr(codecs, name), getattr(codec.PLAIN, name)
    packed = fast.encode(x)
    pool = torch.full((rows + 3, packed.shape[-1]), codec.POISON, dtype=torch.uint8)
    pool[2 : rows + 2] = packed
    index = torch.randint(0, rows, (4, 2), generator=generator)
    expected = CODECS[name](x)[index]
    for reader in (fast, plain):
        assert same_bits(reader.decode(pool, index + 2), expected)
    assert torch.isnan(fast.decode(pool, torch.tensor([0, rows + 2]))).all(), "what was never written shows"
    assert fast.decode(pool, torch.empty(0, 5, dtype=torch.int64)).shape == (0, 5, x.shape[-1])


def test_packed_rows_hold_the_golden_codes():
    u = units()
    for name, prefix in (("index", "fp4_ue8m0_32"), ("entry", "fp4_e4m3_16")):
        for codecs in (codec.PLAIN, codec.native_codecs(native_library())):
            packed = getattr(codecs, name).encode(u[f"{prefix}.x"])
            golden = u[f"{prefix}.packed"]
            assert torch.equal(packed[..., : golden.shape[-1]], golden)


@pytest.mark.parametrize("index", [[-1], [3]])
def test_the_native_decoder_reads_no_memory_that_is_not_the_pools(index):
    native = codec.native_codecs(native_library()).entry
    with pytest.raises(IndexError):
        native.decode(native.encode(torch.ones(3, 32)), torch.tensor(index))
