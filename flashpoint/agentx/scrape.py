"""The server's own metrics during a level: `/metrics` once a second, parsed when the level is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Self

import aiohttp
import orjson
import pyarrow as pa
from prometheus_client.parser import text_string_to_metric_families

from flashpoint.agentx.archive import SERIES_SCHEMA

PERIOD_SECONDS = 1.0
TIMEOUT_SECONDS = 5.0
LEFT_OUT = ("_bucket", "_created")


class MetricsScraper:
    """Scrapes between `__aenter__` and `__aexit__`; a server without metrics gives nothing."""

    def __init__(self, url: str | None, origin: float) -> None:
        """`url` is that of the metrics; None scrapes nothing. `origin` is the run's start."""
        self._url = url
        self._origin = origin
        self._samples: list[tuple[float, bytes]] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._url is not None:
            self._task = asyncio.create_task(self._scrape(self._url))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def table(self, level: int) -> pa.Table | None:
        """What was scraped, as `SERIES_SCHEMA`; None where there is nothing."""
        return series_table(level, self._samples)

    async def _scrape(self, url: str) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            while True:
                now = time.monotonic()
                try:
                    async with http.get(url) as response:
                        if response.status == 200:
                            self._samples.append((now - self._origin, await response.read()))
                except (aiohttp.ClientError, TimeoutError, OSError):
                    pass  # a gap in the series says so
                await asyncio.sleep(max(0.0, now + PERIOD_SECONDS - time.monotonic()))


def series_table(level: int, samples: Sequence[tuple[float, bytes]]) -> pa.Table | None:
    """Prometheus texts with their times (seconds) as rows of `SERIES_SCHEMA`; buckets are left out."""
    rows = []
    for t, text in samples:
        try:
            families = list(text_string_to_metric_families(text.decode()))
        except (ValueError, LookupError):  # the parser raises either
            continue  # not the Prometheus format
        rows += [
            {"level": level, "t": t, "name": s.name, "labels": _labels(s.labels), "value": float(s.value)}
            for family in families
            for s in family.samples
            if not s.name.endswith(LEFT_OUT)
        ]
    return pa.Table.from_pylist(rows, schema=SERIES_SCHEMA) if rows else None


def _labels(labels: dict[str, str]) -> str:
    return orjson.dumps(labels, option=orjson.OPT_SORT_KEYS).decode()
