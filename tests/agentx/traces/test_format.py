"""Reading a trace is strict; what is read is written back the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashpoint.agentx.traces.check import oddities
from flashpoint.agentx.traces.format import parse_trace, trace_json
from flashpoint.agentx.traces.streams import build_session
from flashpoint.errors import InvalidValue
from tests.agentx.messy_traces import messy_trace


def call(t: float = 0.0, tokens: int = 128, ids: tuple[int, ...] = (1, 2), **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "s", "model": "m", "in": tokens, "out": 5, "hash_ids": list(ids), **more}


def agent(t: float, calls: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "t": t,
        "type": "subagent",
        "agent_id": "a1",
        "subagent_type": "",
        "status": "completed",
        "requests": calls,
        "models": ["m"],
        **more,
    }


def trace(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "x",
        "models": ["m"],
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": list(entries),
        **more,
    }


def parse(data: dict[str, Any]):
    return parse_trace(json.dumps(data).encode(), "x.json")


@pytest.mark.parametrize(
    ("data", "field", "value"),
    [
        (trace(call(), colour="red"), "colour", "red"),
        (trace(call(colour="red")), "requests.0.colour", "red"),
        (trace(call(), agent(1, [call(1, colour="red")])), "requests.1.requests.0.colour", "red"),
        (trace(call(-0.5)), "requests.0.t", "-0.5"),
        (trace(call(api_time=-1)), "requests.0.api_time", "-1"),
        (trace(call(), agent(1, [call(1)], duration_ms=-1)), "requests.1.duration_ms", "-1"),
        (trace(call(tokens=-1)), "requests.0.in", "-1"),
        (trace(call(tokens=1.5)), "requests.0.in", "1.5"),
        (trace(call(tokens=10**18)), "requests.0.in", "10000"),
        (trace(call(1e300)), "requests.0.t", "1e+300"),
        (trace(call() | {"t": "3"}), "requests.0.t", "'3'"),
        (trace(call() | {"t": True}), "requests.0.t", "True"),
        (trace(call(tokens=128, ids=(1, 2, 3))), "requests.0.hash_ids", "3 ids"),
        (trace(call(ids=(1, 2**63))), "requests.0.hash_ids", "64 bits"),
        (trace(call() | {"type": "x"}), "requests.0", "x"),
        (trace(), "requests", "[]"),
        (trace(agent(1, [call(1)])), "requests", "only sub-agents"),
        (trace(call(), agent(1, [call(1)]), agent(2, [call(2)])), "requests.2.agent_id", "a1"),
        (trace(call(), block_size=0), "block_size", "0"),
        (trace(call()) | {"hash_id_scope": "global"}, "hash_id_scope", "global"),
        (trace(call()) | {"id": ""}, "id", "''"),
    ],
)
def test_a_bad_trace_names_field_and_value(data: dict[str, Any], field: str, value: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse(data)
    message = str(caught.value)
    assert message.startswith("x.json, ")
    assert field in message
    assert value in message


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e400"])
def test_times_are_numbers(number: str) -> None:
    text = json.dumps(trace(call())).replace('"t": 0.0', f'"t": {number}')
    with pytest.raises(InvalidValue):
        parse_trace(text.encode(), "x.json")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_trace_or_a_clear_error(data: bytes) -> None:
    with pytest.raises(InvalidValue, match=r"x\.json"):
        parse_trace(data, "x.json")


@pytest.mark.parametrize("seed", range(20))
def test_written_and_read_again_it_is_the_same(seed: int) -> None:
    first = parse(messy_trace(seed))
    text = trace_json(first)
    assert trace_json(parse_trace(text, "again")) == text


def test_hashes_shorter_than_the_prompt_are_kept_and_said() -> None:
    odd = parse(trace(call(tokens=640, ids=(1, 2))))
    assert len(odd.root_calls[0].hash_ids) == 2
    assert any("fewer hashes" in line for line in oddities(odd))


def test_times_of_a_raw_recorder_count_from_the_spawn() -> None:
    inner = parse(trace(call(), agent(10, [call(0.5), call(12)]))).subagents[0].calls
    assert [c.t for c in inner] == [10.5, 12]


def test_agents_that_end_at_one_instant_wait_for_nobody_in_a_circle() -> None:
    """Calls of no length at one time each "ended before" the others; a replay must still start one."""
    calls = [call(5.0, ids=(i, i + 100), api_time=0.0) for i in range(1, 6)]
    agents = [
        agent(5.0, [call(5.0, ids=(i, i + 1), api_time=0.0)], duration_ms=0) | {"agent_id": f"a{i}"}
        for i in range(200, 205)
    ]
    session = build_session(parse(trace(call(0.0, ids=(7, 8)), *calls, *agents)))
    waits = {
        (s, k): {*turn.after, *({(s, k - 1)} if k else set())}
        for s, stream in enumerate(session.streams)
        for k, turn in enumerate(stream.turns)
    }
    free: set[tuple[int, int]] = set()
    while ready := {key for key, needed in waits.items() if key not in free and needed <= free}:
        free |= ready
    assert free == set(waits)


def test_a_session_of_3052_turns_and_one_million_tokens() -> None:
    grown = [
        call(float(k), tokens=(15_625 - 3052 + k) * 64, ids=tuple(range(15_625 - 3052 + k)))
        for k in range(3052)
    ]
    session = build_session(parse(trace(*grown)))
    assert [len(stream.turns) for stream in session.streams] == [3052]
    assert session.streams[0].turns[-1].hit_blocks == 15_625 - 2
