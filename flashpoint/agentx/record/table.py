"""What was recorded and what was left out, as something rich prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from flashpoint.agentx.record.recorder import Recorded
from flashpoint.agentx.table import share


def render_recorded(recorded: Sequence[Recorded], out: Path) -> Group:
    """A row per log."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("log", "source"):
        table.add_column(heading, overflow="fold")
    for heading in ("calls", "sub-agents", "longest prompt", "theoretical hit", "bad lines"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for found in recorded:
        table.add_row(
            Text(found.log.name),
            found.source,
            str(found.calls),
            str(found.agents),
            f"{found.peak_input:,}",
            share(found.hit_share),
            str(found.bad_lines),
            Text(found.reason or ""),
        )
    made = sum(found.trace is not None for found in recorded)
    return Group(table, Text(f"{made} of {len(recorded)} logs became traces: {out.resolve()}"))
