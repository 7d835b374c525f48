"""Server-sent events, parsed as the bytes arrive."""

from __future__ import annotations

MAX_EVENT_BYTES = 16 * 2**20


class SseError(Exception):
    """The stream is not a stream of server-sent events."""


class SseParser:
    """Turns pieces of a byte stream, cut anywhere, into the data of whole events."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of every event that `piece` completes; comments and other fields are skipped."""
        events: list[bytes] = []
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
        if len(self._rest) + sum(map(len, self._data)) > MAX_EVENT_BYTES:
            raise SseError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events
