"""Which folder may import which (docs/architecture.md), read from the sources."""

import ast
from pathlib import Path

import pytest

import flashpoint

ROOT = Path(flashpoint.__file__).parent
MAX_LINES = 600

# Folder -> what it must not import, directly.
FORBIDDEN = {
    "cache": ("torch", "flashpoint.engine", "flashpoint.executor", "flashpoint.models", "flashpoint.server"),
    "engine": ("torch", "flashpoint.executor", "flashpoint.models", "flashpoint.server", "flashpoint.ops"),
    "ops": ("flashpoint.engine", "flashpoint.executor", "flashpoint.models", "flashpoint.server"),
    "models": ("flashpoint.executor", "flashpoint.server", "flashpoint.agentx"),
    "executor": ("flashpoint.server", "flashpoint.agentx"),
    "agentx": ("torch", "flashpoint.server", "flashpoint.executor", "flashpoint.models"),
    "server": ("torch", "flashpoint.agentx", "flashpoint.executor", "flashpoint.verify"),
    "parallel": ("torch", "flashpoint.engine", "flashpoint.models", "flashpoint.server", "flashpoint.agentx"),
    "hardware": ("torch", "flashpoint.server", "flashpoint.agentx", "flashpoint.executor"),
    "simulate": ("torch", "flashpoint.server", "flashpoint.executor"),
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_dependencies_point_downwards(folder):
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / folder).rglob("*.py")
        for name in imports(path)
        if any(name == bad or name.startswith(f"{bad}.") for bad in FORBIDDEN[folder])
    ]
    assert not wrong


def test_models_take_only_plain_data_from_the_engine():
    used = {
        n for p in (ROOT / "models").rglob("*.py") for n in imports(p) if n.startswith("flashpoint.engine")
    }
    assert used <= {"flashpoint.engine.plan"}


def test_files_stay_small():
    long = [str(p) for p in ROOT.rglob("*.py") if len(p.read_text().splitlines()) > MAX_LINES]
    assert not long
