"""One API call as a log shows it, and the trace entry it becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from flashpoint.agentx.prompts.tokenizer import PromptTokenizer
from flashpoint.agentx.record.history import History, Piece, SessionIds
from flashpoint.agentx.traces.format import BLOCK_SIZE, Call, SubAgent, Trace


@dataclass(slots=True)
class LoggedCall:
    """A call: its prompt in pieces, its answer, and what the log counts. Times are Unix seconds."""

    prompt: list[Piece]
    answer: str = ""
    model: str = ""
    asked_at: float = 0.0
    """When the last input was there."""
    answered_at: float = 0.0
    input_tokens: int | None = None
    output_tokens: int | None = None
    stop: str = ""
    input_types: tuple[str, ...] = ()
    output_types: tuple[str, ...] = ()


@dataclass(slots=True)
class LoggedSession:
    """A session's calls and those of its sub-agents; `bad_lines` could not be read."""

    id: str
    calls: list[LoggedCall] = field(default_factory=list)
    agents: dict[str, list[LoggedCall]] = field(default_factory=dict)
    bad_lines: int = 0


def to_trace(session: LoggedSession, tokenizer: PromptTokenizer) -> Trace:
    """The session as a trace: lengths, times, block ids and kinds of content; nothing of what was said."""
    ids = SessionIds(tokenizer)
    zero = min(call.asked_at for calls in (session.calls, *session.agents.values()) for call in calls)
    entries: list[Call | SubAgent] = list(_calls(session.calls, ids, zero))
    for number, calls in enumerate(agent for agent in session.agents.values() if agent):
        made = _calls(calls, ids, zero)
        entries.append(
            SubAgent(
                t=made[0].t,
                agent_id=f"agent_{number:03d}",
                calls=tuple(made),
                subagent_type="recorded",
                duration=round(max(call.end for call in made) - made[0].t, 3),
                models=_models(made),
            )
        )
    # A sub-agent belongs behind the call that started it, so of one moment the call comes first.
    entries.sort(key=lambda entry: (entry.t, isinstance(entry, SubAgent)))
    roots = [entry for entry in entries if isinstance(entry, Call)]
    return Trace(session.id, tuple(entries), _models(roots))


def _models(calls: Sequence[Call]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(call.model for call in calls))


def _calls(logged: Sequence[LoggedCall], ids: SessionIds, zero: float) -> list[Call]:
    history = History(ids)
    made = []
    for number, call in enumerate(sorted(logged, key=lambda c: c.asked_at)):
        history.become(call.prompt)
        if not number and call.input_tokens is not None:
            unlogged = call.input_tokens - history.tokens
            history.prefix_tokens = max(0, unlogged) // BLOCK_SIZE * BLOCK_SIZE
        length = history.tokens if call.input_tokens is None else call.input_tokens
        output = call.output_tokens
        if output is None:
            output = len(ids.tokenizer.encode(call.answer)) if call.answer else 0
        made.append(
            Call(
                t=round(call.asked_at - zero, 3),
                model=call.model,
                input_tokens=length,
                output_tokens=output,
                hash_ids=history.blocks(length),
                input_types=call.input_types,
                output_types=call.output_types,
                stop=call.stop,
                api_time=round(max(0.0, call.answered_at - call.asked_at), 3),
            )
        )
    return made


def seconds(timestamp: Any) -> float | None:
    """Unix seconds of an ISO time, or of a number of milliseconds; None for anything else."""
    if isinstance(timestamp, int | float) and not isinstance(timestamp, bool):
        return timestamp / 1000
    if not isinstance(timestamp, str):
        return None
    try:
        return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def count(value: Any) -> int | None:
    """A count of a log; None for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
