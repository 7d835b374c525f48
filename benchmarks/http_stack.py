"""Server CPU per streamed chunk, for each way to write server-sent events that could carry our tokens.

Each server runs in a process of its own and sends, on 64 streams, one 170-byte chunk per step; all streams
share the step, as they do with a real engine. Cost is the process's own user + system time (getrusage)
divided by the chunks it sent. Run: `python benchmarks/http_stack.py [--seconds 5] [--step-ms 10]`.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import platform
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

STREAMS = 64
CHUNK = b"data: " + b"x" * 162 + b"\n\n"
HEADERS = [(b"content-type", b"text/event-stream")]

Send = Callable[[dict[str, Any]], Awaitable[None]]


class Steps:
    """Wakes every stream once per step, and knows how many steps there are."""

    def __init__(self, count: int, seconds: float) -> None:
        self._count, self._seconds = count, seconds
        self._event = asyncio.Event()
        self._joined = 0

    def start(self) -> None:
        """Count a stream in; the last one starts the clock."""
        self._joined += 1
        if self._joined == STREAMS:
            self._ticking = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        for _ in range(self._count):
            await asyncio.sleep(self._seconds)
            self._event.set()
            self._event = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.start()
        for _ in range(self._count):
            await self._event.wait()
            yield CHUNK


def raw_asgi(steps: Steps) -> Any:
    async def app(scope: dict[str, Any], receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        async for chunk in steps:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


def starlette_routed_raw_asgi(steps: Steps) -> Any:
    from starlette.applications import Starlette
    from starlette.routing import Route

    class Endpoint:
        def __init__(self) -> None:
            self._app = raw_asgi(steps)

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await self._app(scope, receive, send)

    return Starlette(routes=[Route("/", Endpoint(), methods=["GET"])])


def starlette_streaming_response(steps: Steps) -> Any:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    async def stream(_: Request) -> StreamingResponse:
        return StreamingResponse(steps.__aiter__(), media_type="text/event-stream")

    return Starlette(routes=[Route("/", stream)])


def fastapi_streaming_response(steps: Steps) -> Any:
    from fastapi import FastAPI
    from fastapi.responses import StreamingResponse

    app = FastAPI()

    @app.get("/")
    async def stream() -> StreamingResponse:
        return StreamingResponse(steps.__aiter__(), media_type="text/event-stream")

    return app


def serve_uvicorn(app: Any, port: int) -> None:
    import uvicorn

    uvicorn.run(app, port=port, log_level="error", access_log=False, ws="none", lifespan="off", loop="uvloop")


def serve_granian(app: Any, port: int) -> None:
    from granian.constants import Interfaces
    from granian.server.embed import Server

    # Its logger speaks at start; the benchmark's output is a table.
    server = Server(app, port=port, interface=Interfaces.ASGINL, log_enabled=False)
    asyncio.run(server.serve())


APPS = {
    "raw": raw_asgi,
    "routed": starlette_routed_raw_asgi,
    "starlette": starlette_streaming_response,
    "fastapi": fastapi_streaming_response,
}
SERVERS = {"uvicorn": serve_uvicorn, "granian": serve_granian}
VARIANTS = [
    ("uvicorn, raw ASGI", "uvicorn", "raw", ["uvicorn"]),
    ("uvicorn, Starlette routing, raw ASGI stream", "uvicorn", "routed", ["starlette"]),
    ("uvicorn, Starlette StreamingResponse", "uvicorn", "starlette", ["starlette"]),
    ("uvicorn, FastAPI StreamingResponse", "uvicorn", "fastapi", ["fastapi"]),
    ("granian, raw ASGI", "granian", "raw", ["granian"]),
]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


async def read_streams(port: int) -> int:
    """Read every stream to its end; the bytes that came."""

    async def read_one() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        received = 0
        while piece := await reader.read(2**16):
            received += len(piece)
        writer.close()
        return received

    return sum(await asyncio.gather(*(read_one() for _ in range(STREAMS))))


def wait_until_listening(port: int) -> None:
    for _ in range(300):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("the server did not start")


def children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def cpu_of(pid: int) -> float:
    """User and system seconds of a process and its threads."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(server: str, app: str, steps: int, step_ms: float) -> tuple[float, float]:
    """Microseconds of server CPU per chunk, and the share of chunks that came."""
    port = free_port()
    before = children_cpu()
    arguments = ["--child", server, app, str(port), str(steps), str(step_ms)]
    process = subprocess.Popen([sys.executable, __file__, *arguments])
    try:
        wait_until_listening(port)
        time.sleep(0.3)
        start_up = cpu_of(process.pid)
        received = asyncio.run(read_streams(port))
    finally:
        process.terminate()
        process.wait(20)
    seconds = children_cpu() - before - start_up
    chunks = steps * STREAMS
    return 1e6 * seconds / chunks, received / (chunks * len(CHUNK))


def machine() -> str:
    with open("/proc/cpuinfo") as info:
        models = [line.split(":", 1)[1].strip() for line in info if line.startswith("model name")]
    return f"{models[0]} ({os.cpu_count()} cores), Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one run")
    parser.add_argument("--step-ms", type=float, default=10.0, help="time of one step")
    parser.add_argument("--repeats", type=int, default=3, help="runs per variant; the median counts")
    options = parser.parse_args()
    steps = int(1000 * options.seconds / options.step_ms)
    print(f"{machine()}; {STREAMS} streams, a {len(CHUNK)}-byte chunk each per {options.step_ms:g} ms step\n")
    print("| stack | server CPU per chunk, us (median; all) | chunks per CPU second |")
    print("|---|---|---|")
    for name, server, app, needs in VARIANTS:
        if any(importlib.util.find_spec(package) is None for package in needs):
            print(f"| {name} | not installed here | |")
            continue
        runs = []
        for _ in range(options.repeats):
            cost, share = measure(server, app, steps, options.step_ms)
            assert share >= 1, f"{name}: only {share:.0%} of the chunks came"
            runs.append(cost)
        listed = ", ".join(f"{run:.1f}" for run in runs)
        median = statistics.median(runs)
        print(f"| {name} | {median:.1f} ({listed}) | {1e6 / median:,.0f} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _, _, server_name, app_name, port_text, step_count, step_ms_text = sys.argv
        child_steps = Steps(int(step_count), float(step_ms_text) / 1000)
        SERVERS[server_name](APPS[app_name](child_steps), int(port_text))
    else:
        main()
