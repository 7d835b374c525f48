"""Raw ASGI: read a bounded body, answer JSON, stream events, notice that a client left.

The token stream is written without a framework's response classes; benchmarks/http_stack.py says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from flashpoint.server.errors import ApiError

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Tells nginx and its kin not to collect the stream before passing it on.
    (b"x-accel-buffering", b"no"),
]
DONE = b"data: [DONE]\n\n"


class ClientGoneError(Exception):
    """The client closed its connection before it had its answer."""


async def read_json(scope: Scope, receive: Receive, max_bytes: int, seconds: float) -> Any:
    """The decoded JSON body.

    Raises ApiError 413 as soon as the announced or received size exceeds `max_bytes`, 408 when the body took
    longer than `seconds`, 400 when it is no JSON; ClientGoneError.
    """
    try:
        body = await asyncio.wait_for(_read_body(scope, receive, max_bytes), seconds)
    except TimeoutError:
        raise ApiError(
            408, f"body: not complete after {seconds:g} s; expected all of it by then", code="request_timeout"
        ) from None
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _not_json(body, error) from error


async def _read_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    announced = dict(scope["headers"]).get(b"content-length")
    if announced is not None and int(announced) > max_bytes:
        raise _too_large(f"{int(announced)}", max_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > max_bytes:
            raise _too_large(f"more than {max_bytes}", max_bytes)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(size: str, max_bytes: int) -> ApiError:
    return ApiError(413, f"body: got {size} bytes; expected at most {max_bytes}", code="body_too_large")


def _not_json(body: bytes, error: orjson.JSONDecodeError) -> ApiError:
    try:
        body.decode()
    except UnicodeDecodeError as encoding:
        message = f"body: byte {encoding.start} is not valid UTF-8; expected JSON in UTF-8"
        return ApiError(400, message, code="invalid_utf8")
    return ApiError(400, f"body: not JSON: {error}; expected a JSON object", code="invalid_json")


async def send_json(send: Send, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    """A whole response."""
    fields = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    fields += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ApiError, request_id: str | None = None) -> None:
    """An error as a whole response."""
    headers = dict(error.headers)
    if request_id is not None:
        headers["x-request-id"] = request_id
    await send_json(send, error.status, error.body(), headers=headers)


async def start_stream(send: Send, request_id: str) -> None:
    """Status and headers of an event stream."""
    headers = [*STREAM_HEADERS, (b"x-request-id", request_id.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def send_event(send: Send, data: bytes, last: bool = False) -> None:
    """One server-sent event. Waits while the client does not read."""
    await send({"type": "http.response.body", "body": b"data: %b\n\n" % data, "more_body": not last})


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work`; cancel it and raise ClientGoneError as soon as the client is gone."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
    if task.cancelled():
        raise ClientGoneError
    task.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
