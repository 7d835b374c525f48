"""How a replay shows that it lives: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from flashpoint.agentx.metrics import inter_token_latency, percentile
from flashpoint.agentx.records import RequestRecord
from flashpoint.agentx.summary import LevelSummary
from flashpoint.agentx.table import number

LINE_EVERY_SECONDS = 10.0


class ReplayProgress:
    """Shows the level that is running; entered for the time of the run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("c={task.fields[concurrency]}"),
                BarColumn(),
                TextColumn("{task.fields[state]}"),
                TimeElapsedColumn(),
                console=console,
            )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def level_started(self, concurrency: int, planned: int | None, duration: float | None) -> None:
        """A level begins that will send `planned` requests or last `duration` seconds."""
        self._concurrency = concurrency
        self._planned = planned
        self._duration = duration
        self._begun = self._last_line = time.monotonic()
        self._done = self._errors = self._tokens = 0
        self._latencies: list[float] = []
        if self._bar:
            self._task = self._bar.add_task(
                "level", total=duration or planned, concurrency=concurrency, state="starting"
            )
        else:
            extent = f"{duration:g} s" if duration else f"{planned} requests"
            self._print(f"{concurrency} sessions at once, {extent}")

    def request_done(self, record: RequestRecord) -> None:
        """A request has ended, well or not."""
        self._done += 1
        self._errors += record.status == "error"
        if record.status == "ok":
            self._tokens += (record.prompt_tokens or 0) + (record.output_tokens or 0)
            if (latency := inter_token_latency(record)) is not None:
                self._latencies.append(latency)
        if self._bar and self._task is not None:
            seconds = time.monotonic() - self._begun
            completed = min(seconds, self._duration) if self._duration else self._done
            self._bar.update(self._task, completed=completed, state=self._state())
        elif time.monotonic() - self._last_line >= LINE_EVERY_SECONDS:
            self._last_line = time.monotonic()
            self._print(self._state())

    def level_ended(self, level: LevelSummary) -> None:
        """A level is over; its figures are final."""
        text = (
            f"{level.status}: {level.ok} requests ok, {level.errors} failed; "
            f"{number(level.total_throughput)} tok/s in total, "
            f"{number(level.output_throughput)} output, "
            f"P90 interactivity {number(level.interactivity_p90)} tok/s"
        )
        if self._bar and self._task is not None:
            total = self._duration or self._planned
            done = total if level.status == "complete" else None
            self._bar.update(self._task, completed=done, state=text)
        else:
            self._print(text)

    def _state(self) -> str:
        seconds = max(time.monotonic() - self._begun, 1e-9)
        count = f"{self._done}/{self._planned}" if self._planned else str(self._done)
        latency = percentile(self._latencies, 90)
        speed = number(1 / latency) if latency else "–"
        return (
            f"{count} requests, {self._errors} failed, {number(self._tokens / seconds)} tok/s, "
            f"P90 {speed} tok/s per user"
        )

    def _print(self, text: str) -> None:
        self._console.print(
            f"replay c={self._concurrency}: {text}", highlight=False, markup=False, soft_wrap=True
        )
