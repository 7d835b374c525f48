from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.agentx.sessions import Session, Turn, load_sessions, parse_session, write_sessions
from flashpoint.agentx.synthetic import GenerateConfig, generate, generate_sessions
from flashpoint.errors import InvalidValue

GOOD: dict[str, Any] = {
    "id": "a",
    "system": "s",
    "turns": [{"user": "u", "max_tokens": 3, "think_seconds": 0.5}],
}


def turn(**fields: Any) -> dict[str, Any]:
    return GOOD | {"turns": [GOOD["turns"][0] | fields]}


def without(data: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != key}


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ([], "an object with the keys id, system, turns"),
        (GOOD | {"sytem": ""}, "'sytem'"),
        (without(GOOD, "system"), "no 'system'"),
        (GOOD | {"id": ""}, "id: got ''"),
        (GOOD | {"id": 7}, "id: got 7"),
        (GOOD | {"system": None}, "system: got None"),
        (GOOD | {"turns": []}, "turns: got []; expected a list of at least one turn"),
        (GOOD | {"turns": {}}, "turns: got {}"),
        (GOOD | {"turns": ["x"]}, "turns[0]: got 'x'"),
        (turn(user=""), "turns[0].user: got ''"),
        (turn(user=["x"]), "turns[0].user"),
        (turn(max_tokens=0), "turns[0].max_tokens: got 0; expected a whole number of at least 1"),
        (turn(max_tokens=True), "max_tokens: got True"),
        (turn(max_tokens=1.5), "max_tokens: got 1.5"),
        (turn(think_seconds=-1), "think_seconds: got -1; expected seconds, a number of at least 0"),
        (turn(think_seconds="1"), "think_seconds: got '1'"),
        (turn(max_token=1), "'max_token'"),
    ],
)
def test_bad_sessions_are_refused_by_name(data: Any, named: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_session(json.dumps(data).encode(), "file.jsonl, line 4")
    assert "file.jsonl, line 4" in str(caught.value)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "at least one session"),
        (b"\n", "line 1: got 'an empty line'"),
        (json.dumps(GOOD).encode() + b"\n\n", "line 2: got 'an empty line'"),
        (b"{", "one JSON object on the line"),
        (b'{"id": NaN}', "one JSON object on the line"),
        (b'{"id": "\xff"}', "UTF-8 text (byte 9 of the line is not)"),
        (b'{"id": "\\ud800", "system": "", "turns": []}', "one JSON object on the line"),
        (json.dumps(GOOD).encode() + b"\n" + json.dumps(GOOD).encode(), "line 1 has the same"),
    ],
)
def test_bad_files_are_refused_by_line(tmp_path: Path, content: bytes, named: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidValue) as caught:
        load_sessions(path)
    assert str(path) in str(caught.value)
    assert named in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(InvalidValue, match="a readable session file"):
            load_sessions(path)


texts = st.text(st.characters(exclude_categories=["Cs"]))
turns = st.builds(
    Turn,
    user=texts.filter(bool),
    max_tokens=st.integers(1, 2**40),
    think_seconds=st.floats(0, 1e6, allow_nan=False),
)


@settings(max_examples=25)
@given(
    st.lists(
        st.builds(Session, id=texts.filter(bool), system=texts, turns=st.lists(turns, min_size=1).map(tuple)),
        min_size=1,
        unique_by=lambda session: session.id,
    )
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, sessions: list[Session]
) -> None:
    path = tmp_path_factory.mktemp("sessions") / "s.jsonl"
    assert write_sessions(path, sessions) == len(sessions)
    read = load_sessions(path)
    assert list(read.sessions) == sessions
    assert read.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_generated_sizes_are_exact_and_the_seed_decides(tmp_path: Path) -> None:
    config = GenerateConfig(
        tmp_path / "a.jsonl",
        sessions=5,
        turns=3,
        system_chars=777,
        turn_chars=501,
        max_tokens=9,
        think_seconds=1.5,
        seed=3,
    )
    sessions = list(generate_sessions(config))
    assert len(sessions) == 5
    for session in sessions:
        assert len(session.system) == 777
        assert [len(turn.user) for turn in session.turns] == [501] * 3
        assert [turn.max_tokens for turn in session.turns] == [9] * 3
        assert [turn.think_seconds for turn in session.turns] == [0.0, 1.5, 1.5]
    assert len({session.turns for session in sessions}) == 5
    assert list(generate_sessions(config)) == sessions
    other = GenerateConfig(tmp_path / "b.jsonl", sessions=5, turns=3, seed=4)
    assert next(generate_sessions(other)).turns != sessions[0].turns


def test_the_generator_writes_the_same_bytes_on_every_machine(tmp_path: Path) -> None:
    config = GenerateConfig(tmp_path / "a.jsonl", sessions=3, turns=4)
    assert generate(config) == 3
    assert load_sessions(config.out).sha256 == (
        "3fc8ebad07e9ee393e90171f35bf26c500428f687fb085f3f580339fd19a6544"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sessions", 0),
        ("turns", -1),
        ("turn_chars", 0),
        ("max_tokens", 0),
        ("system_chars", -1),
        ("think_seconds", float("nan")),
        ("think_seconds", -0.1),
    ],
)
def test_generator_parameters_are_checked(field: str, value: float) -> None:
    with pytest.raises(InvalidValue, match=field):
        GenerateConfig(Path("x"), **{field: value})


def test_an_unwritable_session_file_is_an_error_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidValue, match=r"out: .*a file that can be written"):
        generate(GenerateConfig(tmp_path / "file" / "s.jsonl"))
