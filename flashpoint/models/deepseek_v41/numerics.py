"""The two numeric modes of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from flashpoint.errors import InvalidValue

Mode = Literal["exact", "quantized"]
COMPUTE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Numerics:
    """How a run computes.

    mode `exact`: fp32, nothing quantised on the way. mode `quantized`: every quantise-dequantise point of the
    spec, in `compute` = float32 or bfloat16. Raises InvalidValue for exact bf16.
    """

    mode: Mode = "quantized"
    compute: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        if self.mode not in ("exact", "quantized"):
            raise InvalidValue("numerics", self.mode, "exact or quantized")
        if self.compute not in COMPUTE_DTYPES:
            raise InvalidValue("compute_dtype", self.compute, "float32 or bfloat16")
        if self.mode == "exact" and self.compute != "float32":
            raise InvalidValue("compute_dtype", self.compute, "float32, because numerics is exact")

    @property
    def quantize(self) -> bool:
        """True when values are quantised where the spec says so."""
        return self.mode == "quantized"

    @property
    def entry_format(self) -> Literal["codes", "float32", "bfloat16"]:
        """How cached vectors are stored (`cache_spec.py`)."""
        return "codes" if self.quantize else self.compute

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations and caches."""
        return COMPUTE_DTYPES[self.compute]
