"""`flashpoint replay`: agent sessions against a live server at rising concurrency, into a run archive."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import aiohttp
import uvloop
from rich.console import Console

from flashpoint.agentx.archive import (
    ArchiveWriter,
    ClientLag,
    CorpusInfo,
    LevelInfo,
    RunInfo,
    ServerInfo,
    check_new_folder,
    read_archive,
)
from flashpoint.agentx.client import ChatClient
from flashpoint.agentx.facts import machine_facts, versions
from flashpoint.agentx.lag import LagProbe
from flashpoint.agentx.lanes import Level, Sampling
from flashpoint.agentx.metrics import percentile, window
from flashpoint.agentx.progress import ReplayProgress
from flashpoint.agentx.replay_config import ReplayConfig
from flashpoint.agentx.sessions import Session, SessionFile, load_sessions
from flashpoint.agentx.summary import RunSummary, summarize, summarize_level
from flashpoint.agentx.watch import ServerWatch
from flashpoint.errors import FlashpointError, InvalidValue


class ServerUnusableError(FlashpointError):
    """The server cannot be used for a replay; nothing was sent and no archive was written."""


def run_replay(config: ReplayConfig, console: Console | None = None) -> RunSummary:
    """Replay as `config` says, write the archive, and return its figures, read back from disk.

    Progress goes to `console` (standard error by default). Raises a `FlashpointError` where nothing could
    be started or the archive could not be written; everything that happens to requests, a server that dies
    and Ctrl-C included, is in the summary instead.
    """
    console = console or Console(stderr=True)
    session_file = load_sessions(config.sessions)
    check_new_folder(config.out)
    # uvloop stamps chunks earlier: at 32 streams its lag is less than half that of asyncio's own loop.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_replay(config, session_file, ReplayProgress(console)))
    return summarize(read_archive(config.out))


async def _replay(config: ReplayConfig, session_file: SessionFile, progress: ReplayProgress) -> None:
    async with ChatClient(
        config.url, request_timeout=config.request_timeout, stall_timeout=config.stall_timeout
    ) as client:
        model, models_answer = await _find_model(client, config.model)
        cache_bust = secrets.token_hex(8)
        writer = ArchiveWriter(
            config.out,
            RunInfo(
                status="running",
                command=list(sys.argv),
                started=_utc_now(),
                versions=versions(),
                client_machine=machine_facts(),
                server=ServerInfo(url=config.url, model=model, models_answer=models_answer),
                config=_plain(config),
                accelerators=config.accelerators,
                corpus=CorpusInfo(
                    path=str(session_file.path),
                    sha256=session_file.sha256,
                    sessions=len(session_file.sessions),
                ),
                cache_bust=cache_bust,
            ),
        )
        sessions = [
            Session(session.id, session.system, session.turns[: config.max_turns])
            for session in session_file.sessions
        ]
        watch = ServerWatch(client)
        origin = time.monotonic()
        interrupt = asyncio.Event()
        status: Literal["complete", "interrupted", "server_lost"] = "complete"
        with _interrupts_set(interrupt), LagProbe() as lag, progress:
            for number, concurrency in enumerate(config.concurrency):
                passes = -(-concurrency // len(sessions))
                progress.level_started(
                    concurrency,
                    None if config.duration else passes * sum(len(session.turns) for session in sessions),
                    config.duration,
                )
                level = Level(
                    client,
                    watch,
                    sessions,
                    Sampling(model, config.temperature, config.seed, config.force_length),
                    number=number,
                    concurrency=concurrency,
                    duration=config.duration,
                    cache_bust=cache_bust,
                    origin=origin,
                    on_record=progress.request_done,
                )
                lag.take()
                start = time.monotonic() - origin
                await level.run(interrupt)
                if level.cut and level.cut.reason != "duration":
                    status = level.cut.reason
                info = LevelInfo(
                    level=number,
                    concurrency=concurrency,
                    status=status,
                    start=start,
                    end=time.monotonic() - origin,
                    window=window(level.records),
                    sessions_started=level.sessions_started,
                    requests=len(level.records),
                    client_lag=_lag(lag.take()),
                )
                progress.level_ended(summarize_level(info, level.records, config.accelerators))
                writer.add_level(info, level.records)
                if status != "complete":
                    break
        await watch.close()
        detail = {
            "complete": None,
            "interrupted": "stopped by a signal; the last level is partial",
            "server_lost": f"no connection to {config.url} any more; the last level is partial",
        }[status]
        writer.finish(status, detail, _utc_now())


async def _find_model(client: ChatClient, wanted: str | None) -> tuple[str, Any]:
    """The model name to send, and the server's whole list of models."""
    try:
        status, answer = await client.models()
    except (aiohttp.ClientError, OSError) as error:
        raise ServerUnusableError(
            f"url: no server answers at {client.url} ({error}); start it first, or correct the URL"
        ) from error
    entries = answer.get("data") if status == 200 and isinstance(answer, dict) else None
    names = [entry.get("id") for entry in entries if isinstance(entry, dict)] if entries else []
    if wanted is None:
        if not names or not isinstance(names[0], str):
            raise ServerUnusableError(
                f"url: {client.url}/v1/models (HTTP {status}) names no model; name it with --model"
            )
        return names[0], answer
    if names and wanted not in names:
        raise InvalidValue("model", wanted, f"a model of this server: {', '.join(map(str, names))}")
    return wanted, answer


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


def _lag(samples: list[float]) -> ClientLag | None:
    p50, p90, p99 = (percentile(samples, p) for p in (50, 90, 99))
    if p50 is None or p90 is None or p99 is None:
        return None
    return ClientLag(p50=p50, p90=p90, p99=p99, max=max(samples))


def _plain(config: ReplayConfig) -> dict[str, Any]:
    values = dataclasses.asdict(config)
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def _utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
