"""Fits a machine's efficiencies to the kernel timings that the package `aisimulate` carries.

Its tables (NVIDIA, Apache-2.0) are read where they are installed and never copied; the shipped profiles hold
the fitted numbers and name the tables. Three fits: matrix products, the experts' grouped kernels with and
without their exchanges, and collectives.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from flashpoint.errors import InvalidValue
from flashpoint.hardware.curve_fit import Floats, Range, Residual, fit, residual
from flashpoint.hardware.machine import Machine, Number
from flashpoint.models.work import Precision

FOLDERS = {
    "H100 SXM": "h100_sxm",
    "H200 SXM": "h200_sxm",
    "B200 SXM": "b200_sxm",
    "B300 SXM": "b300_sxm",
    "GB200 NVL72": "gb200",
    "GB300 NVL72": "gb300",
    "RTX PRO 6000 Blackwell": "rtx_pro_6000_server",
}
"""Machines by name, and their folder below `aisimulate_core/systems/data`."""

# (precision, names in the GEMM tables, bytes of a weight or activation)
_PRODUCTS: tuple[tuple[Precision, tuple[str, ...], float], ...] = (
    ("bf16", ("bfloat16",), 2.0),
    ("fp8", ("fp8", "fp8_block"), 1.0),
    ("fp4", ("nvfp4",), 0.5625),
)
_COPY_SHARE = 0.75
"""Share of the memory's bandwidth of a kernel that copies and converts."""
_MXFP4_BYTES = 4.25 / 8
_LAUNCHES_OF_EXPERTS = 5
"""Of the standard path, over which a layer's fixed time is spread (models/…/work_kernels.py)."""

# What a fitted number may be where it is used, as factors: engines shape and overlap kernels otherwise than a
# benchmark. The first whose name is part of the number's.
_RANGES = {
    "moe_memory_share": (0.68, 1.09),
    "moe_math_share": (0.87, 1.1),
    "moe_kernel_latency": (0.7, 1.5),
    "memory_share": (0.95, 1.15),
    "math_share": (0.9, 1.4),
    "ramp": (0.7, 1.5),
    "kernel_latency": (0.75, 2.0),
    "latency": (0.5, 1.5),
    "share": (0.9, 1.1),
}


@dataclass(frozen=True, slots=True)
class Calibration:
    """Numbers fitted for one machine, and how far each fit is off."""

    machine: Machine
    numbers: dict[str, Number]
    residuals: tuple[Residual, ...]

    def calibrated(self) -> Machine:
        """The machine with the fitted numbers."""
        return self.machine.with_numbers(self.numbers)

    def as_json(self) -> dict[str, Any]:
        """Plain data: per number the profile's value and the fitted one."""
        return {
            "machine": self.machine.name,
            "numbers": {
                name: {"profile": getattr(self.machine, name)} | number.model_dump()
                for name, number in self.numbers.items()
            },
            "residuals": [
                {"what": r.what, "points": r.points, "median": r.median, "p90": r.p90} for r in self.residuals
            ],
        }


def tables_folder() -> Path:
    """The tables of the installed `aisimulate`. Raises InvalidValue where it is not installed."""
    spec = importlib.util.find_spec("aisimulate_core")
    if spec is None or not spec.submodule_search_locations:
        raise InvalidValue(
            "tables",
            None,
            "the package aisimulate (PyPI), or --tables FOLDER: its aisimulate_core/systems/data",
        )
    return Path(next(iter(spec.submodule_search_locations))) / "systems" / "data"


def calibrate(machine: Machine, tables: Path) -> Calibration:
    """Fit what the tables hold for `machine`. Raises InvalidValue for a machine that they do not know."""
    if machine.name not in FOLDERS:
        raise InvalidValue("machine", machine.name, f"one of {', '.join(FOLDERS)}: the others have no tables")
    root = tables.resolve()
    if not (root / FOLDERS[machine.name]).is_dir():
        raise InvalidValue("tables", str(tables), f"a folder with {FOLDERS[machine.name]}/")
    version = _version(root)
    numbers: dict[str, Number] = {}
    residuals: list[Residual] = []
    for name, value, table, off in _fits(machine, root):
        low, high = next(r for part, r in _RANGES.items() if part in name)
        most = 1.0 if "share" in name else float("inf")
        numbers[name] = Number(
            value=_rounded(value),
            kind="measured",
            source=f"aisimulate {version}, {table}",
            low=_rounded(value * low),
            high=_rounded(min(value * high, most)),
        )
        if off not in residuals:
            residuals.append(off)
    return Calibration(machine, numbers, tuple(residuals))


def _fits(machine: Machine, root: Path) -> Iterator[tuple[str, float, str, Residual]]:
    """(number, value, table, residual) of every fit that the tables allow."""
    launch = machine.kernel_latency
    if products := _products(machine, root):
        values, table, off = products
        launch = values["kernel_latency"]
        for name, value in values.items():
            yield name, value, table, off
    alone, fused = _experts(machine, root), _fused_experts(machine, root)
    if fused is not None:
        values, table, off = fused
        yield "moe_memory_share", values["memory_share"], table, off
        yield "moe_math_share_fp8", values["math_share"], table, off
    if alone is not None:
        values, table, off = alone
        yield "moe_kernel_latency", values["latency"] / _LAUNCHES_OF_EXPERTS, table, off
    if reduces := _all_reduces(machine, root):
        values, table, off = reduces
        # The tables time a launch with every all-reduce; steps count it with the kernels.
        yield "all_reduce_latency", max(0.0, values["latency"] - launch), table, off
        yield "link_latency", values["hop"], table, off
        yield "all_reduce_share", values["share"], table, off
    for kind, name in (("alltoall", "all_to_all"), ("all_gather", "gather")):
        direct = _direct_exchanges(machine, root, kind)
        if direct is None:
            continue
        values, table, off = direct
        latency = values["latency"]
        if kind == "alltoall" and alone is not None and fused is not None:
            # Experts with dispatch and combine against experts alone: two exchanges, as engines run them.
            latency = max(0.0, fused[0]["latency"] - alone[0]["latency"]) / 2
            table = f"{fused[1]} against {alone[1]}"
        yield f"{name}_latency", latency, table, off
        yield f"{name}_share", values["share"], direct[1], off


_Fitted = tuple[dict[str, float], str, Residual]


def _products(machine: Machine, root: Path) -> _Fitted | None:
    path = _newest(root, f"{FOLDERS[machine.name]}/gemm/vllm/*", "gemm_perf.parquet")
    if path is None:
        return None
    dtype, m, n, k, latency = _columns(path, "gemm_dtype", "m", "n", "k", "latency")
    tiny = (dtype == "bfloat16") & (m * n * k <= 1 << 22) & (m <= 64)
    launch = float(np.median(latency[tiny])) / 1e3
    # Shapes of serving: smaller products are their launch alone, larger ones no model has.
    used = (m <= 8192) & (n * k >= 1 << 22) & (n * k <= 1 << 28) & (n >= 512) & (k >= 512)
    moved: list[Floats] = []
    seconds: list[Floats] = []
    ideal: dict[Precision, tuple[int, Floats]] = {}
    for precision, names, width in _PRODUCTS:
        shapes = _fastest((m, n, k), latency, used & np.isin(dtype, names))
        if not shapes:
            continue
        M, N, K = np.array(list(shapes), dtype=float).T
        taken = np.array(list(shapes.values()))
        if precision != "bf16":
            # The tables quantise the rows in a kernel of its own; engines do so where the rows are made.
            quantising = (2 + width) * M * K / (_COPY_SHARE * machine.memory_bandwidth) + launch
            taken = np.maximum(taken - quantising, 0.25 * taken)
        ideal[precision] = (len(seconds), 2 * M * N * K / getattr(machine, precision))
        moved.append((M + N) * K * width + 2 * M * N)
        seconds.append(taken)
    bytes_ = np.concatenate(moved)
    peaks = {p: [np.zeros(len(part)) for part in seconds] for p in ideal}
    for p, (place, times) in ideal.items():
        peaks[p][place] = times
    math = {p: np.concatenate(parts) for p, parts in peaks.items()}
    measured = np.concatenate(seconds)

    def predict(x: Mapping[str, float]) -> Floats:
        memory = (bytes_ + x["memory_ramp"]) / (machine.memory_bandwidth * x["memory_share"])
        maths = sum(times / x[f"math_share_{p}"] for p, times in math.items()) + x["math_ramp"]
        return np.maximum(memory, maths) + launch

    ranges = {
        "memory_share": Range(0.7, 0.02, 1.0),
        "memory_ramp": Range(1e-6 * machine.memory_bandwidth, 1.0, 1e9),
        "math_ramp": Range(1e-6, 1e-9, 1e-2),
        **{f"math_share_{p}": Range(0.5, 0.005, 1.0) for p in math},
    }
    values = fit(predict, measured, ranges)
    off = residual("matrix products", predict(values), measured)
    return {**values, "kernel_latency": launch}, _name(path, root), off


def _experts(machine: Machine, root: Path) -> _Fitted | None:
    """Experts of one rank without exchanges: MXFP4 weights, FP8 rows, widths split over ranks."""
    for framework in ("vllm", "trtllm", "sglang"):
        path = _newest(root, f"{FOLDERS[machine.name]}/moe/{framework}/*", "moe_perf.parquet")
        if path is None:
            continue
        dtype, top, ep, spread, latency, *shape = _columns(
            path, "moe_dtype", "topk", "moe_ep_size", "distribution", "latency",
            "num_tokens", "hidden_size", "inter_size", "moe_tp_size", "num_experts",
        )  # fmt: skip
        used = (
            (dtype == "w4a8_mxfp4_mxfp8") & (top == 6) & (ep == 1) & (spread == "balanced") & (shape[3] <= 8)
        )
        shapes = _fastest(shape, latency, used)
        if shapes:
            T, H, W, S, E = np.array(list(shapes), dtype=float).T
            seconds = np.array(list(shapes.values()))
            return _fit_experts(machine, T, T, H, W / S, E, 6, seconds, _name(path, root), "experts alone")
    return None


def _fused_experts(machine: Machine, root: Path) -> _Fitted | None:
    """Experts of one rank with dispatch and combine in the same kernel: what MegaMoE takes in all."""
    path = _newest(root, f"{FOLDERS[machine.name]}/moe/sglang/*", "dsv4_megamoe_module_perf.parquet")
    if path is None:
        return None
    spread, latency, *shape = _columns(
        path, "distribution", "latency",
        "num_tokens", "global_num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_ep_size",
    )  # fmt: skip
    used = (spread == "balanced") & (latency > 0)
    T, G, H, W, K, E, R = (column[used].astype(float) for column in shape)
    seconds = latency[used] / 1e3
    what = "experts, dispatch and combine"
    return _fit_experts(machine, T, G, H, W, E, K, seconds, _name(path, root), what, R)


def _fit_experts(
    machine: Machine, rows: Floats, group_rows: Floats, hidden: Floats, width: Floats, experts: Floats,
    top: Floats | int, seconds: Floats, table: str, what: str, ranks: Floats | int = 1,
) -> _Fitted:  # fmt: skip
    """A fixed time and two rates: one fused kernel per layer (performance-model 9b)."""
    touched = np.minimum(experts, group_rows * top) / ranks  # "balanced": none twice before all once
    moved = touched * 3 * hidden * width * _MXFP4_BYTES + 3 * rows * hidden  # FP8 in, BF16 out
    ideal = rows * top * 6 * hidden * width / machine.fp8

    def predict(x: Mapping[str, float]) -> Floats:
        memory = moved / (machine.memory_bandwidth * x["memory_share"])
        return np.maximum(memory, ideal / x["math_share"]) + x["latency"]

    ranges = {
        "memory_share": Range(0.6, 0.05, 1.0),
        "math_share": Range(0.5, 0.05, 1.0),
        "latency": Range(5e-5, 1e-6, 1e-3),
    }
    values = fit(predict, seconds, ranges)
    return values, table, residual(what, predict(values), seconds)


def _all_reduces(machine: Machine, root: Path) -> _Fitted | None:
    path = _newest(root, f"{FOLDERS[machine.name]}/comm/vllm/*", "custom_allreduce_perf.parquet")
    if path is None:
        return None
    backend, dtype, ranks, size, latency = _columns(
        path, "kernel_source", "allreduce_dtype", "num_gpus", "message_size", "latency"
    )
    used = (dtype == "bfloat16") & np.array(["eager" not in b for b in backend])
    n, whole, seconds = ranks[used].astype(float), 2.0 * size[used], latency[used] / 1e3

    def predict(x: Mapping[str, float]) -> Floats:
        speed = machine.link_bandwidth * x["share"]
        one_shot = x["hop"] + whole * (n - 1) / speed
        two_phases = 2 * x["hop"] + 2 * whole * (n - 1) / n / speed
        return x["latency"] + np.minimum(one_shot, two_phases)

    ranges = {
        "latency": Range(3e-6, 5e-7, 1e-2),
        "share": Range(0.6, 0.01, 1.0),
        "hop": Range(1e-6, 2e-7, 1e-2),
    }
    values = fit(predict, seconds, ranges)
    return values, _name(path, root), residual("all-reduces", predict(values), seconds)


def _direct_exchanges(machine: Machine, root: Path, kind: str) -> _Fitted | None:
    path = _newest(root, f"{FOLDERS[machine.name]}/comm/nccl/*", "nccl_perf.parquet")
    if path is None:
        return None
    op, dtype, ranks, size, latency = _columns(
        path, "op_name", "nccl_dtype", "num_gpus", "message_size", "latency"
    )
    used = (op == kind) & (dtype == "half") & (ranks <= machine.domain)
    if not used.any():
        return None
    n, seconds = ranks[used].astype(float), latency[used] / 1e3
    sent = 2.0 * size[used] * (n - 1) / n  # sizes are counted in elements

    def predict(x: Mapping[str, float]) -> Floats:
        return x["latency"] + sent / (machine.link_bandwidth * x["share"])

    values = fit(predict, seconds, {"latency": Range(1e-5, 1e-8, 1e-2), "share": Range(0.6, 0.01, 1.0)})
    return values, _name(path, root), residual(kind, predict(values), seconds)


def _version(root: Path) -> str:
    """The version of the package that `root` lies in, read beside it: it need not be importable here."""
    found = sorted(root.parents[2].glob("aisimulate-*.dist-info")) if len(root.parents) > 2 else []
    known = found[-1].name.removeprefix("aisimulate-").removesuffix(".dist-info") if found else None
    return known or "of unknown version"


def _newest(root: Path, pattern: str, name: str) -> Path | None:
    """The table of the newest release."""
    found = [path for path in root.glob(f"{pattern}/{name}") if "dev" not in path.parent.name]
    return max(found, key=lambda p: [int(x) for x in re.findall(r"\d+", p.parent.name)], default=None)


def _columns(path: Path, *names: str) -> list[Any]:
    table = pq.read_table(path, columns=list(names))
    return [np.asarray(table[name].to_pylist()) for name in names]


def _fastest(shape: Any, milliseconds: Floats, used: Any) -> dict[tuple[int, ...], float]:
    """Seconds of the fastest kernel of every shape."""
    found: dict[tuple[int, ...], float] = {}
    for row in np.flatnonzero(used):
        key = tuple(int(column[row]) for column in shape)
        found[key] = min(float(milliseconds[row]) / 1e3, found.get(key, np.inf))
    return found


def _name(path: Path, root: Path) -> str:
    return str(path.relative_to(root))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
