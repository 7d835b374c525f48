"""Where tests find the golden checkpoints and vectors (what they hold: `shared/golden/README.md`)."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

EMBEDDED = Path(__file__).parent / "golden"


def _roots() -> list[Path]:
    """The embedded folder, then those FLASHPOINT_GOLDEN names. A named folder that is absent is an error:
    skipping it would turn a typing mistake into a green run."""
    named = [Path(p) for p in os.environ.get("FLASHPOINT_GOLDEN", "").split(os.pathsep) if p]
    for path in named:
        if not path.is_dir():
            raise FileNotFoundError(f"FLASHPOINT_GOLDEN names {path}, which is not a folder")
    return [EMBEDDED, *named]


@cache
def golden_checkpoints() -> dict[str, Path]:
    """Name -> folder of every checkpoint (a folder with config.json).

    A copy of a known folder is left out; another folder of the same name is called name@root.
    """
    found: dict[str, Path] = {}
    for root in _roots():
        checkpoints = sorted(p.parent for p in root.glob("*/config.json"))
        if not checkpoints:
            raise FileNotFoundError(f"{root} holds no checkpoint (no sub-folder with config.json)")
        for folder in checkpoints:
            if folder.name not in found:
                found[folder.name] = folder
            elif _contents(folder) != _contents(found[folder.name]):
                found[f"{folder.name}@{root.name}"] = folder
    return found


def _contents(folder: Path) -> dict[str, bytes]:
    files = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).digest() for p in files}


def load_case(path: Path, case: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of `path/cases/<case>.safetensors`."""
    return _load(path / "cases" / f"{case}.safetensors")


@cache
def units() -> dict[str, Tensor]:
    """The operator-level vectors."""
    return _load(EMBEDDED / "units" / "units.safetensors")[0]


def _load(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        tensors: dict[str, torch.Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, file.metadata() or {}
