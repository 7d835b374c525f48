"""Output of the official harness that tests read: real runs, their server series cut to two metrics."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

OFFICIAL = Path(__file__).parents[1] / "data" / "official"
RUNS = ("8-lanes", "server-errors", "stops-short")


def raw_lines(run: str) -> list[dict[str, Any]]:
    """The record lines of a run as plain JSON."""
    return [json.loads(line) for line in (OFFICIAL / run / "profile_export.jsonl").read_text().splitlines()]


def aggregate(run: str) -> dict[str, Any]:
    """The harness's own figures of a run."""
    return json.loads((OFFICIAL / run / "profile_export_aiperf.json").read_text())


def changed_copy(
    run: str,
    folder: Path,
    line: Callable[[dict[str, Any]], None] | None = None,
    figures: Callable[[dict[str, Any]], None] | None = None,
) -> Path:
    """A copy of a run with every record line, or the aggregates, changed in place by a function."""
    shutil.copytree(OFFICIAL / run, folder)
    if line:
        lines = raw_lines(run)
        for each in lines:
            line(each)
        (folder / "profile_export.jsonl").write_text("\n".join(map(json.dumps, lines)))
    if figures:
        content = aggregate(run)
        figures(content)
        (folder / "profile_export_aiperf.json").write_text(json.dumps(content))
    return folder
