import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from flashpoint.checkpoint.folder import INDEX_NAME, open_checkpoint, read_index
from flashpoint.errors import CheckpointError
from tests.checkpoint.files import entry, raw_file, write_index
from tests.golden_data import golden_checkpoints

TWO_FLOATS = struct.pack("<2f", 1.5, -2.0)


def problems_of(folder: Path) -> list[str]:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    return caught.value.problems


def test_every_dtype_comes_out_as_stored(tmp_path: Path) -> None:
    stored = {
        "bf16": torch.randn(3, 5).bfloat16(),
        "f32": torch.randn(4),
        "f16": torch.randn(2, 2).half(),
        "fp8": torch.randn(6, 2).to(torch.float8_e4m3fn),
        "scale": torch.arange(6, dtype=torch.uint8).view(torch.float8_e8m0fnu),
        "fp4": torch.randint(-128, 127, (7,), dtype=torch.int8),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(3.0),
    }
    save_file(stored, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.index is None
    assert set(checkpoint.entries) == set(stored)
    for name, expected in stored.items():
        tensor = checkpoint.tensor(name)
        assert tensor.dtype == expected.dtype and tensor.shape == expected.shape
        as_bytes = [x.contiguous().view(-1).view(torch.uint8) for x in (tensor, expected)]
        assert torch.equal(*as_bytes)
        checkpoint.release(name)
        assert torch.equal(checkpoint.tensor(name).view(-1).view(torch.uint8), as_bytes[1])
    assert checkpoint.total_bytes == sum(x.nbytes for x in stored.values())


def test_unaligned_data_is_read(tmp_path: Path) -> None:
    header = {"a": entry("U8", [1], 0, 1), "b": entry("F32", [2], 1, 9)}
    raw_file(tmp_path / "model.safetensors", header, b"\x07" + TWO_FLOATS)
    assert open_checkpoint(tmp_path).tensor("b").tolist() == [1.5, -2.0]


def test_shards_are_joined_by_the_index(tmp_path: Path) -> None:
    raw_file(tmp_path / "one.safetensors", {"a": entry("F32", [2], 0, 8)}, TWO_FLOATS)
    raw_file(tmp_path / "two.safetensors", {"b": entry("F32", [1, 2], 0, 8)}, TWO_FLOATS)
    write_index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"}, 16)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.tensor("b").tolist() == [[1.5, -2.0]]
    assert checkpoint.index is not None and checkpoint.index.total_size == checkpoint.total_bytes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes long; too short"),
        (struct.pack("<Q", 50) + b"{}", "states a header of 50 bytes, but the file has 10"),
        (struct.pack("<Q", 1 << 40) + b"{}", "states a header of 1099511627776 bytes"),
        (struct.pack("<Q", 2) + b"{]", "header is not valid JSON"),
        (struct.pack("<Q", 2) + b"\xff\xfe", "header is not valid JSON"),
        (struct.pack("<Q", 2) + b"[]", "header is not a JSON object"),
    ],
)
def test_damaged_header(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    (problem,) = problems_of(tmp_path)
    assert message in problem


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": entry("F4", [2], 0, 8)}, "a: dtype 'F4' is not known; expected one of BF16"),
        ({"a": entry("F32", [3], 0, 8)}, "a: F32 [3] needs 12 bytes, but data_offsets span 8"),
        ({"a": entry("F32", [-2], 0, 8)}, "a: shape [-2] is not a list of sizes"),
        ({"a": entry("F32", [2], 8, 0)}, "a: data_offsets [8, 0] are not [begin, end]"),
        ({"a": {**entry("F32", [2], 0, 8), "dtype": ["F32"]}}, "a: dtype ['F32'] is not known"),
        ({"a": {"dtype": "F32"}}, "a: expected an object with dtype, shape and data_offsets"),
        ({"a": entry("F32", [3], 0, 12)}, "a: ends at byte"),
        ({"a": entry("F32", [1], 0, 4)}, "4 unused bytes after the last tensor"),
        ({"a": entry("F32", [1], 4, 8)}, "4 unused bytes before a"),
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)}, "b: overlaps a"),
        (
            b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},'
            b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
            "header lists a twice",
        ),
    ],
)
def test_faulty_entries(tmp_path: Path, header: dict | bytes, message: str) -> None:
    raw_file(tmp_path / "model.safetensors", header, TWO_FLOATS)
    assert any(message in problem for problem in problems_of(tmp_path))


def test_truncated_file_names_the_tensors_that_are_cut(tmp_path: Path) -> None:
    source = golden_checkpoints()["tiny-c"] / "model.safetensors"
    content = source.read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[:-100])
    problems = problems_of(tmp_path)
    assert problems and all("truncated?" in problem for problem in problems)


@settings(max_examples=150, deadline=None)
@given(
    cut=st.integers(0, 200), changes=st.lists(st.tuples(st.integers(0, 199), st.integers(0, 255)), max_size=4)
)
def test_no_damage_escapes_as_another_error(
    tmp_path_factory: pytest.TempPathFactory, cut: int, changes: list[tuple[int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    header = {"a": entry("F32", [1], 0, 4), "b": entry("BF16", [1, 2], 4, 8)}
    path = raw_file(folder / "model.safetensors", header, TWO_FLOATS)
    content = bytearray(path.read_bytes())
    for at, value in changes:
        content[at % len(content)] = value
    path.write_bytes(content[: max(len(content) - cut, 0)] if cut < 100 else content)
    try:
        checkpoint = open_checkpoint(folder)
    except CheckpointError:
        return
    for name, stored in checkpoint.entries.items():
        assert checkpoint.tensor(name).shape == stored.shape


def test_all_faults_of_all_shards_are_in_one_error(tmp_path: Path) -> None:
    raw_file(tmp_path / "one.safetensors", {"a": entry("F32", [2], 0, 8)}, TWO_FLOATS)
    raw_file(tmp_path / "two.safetensors", {"b": entry("F9", [2], 0, 8)}, TWO_FLOATS)
    raw_file(tmp_path / "three.safetensors", {"stray": entry("F32", [2], 0, 8)}, TWO_FLOATS)
    weight_map = {
        "a": "one.safetensors",
        "lacking": "one.safetensors",
        "b": "two.safetensors",
        "c": "gone.safetensors",
        "d": "gone.safetensors",
        "e": "three.safetensors",
    }
    write_index(tmp_path, weight_map)
    problems = problems_of(tmp_path)
    assert len(problems) == 5
    assert "gone.safetensors: missing; the index places 2 tensor(s) in it" in problems
    assert "one.safetensors: lacks lacking, which the index places there" in problems
    assert "three.safetensors: holds stray, but the index does not name it" in problems
    assert "three.safetensors: lacks e, which the index places there" in problems
    assert any(p.startswith("two.safetensors: b: dtype 'F9'") for p in problems)


def test_tensor_in_another_shard_than_the_index_says(tmp_path: Path) -> None:
    header = {"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 4, 8)}
    raw_file(tmp_path / "one.safetensors", header, TWO_FLOATS)
    raw_file(tmp_path / "two.safetensors", {"c": entry("F32", [2], 0, 8)}, TWO_FLOATS)
    write_index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"})
    problems = problems_of(tmp_path)
    assert "one.safetensors: holds b, but the index places it in two.safetensors" in problems
    assert "two.safetensors: lacks b, which the index places there" in problems


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "cannot be read as JSON"),
        ("[]", "has no weight_map"),
        ('{"weight_map": {}}', "has no weight_map"),
        ('{"weight_map": {"a": "../one.safetensors"}}', "expected a file name without a folder"),
        ('{"weight_map": {"a": 3}}', "expected a file name without a folder"),
    ],
)
def test_faulty_index(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / INDEX_NAME).write_text(content)
    (problem,) = problems_of(tmp_path)
    assert message in problem


def test_index_is_read_without_any_shard(tmp_path: Path) -> None:
    write_index(tmp_path, {"a": "b.safetensors", "c": "a.safetensors"}, 12)
    index = read_index(tmp_path)
    assert index.shards == ["a.safetensors", "b.safetensors"]
    assert index.total_size == 12


def test_folder_without_a_checkpoint(tmp_path: Path) -> None:
    assert "holds neither" in problems_of(tmp_path)[0]
    assert problems_of(tmp_path / "absent") == ["not a folder"]
    with pytest.raises(CheckpointError, match="missing"):
        read_index(tmp_path)
