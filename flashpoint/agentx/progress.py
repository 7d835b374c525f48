"""How a replay shows that it lives: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from flashpoint.agentx.metrics import inter_token_latency, percentile
from flashpoint.agentx.records import RequestRecord
from flashpoint.agentx.summary import LevelSummary
from flashpoint.agentx.table import number

OnEvent = Callable[[dict[str, Any]], None]

LINE_EVERY_SECONDS = 10.0
BAR_EVERY_SECONDS = 0.5
EVENT_EVERY_SECONDS = 1.0


class ReplayProgress:
    """Shows the level that is running; entered for the time of the run."""

    def __init__(
        self, console: Console, on_event: OnEvent = lambda event: None, *, accelerators: int = 1
    ) -> None:
        """`on_event` is told the same facts as plain data, `event` says what they are about.
        accelerators: rates are per accelerator, as those of levels are."""
        self._console = console
        self._accelerators = accelerators
        self._on_event = on_event
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
        self._every = BAR_EVERY_SECONDS if self._bar else LINE_EVERY_SECONDS

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def note(self, text: str) -> None:
        """Something a reader of the results must know."""
        self._console.print(f"replay: {text}", highlight=False, markup=False, soft_wrap=True)
        self._on_event({"event": "note", "text": text})

    def level_started(self, concurrency: int, duration: float) -> None:
        """A level begins that will be measured for `duration` seconds, after its warm-up."""
        self._concurrency = concurrency
        self._duration = duration
        self._measured_from: float | None = None
        self._measured = 0.0
        self._shown = self._told = time.monotonic()
        self._warm = self._done = self._errors = self._tokens = 0
        self._latencies: list[float] = []
        if self._bar:
            self._task = self._bar.add_task(
                "level", total=duration, concurrency=concurrency, state="starting"
            )
        else:
            self._print(f"{concurrency} lanes, {duration:g} s after the warm-up")
        self._on_event({"event": "level_started", "concurrency": concurrency, "duration": duration})

    def preparing(self, done: int, of: int) -> None:
        """The first prompts are being made."""
        self._show(f"{done} of {of} first prompts made")

    def request_done(self, record: RequestRecord) -> None:
        """A request has ended, well or not."""
        if record.phase == "warmup":
            self._warm += 1
            self._errors += record.status == "error"
            self._show(f"warm-up: {self._warm} requests, {self._errors} failed")
            if self._is_time_to_tell():
                warm = {"requests": self._warm, "failed": self._errors}
                self._on_event({"event": "warmup", "concurrency": self._concurrency, **warm})
            return
        if self._measured_from is None:
            self._measured_from, self._began = record.start, time.monotonic()
            self._errors = 0
        self._measured = max(self._measured, record.end - self._measured_from)
        self._done += 1
        self._errors += record.status == "error"
        if record.status == "ok":
            self._tokens += (record.prompt_tokens or 0) + (record.output_tokens or 0)
            if (latency := inter_token_latency(record)) is not None:
                self._latencies.append(latency)
        if time.monotonic() - self._shown >= self._every:
            self._show(self._words(self._state()))
        if self._is_time_to_tell():
            self._on_event(self._state())

    def level_ended(self, level: LevelSummary) -> None:
        """A level is over; its figures are final."""
        text = (
            f"{level.status}: {level.ok} requests ok, {level.errors} failed; "
            f"{number(level.total_throughput)} tok/s in total, "
            f"{number(level.output_throughput)} output, "
            f"P90 interactivity {number(level.interactivity_p90)} tok/s"
        )
        if self._bar and self._task is not None:
            done = self._duration if level.status == "complete" else None
            self._bar.update(self._task, completed=done, state=text)
        else:
            self._print(text)
        self._on_event(
            {
                "event": "level_ended",
                "concurrency": self._concurrency,
                "status": level.status,
                "requests": level.ok,
                "failed": level.errors,
                "tokens_per_s": level.total_throughput,
                "interactivity_p90": level.interactivity_p90,
            }
        )

    def _state(self) -> dict[str, Any]:
        # The run's own time, which a simulation's is not the clock's.
        seconds = self._measured
        latency = percentile(self._latencies, 90)
        return {
            "event": "progress",
            "concurrency": self._concurrency,
            "measured_seconds": seconds,
            "duration": self._duration,
            "requests": self._done,
            "failed": self._errors,
            "tokens_per_s": self._tokens / seconds / self._accelerators if seconds >= 1 else None,
            "interactivity_p90": 1 / latency if latency else None,
            "seconds_to_go": (time.monotonic() - self._began)
            * max(0.0, self._duration / max(seconds, 1e-9) - 1),
        }

    def _is_time_to_tell(self) -> bool:
        now = time.monotonic()
        if now - self._told < EVENT_EVERY_SECONDS:
            return False
        self._told = now
        return True

    @staticmethod
    def _words(state: dict[str, Any]) -> str:
        return (
            f"{state['requests']} requests, {state['failed']} failed, {number(state['tokens_per_s'])} tok/s, "
            f"P90 {number(state['interactivity_p90'])} tok/s per user, "
            f"about {state['seconds_to_go']:.0f} s to go"
        )

    def _show(self, state: str) -> None:
        if time.monotonic() - self._shown < self._every:
            return
        self._shown = time.monotonic()
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=min(self._measured, self._duration), state=state)
        else:
            self._print(state)

    def _print(self, text: str) -> None:
        self._console.print(
            f"replay c={self._concurrency}: {text}", highlight=False, markup=False, soft_wrap=True
        )
