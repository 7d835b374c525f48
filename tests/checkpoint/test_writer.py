import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from flashpoint.checkpoint import writer
from flashpoint.checkpoint.folder import open_checkpoint
from flashpoint.checkpoint.header import TORCH_DTYPES
from flashpoint.checkpoint.writer import write_checkpoint
from flashpoint.errors import CheckpointError
from flashpoint.models.deepseek_v41.manifest import TensorSpec

CODES = {dtype: code for code, dtype in TORCH_DTYPES.items()}


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return {
        "scale": torch.arange(3, dtype=torch.uint8).view(torch.float8_e8m0fnu),
        "a": torch.randn(4, 6, generator=generator),
        "codes": torch.randn(5, 3, generator=generator).to(torch.float8_e4m3fn),
        "b": torch.randn(7, generator=generator).bfloat16(),
        "c": torch.randn(8, 2, generator=generator),
    }


def write(out: Path, shards: int = 2, **changes: Any) -> dict[str, Tensor]:
    made = tensors()

    def pieces(name: str) -> Iterator[Tensor]:
        yield from made[name].split(3)

    layout = {name: TensorSpec(tuple(t.shape), CODES[t.dtype], "vision") for name, t in made.items()}
    arguments = {"pieces": pieces, "files": {"config.json": b"{}"}, "shards": shards, **changes}
    write_checkpoint(out, layout, **arguments)
    return made


@pytest.mark.parametrize("shards", [1, 2, 3, 9])
def test_what_was_written_is_read_back(tmp_path: Path, shards: int) -> None:
    made = write(tmp_path / "out", shards)
    checkpoint = open_checkpoint(tmp_path / "out")
    assert set(checkpoint.entries) == set(made)
    for name, expected in made.items():
        assert torch.equal(checkpoint.tensor(name).view(torch.uint8), expected.view(torch.uint8))
        assert checkpoint.entries[name].begin % expected.dtype.itemsize == 0
    assert (tmp_path / "out" / "config.json").read_bytes() == b"{}"
    assert checkpoint.index is not None and checkpoint.index.total_size == checkpoint.total_bytes
    assert len(checkpoint.index.shards) <= shards


def test_the_safetensors_library_reads_it(tmp_path: Path) -> None:
    made = write(tmp_path / "out", 2)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    read: dict[str, Tensor] = {}
    for shard in set(index["weight_map"].values()):
        read |= load_file(tmp_path / "out" / shard)
    for name, expected in made.items():
        assert torch.equal(read[name].view(torch.uint8), expected.view(torch.uint8))


def test_an_empty_folder_may_be_given_and_a_used_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty")
    with pytest.raises(CheckpointError, match="expected a new or empty folder"):
        write(tmp_path / "empty")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="expected a new or empty folder"):
        write(tmp_path / "file")


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    made = write(tmp_path / "out", progress=lambda *step: seen.append(step))
    assert seen[-1] == (sum(t.nbytes for t in made.values()),) * 2


def test_too_little_space_is_said_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(CheckpointError, match=r"the disk is full: \d+ bytes are needed, 1000 are free"):
        write(tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("code", "message"), [(errno.ENOSPC, "the disk is full"), (errno.EIO, "cannot be written")]
)
def test_a_failure_while_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, message: str
) -> None:
    def fail(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(writer.os, "fsync", fail)
    with pytest.raises(CheckpointError, match=message):
        write(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "out", progress=interrupt)
    assert not list(tmp_path.iterdir())


def test_pieces_that_do_not_fill_the_layout_are_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="do not add up"):
        write(tmp_path / "out", pieces=lambda name: [tensors()[name][:2]])
    assert not list(tmp_path.iterdir())
