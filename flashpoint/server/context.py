"""What the endpoints of one server share, and its life: accepting, draining, empty."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from flashpoint.engine.service import EngineClient
from flashpoint.models.chat import ChatRenderer
from flashpoint.server.config import ServerConfig
from flashpoint.server.errors import ApiError
from flashpoint.server.metrics import Metrics
from flashpoint.server.protocol import IgnoredFields
from flashpoint.server.tokenizer import Tokenizer

T = TypeVar("T")

# Tokenised within about 2 ms, little more than handing the work to a thread and back can take.
INLINE_CHARACTERS = 2048


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """How the model is named in the API, where its checkpoint lies; `created` is a Unix time."""

    name: str
    root: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))


class Lifecycle:
    """Counts the requests in progress and, once draining, refuses new ones."""

    def __init__(self, drain_seconds: float) -> None:
        self._drain_seconds = drain_seconds
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    @contextmanager
    def request(self) -> Iterator[None]:
        """Hold this for a request's whole life. Raises ApiError 503 when draining."""
        if self.draining:
            raise ApiError(
                503,
                "the server is shutting down and takes no new requests",
                code="shutting_down",
                headers={"retry-after": str(max(1, round(self._drain_seconds)))},
            )
        self._active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()

    @property
    def active(self) -> int:
        """Requests in progress."""
        return self._active

    async def drained(self, seconds: float) -> bool:
        """Wait until no request is in progress; False when `seconds` were not enough."""
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            return False
        return True


class ServerContext:
    """The parts of one server. Created on the event loop's thread or before the loop runs."""

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer,
        renderer: ChatRenderer,
        model: ModelInfo,
        config: ServerConfig,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.renderer = renderer
        self.model = model
        self.config = config
        self.metrics = Metrics(engine.stats)
        self.lifecycle = Lifecycle(config.drain_seconds)
        self.ignored_fields = IgnoredFields()
        self._threads = ThreadPoolExecutor(config.tokenizer_threads, thread_name_prefix="tokenizer")

    async def tokenize(self, characters: int, work: Callable[[], T]) -> T:
        """Run `work` on a text of so many characters: a long one in a thread, off the event loop."""
        if characters <= INLINE_CHARACTERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
