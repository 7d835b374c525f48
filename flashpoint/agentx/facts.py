"""What a run archive says about the machine and the software that made it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import flashpoint


def versions() -> dict[str, str]:
    """Versions of this program and of what its measurements rest on."""
    libraries = {name: importlib.metadata.version(name) for name in ("aiohttp", "numpy", "pyarrow")}
    return {"flashpoint": flashpoint.__version__, "python": platform.python_version(), **libraries}


def machine_facts() -> dict[str, str | int | float | None]:
    """The machine the client runs on, which need not be the server's."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": _memory_gib(),
        "platform": platform.platform(),
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux: the general answer below
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None
