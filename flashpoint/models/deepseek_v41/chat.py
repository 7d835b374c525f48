"""DeepSeek-V4.1 chat prompts (spec section 12), rendered by the authors' library `deepseek-recipe`.

The library marks which ranges of the prompt are special tokens it wrote itself; the rest is plain text.
That mark is kept as segments, so a user who writes `<｜Assistant｜>` sends those characters, not that token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import deepseek_recipe as recipe

from flashpoint.errors import InvalidValue
from flashpoint.models.chat import ChatRenderer, Conversation, RenderedChat, Segment, plain_renderer

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
ASSISTANT = "<｜Assistant｜>"
THINK, THINK_END = "<think>", "</think>"
REQUIRED_TOKENS = (
    BOS,
    EOS,
    "<｜System｜>",
    "<｜User｜>",
    ASSISTANT,
    "<｜latest_reminder｜>",
    THINK,
    THINK_END,
    "｜DSML｜",
)

# The library renders only for model names it knows, whatever name this server gives its model.
_RECIPE_MODEL = "DeepSeek-V4.1-Flash"


class DeepseekRenderer:
    """The official template: thinking unless the request disables it, effort, tools."""

    name = "deepseek-v4.1"
    ignored: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._encoding = recipe.DeepseekV41Encoding()
        self._options = recipe.ConversionOptions()

    def render(self, conversation: Conversation) -> RenderedChat:
        """Render as the library does; what it refuses raises InvalidValue with its own words."""
        body: dict[str, Any] = {"model": _RECIPE_MODEL, "messages": list(conversation.messages)}
        if conversation.tools:
            body["tools"] = list(conversation.tools)
            body["tool_choice"] = "auto" if conversation.use_tools else "none"
        if conversation.thinking is not None:
            body["thinking"] = {"type": "enabled" if conversation.thinking else "disabled"}
        if conversation.effort is not None:
            body["reasoning_effort"] = conversation.effort
        try:
            request = recipe.ChatCompletionRequest(body).convert(self._options)
            rendered = self._encoding.render_conversation(request.conversation)
        except (recipe.ConversionError, ValueError) as error:
            roles = [message["role"] for message in conversation.messages]
            raise InvalidValue("messages", roles, f"a conversation that can be rendered: {error}") from error
        segments = tuple(_segments(rendered.prompt, rendered.special_ranges))
        return RenderedChat(segments, _opens_reasoning(segments), THINK_END)


def renderer_for(token_id: Callable[[str], int | None]) -> ChatRenderer:
    """The official template if the tokenizer has every token it writes, else the plain one.

    `token_id` looks a spelling up in the tokenizer and gives None for an unknown one.
    """
    if all(token_id(token) is not None for token in REQUIRED_TOKENS):
        return DeepseekRenderer()
    return plain_renderer(token_id, BOS, EOS)


def _segments(prompt: str, special_ranges: list[tuple[int, int]]) -> Iterator[Segment]:
    position = 0
    for start, end in special_ranges:
        if start > position:
            yield Segment(prompt[position:start])
        yield Segment(prompt[start:end], special=True)
        position = end
    if position < len(prompt):
        yield Segment(prompt[position:])


def _opens_reasoning(segments: tuple[Segment, ...]) -> bool:
    """True when the last thinking token the template wrote opens the reasoning.

    Looked for only after the last assistant header: the tools section speaks of both tokens too.
    """
    for segment in reversed(segments):
        if segment.special and segment.text in (THINK, THINK_END, ASSISTANT):
            return segment.text == THINK
    return False
