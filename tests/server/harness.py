"""A real server on a real socket, in front of a fake executor, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
import uvloop

from flashpoint.engine.config import EngineConfig
from flashpoint.engine.plan import Chunk
from flashpoint.engine.service import EngineService
from flashpoint.models.chat import ChatRenderer
from flashpoint.models.deepseek_v41.chat import renderer_for
from flashpoint.server.app import create_app
from flashpoint.server.config import ServerConfig
from flashpoint.server.context import ModelInfo
from flashpoint.server.run import listen, run_server
from flashpoint.server.tokenizer import Tokenizer
from tests.engine.fake_executor import FakeExecutor, make_capacity

TINY = Path(__file__).parents[1] / "golden" / "tiny-q"
MODEL = "tiny"
CONTEXT = 4096


@dataclass
class Harness:
    """How to build a server; `start` runs it. The defaults are quick and roomy."""

    executor: FakeExecutor = field(default_factory=lambda: FakeExecutor(capacity()))
    config: ServerConfig = field(default_factory=lambda: ServerConfig(port=0, drain_seconds=1.0))
    tokenizer: Tokenizer = field(default_factory=lambda: Tokenizer.from_checkpoint(TINY))
    renderer: ChatRenderer | None = None
    max_running: int = 16
    max_waiting: int = 10_000

    @contextmanager
    def start(self) -> Iterator[RunningServer]:
        cap = self.executor.capacity
        engine = EngineService(
            self.executor,
            EngineConfig(
                max_step_tokens=512,
                max_running=self.max_running,
                max_waiting=self.max_waiting,
                block_tokens=cap.block_tokens,
                cache_tokens=cap.blocks * cap.block_tokens,
            ),
        )
        renderer = self.renderer or renderer_for(self.tokenizer.token_id)
        app = create_app(engine, self.tokenizer, renderer, ModelInfo(MODEL), self.config)
        server = RunningServer(engine, app)
        try:
            server.run_in_thread()
            yield server
        finally:
            server.stop()


class RunningServer:
    def __init__(self, engine: EngineService, app: Any) -> None:
        self.engine = engine
        self.app = app
        self.context = app.state.context
        self._socket = listen("127.0.0.1", 0)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def run_in_thread(self) -> None:
        self._thread.start()
        for _ in range(200):
            try:
                httpx.get(f"{self.url}/v1/models", timeout=5)
                return
            except httpx.TransportError:
                threading.Event().wait(0.02)
        raise AssertionError("the server did not start")

    def begin_drain(self) -> None:
        assert self._loop is not None and self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)

    def stop(self) -> None:
        if self._loop is not None and self._thread.is_alive():
            self.begin_drain()
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server did not stop"

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", content=orjson.dumps(body), timeout=30, **options)

    def stream(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Every event of a stream, the `[DONE]` checked and left out."""
        events = []
        with httpx.stream("POST", f"{self.url}{path}", json={**body, "stream": True}, timeout=30) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            for line in response.iter_lines():
                if line:
                    assert line.startswith("data: ")
                    events.append(line.removeprefix("data: "))
        assert events.pop() == "[DONE]"
        return [orjson.loads(event) for event in events]

    def metric(self, name: str, **labels: str) -> float:
        value = self.context.metrics.registry.get_sample_value(name, labels)
        return 0.0 if value is None else value

    def _run(self) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            await run_server(self.engine, self.app, self._socket, self._stop)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())


def capacity(vocab_size: int = 512, blocks: int = 4096) -> Any:
    return make_capacity(blocks=blocks, block_tokens=16, slots=64, max_context=CONTEXT, vocab_size=vocab_size)


def scripted(tokens: Sequence[int], vocab_size: int = 512, **options: Any) -> FakeExecutor:
    """An executor whose every answer is `tokens`, then token 1 (eos)."""

    def next_token(chunk: Chunk) -> int:
        position = len(chunk.history) - chunk.prompt_tokens
        return tokens[position] if position < len(tokens) else 1

    return FakeExecutor(capacity(vocab_size), next_token=next_token, **options)


def decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of an answer made of `ids`."""
    stream = tokenizer.stream()
    return "".join([*(stream.push(token) for token in ids), stream.finish()])
