"""`flashpoint replay`: agent sessions against a live server at rising concurrency, into a run archive."""

from __future__ import annotations

import asyncio
import resource
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp
import uvloop
from rich.console import Console

from flashpoint.agentx.archive import (
    ArchiveWriter,
    ClientLag,
    LevelInfo,
    RunInfo,
    ServerInfo,
    check_new_folder,
    read_archive,
)
from flashpoint.agentx.client import ChatClient
from flashpoint.agentx.facts import machine_facts, versions
from flashpoint.agentx.feed import SessionFeed
from flashpoint.agentx.lag import LagProbe
from flashpoint.agentx.level import Level, LevelConfig
from flashpoint.agentx.metrics import window
from flashpoint.agentx.progress import ReplayProgress
from flashpoint.agentx.prompts.prompter import Prompter
from flashpoint.agentx.prompts.source import TokenSource, load_corpus
from flashpoint.agentx.prompts.tokenizer import PromptTokenizer, load_tokenizer, standard_tokenizer
from flashpoint.agentx.replay_config import ReplayConfig
from flashpoint.agentx.run_parts import choose_sessions, corpus_info, lag_of, plain, schedule_config, utc_now
from flashpoint.agentx.schedule.lanes import Lanes
from flashpoint.agentx.scrape import MetricsScraper
from flashpoint.agentx.summary import RunSummary, summarize, summarize_level
from flashpoint.agentx.traces.corpus import Corpus, open_corpus
from flashpoint.agentx.watch import ServerWatch
from flashpoint.errors import FlashpointError, InvalidValue

SWITCH_SECONDS = 0.0005
"""How long a thread that makes prompts may hold the interpreter while a chunk waits to be stamped."""

CONNECTIONS_PER_LANE = 4
"""Sub-agents run side by side."""
SPARE_FILES = 256

RunEnd = Literal["complete", "interrupted", "server_lost", "stopped"]


class ServerUnusableError(FlashpointError):
    """The server cannot be used for a replay; nothing was sent and no archive was written."""


@dataclass(frozen=True, slots=True)
class _Served:
    """What `/v1/models` says: the name to send, the whole answer, and the named model's own entry."""

    model: str
    answer: Any
    entry: dict[str, Any]

    @property
    def window(self) -> int | None:
        """The context window in tokens; None where the server names no usable one."""
        length = self.entry.get("max_model_len")
        return length if type(length) is int and length > 0 else None


def run_replay(config: ReplayConfig, console: Console | None = None) -> RunSummary:
    """Replay as `config` says, write the archive, and return its figures, read back from disk.

    Progress goes to `console` (standard error by default). Raises a `FlashpointError` where nothing could
    be started or the archive could not be written; everything that happens to requests, a server that dies
    and Ctrl-C included, is in the summary instead.
    """
    console = console or Console(stderr=True)
    check_new_folder(config.out)
    corpus = open_corpus(config.corpus)
    _allow_connections(max(config.concurrency))
    switch = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        # uvloop stamps chunks earlier: at 32 streams its lag is less than half that of asyncio's own loop.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_replay(config, corpus, ReplayProgress(console, accelerators=config.accelerators)))
    finally:
        sys.setswitchinterval(switch)
    return summarize(read_archive(config.out))


async def _replay(config: ReplayConfig, corpus: Corpus, progress: ReplayProgress) -> None:
    async with ChatClient(
        config.url,
        request_timeout=config.request_timeout,
        stall_timeout=config.stall_timeout,
        session_header=config.session_header,
    ) as client:
        served = await _find_model(client, config.model)
        tokenizer = _tokenizer(config, served, progress)
        corpus = choose_sessions(config, corpus, served.window, progress.note)
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
                server=ServerInfo(url=config.url, model=served.model, models_answer=served.answer),
                config=plain(config),
                accelerators=config.accelerators,
                corpus=corpus_info(config, corpus),
                tokenizer=tokenizer.sha256,
                prompt_text=source.sha256,
                cache_bust=run_id,
            ),
        )
        run = _Run(config, client, served.model, corpus, source, tokenizer, run_id, progress)
        end: RunEnd = "complete"
        detail: str | None = None
        interrupt = asyncio.Event()
        with _interrupts_set(interrupt), progress:
            levels = [(c, repeat) for repeat in range(config.repeat) for c in config.concurrency]
            for number, (concurrency, repeat) in enumerate(levels):
                info = await run.level(number, concurrency, repeat, interrupt, writer)
                end, detail = info.status, info.status_detail
                if end != "complete":
                    break
        await run.watch.close()
        writer.finish(end, detail, utc_now())


class _Run:
    """What the levels of a run share."""

    def __init__(
        self,
        config: ReplayConfig,
        client: ChatClient,
        model: str,
        corpus: Corpus,
        source: TokenSource,
        tokenizer: PromptTokenizer,
        run_id: str,
        progress: ReplayProgress,
    ) -> None:
        self.watch = ServerWatch(client)
        self._config = config
        self._client = client
        self._model = model
        self._corpus = corpus
        self._source = source
        self._tokenizer = tokenizer
        self._run_id = run_id
        self._progress = progress
        self._origin = time.monotonic()

    async def level(
        self, number: int, concurrency: int, repeat: int, interrupt: asyncio.Event, writer: ArchiveWriter
    ) -> LevelInfo:
        """Run one level and put it into the archive."""
        config = self._config
        self._progress.level_started(concurrency, config.duration)
        feed, prompter = SessionFeed(self._corpus), Prompter(self._source, self._tokenizer)
        lanes = Lanes(schedule_config(config, concurrency), feed, f"{self._run_id}:{number}")
        level = Level(
            self._client,
            self.watch,
            prompter,
            lanes,
            LevelConfig(
                self._model,
                config.duration,
                config.warmup_grace,
                config.failed_threshold,
                config.legacy_max_tokens,
            ),
            number=number,
            run_id=self._run_id,
            origin=self._origin,
            on_record=self._progress.request_done,
        )
        metrics_url = config.metrics_url or f"{config.url}/metrics"
        try:
            await level.prepare(interrupt, self._progress.preparing)
            start = time.monotonic() - self._origin
            async with MetricsScraper(metrics_url, self._origin) as scraper:
                with LagProbe() as lag:
                    await level.run(interrupt)
        finally:
            feed.close()
            prompter.close()
        info = self._info(level, number, concurrency, repeat, start, lag_of(lag.take()))
        self._progress.level_ended(summarize_level(info, level.records, config.accelerators))
        if info.status_detail:
            self._progress.note(info.status_detail)
        series = await asyncio.to_thread(scraper.table, number)
        writer.add_level(info, level.records, series=series)
        return info

    def _info(
        self, level: Level, number: int, concurrency: int, repeat: int, start: float, lag: ClientLag | None
    ) -> LevelInfo:
        assert level.cut is not None
        status: RunEnd = "complete" if level.cut.reason == "duration" else level.cut.reason
        details = {
            "interrupted": "stopped by a signal; the last level is partial",
            "server_lost": f"no connection to {self._config.url} any more; the last level is partial",
            "stopped": level.cut.text,
        }
        return LevelInfo(
            level=number,
            concurrency=concurrency,
            repeat=repeat,
            status=status,
            status_detail=details.get(status),
            start=start,
            end=time.monotonic() - self._origin,
            duration=self._config.duration,
            window=window(level.records),
            requests=len(level.records),
            client_lag=lag,
            lateness=lag_of(level.lateness),
            **level.facts(),
        )


def _allow_connections(lanes: int) -> None:
    """Raise the limit of open files, as each open request is a connection. Raises `InvalidValue`."""
    needed = lanes * CONNECTIONS_PER_LANE + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < lanes + SPARE_FILES:
            raise InvalidValue(
                "concurrency",
                lanes,
                f"at most {allowed - SPARE_FILES}, as the system allows {hard} open files",
            )


def _tokenizer(config: ReplayConfig, served: _Served, progress: ReplayProgress) -> PromptTokenizer:
    """The tokenizer that was named, else the served checkpoint's, else DeepSeek's with a note."""
    if config.tokenizer is not None:
        return load_tokenizer(config.tokenizer)
    root = served.entry.get("root")
    if isinstance(root, str) and (Path(root) / "tokenizer.json").is_file():
        return load_tokenizer(Path(root))
    progress.note(
        "the served model's tokenizer is not known, so prompts are made with DeepSeek's and may be longer or "
        "shorter than the trace says; --tokenizer names the right one"
    )
    return standard_tokenizer()


async def _find_model(client: ChatClient, wanted: str | None) -> _Served:
    try:
        status, answer = await client.models()
    except (aiohttp.ClientError, OSError) as error:
        raise ServerUnusableError(
            f"url: no server answers at {client.url} ({error}); start it first, or correct the URL"
        ) from error
    data = answer.get("data") if status == 200 and isinstance(answer, dict) else None
    entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    names = [entry.get("id") for entry in entries]
    if wanted is None:
        if not names or not isinstance(names[0], str):
            raise ServerUnusableError(
                f"url: {client.url}/v1/models (HTTP {status}) names no model; name it with --model"
            )
        return _Served(names[0], answer, entries[0])
    if names and wanted not in names:
        raise InvalidValue("model", wanted, f"a model of this server: {', '.join(map(str, names))}")
    return _Served(wanted, answer, entries[names.index(wanted)] if names else {})


@contextmanager
def _interrupts_set(event: asyncio.Event) -> Iterator[None]:
    """SIGINT and SIGTERM set `event` once; a second one ends the program in the usual way."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only; a caller elsewhere has its own way to stop
        return
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def stop() -> None:
        event.set()
        for number in signals:
            loop.remove_signal_handler(number)

    for number in signals:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
