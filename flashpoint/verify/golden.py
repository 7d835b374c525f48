"""Golden folders: a checkpoint in the official form and `cases/*.safetensors` with recorded outputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from flashpoint.errors import CheckpointError
from flashpoint.models.deepseek_v41.numerics import Numerics

# Ending of a case's name -> the numerics it was recorded with.
NUMERICS = {
    "exact": Numerics("exact"),
    "qdq": Numerics("quantized", "float32"),
    "bf16": Numerics("quantized", "bfloat16"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One recorded run. `kind` is the name's first word (prefill, decode, …), `recording` its last."""

    name: str
    tensors: dict[str, Tensor]

    @property
    def kind(self) -> str:
        """What was run: prefill, decode, chunked, short, batch, greedy, engram or replay."""
        return self.name.split("_")[0]

    @property
    def recording(self) -> str:
        """exact, qdq or bf16; the Engram tables are exact."""
        last = self.name.rsplit("_", 1)[-1]
        return last if last in NUMERICS else "exact"

    @property
    def numerics(self) -> Numerics:
        """How a run must compute to be compared with this case."""
        return NUMERICS[self.recording]


def case_names(folder: Path) -> list[str]:
    """Names of the cases in `folder`. Raises CheckpointError when there are none."""
    names = sorted(path.stem for path in (folder / "cases").glob("*.safetensors"))
    if not names:
        raise CheckpointError(folder, ["cases: no *.safetensors there; expected a golden folder"])
    return names


def load_case(folder: Path, name: str) -> Case:
    """Read one case. Raises CheckpointError when the file is damaged."""
    path = folder / "cases" / f"{name}.safetensors"
    try:
        with safe_open(path, framework="pt") as file:
            return Case(name, {key: file.get_tensor(key) for key in file.keys()})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(folder, [f"cases/{path.name}: cannot be read ({error})"]) from None


def image_free_rows(case: Case) -> int:
    """Leading positions that no image can have changed: the model is causal."""
    types = case.tensors.get("token_types")
    if types is None:
        return len(case.tensors["input_ids"])
    images = torch.nonzero(types >= 0)
    return int(images[0]) if len(images) else len(types)
