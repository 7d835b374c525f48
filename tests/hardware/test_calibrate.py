"""Calibration reads tables as aisimulate lays them out, here made from known numbers."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from flashpoint.cli import app
from flashpoint.errors import InvalidValue
from flashpoint.hardware.calibrate import calibrate, tables_folder
from flashpoint.hardware.machine import load_machine, read_machine

MACHINE = load_machine("gb300-nvl72")
LAUNCH = 3e-6


def write(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def products():
    """Times of BF16 and FP8 products; the FP8 ones hold the quantisation of their rows, as the tables do."""
    rows = []
    for dtype, width, share in (("bfloat16", 2.0, 0.7), ("fp8", 1.0, 0.4)):
        peak = MACHINE.bf16 if dtype == "bfloat16" else MACHINE.fp8
        for m in 2 ** np.arange(14):
            for n in 2 ** np.arange(11, 15):
                moved = (m + n) * n * width + 2 * m * n
                memory = (moved + 5e6) / (MACHINE.memory_bandwidth * 0.8)
                seconds = max(memory, 2 * m * n * n / peak / share + 2e-6) + LAUNCH
                if dtype == "fp8":
                    seconds += (2 + width) * m * n / (0.75 * MACHINE.memory_bandwidth) + LAUNCH
                rows.append((dtype, int(m), int(n), int(n), seconds * 1e3))
    tiny = [("bfloat16", m, 64, n, LAUNCH * 1e3) for m in range(1, 17) for n in (64, 128)]
    return [*rows, *tiny]


def experts(fused):
    fixed = 60e-6 if fused else 20e-6
    rows = []
    for tokens in 2 ** np.arange(12):
        everywhere = tokens * 8 if fused else tokens
        ranks = 8 if fused else 1
        touched = min(256, everywhere * 6) / ranks
        moved = touched * 3 * 4096 * 2048 * 4.25 / 8 + 3 * tokens * 4096
        ideal = tokens * 6 * 6 * 4096 * 2048 / MACHINE.fp8
        seconds = max(moved / (MACHINE.memory_bandwidth * 0.6), ideal / 0.5) + fixed
        rows.append((int(tokens), int(everywhere), ranks, seconds * 1e3))
    return rows


@pytest.fixture
def tables(tmp_path):
    root = tmp_path / "aisimulate_core" / "systems" / "data"
    dtype, m, n, k, latency = map(list, zip(*products(), strict=True))
    # The newest release counts, and no development build.
    write(
        root / "gb300/gemm/vllm/0.9.0/gemm_perf.parquet",
        gemm_dtype=dtype,
        m=m,
        n=n,
        k=k,
        latency=[1e3] * len(m),
    )
    write(root / "gb300/gemm/vllm/0.31.0/gemm_perf.parquet", gemm_dtype=dtype, m=m, n=n, k=k, latency=latency)
    write(
        root / "gb300/gemm/vllm/0.32.0dev/gemm_perf.parquet",
        gemm_dtype=["x"],
        m=[1],
        n=[1],
        k=[1],
        latency=[1.0],
    )
    tokens, everywhere, ranks, latency = map(list, zip(*experts(fused=True), strict=True))
    count = len(tokens)
    same = {"hidden_size": [4096] * count, "inter_size": [2048] * count, "num_experts": [256] * count}
    write(
        root / "gb300/moe/sglang/0.5.10/dsv4_megamoe_module_perf.parquet",
        distribution=["balanced"] * count, latency=latency, num_tokens=tokens, global_num_tokens=everywhere,
        topk=[6] * count, moe_ep_size=ranks, **same,
    )  # fmt: skip
    tokens, _, _, latency = map(list, zip(*experts(fused=False), strict=True))
    write(
        root / "gb300/moe/vllm/0.25.0/moe_perf.parquet",
        moe_dtype=["w4a8_mxfp4_mxfp8"] * count, topk=[6] * count, moe_ep_size=[1] * count,
        distribution=["balanced"] * count, latency=latency, num_tokens=tokens, moe_tp_size=[1] * count,
        **same,
    )  # fmt: skip
    size = 2 ** np.arange(7, 29)
    speed = MACHINE.link_bandwidth * 0.6
    reduce = LAUNCH + 1e-6 + np.minimum(4e-7 + 3 * 2 * size / speed, 8e-7 + 1.5 * 2 * size / speed)
    write(
        root / "gb300/comm/vllm/0.9.0/custom_allreduce_perf.parquet",
        kernel_source=["vLLM_custom_graph"] * len(size), allreduce_dtype=["bfloat16"] * len(size),
        num_gpus=[4] * len(size), message_size=size, latency=reduce * 1e3,
    )  # fmt: skip
    return root


def test_tables_give_the_numbers_they_were_made_from(tables):
    found = calibrate(MACHINE, tables)
    expected = {
        "kernel_latency": LAUNCH,
        "memory_share": 0.8,
        "memory_ramp": 5e6,
        "math_share_bf16": 0.7,
        "math_share_fp8": 0.4,
        "moe_memory_share": 0.6,
        "moe_math_share_fp8": 0.5,
        "moe_kernel_latency": 20e-6 / 5,
        "all_reduce_latency": 1e-6,
        "all_reduce_share": 0.6,
    }
    for name, value in expected.items():
        number = found.numbers[name]
        assert number.value == pytest.approx(value, rel=0.05), name
        assert number.low <= number.value <= number.high
        assert number.kind == "measured"
    assert "gb300/gemm/vllm/0.31.0/gemm_perf.parquet" in found.numbers["memory_share"].source
    assert all(abs(off.median) < 0.05 for off in found.residuals)
    assert found.calibrated().memory_share == found.numbers["memory_share"].value
    assert found.calibrated().watts == MACHINE.watts


def test_what_has_no_tables_is_told(tables, tmp_path):
    with pytest.raises(InvalidValue, match="one of H100 SXM"):
        calibrate(load_machine("vr200-nvl72"), tables)
    with pytest.raises(InvalidValue, match="a folder with gb300/"):
        calibrate(MACHINE, tmp_path / "missing")


def test_the_command_prints_and_writes(tables, tmp_path):
    arguments = ["hardware", "calibrate", "gb300-nvl72", "--tables", str(tables)]
    printed = CliRunner().invoke(app, [*arguments, "--json", "--out", str(tmp_path / "mine.json")])
    assert printed.exit_code == 0, printed.output
    facts = json.loads(printed.output)
    assert facts["numbers"]["memory_share"]["profile"] == MACHINE.memory_share
    assert read_machine(tmp_path / "mine.json").memory_share == facts["numbers"]["memory_share"]["value"]
    assert "matrix products" in CliRunner().invoke(app, arguments).output


@pytest.mark.skipif(importlib.util.find_spec("aisimulate_core") is not None, reason="aisimulate is installed")
def test_without_tables_the_error_says_where_they_come_from():
    with pytest.raises(InvalidValue, match="the package aisimulate"):
        tables_folder()


@pytest.mark.skipif(importlib.util.find_spec("aisimulate_core") is None, reason="aisimulate is not installed")
@pytest.mark.parametrize("name", ["gb300-nvl72", "gb200-nvl72", "h200"])
def test_shipped_numbers_are_those_of_the_tables(name):
    machine = load_machine(name)
    for number, fitted in calibrate(machine, tables_folder()).numbers.items():
        assert getattr(machine, number) == pytest.approx(fitted.value, rel=0.05), number
