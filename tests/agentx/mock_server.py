"""A small OpenAI-compatible server with known timing and chosen faults, over real sockets.

In a thread of the test (`MockServer`), or as a process of its own that can be killed:
`python mock_server.py '{"ttft": 0.01}'` prints its port on the first line.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from os.path import commonprefix
from typing import Any

from aiohttp import web


@dataclass
class Behaviour:
    """What the server does. `faults[i]` is the fault of the i-th request ("" for none); see `_chat`."""

    ttft: float = 0.0
    gap: float = 0.0
    tokens_per_chunk: int = 1
    usage: bool = True
    running_usage: bool = False
    cached_tokens: bool = True
    reasoning_tokens: int = 0
    stop_after: int | None = None
    models: list[str] = field(default_factory=lambda: ["mock"])
    faults: list[str] = field(default_factory=list)
    fault_always: str = ""


class MockServer:
    """The application; as a context manager it runs in a thread."""

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.behaviour = behaviour or Behaviour()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.open = 0
        self.most_open = 0
        self._prompts: list[str] = []

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**30)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/chat/completions", self._chat)
        return app

    async def start(self) -> int:
        self.runner = web.AppRunner(self.app(), shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        return site._server.sockets[0].getsockname()[1]

    def __enter__(self) -> MockServer:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        port = asyncio.run_coroutine_threadsafe(self.start(), self._loop).result(10)
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self.runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name} for name in self.behaviour.models]})

    async def _metrics(self, request: web.Request) -> web.Response:
        text = (
            f'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{engine="0"}} {self.open}\n'
        )
        return web.Response(text=text)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        number = len(self.bodies)
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            return await self._answer(request, body, number)
        finally:
            self.open -= 1

    async def _answer(self, request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
        b = self.behaviour
        fault = b.faults[number] if number < len(b.faults) else b.fault_always
        if fault == "http_500":
            return web.json_response({"error": {"message": "the engine is down", "code": 500}}, status=500)
        if fault == "overflow":
            error = {"message": "This model's maximum context length is 7 tokens", "code": 400}
            return web.json_response({"error": error}, status=400)
        if fault == "http_429":
            return web.Response(text="slow down", status=429, headers={"Retry-After": "1"})
        prompt = "\n".join(message["content"] for message in body["messages"])
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": 0}
        if b.cached_tokens:
            shared = [len(commonprefix([prompt, old])) for old in self._prompts]  # noqa: RUF071 (characters)
            self._prompts.append(prompt)
            usage["prompt_tokens_details"] = {"cached_tokens": max(shared, default=0)}
        if fault == "bad_usage":
            usage["prompt_tokens"] = -1

        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def send(event: dict[str, Any] | str) -> None:
            data = event if isinstance(event, str) else json.dumps(event)
            await response.write(f"data: {data}\n\n".encode())

        await response.write(b": a comment\r\n\r\n")
        await send({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        wanted = body.get("max_completion_tokens") or body["max_tokens"]
        total = min(wanted, b.stop_after or wanted)
        sent = 0
        await asyncio.sleep(b.ttft)
        while sent < total:
            if sent and b.gap:
                await asyncio.sleep(b.gap)
            if sent and fault == "cut":
                request.transport.abort()
                return response
            if sent and fault == "stall":
                await asyncio.sleep(3600)
            if sent and fault == "error_event":
                await send({"error": {"message": "out of memory", "type": "server_error"}})
                await response.write_eof()
                return response
            if sent and fault == "not_json":
                await send("{nonsense")
            count = min(b.tokens_per_chunk, total - sent)
            key = "reasoning_content" if sent < b.reasoning_tokens else "content"
            words = "".join(f"w{number}.{sent + i} " for i in range(count))
            sent += count
            event: dict[str, Any] = {"choices": [{"index": 0, "delta": {key: words}}]}
            if b.running_usage:
                event["usage"] = {**usage, "completion_tokens": sent}
            await send(event)
        if fault != "no_finish":
            reason = "length" if sent == wanted else "stop"
            await send({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        if b.usage:
            await send({"choices": [], "usage": {**usage, "completion_tokens": sent}})
        await send("[DONE]")
        await response.write_eof()
        return response


@contextlib.contextmanager
def mock_process(**behaviour: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The server as a process: (process, url). Killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, __file__, json.dumps(behaviour)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout
        yield process, f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


async def _main(behaviour: Behaviour) -> None:
    print(await MockServer(behaviour).start(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    known = {item.name for item in dataclasses.fields(Behaviour)}
    options = json.loads(sys.argv[1])
    assert set(options) <= known, options
    asyncio.run(_main(Behaviour(**options)))
