"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from flashpoint.errors import InvalidValue


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes its name only when it is complete and on disk.

    Whatever goes wrong inside leaves an older file of that name as it was, and no half file beside it. A
    symbolic link keeps pointing where it did. Raises InvalidValue for a folder, a device or a pipe: a rename
    would put a plain file in its place.
    """
    path = path.resolve()
    if not path.name or (path.exists() and not path.is_file()):
        raise InvalidValue("out", str(path), "a new file or a regular one")
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
