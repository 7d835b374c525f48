"""`flashpoint replay-engine`: agent sessions played straight into an engine of this process."""

from __future__ import annotations

import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

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
from flashpoint.agentx.in_process import InProcessLevel, PlayClock
from flashpoint.agentx.metrics import window
from flashpoint.agentx.progress import ReplayProgress
from flashpoint.agentx.prompts.prompter import Prompter
from flashpoint.agentx.prompts.source import TokenSource, load_corpus
from flashpoint.agentx.prompts.tokenizer import PromptTokenizer
from flashpoint.agentx.recording import INTERRUPTED, Cut
from flashpoint.agentx.replay_config import LoadConfig
from flashpoint.agentx.run_parts import choose_sessions, corpus_info, lag_of, plain, schedule_config, utc_now
from flashpoint.agentx.schedule.lanes import Lanes
from flashpoint.agentx.summary import RunSummary, summarize, summarize_level
from flashpoint.agentx.traces.corpus import open_corpus
from flashpoint.engine.core import EngineCore


def run_replay_engine(
    make_core: Callable[[], EngineCore],
    clock: PlayClock,
    tokenizer: PromptTokenizer,
    config: LoadConfig,
    *,
    max_context: int,
    model: str,
    settings: dict[str, Any],
    console: Console | None = None,
) -> RunSummary:
    """Replay as `config` says, each level on an engine of its own, and return the archive's figures.

    `make_core` gives a fresh engine on `clock`; `settings` are its options, for the archive.
    """
    progress = ReplayProgress(console or Console(stderr=True))
    check_new_folder(config.out)
    corpus = choose_sessions(config, open_corpus(config.corpus), max_context, progress.note)
    source = TokenSource(load_corpus(config.prompt_text, tokenizer, config.seed), config.seed)
    run_id = secrets.token_hex(6)
    writer = ArchiveWriter(
        config.out,
        RunInfo(
            status="running",
            command=list(sys.argv),
            started=utc_now(),
            versions=versions(),
            client_machine=machine_facts(),
            server=ServerInfo(url="in this process", model=model),
            config=plain(config) | settings,
            accelerators=config.accelerators,
            corpus=corpus_info(config, corpus),
            tokenizer=tokenizer.sha256,
            prompt_text=source.sha256,
            cache_bust=run_id,
        ),
    )
    origin = clock.now()
    end: Literal["complete", "interrupted", "server_lost", "stopped"] = "complete"
    detail: str | None = None
    levels = [(c, repeat) for repeat in range(config.repeat) for c in config.concurrency]
    with _interrupts() as interrupted, progress:
        for number, (concurrency, repeat) in enumerate(levels):
            progress.level_started(concurrency, config.duration)
            feed, prompter = SessionFeed(corpus), Prompter(source, tokenizer)
            lanes = Lanes(schedule_config(config, concurrency), feed, f"{run_id}:{number}")
            core = make_core()
            level = InProcessLevel(
                core, clock, prompter, lanes, number=number, run_id=run_id, origin=origin,
                on_record=progress.request_done,
            )  # fmt: skip
            start = clock.now() - origin
            try:
                level.run(config.duration, config.warmup_grace, interrupted)
            finally:
                feed.close()
                prompter.close()
                core.close()
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
            progress.level_ended(summarize_level(info, level.records, config.accelerators))
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
