"""Conversations that look like a coding agent's: prose, code, tool calls and their long results."""

from __future__ import annotations

import json
import random
from typing import Any

WORDS = [
    "the",
    "function",
    "returns",
    "value",
    "error",
    "path",
    "index",
    "cache",
    "block",
    "request",
    "token",
    "model",
    "server",
    "test",
    "file",
    "line",
    "import",
    "class",
    "def",
    "self",
    "config",
    "data",
    "array",
    "tensor",
    "layer",
    "weight",
    "step",
    "batch",
    "length",
    "offset",
    "count",
    "name",
    "result",
    "build",
    "parse",
    "read",
    "write",
    "open",
    "close",
    "thread",
    "queue",
    "state",
    "event",
    "time",
    "start",
    "stop",
    "next",
    "previous",
    "first",
    "last",
    "size",
    "bytes",
    "memory",
    "device",
    "host",
    "disk",
    "because",
    "should",
    "however",
    "where",
    "nothing",
    "every",
    "after",
    "before",
    "called",
    "without",
]


def text(rng: random.Random, characters: int) -> str:
    """Sentences and lines of code, at least `characters` long."""
    parts: list[str] = []
    length = 0
    while length < characters:
        if rng.random() < 0.5:
            part = " ".join(rng.choice(WORDS) for _ in range(rng.randint(5, 14))).capitalize() + ". "
        else:
            call = f"{rng.choice(WORDS)}_{rng.choice(WORDS)}({rng.choice(WORDS)}={rng.randint(0, 9999)})"
            part = "    " * rng.randint(0, 3) + f"{rng.choice(WORDS)} = {call}  # {rng.choice(WORDS)}\n"
        parts.append(part)
        length += len(part)
    return "".join(parts)


class AgentConversation:
    """A chat request body that grows by a tool call and its result a turn."""

    def __init__(self, seed: int, tools: int = 12) -> None:
        self._rng = random.Random(seed)
        self._turns = 0
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": text(self._rng, 8_000)},
            {"role": "user", "content": text(self._rng, 2_000)},
        ]
        self.tools = [self._tool(index) for index in range(tools)]

    def turn(self, characters: int) -> None:
        """An answer that calls a tool, and its result; `characters` in all."""
        call = f"call_{self._turns}"
        arguments = json.dumps({"path": text(self._rng, 80), "lines": [1, 200]})
        function = {"name": "tool_1", "arguments": arguments}
        self.messages += [
            {
                "role": "assistant",
                "content": text(self._rng, characters // 10),
                "reasoning_content": text(self._rng, 400),
                "tool_calls": [{"id": call, "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": call, "content": text(self._rng, characters - characters // 10)},
        ]
        self._turns += 1

    def body(self) -> dict[str, Any]:
        """The request of the next turn."""
        return {"model": "m", "messages": self.messages, "tools": self.tools, "max_tokens": 1}

    def _tool(self, index: int) -> dict[str, Any]:
        names = self._rng.sample(WORDS, 4)
        properties = {name: {"type": "string", "description": text(self._rng, 60)} for name in names}
        parameters = {"type": "object", "properties": properties}
        function = {"name": f"tool_{index}", "description": text(self._rng, 300), "parameters": parameters}
        return {"type": "function", "function": function}
