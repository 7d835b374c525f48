"""A sweep without a server: levels played into an engine of this process, and their archive."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import pyarrow as pa
from rich.console import Console

from flashpoint.agentx.archive import (
    ArchiveWriter,
    LevelInfo,
    RunInfo,
    ServerInfo,
    check_new_folder,
    read_archive,
)
from flashpoint.agentx.facts import machine_facts, versions
from flashpoint.agentx.feed import SessionFeed
from flashpoint.agentx.metrics import window
from flashpoint.agentx.progress import OnEvent, ReplayProgress
from flashpoint.agentx.recording import INTERRUPTED, Cut
from flashpoint.agentx.records import RequestRecord
from flashpoint.agentx.replay_config import LoadConfig
from flashpoint.agentx.run_parts import choose_sessions, corpus_info, lag_of, plain, schedule_config, utc_now
from flashpoint.agentx.schedule.lanes import Lanes
from flashpoint.agentx.summary import RunSummary, summarize, summarize_level
from flashpoint.agentx.traces.corpus import open_corpus


class PlayClock(Protocol):
    """A clock that can wait; a virtual one jumps."""

    def now(self) -> float:
        """Seconds since an arbitrary start."""
        ...

    def wait_until(self, moment: float) -> None:
        """Return when it is `moment`, or later."""
        ...


@dataclass(frozen=True, slots=True)
class LevelContext:
    """What a level is given: its schedule, its place in the run, and whom to tell of each request."""

    lanes: Lanes
    number: int
    run_id: str
    origin: float
    clock: PlayClock
    on_record: Callable[[RequestRecord], None]


class PlayedLevel(Protocol):
    """One concurrency level; made by the engine it runs on."""

    @property
    def records(self) -> list[RequestRecord]:
        """The requests that are over."""
        ...

    @property
    def lateness(self) -> Sequence[float]:
        """How late each measured request was sent, in seconds."""
        ...

    @property
    def cut(self) -> Cut | None:
        """Why it ended."""
        ...

    def run(self, duration: float, warmup_grace: float, interrupted: Callable[[], Cut | None]) -> None:
        """Play until `duration` seconds are measured, or `interrupted` says why to stop earlier."""
        ...

    def steps(self) -> pa.Table:
        """The engine's steps as `STEPS_SCHEMA`."""
        ...

    def close(self) -> None:
        """Let go of the engine."""
        ...


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """What a run without a server is, for its archive.

    max_context: tokens a session may need.  model, place: what serves it, and where.
    settings: the engine's options.  run_id: names the run; sessions of two runs share nothing.
    tokenizer, prompt_text: digests, where prompts were made.
    """

    max_context: int
    model: str
    place: str
    settings: dict[str, Any]
    run_id: str
    accelerators: int
    tokenizer: str | None = None
    prompt_text: str | None = None


def run_levels(
    config: LoadConfig,
    run: EngineRun,
    clock: PlayClock,
    make_level: Callable[[LevelContext], PlayedLevel],
    console: Console | None = None,
    on_event: OnEvent = lambda event: None,
) -> RunSummary:
    """Play every level that `config` names, archive it, and return the archive's figures.

    `on_event` is told how far the run is; see `ReplayProgress`.
    """
    progress = ReplayProgress(console or Console(stderr=True), on_event, accelerators=run.accelerators)
    check_new_folder(config.out)
    corpus = choose_sessions(config, open_corpus(config.corpus), run.max_context, progress.note)
    writer = ArchiveWriter(
        config.out,
        RunInfo(
            status="running",
            command=list(sys.argv),
            started=utc_now(),
            versions=versions(),
            client_machine=machine_facts(),
            server=ServerInfo(url=run.place, model=run.model),
            config=plain(config) | run.settings,
            accelerators=run.accelerators,
            corpus=corpus_info(config, corpus),
            tokenizer=run.tokenizer,
            prompt_text=run.prompt_text,
            cache_bust=run.run_id,
        ),
    )
    origin = clock.now()
    end: Literal["complete", "interrupted", "server_lost", "stopped"] = "complete"
    detail: str | None = None
    levels = [(c, repeat) for repeat in range(config.repeat) for c in config.concurrency]
    with _interrupts() as interrupted, progress:
        for number, (concurrency, repeat) in enumerate(levels):
            progress.level_started(concurrency, config.duration)
            feed = SessionFeed(corpus)
            lanes = Lanes(schedule_config(config, concurrency), feed, f"{run.run_id}:{number}")
            start = clock.now() - origin
            level = make_level(LevelContext(lanes, number, run.run_id, origin, clock, progress.request_done))
            try:
                level.run(config.duration, config.warmup_grace, interrupted)
            finally:
                feed.close()
                level.close()
            assert level.cut is not None
            end = "complete" if level.cut.reason == "duration" else level.cut.reason
            detail = None if end == "complete" else level.cut.text
            info = LevelInfo(
                level=number,
                concurrency=concurrency,
                repeat=repeat,
                status=end,
                status_detail=detail,
                start=start,
                end=clock.now() - origin,
                measured_from=None if lanes.measured_from is None else lanes.measured_from - origin,
                duration=config.duration,
                window=window(level.records),
                sessions_started=lanes.sessions_started,
                requests=len(level.records),
                client_lag=None,
                lateness=lag_of(level.lateness),
                broken_waits=lanes.broken_waits,
                idle_skipped=lanes.idle_skipped,
            )
            progress.level_ended(summarize_level(info, level.records, run.accelerators))
            if detail:
                progress.note(detail)
            writer.add_level(info, level.records, steps=level.steps())
            if end != "complete":
                break
    writer.finish(end, detail, utc_now())
    return summarize(read_archive(config.out))


@contextmanager
def _interrupts() -> Iterator[Callable[[], Cut | None]]:
    """SIGINT and SIGTERM end the level after the step in flight; a second one ends the program as usual."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(*_: object) -> None:
        asked.set()
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, stop)
    try:
        yield lambda: INTERRUPTED if asked.is_set() else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
