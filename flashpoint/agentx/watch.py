"""Tells a server that failed a request from a server that is gone."""

from __future__ import annotations

import asyncio

from flashpoint.agentx.client import ChatClient

PROBES = 10
PROBE_PAUSE_SECONDS = 0.5


class ServerWatch:
    """After a broken connection, asks anew; the server is lost when it answers none of several questions.

    It asks over HTTP, as the kernel still accepts connections for a process that is just being killed. A
    server that comes back in between is not lost: its failed requests are errors, and the run goes on.
    """

    def __init__(self, client: ChatClient) -> None:
        self._client = client
        self._probe: asyncio.Task[bool] | None = None
        self.lost = asyncio.Event()

    def suspect(self) -> None:
        """A connection failed: find out whether the server is still there."""
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._look())

    async def alive(self) -> bool:
        """False once the server is lost; waits for an inquiry that is under way."""
        # Shielded, because one lane's cancellation must not end the inquiry of all.
        return await asyncio.shield(self._probe) if self._probe else True

    async def close(self) -> None:
        """End an inquiry that is still under way."""
        if self._probe:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)

    async def _look(self) -> bool:
        for number in range(PROBES):
            if number:
                await asyncio.sleep(PROBE_PAUSE_SECONDS)
            if await self._client.answers():
                return True
        self.lost.set()
        return False
