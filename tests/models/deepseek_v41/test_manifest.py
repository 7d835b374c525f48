import json
from collections import Counter
from pathlib import Path

import pytest

from flashpoint.checkpoint.folder import open_checkpoint
from flashpoint.errors import CheckpointError
from flashpoint.models.deepseek_v41.config import ModelConfig, load_config, parse_config
from flashpoint.models.deepseek_v41.manifest import TensorSpec, manifest_problems, tensor_manifest
from tests.golden_data import golden_checkpoints

RELEASED = Path(__file__).parents[3] / "flashpoint/models/deepseek_v41/released_config.json"


@pytest.fixture(scope="module")
def released() -> dict[str, TensorSpec]:
    return tensor_manifest(parse_config(json.loads(RELEASED.read_text())))


def total(specs: dict[str, TensorSpec], *parts: str) -> tuple[int, int]:
    """(parameters, bytes) of the named parts."""
    chosen = [s for s in specs.values() if s.part in parts]
    return sum(s.parameters for s in chosen), sum(s.nbytes for s in chosen)


def layer_three(specs: dict[str, TensorSpec]) -> dict[str, TensorSpec]:
    """A layer without compressor, indexer or Engram."""
    return {name: s for name, s in specs.items() if name.startswith("layers.3.")}


def test_released_totals(released: dict[str, TensorSpec]) -> None:
    assert len(released) == 96_085
    assert sum(s.nbytes for s in released.values()) == 510_286_023_000
    assert sum(s.parameters for s in released.values()) == pytest.approx(763.205e9, abs=5e5)


def test_released_tensor_counts(released: dict[str, TensorSpec]) -> None:
    counts = Counter(s.part for s in released.values())
    assert len(layer_three(released)) == 30 + 384 * 6
    assert counts["compressors"] == 11
    assert counts["indexers"] == 32
    assert counts["engram tables"] + counts["engram projections"] == 12
    assert counts["drafts"] == 2401
    assert counts["embedding and head"] == 3
    assert counts["vision"] == 266


BACKBONE = (
    "embedding and head",
    "norms",
    "attention",
    "compressors",
    "indexers",
    "routed experts",
    "shared experts",
    "routers",
    "hyper-connections",
)


@pytest.mark.parametrize(
    ("parts", "parameters", "nbytes"),
    [
        (BACKBONE, 551.566e9, 298_309_535_168),
        (("embedding and head",), 1.3238e9, 2_647_664_640),
        (("indexers",), 43.5e6, 45_130_752),
        (("compressors",), 18.4e6, 36_704_256),
        (("engram tables",), 196.614e9, 202_758_032_400),
        (("engram projections",), 0.3147e9, 315_043_840),
        (("drafts",), 14.225e9, 7_932_874_632),
        (("vision",), 0.485e9, 970_536_960),
    ],
)
def test_released_parts(
    released: dict[str, TensorSpec], parts: tuple[str, ...], parameters: float, nbytes: int
) -> None:
    counted, stored = total(released, *parts)
    assert stored == nbytes
    assert counted == pytest.approx(parameters, rel=3e-3)


@pytest.mark.parametrize(
    ("parts", "parameters", "nbytes"),
    [
        (BACKBONE, 13.7545e9, 7_389_500_888),
        (("attention",), 126.617e6, 126_743_040),
        (("routed experts",), 384 * 35.389e6, 384 * 18_800_640),
        (("shared experts",), 35.389e6, 35_424_000),
        (("routers",), 1.967e6, 3_935_232),
        (("hyper-connections",), 0.983e6, 3_932_376),
    ],
)
def test_released_layer(
    released: dict[str, TensorSpec], parts: tuple[str, ...], parameters: float, nbytes: int
) -> None:
    counted, stored = total(layer_three(released), *parts)
    assert stored == nbytes
    assert counted == pytest.approx(parameters, rel=1e-3)


@pytest.mark.parametrize("name", list(golden_checkpoints()))
def test_golden_headers_equal_the_manifest(name: str) -> None:
    folder = golden_checkpoints()[name]
    checkpoint = open_checkpoint(folder)
    manifest = tensor_manifest(load_config(folder))
    assert manifest_problems(checkpoint, manifest) == []
    assert sum(s.nbytes for s in manifest.values()) == checkpoint.total_bytes


def test_widths_the_quantised_form_cannot_hold() -> None:
    raw = json.loads((golden_checkpoints()["tiny-q"] / "config.json").read_text())
    raw["text_config"]["moe_intermediate_size"] = 40
    with pytest.raises(CheckpointError, match=r"w2: input width 40; expected a multiple of 32"):
        tensor_manifest(parse_config(raw))
    del raw["quantization_config"]
    config: ModelConfig = parse_config(raw)
    assert tensor_manifest(config)["layers.0.ffn.experts.0.w2.weight"].shape == (64, 40)
