"""Clients that leave, and clients that hardly read: their cost ends with them."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import orjson
import pytest

from tests.engine.fake_executor import FakeExecutor
from tests.server.harness import Harness, RunningServer, capacity, scripted

COMPLETIONS = "/v1/completions"
ENDLESS = {"prompt": [5] * 40, "max_tokens": 4000, "ignore_eos": True}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    executor = FakeExecutor(capacity(), seconds=0.005)
    with Harness(executor=executor).start() as running:
        yield running


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def unused(server: RunningServer) -> bool:
    stats = server.engine.stats()
    return (
        stats.running == stats.waiting == 0
        and stats.free_blocks == stats.total_blocks
        and stats.free_slots == stats.total_slots
    )


def send_request(server: RunningServer, body: dict[str, Any], path: str = COMPLETIONS) -> socket.socket:
    content = orjson.dumps(body)
    sock = socket.socket()
    # Small buffers, so that the kernel does not read in the client's place.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(10)
    sock.connect(("127.0.0.1", server.port))
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
    sock.sendall(head.encode() + content)
    return sock


@pytest.mark.parametrize("stream", [True, False])
def test_disconnect_cancels_at_once(server: RunningServer, stream: bool) -> None:
    aborted = server.metric("flashpoint_requests_finished_total", reason="abort")
    sock = send_request(server, {**ENDLESS, "stream": stream})
    eventually(lambda: server.engine.stats().running == 1)
    sock.close()
    left = time.monotonic()
    eventually(lambda: unused(server))
    assert time.monotonic() - left < 5
    assert server.metric("flashpoint_requests_finished_total", reason="abort") == aborted + 1


def test_disconnect_of_several_prompts(server: RunningServer) -> None:
    sock = send_request(server, {**ENDLESS, "prompt": ["a", "b", "c"], "stream": True})
    eventually(lambda: server.engine.stats().running == 3)
    sock.close()
    eventually(lambda: unused(server), 5)


def test_100_requests_cancelled_mid_stream_leak_nothing(server: RunningServer) -> None:
    async def cancel_one(session: aiohttp.ClientSession, number: int) -> None:
        body = {**ENDLESS, "prompt": [number + 1] * (10 + number), "stream": True}
        async with session.post(f"{server.url}{COMPLETIONS}", json=body) as response:
            for _ in range(1 + number % 5):
                await response.content.readany()
            # Leaving the block closes the connection in the middle of the stream.

    async def cancel_all() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(*(cancel_one(session, number) for number in range(100)))

    asyncio.run(cancel_all())
    eventually(lambda: unused(server))
    assert server.context.lifecycle.active == 0
    for state in ("preparing", "waiting", "streaming"):
        assert server.metric("flashpoint_requests_in_flight", state=state) == 0
    assert server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 2}).status_code == 200


def test_client_that_leaves_while_sending(server: RunningServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        eventually(lambda: server.context.lifecycle.active == 1)
    eventually(lambda: server.context.lifecycle.active == 0)


def test_slow_reader_hurts_nobody_and_holds_little() -> None:
    """It reads next to nothing while thousands of tokens are made: they wait as ids, not as chunks."""
    # Alternatives make a chunk of 2 KB: more than the kernel's buffers hold.
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3900, "ignore_eos": True}
    body |= {"stream": True, "logprobs": True, "top_logprobs": 20}
    with Harness(executor=scripted([40] * 4000)).start() as server:
        slow = send_request(server, body, "/v1/chat/completions")
        assert slow.recv(1)
        eventually(lambda: server.engine.stats().finished.get("length") == 1, 30)
        assert server.context.lifecycle.active == 1
        started = time.monotonic()
        assert server.post(COMPLETIONS, {"prompt": "x", "max_tokens": 20}).status_code == 200
        assert time.monotonic() - started < 5
        received = read_to_done(slow)
        slow.close()
        eventually(lambda: server.context.lifecycle.active == 0)
    # The kernel's buffers took some chunks, and what came after them is one.
    assert received.count(b"data: ") < 3500
    assert max(map(len, received.split(b"data: "))) > 100_000


def read_to_done(sock: socket.socket) -> bytes:
    received = bytearray()
    while b"data: [DONE]" not in received[-100:]:
        piece = sock.recv(65536)
        assert piece, "the stream ended early"
        received += piece
    return bytes(received)
