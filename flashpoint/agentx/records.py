"""One request of a run as it was measured: the row of `requests.parquet` and the input of every metric."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Status = Literal["ok", "error", "cancelled", "overflow"]
"""`overflow`: the prompt exceeds the server's context window; `cancelled`: open when the level ended."""

Phase = Literal["warmup", "measured"]


@dataclass(frozen=True, slots=True, eq=False)
class RequestRecord:
    """What one request was and what happened to it.

    Times are seconds: `start` and `end` since the start of the run, `ttft`, `ttft_answer`, `last_token`
    and `token_offsets` since the request's own `start`. Counts are the server's `usage`; a count that the
    server did not send is None, never a guess.
    """

    level: int
    """Position in the run, from 0: a concurrency, or one repeat of it."""
    concurrency: int
    lane: int
    session: str
    """Id of the trace."""
    play: int
    """How often this session was replayed before at this level."""
    turn: int
    """Position in its stream."""
    request_id: str
    max_tokens: int | None
    """Length of the answer that was asked for; None where an imported run does not say."""
    start: float
    end: float
    """When the HTTP response ended, or the request failed."""
    status: Status
    ttft: float | None = None
    """First chunk that carries text, reasoning or a tool call."""
    ttft_answer: float | None = None
    """First chunk that carries something other than reasoning."""
    last_token: float | None = None
    """Last chunk that carries text, reasoning or a tool call."""
    token_offsets: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """One arrival per output token; without `usage`, one per chunk."""
    chunks: int = 0
    """Content chunks; 0 where an imported run does not say."""
    prompt_tokens: int | None = None
    """Whole prompt, cached tokens included."""
    cached_tokens: int | None = None
    output_tokens: int | None = None
    http_status: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    phase: Phase = "measured"
    """Requests of the warm-up are in no figure."""
    stream: str = ""
    """The conversation of the session it belongs to: the session itself, or one of its sub-agents."""
    depth: int = 0
    """0 for the session's own conversation, 1 for a sub-agent's."""
    correlation_id: str = ""
    """Constant for one play of a stream; what a router may use as affinity key."""
    due: float | None = None
    """When the schedule wanted it sent; what `start` is later, the client is late."""
    recorded_input: int | None = None
    """Prompt length in the trace; the server's own count includes its chat template and the marker."""
    hit_blocks: int | None = None
    """Leading blocks of the prompt that an earlier call of the recorded session had sent."""
    total_blocks: int | None = None
    """Hashed blocks of the prompt in the trace."""

    def scalars(self) -> dict[str, Any]:
        """Every field but `token_offsets`, by name."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "token_offsets"}


def spread_tokens(total: int, chunks: int) -> list[int]:
    """How many of `total` tokens each of `chunks` chunks is taken to carry, where nobody says so.

    The first chunk carries one (it is the token of the prefill) and the others share the rest as evenly as
    whole numbers allow: after chunk i (from 0), 1 + floor((total - 1) · i / (chunks - 1)) tokens have
    arrived. A single chunk carries all. Only the pooled token gaps depend on this rule; TTFT and the ITL
    of a request use the first chunk, the last chunk and the total alone.
    """
    if total < 1 or chunks == 1:
        return [total] + [0] * (chunks - 1)
    arrived = [0] + [1 + (total - 1) * i // (chunks - 1) for i in range(chunks)]
    return [after - before for before, after in pairwise(arrived)]
