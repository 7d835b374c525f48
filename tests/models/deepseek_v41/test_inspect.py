import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from flashpoint.checkpoint.folder import INDEX_NAME
from flashpoint.errors import CheckpointError
from flashpoint.models.deepseek_v41.config import parse_config
from flashpoint.models.deepseek_v41.inspect import InspectReport, inspect_checkpoint, ranges, render
from flashpoint.models.deepseek_v41.manifest import tensor_manifest
from tests.checkpoint.files import write_index
from tests.golden_data import golden_checkpoints

RELEASED = Path(__file__).parents[3] / "flashpoint/models/deepseek_v41/released_config.json"


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """config.json and the index of the full-size model: 96 085 names in 48 shards that are not there."""
    folder = tmp_path_factory.mktemp("released")
    shutil.copy(RELEASED, folder / "config.json")
    manifest = tensor_manifest(parse_config(json.loads(RELEASED.read_text())))
    shard = {n: f"model-{1 + i % 48:05d}-of-00048.safetensors" for i, n in enumerate(manifest)}
    write_index(folder, shard, 510_286_023_000)
    return folder


@pytest.fixture(scope="module")
def report(released: Path) -> InspectReport:
    return inspect_checkpoint(released)


def printed(report: InspectReport) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(render(report))
    return capture.get()


def test_the_index_alone_gives_the_released_totals(report: InspectReport) -> None:
    assert not report.headers_read and report.problems == ()
    assert report.shards == 48
    assert report.tensors == 96_085
    assert report.nbytes == 510_286_023_000
    assert report.parameters == pytest.approx(763.205e9, abs=5e5)
    assert report.backbone_parameters == pytest.approx(551.566e9, abs=5e5)
    by_part = {size.part: size.nbytes for size in report.parts}
    assert by_part["engram tables"] == 202_758_032_400
    assert by_part["engram projections"] == 315_043_840
    assert by_part["drafts"] == 7_932_874_632
    assert by_part["vision"] == 970_536_960
    assert by_part["routed experts"] == 40 * 384 * 18_800_640
    assert sum(by_part.values()) == report.nbytes


def test_released_caches_and_active_parameters(report: InspectReport) -> None:
    assert report.cache_bytes_per_token == 890
    assert report.cache_bytes_per_sequence == 2_703_360 + 12_288
    assert report.active_parameters == pytest.approx(16.13e9, rel=1e-3)
    assert report.active_parameters_encoder == pytest.approx(7.90e9, rel=1e-3)


def test_released_schedule(report: InspectReport) -> None:
    kinds = {(k.kind, k.ratio): ranges(k.layers) for k in report.layers}
    assert kinds == {
        ("window", 0): "0-1",
        ("full", 2): "2, 8, 14",
        ("reuse", 2): "3-7, 9-13, 15-19",
        ("full", 1): "20",
        ("reuse", 1): "21-23, 25-27, 29-31, 33-35, 37-39",
        ("reindex", 1): "24, 28, 32, 36",
    }


def test_what_is_printed(report: InspectReport) -> None:
    text = printed(report)
    assert "510,286,023,000" in text and "96,085" in text and "890 bytes" in text
    assert "index only: no headers" in text
    assert json.loads(json.dumps(report.as_json()))["cache_bytes_per_token"] == 890


def test_the_index_file_itself_may_be_named(released: Path, report: InspectReport) -> None:
    assert inspect_checkpoint(released / INDEX_NAME) == report


def test_an_index_that_does_not_fit_the_config(released: Path, tmp_path: Path) -> None:
    shutil.copytree(released, tmp_path / "copy")
    index = json.loads((released / INDEX_NAME).read_text())
    shard = index["weight_map"].pop("norm.weight")
    index["weight_map"]["layers.40.attn_norm.weight"] = shard
    index["metadata"]["total_size"] = 5
    (tmp_path / "copy" / INDEX_NAME).write_text(json.dumps(index))
    report = inspect_checkpoint(tmp_path / "copy")
    assert report.problems == (
        "norm.weight: missing from the index",
        "layers.40.attn_norm.weight: surplus; the config asks for no such tensor",
        f"{INDEX_NAME}: total_size is 5; expected 510286023000",
    )
    assert "problem" in printed(report)


@pytest.mark.parametrize("name", list(golden_checkpoints()))
def test_golden_checkpoints(name: str) -> None:
    folder = golden_checkpoints()[name]
    report = inspect_checkpoint(folder)
    index = json.loads((folder / INDEX_NAME).read_text())
    assert report.headers_read and report.problems == () and report.shards == 1
    assert report.tensors == len(index["weight_map"])
    assert report.nbytes == index["metadata"]["total_size"]
    assert report.stored_form == ("FP8 and MXFP4" if name == "tiny-q" else "BF16")
    assert report.active_parameters_encoder < report.active_parameters < report.parameters
    assert "headers read" in printed(report)


def test_folders_that_are_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: missing"):
        inspect_checkpoint(tmp_path)
    shutil.copy(RELEASED, tmp_path / "config.json")
    with pytest.raises(CheckpointError, match="holds neither"):
        inspect_checkpoint(tmp_path)


def test_ranges() -> None:
    assert ranges([]) == ""
    assert ranges([3]) == "3"
    assert ranges([0, 1, 4, 6, 7, 8]) == "0-1, 4, 6-8"
