"""HTTP/1.1 requests whose response bytes are handed over, with their time, the moment the socket has them.

A general client costs an event loop several callbacks and a task switch per chunk; at tens of thousands of
chunks a second that is most of a core, and lateness of every stamp. Here a chunk costs one callback.
`httptools` (the parser of Node.js) reads the protocol.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import httptools

CONNECT_SECONDS = 10.0
# Shorter than the 5 s after which common servers close an idle connection: reusing one that the other side
# is just closing would show up as an error of the server.
KEEP_ALIVE_SECONDS = 2.0

OnBody = Callable[[int, bytes, float], None]
"""Takes status, bytes and their time; what it raises ends the request."""


class HttpFailure(Exception):
    """The request could not be completed; `slow` where the server is there but did not say enough in time."""

    def __init__(self, text: str, *, slow: bool = False) -> None:
        super().__init__(text)
        self.slow = slow


class HttpPool:
    """Connections to one server, as many as there are requests at once; idle ones are used again."""

    def __init__(self, url: str, *, request_timeout: float, stall_timeout: float) -> None:
        """`url` is the server's root; the timeouts are seconds (whole request, silence)."""
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._name = parts.netloc
        self._request_timeout = request_timeout
        self._stall_timeout = stall_timeout
        self._idle: list[_Connection] = []

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def post(self, path: str, headers: Mapping[str, str], body: bytes, on_body: OnBody) -> int:
        """Send a request, hand its response's bytes to `on_body`, and return the status when it is complete.

        Raises `HttpFailure`, or what `on_body` raised. A cancelled request closes its connection.
        """
        connection = await self._connect()
        lines = [f"POST {self._prefix}{path} HTTP/1.1", f"Host: {self._name}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        done = connection.begin(on_body, head, body, self._stall_timeout)
        loop = asyncio.get_running_loop()
        limit = HttpFailure(f"not finished within {self._request_timeout:g} s (request timeout)", slow=True)
        timer = loop.call_later(self._request_timeout, connection.fail, limit)
        try:
            status = await done
        except BaseException:
            connection.abort()
            raise
        finally:
            timer.cancel()
        if connection.reusable:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        return status

    async def _connect(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and time.monotonic() - connection.idle_since < KEEP_ALIVE_SECONDS:
                return connection
            connection.abort()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await loop.create_connection(
                    _Connection, self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            raise HttpFailure(f"no connection within {CONNECT_SECONDS:g} s") from None
        except ConnectionRefusedError:
            raise HttpFailure("connection refused") from None
        except OSError as error:
            raise HttpFailure(f"no connection: {error.strerror or error}") from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[int] | None = None
        self._on_body: OnBody | None = None
        self._began = self._until_close = False
        self._pieces: list[bytes] = []
        self._watch: asyncio.TimerHandle | None = None

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent."""
        return self._transport is not None and self._done is None and not self._transport.is_closing()

    def begin(self, on_body: OnBody, head: bytes, body: bytes, stall: float) -> asyncio.Future[int]:
        """Send a request; the future has its status when the response is complete."""
        loop = asyncio.get_running_loop()
        self._done = done = loop.create_future()
        self._on_body, self._stall, self._last = on_body, stall, loop.time()
        self._parser = httptools.HttpResponseParser(self)
        self._began = False
        self._until_close = True
        self._watch = loop.call_later(stall, self._look)
        if self._transport is None:
            self.fail(HttpFailure("connection lost before the answer began"))
        else:
            self._transport.writelines([head, body])
        return done

    def fail(self, error: Exception) -> None:
        """End the request in flight."""
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
        self._rest()

    def abort(self) -> None:
        """Close at once."""
        self._rest()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _rest(self) -> None:
        self._done = self._on_body = None
        self._pieces = []
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _look(self) -> None:
        """The server has been silent for as long as it may, or has said something since this was set."""
        loop = asyncio.get_running_loop()
        left = self._last + self._stall - loop.time()
        if left <= 0:
            self.fail(HttpFailure(f"no data for {self._stall:g} s (stall timeout)", slow=True))
        else:
            self._watch = loop.call_later(left, self._look)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self._done is None:
            self.abort()  # nothing was asked for
            return
        self._now = time.monotonic()
        self._last = asyncio.get_running_loop().time()
        try:
            self._parser.feed_data(data)
            self._hand_over()
        except httptools.HttpParserCallbackError as error:
            self.fail(error.__context__ if isinstance(error.__context__, Exception) else error)
        except httptools.HttpParserError as error:
            self.fail(HttpFailure(f"not an HTTP response: {error}"))
        except Exception as error:  # what the taker of the bytes raised
            self.fail(error)

    def _hand_over(self) -> None:
        """Give what one read of the socket brought to the taker, all at once."""
        if self._pieces and self._on_body is not None:
            data, self._pieces = b"".join(self._pieces), []
            self._on_body(self._status, data, self._now)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._done is None:
            return
        if self._began and self._until_close and exc is None:
            self.on_message_complete()
        else:
            when = "was complete" if self._began else "began"
            self.fail(HttpFailure(f"connection lost before the answer {when}"))

    # httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._until_close = False

    def on_headers_complete(self) -> None:
        self._began = True
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._hand_over()
        keep = self._parser.should_keep_alive()
        if self._done is not None and not self._done.done():
            self._done.set_result(self._status)
        self._rest()
        if not keep and self._transport is not None:
            self._transport.close()
