"""A progress bar by bytes, where there is a terminal to draw it on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

ByteProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all) as reading or writing advances."""


@contextmanager
def byte_progress(label: str, console: Console | None = None) -> Iterator[ByteProgress | None]:
    """Yields the callable that draws the bar, or None when `console` (default: stderr) is no terminal."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
