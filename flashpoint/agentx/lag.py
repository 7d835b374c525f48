"""How late the client itself is: the part of every measured time that is not the server's.

A thread sends its own time through a socket to the event loop, as a server sends a chunk. What the loop's
clock says on arrival, less the time sent, is how late a chunk is stamped: other streams being handled, the
interpreter lock, or a machine with too little CPU left for the client.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from typing import Self

PERIOD_SECONDS = 0.02


class LagProbe:
    """Measures the running event loop between `__enter__` and `__exit__`; must be entered inside it."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        self._receiver, self._sender = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._receiver, self._arrived)
        self._thread = threading.Thread(target=self._send, name="lag-probe", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._loop.remove_reader(self._receiver)
        self._receiver.close()
        self._sender.close()

    def take(self) -> list[float]:
        """The seconds of lag sampled since the last call."""
        taken, self.samples = self.samples, []
        return taken

    def _send(self) -> None:
        while not self._stop.wait(PERIOD_SECONDS):
            try:
                self._sender.send(struct.pack("d", time.monotonic()))
            except BlockingIOError:
                # The loop has not read for so long that the socket is full; what is queued says so.
                continue

    def _arrived(self) -> None:
        now = time.monotonic()
        while True:
            try:
                (sent,) = struct.unpack("d", self._receiver.recv(8))
            except BlockingIOError:
                return
            # One sent while this loop runs is later than `now`; it waited for nothing.
            self.samples.append(max(0.0, now - sent))
