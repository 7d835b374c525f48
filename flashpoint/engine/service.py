"""The engine behind a thread, for asyncio callers: submit, stream events, abort, drain.

This file is the boundary the HTTP server codes against.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from flashpoint.engine.events import TokenEvent
from flashpoint.engine.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A consistent snapshot of the engine's counters. Counters only grow; gauges are named so.

    seconds_since_progress: gauge; 0 while idle, else seconds since a step last completed.
    """

    waiting: int = 0
    running: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    free_slots: int = 0
    total_slots: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    seconds_since_progress: float = 0.0


class EngineClient(Protocol):
    """What the server needs of an engine. All methods are called on the event loop's thread."""

    max_context: int
    vocab_size: int

    def submit(
        self, request_id: str, prompt: npt.NDArray[np.int32], sampling: SamplingParams
    ) -> AsyncIterator[list[TokenEvent]]:
        """Queue a request and return its event stream; each item holds every event not yet taken.

        Raises InvalidValue (`prompt` empty, id out of range) or RequestTooLong at once. Closing the
        iterator before its end aborts the request.
        """
        ...

    def abort(self, request_id: str) -> None:
        """Stop a request in any state; unknown and finished ids are ignored."""
        ...

    def stats(self) -> EngineStats:
        """Counters and gauges now."""
        ...

    @property
    def alive(self) -> bool:
        """False once the engine's thread has died."""
        ...
