"""Output files: whole or absent, and nothing else is ever replaced."""

import os
from pathlib import Path

import pytest

from flashpoint.agentx.files import whole_file
from flashpoint.errors import InvalidValue


def write(path: Path) -> None:
    with whole_file(path) as file:
        file.write(b"new")


def test_pipes_and_folders_are_refused_and_left_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for target in (pipe, tmp_path):
        with pytest.raises(InvalidValue, match="regular"):
            write(target)
    assert pipe.is_fifo()


def test_a_link_is_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write(link)
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
