"""Codex's session logs: `~/.codex/sessions/YYYY/MM/DD/rollout-*.jsonl`.

One JSON object per line. `response_item` lines are the conversation in order; what the model produced ends
with a `token_count` event that says how long prompt and answer were. A `compacted` line begins the history
anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from flashpoint.agentx.record.calls import LoggedCall, LoggedSession, count, seconds
from flashpoint.agentx.record.claude_code import text_of
from flashpoint.agentx.record.history import Piece

USUAL_PLACE = Path("~/.codex/sessions")
ANSWERS = ("reasoning", "function_call", "custom_tool_call", "local_shell_call", "web_search_call")


def find(folder: Path) -> list[Path]:
    """The rollout files below `folder`."""
    return sorted(folder.rglob("rollout-*.jsonl"))


def is_log(line: dict[str, Any]) -> bool:
    """Whether a line is one of Codex's."""
    return isinstance(line.get("payload"), dict) and "timestamp" in line


def read(path: Path) -> LoggedSession:
    """The session in `path`."""
    reader = _Reader(path.stem)
    for raw in path.read_bytes().splitlines():
        if not raw.strip():
            continue
        try:
            line = orjson.loads(raw)
        except orjson.JSONDecodeError:
            line = None
        at = seconds(line.get("timestamp")) if isinstance(line, dict) else None
        if at is None or not is_log(line):
            reader.session.bad_lines += 1
        else:
            reader.take(str(line.get("type")), line["payload"], at)
    reader.close()
    return reader.session


class _Reader:
    def __init__(self, name: str) -> None:
        self.session = LoggedSession(name)
        self._history: list[Piece] = []
        self._open: LoggedCall | None = None
        self._answer: list[Piece] = []
        self._last_input = 0.0
        self._last_type = "text"
        self._model = ""

    def take(self, kind: str, payload: dict[str, Any], at: float) -> None:
        """One line of the log."""
        if kind == "turn_context" and isinstance(payload.get("model"), str):
            self._model = payload["model"]
        elif kind == "compacted":
            self.close()
            self._history = [Piece(("compacted", at), text_of(payload.get("message")))]
        elif kind == "response_item":
            self._item(payload, at)
        elif kind == "event_msg" and payload.get("type") == "token_count":
            self._counted(payload.get("info"))

    def _item(self, item: dict[str, Any], at: float) -> None:
        kind = str(item.get("type"))
        number = len(self._history) + len(self._answer)
        piece = Piece(
            (number, at, kind), text_of({k: v for k, v in item.items() if k not in ("id", "status")})
        )
        if kind in ANSWERS or (kind == "message" and item.get("role") == "assistant"):
            if not self._history:
                return  # an answer to nothing is no call
            if self._open is None:
                self._open = LoggedCall(
                    list(self._history), model=self._model, asked_at=self._last_input or at,
                    input_types=(self._last_type,),
                )  # fmt: skip
            self._answer.append(piece)
            self._open.answered_at = at
            tool = "tool_use" if kind.endswith("_call") else "thinking" if kind == "reasoning" else "text"
            self._open.output_types = tuple(dict.fromkeys((*self._open.output_types, tool)))
            self._open.stop = "tool_use" if tool == "tool_use" else "end_turn"
            return
        self.close()
        self._history.append(piece)
        self._last_input = at
        self._last_type = "tool_result" if kind.endswith("_output") else "text"

    def _counted(self, info: Any) -> None:
        usage = info.get("last_token_usage") if isinstance(info, dict) else None
        if self._open is None or not isinstance(usage, dict):
            return
        self._open.input_tokens = count(usage.get("input_tokens"))
        self._open.output_tokens = count(usage.get("output_tokens"))
        self.close()

    def close(self) -> None:
        """The open call's answer is complete and part of the history."""
        if self._open is None:
            return
        self._open.answer = "\n".join(piece.text for piece in self._answer)
        self.session.calls.append(self._open)
        self._history += self._answer
        self._open, self._answer = None, []
