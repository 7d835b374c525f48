"""Session logs in the formats of three coding agents, made up."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

SECRET = "canary-7f3a-secret"
SYSTEM = 5000
"""Tokens of system prompt that the logs do not show."""


def iso(t: float) -> str:
    start = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
    return (start + datetime.timedelta(seconds=t)).isoformat().replace("+00:00", "Z")


def text(number: int, words: int = 200) -> str:
    return f"{SECRET} {number} " + " ".join(f"word{number}_{i}" for i in range(words))


class ClaudeLog:
    """Writes a Claude Code log line by line."""

    def __init__(self, session: str = "11111111-aaaa") -> None:
        self.session = session
        self.lines: list[str] = []
        self.last: str | None = None
        self.t = 0.0
        self.count = 0

    def line(self, kind: str, message: dict[str, Any], after: float = 1.0, **fields: Any) -> str:
        self.t += after
        self.count += 1
        uuid = f"u{self.count:04d}"
        data = {
            "type": kind,
            "uuid": uuid,
            "parentUuid": self.last,
            "sessionId": self.session,
            "cwd": f"/home/{SECRET}",
            "timestamp": iso(self.t),
            "isSidechain": False,
            "message": message,
        }
        self.lines.append(json.dumps(data | fields))
        self.last = uuid
        return uuid

    def user(self, content: Any, **fields: Any) -> str:
        return self.line("user", {"role": "user", "content": content}, **fields)

    def answer(
        self, name: str, blocks: list[dict[str, Any]], prompt: int, output: int, **fields: Any
    ) -> None:
        """An answer whose blocks are lines of their own, as Claude Code writes them."""
        for block in blocks:
            message = {
                "role": "assistant", "id": name, "model": "claude-opus-4", "content": [block],
                "stop_reason": "tool_use" if block["type"] == "tool_use" else "end_turn",
                "usage": {"input_tokens": 3, "cache_creation_input_tokens": 100,
                          "cache_read_input_tokens": prompt - 103, "output_tokens": output},
            }  # fmt: skip
            self.line("assistant", message, after=0.5, **fields)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.session}.jsonl"
        path.write_text("\n".join(self.lines) + "\n")
        return path


def claude_session() -> ClaudeLog:
    """Three calls, a note of the program in between, a sub-agent of two calls, a broken line."""
    log = ClaudeLog()
    log.user(text(1))
    log.answer(
        "m1",
        [
            {"type": "thinking", "thinking": text(2, 50)},
            {"type": "tool_use", "id": "t1", "name": "Task", "input": {"prompt": text(3, 20)}},
        ],
        SYSTEM + 1300,
        300,
    )
    main = log.last
    log.last = None
    log.user(text(4), isSidechain=True, agentId="agent-x")
    log.answer("s1", [{"type": "text", "text": text(5, 30)}], 2500, 60, isSidechain=True, agentId="agent-x")
    log.user(text(6, 100), isSidechain=True, agentId="agent-x")
    log.answer("s2", [{"type": "text", "text": text(7, 30)}], 3400, 60, isSidechain=True, agentId="agent-x")
    log.last = main
    log.line("system", {}, subtype="note")
    log.lines.append('{"type": "user", broken')
    log.user(
        [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": text(8)}]}],
        after=5,
    )
    log.answer("m2", [{"type": "text", "text": text(9, 80)}], SYSTEM + 3200, 200)
    log.user(text(10))
    log.answer("m3", [{"type": "text", "text": text(11, 80)}], SYSTEM + 5200, 210)
    return log


def codex_lines() -> list[dict[str, Any]]:
    """Two calls with tools and one after a compaction."""

    def line(t: float, kind: str, payload: dict[str, Any]) -> dict[str, Any]:
        return {"timestamp": iso(t), "type": kind, "payload": payload}

    def usage(t: float, prompt: int, output: int) -> dict[str, Any]:
        last = {"input_tokens": prompt, "cached_input_tokens": 10, "output_tokens": output}
        return line(t, "event_msg", {"type": "token_count", "info": {"last_token_usage": last}})

    def said(t: float, role: str, words: str) -> dict[str, Any]:
        return line(
            t,
            "response_item",
            {"type": "message", "role": role, "content": [{"type": "input_text", "text": words}]},
        )

    return [
        line(0, "session_meta", {"id": "c", "cwd": SECRET, "instructions": text(0)}),
        line(0.1, "turn_context", {"model": "gpt-5-codex"}),
        said(1, "user", text(1)),
        line(3, "response_item", {"type": "reasoning", "summary": [], "encrypted_content": text(2, 60)}),
        line(
            4,
            "response_item",
            {"type": "function_call", "name": "shell", "arguments": text(3, 10), "call_id": "1"},
        ),
        usage(4.1, 4000, 150),
        line(6, "response_item", {"type": "function_call_output", "call_id": "1", "output": text(4)}),
        said(9, "assistant", text(5, 40)),
        usage(9.1, 6000, 90),
        usage(9.2, 6000, 90),
        line(20, "compacted", {"message": text(6, 30)}),
        said(21, "user", text(7)),
        said(24, "assistant", text(8, 40)),
        usage(24.1, 5000, 70),
    ]


def opencode_storage(folder: Path) -> Path:
    """A session of two assistant messages, the first of two steps, and a sub-agent's session."""
    storage = folder / "storage"

    def write(place: str, data: dict[str, Any]) -> None:
        path = storage / f"{place}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data))

    def finish(key: str, message: str, prompt: int, output: int) -> None:
        tokens = {"input": 7, "output": output, "reasoning": 3, "cache": {"read": prompt - 7, "write": 0}}
        write(f"part/{message}/{key}", {"id": key, "type": "step-finish", "tokens": tokens})

    def session(name: str, parent: str | None, start: float) -> None:
        write(
            f"session/project/{name}",
            {"id": name, "title": SECRET} | ({"parentID": parent} if parent else {}),
        )
        at = 1000 * (1.7e9 + start)
        user, answer = f"{name}_m1", f"{name}_m2"
        write(f"message/{name}/{user}", {"id": user, "role": "user", "time": {"created": at}})
        write(f"part/{user}/p1", {"id": "p1", "type": "text", "text": text(1)})
        write(
            f"message/{name}/{answer}",
            {
                "id": answer,
                "role": "assistant",
                "modelID": "glm-5",
                "time": {"created": at + 100, "completed": at + 9000},
                "tokens": {"input": 1, "output": 1},
            },
        )
        write(
            f"part/{answer}/p1",
            {
                "id": "p1",
                "type": "reasoning",
                "text": text(2, 40),
                "time": {"start": at + 200, "end": at + 2000},
            },
        )
        write(
            f"part/{answer}/p2",
            {
                "id": "p2",
                "type": "tool",
                "tool": "bash",
                "state": {
                    "status": "completed",
                    "input": {"command": text(3, 10)},
                    "output": text(4),
                    "time": {"start": at + 2000, "end": at + 3000},
                },
            },
        )
        finish("p3", answer, 4000, 120)
        write(
            f"part/{answer}/p4",
            {"id": "p4", "type": "text", "text": text(5, 40), "time": {"start": at + 4000, "end": at + 8000}},
        )
        finish("p5", answer, 5500, 80)

    session("ses_1", None, 0)
    session("ses_2", "ses_1", 3)
    return storage
