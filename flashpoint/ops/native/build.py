"""Compiles `kernels.cpp` for this machine, once per source and processor, and loads it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

log = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("kernels.cpp")
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC")


@functools.cache
def native_library() -> ctypes.CDLL | None:
    """The compiled kernels; None, with a warning, where there is no working C++ compiler."""
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if compiler is None:
        log.warning("no C++ compiler found: running the slower torch versions of some ops")
        return None
    try:
        target = _cache_folder() / f"kernels-{_digest(compiler)}.so"
        if not target.exists():
            _compile(compiler, target)
        return ctypes.CDLL(str(target))
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", None) or error
        log.warning("kernels.cpp did not compile: running the slower torch versions of some ops\n%s", detail)
        return None


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "flashpoint"


def _digest(compiler: str) -> str:
    # -march=native makes the result a property of the processor.
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        processor = platform.processor()
    parts = (_SOURCE.read_text(), compiler, *_FLAGS, platform.machine(), processor)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(compiler: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may compile at once: each into its own file, the last rename wins.
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        output = Path(folder) / target.name
        subprocess.run(
            [compiler, *_FLAGS, str(_SOURCE), "-o", str(output)], check=True, capture_output=True, text=True
        )
        output.replace(target)
