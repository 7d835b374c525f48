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
        text = self._rest + piece
        events: list[bytes] = []
        if not self._data and b"\r" not in text:
            # As servers really send them: one data line, an empty line.
            *blocks, text = text.split(b"\n\n")
            for block in blocks:
                if block.startswith(b"data: ") and b"\n" not in block:
                    events.append(block[6:])
                else:
                    self._lines([*block.split(b"\n"), b""], events)
        *lines, self._rest = text.split(b"\n")
        self._lines(lines, events)
        if len(self._rest) + sum(map(len, self._data)) > MAX_EVENT_BYTES:
            raise SseError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events

    def _lines(self, lines: list[bytes], events: list[bytes]) -> None:
        for line in lines:
            line = line.removesuffix(b"\r")
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
