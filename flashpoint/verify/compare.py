"""Comparisons and their tolerances (`golden/README.md`, "Suggested tolerances").

exact: integers identical, logits within 1e-3, everything else within 2e-3, absolutely. Recorded runs with
quantisation are discontinuous (a rounding flip moves a later selection), so they are judged on the error of
the typical row: rms of the row's error over the rms of the tensor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

EXACT_LOGITS = 1e-3
EXACT_STREAMS = 2e-3
# Between two accumulation orders median and p90 are 0; every broken quantisation rule tried moved the median
# of the sublayer it touches by 0.02 or more, softmax in the wrong precision by 0.004.
SUBLAYER_MEDIAN, SUBLAYER_P90, SUBLAYER_MAX = 1e-3, 5e-3, 0.1
# End to end, without quantised linears: flips touch some rows, a broken rule touches all of them.
RUN_MEDIAN = 1e-2
# Rows whose selection may differ in a quantised run: those whose recorded margin is below this.
NOISE = 1e-3


@dataclass(frozen=True, slots=True)
class Finding:
    """One compared tensor. `relative` is the largest row error over the tensor's rms (for integers the share
    of rows that differ); `judged` is False where the README sets no target."""

    case: str
    tensor: str
    absolute: float
    relative: float
    tolerance: str
    ok: bool
    judged: bool = True

    @property
    def kind(self) -> str:
        """The tensor's name without its layer."""
        return re.sub(r"layers\.\d+\.", "", self.tensor)


def row_errors(got: Tensor, expected: Tensor) -> Tensor:
    """Per row, rms of the difference over the rms of the whole expected tensor (1 if that is zero)."""
    difference = (got.double() - expected.double()).reshape(len(expected), -1)
    unit = expected.double().square().mean().sqrt()
    return difference.square().mean(1).sqrt() / (unit if unit > 0 else 1.0)


def exact_values(case: str, name: str, got: Tensor, expected: Tensor) -> Finding:
    """Floating point against `exact` recordings."""
    limit = EXACT_LOGITS if "logits" in name else EXACT_STREAMS
    if got.shape != expected.shape:
        return _shape_mismatch(case, name, got, expected)
    # -inf marks what is not visible; a recorded NaN is a damaged file and equals nothing.
    same_infinity = torch.equal(torch.isneginf(got), torch.isneginf(expected))
    finite = ~torch.isneginf(expected)
    difference = torch.where(finite, got.double() - expected.double(), 0.0)
    absolute = float(difference.abs().max()) if difference.numel() else 0.0
    unit = float(expected[finite].double().square().mean().sqrt()) or 1.0
    # NaN compares false, so it fails.
    return Finding(
        case, name, absolute, absolute / unit, f"|Δ| ≤ {limit:g}", same_infinity and absolute <= limit
    )


def identical(case: str, name: str, got: Tensor, expected: Tensor) -> Finding:
    """Integers that must be equal, row by row."""
    if got.shape != expected.shape:
        return _shape_mismatch(case, name, got, expected)
    differ = (
        (got.long() != expected.long()).reshape(len(expected), -1).any(1)
        if expected.ndim
        else got != expected
    )
    share = float(differ.double().mean())
    return Finding(case, name, share, share, "identical", share == 0.0)


def typical_rows(
    case: str,
    name: str,
    got: Tensor,
    expected: Tensor,
    limits: tuple[float, float, float] | None,
    judged: bool,
) -> Finding:
    """Floating point against quantised recordings. `limits` bounds median, p90 and maximum of the row errors;
    None bounds the median alone by RUN_MEDIAN."""
    if got.shape != expected.shape:
        return _shape_mismatch(case, name, got, expected)
    errors = row_errors(got, expected)
    median, p90 = float(errors.median()), float(errors.quantile(0.9))
    largest = float(errors.max())
    absolute = float((got.double() - expected.double()).abs().max())
    if limits is None:
        return Finding(
            case, name, absolute, largest, f"median ≤ {RUN_MEDIAN:g}", median <= RUN_MEDIAN, judged
        )
    ok = median <= limits[0] and p90 <= limits[1] and largest <= limits[2]
    text = f"median ≤ {limits[0]:g}, p90 ≤ {limits[1]:g}, max ≤ {limits[2]:g}"
    return Finding(case, name, absolute, largest, text, ok, judged)


def clear_choices(
    case: str, name: str, got: Tensor, expected: Tensor, margin: Tensor | None, judged: bool
) -> Finding:
    """Selections of a quantised run: rows may differ only where the recorded margin is below NOISE."""
    if got.shape != expected.shape:
        return _shape_mismatch(case, name, got, expected)
    differ = (got.long() != expected.long()).reshape(len(expected), -1).any(1)
    if margin is not None:
        differ &= margin > NOISE
    share = float(differ.double().mean())
    return Finding(case, name, share, share, f"equal where margin > {NOISE:g}", share == 0.0, judged)


def _shape_mismatch(case: str, name: str, got: Tensor, expected: Tensor) -> Finding:
    text = f"shape {tuple(expected.shape)}, got {tuple(got.shape)}"
    return Finding(case, name, float("inf"), float("inf"), text, False)
