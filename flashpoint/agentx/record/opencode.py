"""opencode's storage: `~/.local/share/opencode/storage/{session,message,part}/…/*.json`.

A session's messages lie in `message/<session>`, their parts in `part/<message>`. An assistant message is a
row of steps; each step is one API call, ended by a `step-finish` part with its token counts. Tool parts hold
call and result; the result belongs to the next call's prompt. A session with a `parentID` is a sub-agent's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from flashpoint.agentx.record.calls import LoggedCall, LoggedSession, count, seconds
from flashpoint.agentx.record.claude_code import text_of
from flashpoint.agentx.record.history import Piece

USUAL_PLACE = Path("~/.local/share/opencode/storage")


def find(folder: Path) -> list[Path]:
    """The session files of a storage folder that are no sub-agent's."""
    return [path for path in sorted(folder.glob("session/**/*.json")) if not _parent(path)]


def read(path: Path) -> LoggedSession:
    """The session whose file is `path`, with its sub-agents."""
    storage = next(parent.parent for parent in path.parents if parent.name == "session")
    session = LoggedSession(path.stem)
    session.calls = _calls(storage, path.stem, session)
    for other in sorted(storage.glob("session/**/*.json")):
        if _parent(other) == path.stem:
            session.agents[other.stem] = _calls(storage, other.stem, session)
    return session


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _parent(path: Path) -> str | None:
    content = _load(path)
    parent = content.get("parentID") if content else None
    return parent if isinstance(parent, str) else None


def _load(path: Path) -> dict[str, Any] | None:
    try:
        content = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return content if isinstance(content, dict) else None


def _folder(path: Path, session: LoggedSession) -> list[dict[str, Any]]:
    """The objects of a folder in the order of their names, which is that of their making."""
    loaded = [_load(file) for file in sorted(path.glob("*.json"))]
    session.bad_lines += sum(content is None for content in loaded)
    return [content for content in loaded if content is not None]


def _calls(storage: Path, name: str, session: LoggedSession) -> list[LoggedCall]:
    history: list[Piece] = []
    calls: list[LoggedCall] = []
    asked = 0.0
    for message in _folder(storage / "message" / name, session):
        key = str(message.get("id"))
        parts = _folder(storage / "part" / key, session)
        time = _object(message.get("time"))
        created = seconds(time.get("created")) or asked
        if message.get("role") != "assistant":
            history.append(Piece(key, "\n".join(text_of(part) for part in parts)))
            asked = created
            continue
        made = _steps(message, parts, history, max(asked, created), seconds(time.get("completed")) or created)
        calls += made
        asked = max([asked, *(call.answered_at for call in made)])
    return calls


def _steps(
    message: dict[str, Any], parts: list[dict[str, Any]], history: list[Piece], asked: float, completed: float
) -> list[LoggedCall]:
    """The calls of one assistant message; `history` grows by answers and tool results."""
    calls: list[LoggedCall] = []
    answer: list[Piece] = []
    results: list[Piece] = []
    kinds: list[str] = []
    ended = asked

    def close(tokens: Any) -> None:
        nonlocal asked
        if not answer or not history:
            return
        call = LoggedCall(
            list(history), "\n".join(p.text for p in answer), str(message.get("modelID") or ""), asked, ended,
            output_types=tuple(dict.fromkeys(kinds)), stop="tool_use" if "tool_use" in kinds else "end_turn",
            input_types=("tool_result",) if calls else ("text",),
        )  # fmt: skip
        _count(call, tokens)
        calls.append(call)
        history.extend([*answer, *results])
        for done in (answer, results, kinds):
            done.clear()
        asked = ended

    for part in parts:
        kind, key = part.get("type"), str(part.get("id"))
        state = _object(part.get("state"))
        time = _object((state if kind == "tool" else part).get("time"))
        ended = max(ended, seconds(time.get("end") or time.get("start")) or 0.0)
        if kind in ("text", "reasoning"):
            answer.append(Piece(key, text_of(part)))
            kinds.append("thinking" if kind == "reasoning" else "text")
        elif kind == "tool":
            answer.append(
                Piece((key, "call"), text_of({"tool": part.get("tool"), "input": state.get("input")}))
            )
            results.append(Piece((key, "result"), text_of(state.get("output"))))
            kinds.append("tool_use")
        elif kind == "step-finish":
            close(part.get("tokens"))
    ended = max(ended, completed) if not calls else ended
    close(message.get("tokens"))
    return calls


def _count(call: LoggedCall, tokens: Any) -> None:
    if not isinstance(tokens, dict):
        return
    cache = _object(tokens.get("cache"))
    given = count(tokens.get("input"))
    if given is not None:
        call.input_tokens = given + (count(cache.get("read")) or 0) + (count(cache.get("write")) or 0)
    output = count(tokens.get("output"))
    if output is not None:
        call.output_tokens = output + (count(tokens.get("reasoning")) or 0)
