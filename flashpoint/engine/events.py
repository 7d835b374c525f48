"""What the engine tells about a request, in order, until an event carries `finish`."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from flashpoint.engine.plan import TokenLogprob


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class TokenEvent(NamedTuple):
    """New tokens of a request, possibly its last.

    tokens: accepted ids, in order; a stop id that ended the request is not among them.
    cached_tokens: prompt tokens that came from the prefix cache.
    error: why, when `finish` is ERROR.
    stop_id: the id that ended the request, when one did.
    """

    request_id: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    error: str | None = None
    cached_tokens: int = 0
    stop_id: int | None = None
