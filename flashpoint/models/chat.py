"""A chat conversation and its rendering into a prompt, for any architecture; and the plain template.

A rendered prompt is a list of segments, so that only what a template wrote itself can become a special
token: text from users is encoded as plain text even where it spells one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Segment(NamedTuple):
    """A piece of a prompt: one special token by its spelling, or plain text."""

    text: str
    special: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a chat request says, with OpenAI's names; messages and tools are already checked for form.

    messages: role, content (a string, None, or a list of `{"type": "text", "text": …}`), and for the
        assistant `reasoning_content`, `tool_calls`, `prefix`; for a tool `tool_call_id`.
    thinking, effort: None leaves the choice to the template.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    use_tools: bool = True
    thinking: bool | None = None
    effort: str | None = None


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A prompt. `in_reasoning`: the answer starts inside reasoning, which `reasoning_end` closes."""

    segments: tuple[Segment, ...]
    in_reasoning: bool = False
    reasoning_end: str | None = None

    @property
    def text(self) -> str:
        """The prompt as one string."""
        return "".join(segment.text for segment in self.segments)


class ChatRenderer(Protocol):
    """A chat template. `ignored` names the request fields it has no use for."""

    name: str
    ignored: frozenset[str]

    def render(self, conversation: Conversation) -> RenderedChat:
        """Render, or raise InvalidValue naming the field that cannot be."""
        ...


class PlainRenderer:
    """The template for checkpoints without chat tokens (random and tiny ones). Documented in docs/server.md.

    bos, then per message `[role]`, a newline, its text and eos; then `[assistant]` and a newline. Tools are
    a first message `[tools]` with one JSON object a line. Where the tokenizer has no bos, there is none;
    where it has no eos, a newline stands for it. Since plain text cannot become eos, no message can forge
    the next one.
    """

    name = "plain"
    ignored = frozenset({"thinking", "reasoning_effort", "messages[].reasoning_content"})

    def __init__(self, bos: str | None, eos: str | None) -> None:
        self._begin = (Segment(bos, special=True),) if bos else ()
        self._end = Segment(eos, special=True) if eos else Segment("\n")

    def render(self, conversation: Conversation) -> RenderedChat:
        """Render every message; a last assistant message with `prefix` is left open to be continued."""
        segments = list(self._begin)
        if conversation.tools and conversation.use_tools:
            listed = [json.dumps(tool["function"], ensure_ascii=False) for tool in conversation.tools]
            segments += [Segment("\n".join(["[tools]", *listed])), self._end]
        for message in conversation.messages:
            segments.append(Segment(f"[{message['role']}]\n{_plain_text(message)}"))
            if message.get("prefix"):
                return RenderedChat(tuple(segments))
            segments.append(self._end)
        segments.append(Segment("[assistant]\n"))
        return RenderedChat(tuple(segments))


def plain_renderer(token_id: Callable[[str], int | None], bos: str, eos: str) -> PlainRenderer:
    """The plain template with those of the two tokens that the tokenizer has."""
    return PlainRenderer(*(token if token_id(token) is not None else None for token in (bos, eos)))


def _plain_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if content is None:
        text = ""
    elif isinstance(content, str):
        text = content
    else:
        text = "\n\n".join(part["text"] for part in content)
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls") or ()]
    return "\n".join([text, *calls]) if calls else text
