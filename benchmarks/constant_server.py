"""A throw-away OpenAI-compatible server of constant rate, light enough not to be what is measured.

    python benchmarks/constant_server.py --ttft 0.005 --gap 0.0005 [--log FILE] [--tokens-per-chunk 1]

Prints its port on the first line. First token `ttft` seconds after the request's last byte, then one chunk
every `gap` seconds, on an absolute schedule, so that lateness does not add up. `prompt_tokens` is the number
of UTF-8 bytes of all message contents; `cached_tokens` what a cache of 256-byte blocks holds of them. The log
has a line per request: ids, a digest of the messages without the marker of a play, and the moments on the
monotonic clock at which the request was read and its first and last chunk written.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import heapq
import itertools
import json
import re
import time
from typing import Any, TextIO

import uvloop

BLOCK = 256
MARKER = re.compile(r"^\[rid:[0-9a-f]{12}\]\n\n")
KIND = b'"id":"c","object":"chat.completion.chunk","created":1,"model":"mock"'
CHUNK = b"data: {" + KIND + b',"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n'
FINISH = b"data: {" + KIND + b',"choices":[{"index":0,"delta":{},"finish_reason":"length"}]}\n\n'
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: keep-alive\r\n\r\n"
)


def frame(data: bytes) -> bytes:
    """A piece of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


class Server:
    """What connections share: the timing, the cache, the timers and the log."""

    def __init__(self, ttft: float, gap: float, per_chunk: int, log: TextIO | None) -> None:
        self.ttft, self.gap, self.per_chunk, self.log = ttft, gap, per_chunk, log
        self.seen: set[bytes] = set()
        self.timers: list[tuple[float, int, Stream]] = []
        self.count = itertools.count()
        self.running = 0
        self._timer: asyncio.TimerHandle | None = None

    def cached(self, text: bytes) -> int:
        """How many leading bytes of `text` are known; all of it is from now on."""
        digest, known, fresh = hashlib.blake2b(digest_size=12), 0, False
        for start in range(0, len(text) - BLOCK + 1, BLOCK):
            digest.update(text[start : start + BLOCK])
            key = digest.digest()
            fresh = fresh or key not in self.seen
            known += 0 if fresh else BLOCK
            self.seen.add(key)
        return known

    def at(self, due: float, stream: Stream) -> None:
        """Wake `stream` at `due`."""
        heapq.heappush(self.timers, (due, next(self.count), stream))
        self._arm()

    def _arm(self) -> None:
        if self._timer:
            self._timer.cancel()
        delay = max(0.0, self.timers[0][0] - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(delay, self._fire)

    def _fire(self) -> None:
        now = time.monotonic()
        while self.timers and self.timers[0][0] <= now + 0.0002:
            heapq.heappop(self.timers)[2].send()
        self._timer = None
        if self.timers:
            self._arm()


class Stream:
    """One answer."""

    def __init__(
        self, server: Server, connection: Connection, ids: tuple[str, str], body: dict[str, Any]
    ) -> None:
        self.server, self.connection, self.ids = server, connection, ids
        self.read_at = time.monotonic()
        self.total = body.get("max_completion_tokens") or body["max_tokens"]
        contents = [message["content"] for message in body["messages"]]
        text = "\0".join(contents).encode()
        self.usage = {
            "prompt_tokens": len(text),
            "completion_tokens": self.total,
            "prompt_tokens_details": {"cached_tokens": server.cached(text)},
        }
        plain = json.dumps([[m["role"], MARKER.sub("", m["content"])] for m in body["messages"]])
        self.digest = hashlib.sha256(plain.encode()).hexdigest()
        self.sent = self.number = 0
        self.first = 0.0
        server.running += 1
        server.at(self.read_at + server.ttft, self)

    def send(self) -> None:
        """The next chunk, and with the last one the end."""
        now = time.monotonic()
        count = min(self.server.per_chunk, self.total - self.sent)
        self.sent += count
        data = frame(CHUNK % (b"w " * count))
        if not self.number:
            data, self.first = HEAD + data, now
        self.number += 1
        if self.sent < self.total:
            self.connection.write(data)
            self.server.at(self.read_at + self.server.ttft + self.number * self.server.gap, self)
            return
        usage = b'data: {%s,"choices":[],"usage":%s}\n\n' % (KIND, json.dumps(self.usage).encode())
        self.connection.write(data + frame(FINISH + usage + b"data: [DONE]\n\n") + b"0\r\n\r\n")
        self.server.running -= 1
        self.connection.done()
        if self.server.log:
            line = {
                "request_id": self.ids[0], "correlation_id": self.ids[1], "messages": self.digest,
                "tokens": self.total, "prompt_tokens": self.usage["prompt_tokens"],
                "read": self.read_at, "first": self.first, "last": now,
            }  # fmt: skip
            print(json.dumps(line), file=self.server.log, flush=True)


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection, one request at a time."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.buffer = bytearray()
        self.busy = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.transport = None

    def write(self, data: bytes) -> None:
        """To the client, if it is still there."""
        if self.transport:
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self.buffer += data
        self._next()

    def done(self) -> None:
        """The answer is out; the next request may be waiting."""
        self.busy = False
        self._next()

    def _next(self) -> None:
        if self.busy or (end := self.buffer.find(b"\r\n\r\n")) < 0:
            return
        lines = bytes(self.buffer[:end]).decode("latin-1").split("\r\n")
        headers = {k.strip().lower(): v.strip() for k, v in (line.split(":", 1) for line in lines[1:])}
        length = int(headers.get("content-length", 0))
        if headers.get("transfer-encoding") == "chunked":
            body, used = _chunked(self.buffer, end + 4)
            if body is None:
                return
        else:
            if len(self.buffer) < end + 4 + length:
                return
            body, used = bytes(self.buffer[end + 4 : end + 4 + length]), end + 4 + length
        del self.buffer[:used]
        if lines[0].startswith("POST"):
            self.busy = True
            ids = headers.get("x-request-id", ""), headers.get("x-correlation-id", "")
            Stream(self.server, self, ids, json.loads(body))
        elif lines[0].startswith("GET /metrics"):
            text = (
                f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running {self.server.running}\n"
            )
            self._answer(text.encode(), b"text/plain; version=0.0.4")
        else:
            self._answer(b'{"object":"list","data":[{"id":"mock"}]}', b"application/json")

    def _answer(self, body: bytes, kind: bytes) -> None:
        self.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (kind, len(body), body)
        )


def _chunked(buffer: bytearray, start: int) -> tuple[bytes | None, int]:
    body = bytearray()
    while (end := buffer.find(b"\r\n", start)) >= 0:
        size = int(bytes(buffer[start:end]), 16)
        if len(buffer) < end + 2 + size + 2:
            break
        body += buffer[end + 2 : end + 2 + size]
        start = end + 2 + size + 2
        if not size:
            return bytes(body), start
    return None, 0


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ttft", type=float, default=0.005)
    parser.add_argument("--gap", type=float, default=0.0005)
    parser.add_argument("--tokens-per-chunk", type=int, default=1)
    parser.add_argument("--log")
    options = parser.parse_args()
    log = open(options.log, "a") if options.log else None  # noqa: SIM115 (open for the process's life)
    server = Server(options.ttft, options.gap, options.tokens_per_chunk, log)
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=4096)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
