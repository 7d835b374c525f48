"""What every replay does alike, over HTTP or in this process."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flashpoint.agentx.archive import ClientLag, CorpusInfo
from flashpoint.agentx.metrics import percentile
from flashpoint.agentx.replay_config import LoadConfig
from flashpoint.agentx.schedule.lanes import ScheduleConfig
from flashpoint.agentx.traces.corpus import Corpus, within_context


def choose_sessions(
    config: LoadConfig, corpus: Corpus, window: int | None, note: Callable[[str], None]
) -> Corpus:
    """The sessions that fit the context window (the user's, else `window`), up to the number wanted."""
    limit = config.context_window if config.context_window is not None else window
    if limit is not None:
        corpus, warning = within_context(corpus, limit)
        if warning:
            note(warning)
    return corpus.first(config.max_sessions)


def schedule_config(config: LoadConfig, lanes: int) -> ScheduleConfig:
    """The schedule of one level."""
    return ScheduleConfig(
        lanes,
        config.seed,
        (config.start_from, config.start_to),
        config.warmup_requests,
        config.session_idle_cap,
        config.system_idle_cap,
    )


def corpus_info(config: LoadConfig, corpus: Corpus) -> CorpusInfo:
    """What the archive says about the sessions."""
    return CorpusInfo(
        path=str(config.corpus), sha256=corpus.sha256, sessions=len(corpus), dropped=corpus.dropped
    )


def lag_of(samples: Sequence[float]) -> ClientLag | None:
    """Percentiles of how late a client was, in seconds; None without samples."""
    p50, p90, p99 = (percentile(samples, p) for p in (50, 90, 99))
    if p50 is None or p90 is None or p99 is None:
        return None
    return ClientLag(p50=p50, p90=p90, p99=p99, max=max(samples))


def plain(*configs: Any) -> dict[str, Any]:
    """Configuration dataclasses as JSON data."""
    values = {name: value for config in configs for name, value in dataclasses.asdict(config).items()}
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def utc_now() -> str:
    """The time of day, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
