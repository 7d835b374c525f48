"""Claude Code's session logs: `~/.claude/projects/<project>/<session>.jsonl`.

One JSON object per line; `user` and `assistant` lines carry a message and name the line before them, so that
a prompt is the chain of lines from the root. The blocks of one API answer are spread over several lines with
the same message id. Lines of sub-agents say so (`isSidechain`, `agentId`) or lie in files of their own beside
the session. A compaction begins a new chain.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from flashpoint.agentx.record.calls import LoggedCall, LoggedSession, count, seconds
from flashpoint.agentx.record.history import Piece

KINDS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "image", "document")
STOPS = ("end_turn", "tool_use", "max_tokens", "stop_sequence", "pause_turn", "refusal")
"""What is written of a log's own words: these, and nothing else."""
USUAL_PLACE = Path("~/.claude/projects")


def find(folder: Path) -> list[Path]:
    """The session files below `folder`, without those of sub-agents."""
    return [path for path in sorted(folder.rglob("*.jsonl")) if not _of_subagent(path)]


def is_log(line: dict[str, Any]) -> bool:
    """Whether a line is one of Claude Code's."""
    return "sessionId" in line and ("uuid" in line or line.get("type") == "summary")


def read(path: Path) -> LoggedSession:
    """The session in `path` with the sub-agents logged in or beside it."""
    session = LoggedSession(path.stem)
    lines = list(_lines(path, session))
    for other in sorted(
        [*path.parent.glob("agent-*.jsonl"), *(path.parent / path.stem).rglob("agent-*.jsonl")]
    ):
        found = [line | {"isSidechain": True} for line in _lines(other, session)]
        lines += [
            line | {"agentId": line.get("agentId") or other.stem} for line in found if _same(line, path)
        ]
    by_uuid = {line["uuid"]: line for line in lines}
    chains: dict[str, list[dict[str, Any]]] = {"": []}
    for line in lines:
        chains.setdefault(_agent(line, by_uuid), []).append(line)
    for agent, own in chains.items():
        calls = _calls(own, by_uuid)
        if agent:
            session.agents[agent] = calls
        else:
            session.calls = calls
    return session


def _of_subagent(path: Path) -> bool:
    return path.name.startswith("agent-")


def _same(line: dict[str, Any], path: Path) -> bool:
    return line.get("sessionId") in (None, path.stem)


def _lines(path: Path, session: LoggedSession) -> Iterable[dict[str, Any]]:
    """The lines that are links of the chain."""
    for raw in path.read_bytes().splitlines():
        if not raw.strip():
            continue
        try:
            line = orjson.loads(raw)
        except orjson.JSONDecodeError:
            session.bad_lines += 1
            continue
        if not isinstance(line, dict):
            session.bad_lines += 1
        elif isinstance(line.get("uuid"), str):
            # Lines without a message (notes of the program) may link two that have one.
            if not _has_message(line) or seconds(line.get("timestamp")) is not None:
                yield line
            else:
                session.bad_lines += 1


def _has_message(line: dict[str, Any]) -> bool:
    return line.get("type") in ("user", "assistant") and isinstance(line.get("message"), dict)


def _agent(line: dict[str, Any], by_uuid: dict[str, dict[str, Any]]) -> str:
    """Which sub-agent a line belongs to; "" for the session itself."""
    if not line.get("isSidechain"):
        return ""
    if isinstance(line.get("agentId"), str):
        return str(line["agentId"])
    first = line
    while (before := by_uuid.get(first.get("parentUuid") or "")) is not None and before.get("isSidechain"):
        first = before
    return str(first["uuid"])


def _calls(lines: list[dict[str, Any]], by_uuid: dict[str, dict[str, Any]]) -> list[LoggedCall]:
    calls: dict[str, LoggedCall] = {}
    for line in lines:
        if line.get("type") != "assistant" or not _has_message(line):
            continue
        message = line["message"]
        name = str(message.get("id") or line["uuid"])
        call = calls.get(name)
        if call is None:
            chain = _chain(line, by_uuid, name)
            if not chain:
                continue  # an answer to nothing is no call
            call = calls[name] = LoggedCall(
                prompt=[Piece(part["uuid"], text_of(part["message"].get("content"))) for part in chain],
                model=str(message.get("model") or ""),
                asked_at=seconds(chain[-1]["timestamp"]) or 0.0,
                input_types=_types(chain[-1]["message"].get("content")),
            )
        call.answer += text_of(message.get("content"))
        call.output_types = tuple(dict.fromkeys((*call.output_types, *_types(message.get("content")))))
        call.answered_at = max(call.answered_at, seconds(line["timestamp"]) or 0.0)
        if message.get("stop_reason") in STOPS:
            call.stop = message["stop_reason"]
        _count(call, message.get("usage"))
    return list(calls.values())


def _chain(line: dict[str, Any], by_uuid: dict[str, dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The lines before `line`, first one first, without those of the same answer."""
    chain: list[dict[str, Any]] = []
    seen = {line["uuid"]}
    before = by_uuid.get(line.get("parentUuid") or "")
    while before is not None and before["uuid"] not in seen:
        seen.add(before["uuid"])
        if _has_message(before) and str(before["message"].get("id")) != name:
            chain.append(before)
        before = by_uuid.get(before.get("parentUuid") or "")
    return chain[::-1]


def _count(call: LoggedCall, usage: Any) -> None:
    if not isinstance(usage, dict):
        return
    parts = [
        count(usage.get(k))
        for k in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    ]
    if parts[0] is not None:
        call.input_tokens = sum(part or 0 for part in parts)
    output = count(usage.get("output_tokens"))
    if output is not None:
        call.output_tokens = max(output, call.output_tokens or 0)


def text_of(content: Any) -> str:
    """Everything that a message's content says, as one text; only its tokens are ever used."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text_of(block) for block in content)
    if isinstance(content, dict):
        for key in ("text", "thinking", "content"):
            if key in content and content.get("type") != "tool_use":
                return text_of(content[key])
        return orjson.dumps(content, option=orjson.OPT_SORT_KEYS).decode()
    return "" if content is None else str(content)


def _types(content: Any) -> tuple[str, ...]:
    if isinstance(content, str):
        return ("text",)
    blocks = content if isinstance(content, list) else []
    kinds = (block.get("type") for block in blocks if isinstance(block, dict))
    return tuple(dict.fromkeys(kind for kind in kinds if kind in KINDS))
