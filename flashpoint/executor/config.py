"""Settings of the torch executor; the command line is generated from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from flashpoint.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """How a model is computed here. Raises InvalidValue naming the field."""

    numerics: Literal["exact", "quantized"] = field(
        default="quantized",
        metadata={"help": "exact: fp32, nothing quantised; quantized: every quantisation point of the model"},
    )
    compute_dtype: Literal["float32", "bfloat16"] = field(
        default="float32",
        metadata={"help": "float32 or bfloat16; bfloat16 is slow on CPUs without its instructions"},
    )
    device: Literal["cpu", "cuda"] = field(default="cpu", metadata={"help": "cpu or cuda"})
    threads: int = field(default=0, metadata={"help": "CPU threads of one step; 0: what torch chooses"})

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise InvalidValue("device", self.device, "cpu or cuda")
        if self.threads < 0:
            raise InvalidValue("threads", self.threads, "0 or a positive integer")
