"""Agent sessions as JSON lines: one conversation of a coding agent per line.

    {"id": "s-0001", "system": "You are …", "turns": [
        {"user": "Fix the test", "max_tokens": 400, "think_seconds": 0.0}, …]}

A turn's `user` text is new text only: the conversation so far, with the answers the server really gave,
is put in front of it at replay. `think_seconds` is waited between the end of the previous answer (for the
first turn: the start of the session) and the sending of this turn; it stands for tool runs and for people.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from flashpoint.agentx.files import whole_file
from flashpoint.errors import InvalidValue

SESSION_KEYS = ("id", "system", "turns")
TURN_KEYS = ("user", "max_tokens", "think_seconds")


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session: the new user text, the length of the answer, the wait before it."""

    user: str
    max_tokens: int
    think_seconds: float


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation, replayed turn by turn."""

    id: str
    system: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class SessionFile:
    """The sessions of one file and the digest of its bytes."""

    path: Path
    sha256: str
    sessions: tuple[Session, ...]


def load_sessions(path: str | Path) -> SessionFile:
    """Read and validate a session file.

    Raises `InvalidValue` naming the file, the line, the field, what it holds and what would be right.
    """
    path = Path(path)
    digest = hashlib.sha256()
    sessions: list[Session] = []
    line_of_id: dict[str, int] = {}
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                digest.update(line)
                session = parse_session(line, f"{path}, line {number}")
                if session.id in line_of_id:
                    raise InvalidValue(
                        f"{path}, line {number}, id",
                        session.id,
                        f"an id of its own (line {line_of_id[session.id]} has the same)",
                    )
                line_of_id[session.id] = number
                sessions.append(session)
    except OSError as error:
        raise InvalidValue("sessions", str(path), f"a readable session file ({error.strerror})") from error
    if not sessions:
        raise InvalidValue(
            f"{path}", "an empty file", "at least one session; `flashpoint sessions generate` writes some"
        )
    return SessionFile(path, digest.hexdigest(), tuple(sessions))


def parse_session(line: bytes, where: str) -> Session:
    """One line as a session; `where` (file and line) starts every error message."""
    if not line.strip():
        raise InvalidValue(where, "an empty line", "one session as a JSON object on every line")
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidValue(
            where, line[error.start : error.end], f"UTF-8 text (byte {error.start + 1} of the line is not)"
        ) from error
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidValue(
            where, line.decode().rstrip("\n")[:80], f"one JSON object on the line ({error})"
        ) from error
    fields = _object(data, SESSION_KEYS, where)
    turns = fields["turns"]
    if not isinstance(turns, list) or not turns:
        raise InvalidValue(f"{where}, turns", turns, "a list of at least one turn")
    return Session(
        id=_text(fields["id"], f"{where}, id", empty_allowed=False),
        system=_text(fields["system"], f"{where}, system", empty_allowed=True),
        turns=tuple(_turn(turn, f"{where}, turns[{i}]") for i, turn in enumerate(turns)),
    )


def _turn(data: object, where: str) -> Turn:
    fields = _object(data, TURN_KEYS, where)
    max_tokens = fields["max_tokens"]
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
        raise InvalidValue(f"{where}.max_tokens", max_tokens, "a whole number of at least 1")
    think = fields["think_seconds"]
    if not isinstance(think, int | float) or isinstance(think, bool) or think < 0 or not math.isfinite(think):
        raise InvalidValue(f"{where}.think_seconds", think, "seconds, a number of at least 0")
    return Turn(_text(fields["user"], f"{where}.user", empty_allowed=False), max_tokens, float(think))


def _object(data: object, keys: Sequence[str], where: str) -> Mapping[str, object]:
    """`data` as an object with exactly `keys`."""
    if not isinstance(data, dict):
        raise InvalidValue(where, data, f"an object with the keys {', '.join(keys)}")
    for key in data:
        if key not in keys:
            raise InvalidValue(f"{where}, key", key, f"only the keys {', '.join(keys)}")
    for key in keys:
        if key not in data:
            raise InvalidValue(f"{where}, key", f"no {key!r}", f"all of the keys {', '.join(keys)}")
    return data


def _text(value: object, where: str, *, empty_allowed: bool) -> str:
    if not isinstance(value, str) or not (value or empty_allowed):
        raise InvalidValue(where, value, "a text" if empty_allowed else "a text that is not empty")
    return value


def write_sessions(path: str | Path, sessions: Iterable[Session]) -> int:
    """Write a session file and return how many sessions it holds.

    The file appears under its name only when it is whole: an interrupted write leaves no half file.
    """
    path = Path(path)
    count = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            for session in sessions:
                file.write(orjson.dumps(session, option=orjson.OPT_APPEND_NEWLINE))
                count += 1
    except OSError as error:
        raise InvalidValue("out", str(path), f"a file that can be written ({error.strerror})") from error
    return count
