"""A request of the schedule and what came back, as a row of the archive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from flashpoint.agentx.client import Usage
from flashpoint.agentx.records import RequestRecord, Status
from flashpoint.agentx.schedule.lanes import Send


class Heard(Protocol):
    """What came back of a request, over HTTP or without it; see `client.Answer`."""

    start: float
    end: float
    http_status: int | None
    finish_reason: str | None
    error: str | None
    overflow: bool

    @property
    def usage(self) -> Usage | None:
        """Token counts; None where nobody told."""
        ...

    @property
    def first_answer_time(self) -> float | None:
        """When the first content that is not reasoning came."""
        ...

    @property
    def first_chunk(self) -> float | None:
        """When the first content came."""
        ...

    @property
    def last_chunk(self) -> float | None:
        """When the last content came."""
        ...

    @property
    def chunks(self) -> int:
        """How many pieces of content came."""
        ...

    def token_times(self) -> npt.NDArray[np.float64]:
        """One arrival time per output token; empty where they were not kept."""
        ...


@dataclass(frozen=True, slots=True)
class Cut:
    """Why a level ended, and what becomes of the requests then open."""

    reason: Literal["duration", "interrupted", "server_lost", "stopped"]
    status: Status
    text: str


TIME_UP = Cut("duration", "cancelled", "open when the level's duration was over")
INTERRUPTED = Cut("interrupted", "cancelled", "open when the run was interrupted")
SERVER_LOST = Cut("server_lost", "error", "open when the server was lost")


def make_record(
    send: Send,
    answer: Heard,
    *,
    level: int,
    concurrency: int,
    request_id: str,
    correlation_id: str,
    origin: float,
    cut: Cut | None,
) -> RequestRecord:
    """The record of one request; `origin` is the run's start on the clock that stamped the answer."""
    status: Status = "ok"
    if answer.error is not None:
        status = "overflow" if answer.overflow else "error"
    turn, usage = send.recorded, answer.usage

    def since_start(moment: float | None) -> float | None:
        return moment - answer.start if moment is not None else None

    return RequestRecord(
        level=level,
        concurrency=concurrency,
        lane=send.play.lane,
        session=send.play.session.id,
        play=send.play.number,
        turn=send.turn,
        request_id=request_id,
        max_tokens=send.max_tokens,
        start=answer.start - origin,
        end=answer.end - origin,
        status=cut.status if cut else status,
        ttft=since_start(answer.first_chunk),
        ttft_answer=since_start(answer.first_answer_time),
        last_token=since_start(answer.last_chunk),
        token_offsets=answer.token_times() - answer.start,
        chunks=answer.chunks,
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else None,
        output_tokens=usage.output_tokens if usage else None,
        http_status=answer.http_status,
        finish_reason=answer.finish_reason,
        error=cut.text if cut else answer.error,
        phase="measured" if send.stage == "measured" else "warmup",
        stream=send.conversation_id,
        depth=send.play.session.streams[send.stream].depth,
        correlation_id=correlation_id,
        due=send.due - origin,
        recorded_input=turn.call.input_tokens,
        hit_blocks=turn.hit_blocks,
        total_blocks=len(turn.call.hash_ids),
    )
