"""The trace format: one recorded session as one JSON object, block hashes instead of text.

Source: the project's spec, agentx.md section 1 (the "weka" trace). Reading is strict: an unknown key, a
negative time or more hashes than the prompt has blocks is an error that names file, entry and field.
Times are seconds since the start of the session, lengths are tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flashpoint.agentx.files import whole_file
from flashpoint.errors import InvalidValue

BLOCK_SIZE = 64
"""Tokens of a hashed block in every published corpus."""

Blocks = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One request of a recorded session."""

    t: float
    """When it was sent."""
    model: str
    input_tokens: int
    output_tokens: int
    hash_ids: Blocks
    """Ids of the prompt's full blocks, in order; equal ids are equal content, within one session."""
    streamed: bool = True
    input_types: tuple[str, ...] = ()
    output_types: tuple[str, ...] = ()
    stop: str = ""
    api_time: float | None = None
    """How long the recorded call took."""
    think_time: float | None = None
    """The gap before it, as recorded; informational where `t` and `api_time` say it."""
    ttft: float | None = None

    @property
    def duration(self) -> float:
        """The recorded call time; 0 where none was recorded."""
        return self.api_time or 0.0

    @property
    def end(self) -> float:
        """When its recorded answer was complete."""
        return self.t + self.duration

    @property
    def forced_output(self) -> int:
        """Tokens a replay asks for: what was recorded, and 1 for an empty answer."""
        return max(self.output_tokens, 1)


@dataclass(frozen=True, slots=True, eq=False)
class SubAgent:
    """A sub-agent that a session started: its calls, on the session's own time line."""

    t: float
    agent_id: str
    calls: tuple[Call, ...]
    subagent_type: str = ""
    status: str = "completed"
    duration: float | None = None
    """Seconds from spawn to end; None where it was not recorded (launched and not waited for)."""
    total_tokens: int | None = None
    tool_use_count: int | None = None
    models: tuple[str, ...] = ()
    tool_tokens: int = 0
    system_tokens: int = 0

    @property
    def end(self) -> float:
        """When it was done; its last call's end where no duration was recorded."""
        if self.duration is not None:
            return self.t + self.duration
        return max((call.end for call in self.calls), default=self.t)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One recorded session: its entries in the order of the recording."""

    id: str
    entries: tuple[Call | SubAgent, ...]
    models: tuple[str, ...] = ()
    block_size: int = BLOCK_SIZE
    tool_tokens: int = 0
    system_tokens: int = 0

    def calls(self) -> Iterator[Call]:
        """Every call, those of sub-agents included, in the order of the entries."""
        for entry in self.entries:
            yield from (entry,) if isinstance(entry, Call) else entry.calls

    @property
    def root_calls(self) -> list[Call]:
        """The calls that are not a sub-agent's."""
        return [entry for entry in self.entries if isinstance(entry, Call)]

    @property
    def subagents(self) -> list[SubAgent]:
        """The explicit sub-agents."""
        return [entry for entry in self.entries if isinstance(entry, SubAgent)]

    @property
    def peak_context(self) -> int:
        """The largest prompt plus answer of any call: the context window a replay needs."""
        return max((call.input_tokens + call.forced_output for call in self.calls()), default=0)


Tokens = Annotated[int, Field(ge=0, lt=2**31, strict=True)]
Seconds = Annotated[float, Field(ge=0, le=1e9, strict=True, allow_inf_nan=False)]
"""A number that JSON writes as one; thirty years are an error of unit."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class _Call(_Strict):
    t: Seconds
    type: Literal["n", "s"]
    model: str
    input_tokens: Tokens = Field(alias="in")
    output_tokens: Tokens = Field(alias="out")
    hash_ids: list[int] = []
    input_types: list[str] = []
    output_types: list[str] = []
    stop: str = ""
    api_time: Seconds | None = None
    think_time: Seconds | None = None
    ttft: Seconds | None = None


class _SubAgent(_Strict):
    t: Seconds
    type: Literal["subagent"]
    agent_id: str = Field(min_length=1)
    subagent_type: str
    duration_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    total_tokens: Tokens | None = None
    tool_use_count: Tokens | None = None
    status: str
    requests: list[_Call]
    models: list[str]
    tool_tokens: Tokens = 0
    system_tokens: Tokens = 0


class _Trace(_Strict):
    id: str = Field(min_length=1)
    models: list[str]
    block_size: Annotated[int, Field(ge=1, strict=True)]
    hash_id_scope: Literal["local"]
    tool_tokens: Tokens = 0
    system_tokens: Tokens = 0
    requests: list[Annotated[_Call | _SubAgent, Field(discriminator="type")]] = Field(min_length=1)
    totals: dict[str, Any] | None = None


def parse_trace(data: bytes, where: str) -> Trace:
    """One trace from its JSON text; `where` (the file) starts every error message.

    Raises `InvalidValue` naming the entry, the field, what it holds and what would be right.
    """
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidValue(where, _start(data), f"one JSON object ({error})") from error
    try:
        trace = _Trace.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"] if part not in ("n", "s", "subagent"))
        raise InvalidValue(f"{where}, {place or 'trace'}", _short(first["input"]), first["msg"]) from error
    entries: list[Call | SubAgent] = []
    agents: dict[str, int] = {}
    for number, entry in enumerate(trace.requests):
        place = f"{where}, requests.{number}"
        if isinstance(entry, _Call):
            entries.append(_call(entry, trace.block_size, place, 0.0))
            continue
        if entry.agent_id in agents:
            raise InvalidValue(
                f"{place}.agent_id",
                entry.agent_id,
                f"an id of its own (requests.{agents[entry.agent_id]} has the same)",
            )
        agents[entry.agent_id] = number
        entries.append(_subagent(entry, trace.block_size, place))
    if not any(isinstance(entry, Call) for entry in entries):
        raise InvalidValue(f"{where}, requests", "only sub-agents", "at least one call of the session itself")
    return Trace(
        id=trace.id,
        entries=tuple(entries),
        models=tuple(trace.models),
        block_size=trace.block_size,
        tool_tokens=trace.tool_tokens,
        system_tokens=trace.system_tokens,
    )


def _call(raw: _Call, block_size: int, where: str, shift: float) -> Call:
    # Fewer ids than blocks are allowed: what they do not cover is content that nothing shares.
    most, ids = -(-raw.input_tokens // block_size), len(raw.hash_ids)
    if ids > most:
        raise InvalidValue(
            f"{where}.hash_ids",
            f"{ids} ids",
            f"at most {most}, as `in` is {raw.input_tokens} tokens in blocks of {block_size}",
        )
    try:
        blocks = np.array(raw.hash_ids, dtype=np.int64)
    except OverflowError:
        raise InvalidValue(f"{where}.hash_ids", "an id beyond 64 bits", "ids below 2^63") from None
    return Call(
        t=raw.t + shift,
        model=raw.model,
        input_tokens=raw.input_tokens,
        output_tokens=raw.output_tokens,
        hash_ids=blocks,
        streamed=raw.type == "s",
        input_types=tuple(raw.input_types),
        output_types=tuple(raw.output_types),
        stop=raw.stop,
        api_time=raw.api_time,
        think_time=raw.think_time,
        ttft=raw.ttft,
    )


def _subagent(raw: _SubAgent, block_size: int, where: str) -> SubAgent:
    # A raw recorder writes inner times relative to the spawn; then they are smaller than the spawn's own.
    calls = tuple(
        _call(inner, block_size, f"{where}.requests.{i}", raw.t if inner.t + 1e-6 < raw.t else 0.0)
        for i, inner in enumerate(raw.requests)
    )
    return SubAgent(
        t=raw.t,
        agent_id=raw.agent_id,
        calls=calls,
        subagent_type=raw.subagent_type,
        status=raw.status,
        duration=None if raw.duration_ms is None else raw.duration_ms / 1000,
        total_tokens=raw.total_tokens,
        tool_use_count=raw.tool_use_count,
        models=tuple(raw.models),
        tool_tokens=raw.tool_tokens,
        system_tokens=raw.system_tokens,
    )


def trace_json(trace: Trace) -> bytes:
    """The trace as JSON text that `parse_trace` reads back to the same trace."""
    data = {
        "id": trace.id,
        "models": trace.models,
        "block_size": trace.block_size,
        "hash_id_scope": "local",
        "tool_tokens": trace.tool_tokens,
        "system_tokens": trace.system_tokens,
        "requests": [_entry_data(entry) for entry in trace.entries],
    }
    return orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY)


def _entry_data(entry: Call | SubAgent) -> dict[str, Any]:
    if isinstance(entry, Call):
        return _call_data(entry)
    optional = {"total_tokens": entry.total_tokens, "tool_use_count": entry.tool_use_count}
    if entry.duration is not None:
        optional["duration_ms"] = round(entry.duration * 1000)
    return {
        "t": entry.t,
        "type": "subagent",
        "agent_id": entry.agent_id,
        "subagent_type": entry.subagent_type,
        **{key: value for key, value in optional.items() if value is not None},
        "status": entry.status,
        "requests": [_call_data(call) for call in entry.calls],
        "models": entry.models,
        "tool_tokens": entry.tool_tokens,
        "system_tokens": entry.system_tokens,
    }


def _call_data(call: Call) -> dict[str, Any]:
    optional = {"api_time": call.api_time, "think_time": call.think_time}
    if call.streamed:
        optional["ttft"] = call.ttft
    return {
        "t": call.t,
        "type": "s" if call.streamed else "n",
        "model": call.model,
        "in": call.input_tokens,
        "out": call.output_tokens,
        "hash_ids": call.hash_ids,
        "input_types": call.input_types,
        "output_types": call.output_types,
        "stop": call.stop,
        **{key: value for key, value in optional.items() if value is not None},
    }


def write_trace(trace: Trace, folder: Path) -> Path:
    """Write `trace` as `<folder>/<id>.json`, whole or not at all, and return the path.

    Raises `InvalidValue` naming `out` where that cannot be written.
    """
    path = folder / f"{quote(trace.id, safe=':@ ')}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(trace_json(trace))
    except OSError as error:
        raise InvalidValue("out", str(path), f"a file that can be written ({error.strerror})") from error
    return path


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _start(data: bytes) -> str:
    return data[:80].decode("utf-8", "replace")
