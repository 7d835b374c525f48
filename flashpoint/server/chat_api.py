"""POST /v1/chat/completions: messages to a prompt, an answer to OpenAI's chat objects."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flashpoint.engine.plan import TokenLogprob
from flashpoint.errors import InvalidValue
from flashpoint.models.chat import Conversation, RenderedChat
from flashpoint.server.context import INLINE_CHARACTERS, ServerContext
from flashpoint.server.generation import Delta, Job
from flashpoint.server.limits import check_model, refuse_hopeless, resolve_max_tokens
from flashpoint.server.protocol import ChatRequest, Message, parse_request
from flashpoint.server.respond import Answer, Prepared
from flashpoint.server.tokenizer import Tokenizer


async def prepare_chat(context: ServerContext, request_id: str, body: Any) -> Prepared:
    """Check a body and render its prompt. Raises ApiError or FlashpointError naming the field."""
    request = parse_request(ChatRequest, body, context.ignored_fields)
    check_model(context, request.model)
    conversation = conversation_of(request)
    _note_unused(context, request)

    def render() -> tuple[RenderedChat, npt.NDArray[np.int32]]:
        rendered = context.renderer.render(conversation)
        refuse_hopeless(context, rendered.text)
        return rendered, context.tokenizer.encode_segments(rendered.segments)

    rendered, prompt = await context.tokenize(_characters(request), render)
    sampling = request.sampling(
        resolve_max_tokens(context, len(prompt), request.length_limit[1], context.engine.max_context),
        request.wanted_logprobs,
        context.tokenizer.eos_ids,
        context.engine.vocab_size,
    )
    reasoning_end = rendered.reasoning_end if rendered.in_reasoning else None
    job = Job(
        prompt,
        sampling,
        request.stop_strings,
        None if reasoning_end is None else context.tokenizer.token_id(reasoning_end),
    )
    shape = ChatShape(request_id, context.model.name, context.tokenizer, sampling.logprobs is not None)
    include_usage = bool(request.stream_options and request.stream_options.include_usage)
    return Prepared([job], shape, bool(request.stream), include_usage)


def conversation_of(request: ChatRequest) -> Conversation:
    """What the renderer needs of a request. Raises InvalidValue for a message without its content."""
    return Conversation(
        messages=_plain_messages(request.messages),
        tools=[tool.model_dump(exclude_none=True) for tool in request.tools or ()],
        use_tools=request.use_tools,
        thinking=None if request.thinking is None else request.thinking.type == "enabled",
        effort=request.reasoning_effort,
    )


def _plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    for index, message in enumerate(messages):
        if getattr(message, "prefix", None) and (index < len(messages) - 1 or message.role != "assistant"):
            raise InvalidValue(
                f"messages[{index}].prefix", True, "true on a last message of the assistant only"
            )
    return [_plain(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _plain(name: str, message: Message) -> dict[str, Any]:
    if message.content is None and message.role != "assistant":
        raise InvalidValue(f"{name}.content", None, "text; it may be null for the assistant only")
    if message.role == "tool" and message.tool_call_id is None:
        raise InvalidValue(f"{name}.tool_call_id", None, "the id of the call that this is the result of")
    fields = message.model_dump(exclude_none=True)
    fields["role"] = "system" if message.role == "developer" else message.role
    if message.role == "assistant":
        fields.setdefault("content", None)
    return fields


def _characters(request: ChatRequest) -> int:
    """About how long the prompt will be; tools make every prompt a long one."""
    if request.tools:
        return INLINE_CHARACTERS + 1
    contents = (message.content or "" for message in request.messages)
    lengths = (
        len(content) if isinstance(content, str) else sum(len(part.text) for part in content)
        for content in contents
    )
    return sum(lengths)


def _note_unused(context: ServerContext, request: ChatRequest) -> None:
    """Log, once per name, fields that this checkpoint's template has no use for."""
    used = set(request.model_fields_set)
    if any(message.reasoning_content for message in request.messages):
        used.add("messages[].reasoning_content")
    context.ignored_fields.note(used & context.renderer.ignored)


class ChatShape:
    """OpenAI's chat objects, with DeepSeek's `reasoning_content` beside `content`."""

    def __init__(self, request_id: str, model: str, tokenizer: Tokenizer, logprobs: bool) -> None:
        self._base = {"id": request_id, "created": int(time.time()), "model": model}
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._started: set[int] = set()

    def chunk(self, index: int, delta: Delta) -> dict[str, Any]:
        """A chunk; an answer's first one names the role."""
        fields: dict[str, Any] = {}
        if index not in self._started:
            self._started.add(index)
            fields["role"] = "assistant"
        if delta.reasoning or delta.in_reasoning:
            fields["reasoning_content"] = delta.reasoning
        if delta.content or not delta.in_reasoning:
            fields["content"] = delta.content
        choice = {
            "index": index,
            "delta": fields,
            "logprobs": self._logprobs_object(delta),
            "finish_reason": delta.finish,
        }
        return {**self._base, "object": "chat.completion.chunk", "choices": [choice]}

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The chunk without choices that `stream_options.include_usage` asks for."""
        return {**self._base, "object": "chat.completion.chunk", "choices": [], "usage": usage}

    def whole(self, answers: Sequence[Answer], usage: dict[str, Any]) -> dict[str, Any]:
        """The response that is not streamed."""
        choices = []
        for index, answer in enumerate(answers):
            message = {"role": "assistant", "content": answer.content}
            if answer.reasoning:
                message["reasoning_content"] = answer.reasoning
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": self._logprobs_object(answer),
                    "finish_reason": answer.finish,
                }
            )
        return {**self._base, "object": "chat.completion", "choices": choices, "usage": usage}

    def _logprobs_object(self, part: Delta | Answer) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        shown: dict[str, Any] = {"content": [self._token(entry) for entry in part.content_logprobs]}
        if part.reasoning_logprobs:
            shown["reasoning_content"] = [self._token(entry) for entry in part.reasoning_logprobs]
        return shown

    def _token(self, entry: TokenLogprob) -> dict[str, Any]:
        alternatives = [self._alternative(token, logprob) for token, logprob in entry.top]
        return {**self._alternative(entry.token, entry.logprob), "top_logprobs": alternatives}

    def _alternative(self, token: int, logprob: float) -> dict[str, Any]:
        spelled = self._tokenizer.token_bytes(token)
        return {"token": spelled.decode(errors="replace"), "logprob": logprob, "bytes": list(spelled)}
