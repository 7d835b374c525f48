"""Runs of blocks as files: checksummed, whole or not there, found again after a crash.

    file  = header, checksum of the header, block checksums, blocks
    header = magic, sizes, format key, key and parent of the run, namespace, content

A file gets its name only when all of it is on the disk, so a process that dies while writing leaves nothing
that could be taken for a run. Each block has its own checksum: reading some of a long run checks just those.
A file that does not read back is a miss and is removed; files that do not begin as ours are left alone.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from flashpoint.cache.chain_hash import KEY_BYTES
from flashpoint.cache.transfer import Run
from flashpoint.errors import InvalidValue

log = logging.getLogger(__name__)

Bytes = npt.NDArray[np.uint8]

MAGIC = b"flashpoint run 1"
SUFFIX = ".run"
PARTIAL = ".partial"
_SIZES = struct.Struct("<IIII")  # blocks, tokens of a block, bytes of a block, bytes of the namespace
_SUM_BYTES = 8


class DamagedRun(Exception):
    """A file is not what was written; the text says why."""


class ForeignFile(Exception):
    """A file that was never a run."""


class DiskStore:
    """One folder of runs, of one process at a time.

    block_tokens, block_bytes: of every block.
    format_key: what makes bytes useless elsewhere (model, cache format, semantics); each key and block size
        has a folder of its own below `folder`, so that changing one costs no run of another.
    Raises InvalidValue naming `disk_folder` when the folder cannot be used.
    """

    def __init__(self, folder: Path, block_tokens: int, block_bytes: int, format_key: bytes) -> None:
        self._format_key = xxhash.xxh3_128_digest(struct.pack("<II", block_tokens, block_bytes) + format_key)
        self._folder = folder / self._format_key.hex()
        self._block_tokens = block_tokens
        self._block_bytes = block_bytes
        self._lock = _lock_folder(self._folder)

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.close()

    def scan(self) -> tuple[Run, ...]:
        """The runs that are here, least recently written first.

        A damaged one is removed and logged; what is no run, or does not open, is logged and stays. The blocks
        themselves are checked when they are read.
        """
        for partial in self._folder.glob(f"*{SUFFIX}{PARTIAL}"):
            partial.unlink(missing_ok=True)
        runs = []
        paths = list(self._folder.glob(f"*{SUFFIX}"))
        for path in sorted(paths, key=lambda path: (path.lstat().st_mtime_ns, path.name)):
            try:
                with path.open("rb") as file:
                    run = self._read_header(path, file)
                runs.append(run)
            except ForeignFile:
                log.warning("left %s alone: it does not begin as a run does", path)
            except DamagedRun as error:
                log.warning("removed %s: %s", path, error)
                path.unlink(missing_ok=True)
            except OSError as error:  # says nothing about what the file holds
                log.warning("left %s alone: %s", path, error)
        return tuple(runs)

    def write(self, run: Run, blocks: Bytes) -> None:
        """Store a run; blocks uint8 [blocks of the run, block_bytes]. OSError when the disk refuses, after
        which nothing of it is left."""
        path = self._path(run.key)
        partial = path.with_name(path.name + PARTIAL)
        header = self._header(run)
        sums = b"".join(xxhash.xxh3_64_digest(block) for block in blocks)
        try:
            with partial.open("wb") as file:
                file.write(header + xxhash.xxh3_64_digest(header) + sums)
                file.write(np.ascontiguousarray(blocks).data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        self._sync_folder()

    def read(self, key: bytes, first: int, into: Sequence[Bytes]) -> None:
        """Read blocks `first` … of a run into rows uint8 [block_bytes]. Raises DamagedRun, after which the
        file is gone, or OSError."""
        path = self._path(key)
        try:
            with path.open("rb") as file:
                run = self._read_header(path, file)
                sums = file.read(_SUM_BYTES * self._blocks_of(run))
                file.seek(first * self._block_bytes, os.SEEK_CUR)
                for index, row in enumerate(into, start=first):
                    data = file.read(self._block_bytes)
                    if xxhash.xxh3_64_digest(data) != sums[_SUM_BYTES * index : _SUM_BYTES * (index + 1)]:
                        raise DamagedRun(f"block {index} of {path} does not have its checksum")
                    row[:] = np.frombuffer(data, dtype=np.uint8)
        except ForeignFile as error:
            raise DamagedRun(f"{path} does not begin as a run does") from error
        except DamagedRun:
            path.unlink(missing_ok=True)
            raise

    def remove(self, key: bytes) -> None:
        """Delete a run; one that is not there is fine."""
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: bytes) -> Path:
        return self._folder / (key.hex() + SUFFIX)

    def _blocks_of(self, run: Run) -> int:
        return len(run.content) // self._block_tokens

    def _header(self, run: Run) -> bytes:
        sizes = _SIZES.pack(self._blocks_of(run), self._block_tokens, self._block_bytes, len(run.namespace))
        content = np.ascontiguousarray(run.content, dtype="<i4").tobytes()
        return MAGIC + sizes + self._format_key + run.key + run.parent + run.namespace + content

    def _read_header(self, path: Path, file: BinaryIO) -> Run:
        """The run a file says it holds; `file` is left where the block checksums begin."""
        start = file.read(len(MAGIC) + _SIZES.size)
        if not start.startswith(MAGIC):
            raise ForeignFile(path)
        if len(start) < len(MAGIC) + _SIZES.size:
            raise DamagedRun("it ends in its header")
        count, block_tokens, block_bytes, namespace_bytes = _SIZES.unpack(start[len(MAGIC) :])
        if (block_tokens, block_bytes) != (self._block_tokens, self._block_bytes):
            raise DamagedRun("its blocks have another size")
        content_bytes = 4 * count * block_tokens
        rest_bytes = len(self._format_key) + 2 * KEY_BYTES + namespace_bytes + content_bytes
        whole = len(start) + rest_bytes + _SUM_BYTES + count * (_SUM_BYTES + block_bytes)
        if path.stat().st_size != whole:
            raise DamagedRun(f"it has {path.stat().st_size} bytes instead of {whole}")
        rest = file.read(rest_bytes)
        if file.read(_SUM_BYTES) != xxhash.xxh3_64_digest(start + rest):
            raise DamagedRun("its header does not have its checksum")
        format_key, rest = rest[: len(self._format_key)], rest[len(self._format_key) :]
        if format_key != self._format_key:
            raise DamagedRun("another model, cache format or setting wrote it")
        key, parent, rest = rest[:KEY_BYTES], rest[KEY_BYTES : 2 * KEY_BYTES], rest[2 * KEY_BYTES :]
        if self._path(key) != path:
            raise DamagedRun("it has the name of another run")
        content = np.frombuffer(rest[namespace_bytes:], dtype="<i4").astype(np.int32)
        return Run(key, parent, rest[:namespace_bytes], content)

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _lock_folder(folder: Path) -> BinaryIO:
    """Make the folder and take it for this process. Raises InvalidValue."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("wb")
    except OSError as error:
        raise InvalidValue("disk_folder", str(folder), f"a folder to write to ({error})") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise InvalidValue("disk_folder", str(folder), "a folder that no other process uses") from None
    return lock
