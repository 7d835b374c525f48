"""Request bodies of the OpenAI endpoints: their form, checked; and their sampling fields, translated.

Ranges of sampling values are `SamplingParams`'s business. A field that is not declared here is ignored
(agents send many of other vendors) and logged once per name. A declared field that this server cannot
honour is refused by name.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Set
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from flashpoint.engine.sampling import SamplingParams
from flashpoint.errors import InvalidValue
from flashpoint.server.errors import ApiError, from_validation

log = logging.getLogger(__name__)

MAX_STOP_STRINGS = 4
_SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
)

Request = TypeVar("Request", bound="GenerationRequest")
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"]


_LONGEST_ID = 20


class _Form(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class StreamOptions(_Form):
    """`include_usage`: a last chunk with usage and no choices."""

    include_usage: bool = False


class GenerationRequest(_Form):
    """Fields that both endpoints share."""

    # Fields of the OpenAI API that are accepted only at the value that changes nothing.
    REFUSED: ClassVar[Mapping[str, tuple[Any, ...]]] = {"n": (None, 1)}

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: dict[str, float] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None

    @property
    def length_limit(self) -> tuple[str, int | None]:
        """The field that limits the answer's length, and its value."""
        return "max_tokens", self.max_tokens

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Stop strings as a tuple, checked for number and emptiness."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > MAX_STOP_STRINGS:
            raise InvalidValue("stop", stops, f"at most {MAX_STOP_STRINGS} strings")
        if "" in stops:
            raise InvalidValue("stop", stops, "strings that are not empty")
        return tuple(stops)

    def sampling(
        self, max_tokens: int, logprobs: int | None, eos_ids: Set[int], vocab_size: int
    ) -> SamplingParams:
        """The engine's view of the sampling fields. Raises InvalidValue naming the field.

        Without a seed the operating system's randomness gives one.
        """
        own_stops = frozenset(self.stop_token_ids or ())
        for token in own_stops:
            _check_token("stop_token_ids", token, vocab_size)
        given = {name: getattr(self, name) for name in _SAME_NAME if getattr(self, name) is not None}
        try:
            return SamplingParams(
                max_tokens=max_tokens,
                seed=secrets.randbits(63) if self.seed is None else self.seed,
                logit_bias=self._logit_bias(vocab_size),
                logprobs=logprobs,
                stop_ids=own_stops if self.ignore_eos else own_stops | eos_ids,
                **given,
            )
        except InvalidValue as error:
            raise InvalidValue(self._spelling(error.field), error.value, error.expected) from error

    def _spelling(self, field: str) -> str:
        """The request's name of a SamplingParams field."""
        return self.length_limit[0] if field == "max_tokens" else field

    def _logit_bias(self, vocab_size: int) -> dict[int, float]:
        bias = {}
        for key, value in (self.logit_bias or {}).items():
            if not key.isascii() or not key.isdigit():
                raise InvalidValue("logit_bias", key, "token ids as keys, written as decimal strings")
            if len(key) > _LONGEST_ID:
                raise InvalidValue("logit_bias", key, f"token ids from 0 to {vocab_size - 1}")
            _check_token("logit_bias", int(key), vocab_size)
            bias[int(key)] = value
        return bias


class TextPart(_Form):
    """A piece of text in a message's content list."""

    type: Literal["text"]
    text: str


class FunctionCall(_Form):
    """A function the assistant called; `arguments` is JSON text, kept as it came."""

    name: str
    arguments: str


class ToolCall(_Form):
    """A call in an assistant message."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(_Form):
    """One chat message. OpenAI's `developer` is its newer name of `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool", "latest_reminder"]
    content: str | list[TextPart] | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    prefix: bool | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _content(cls, content: Any) -> Any:
        # One clear reason, instead of what each member of the union has against the value.
        if content is None or isinstance(content, str):
            return content
        if not isinstance(content, list):
            raise ValueError("a string or a list of text parts")
        return content


class FunctionDefinition(_Form):
    """A function the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Form):
    """A tool; only functions exist."""

    type: Literal["function"]
    function: FunctionDefinition


class Thinking(_Form):
    """DeepSeek's switch for thinking."""

    type: Literal["enabled", "disabled"]


class ChatRequest(GenerationRequest):
    """Body of POST /v1/chat/completions."""

    REFUSED = {
        **GenerationRequest.REFUSED,
        "functions": (None,),
        "function_call": (None,),
        "response_format": (None, {"type": "text"}),
        "modalities": (None, ["text"]),
        "audio": (None,),
    }

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: Any = None
    thinking: Thinking | None = None
    reasoning_effort: Effort | None = None

    @property
    def length_limit(self) -> tuple[str, int | None]:
        """`max_completion_tokens`, or its older name."""
        if self.max_completion_tokens is None:
            return "max_tokens", self.max_tokens
        if self.max_tokens not in (None, self.max_completion_tokens):
            expected = f"the same as max_completion_tokens, {self.max_completion_tokens}"
            raise InvalidValue("max_tokens", self.max_tokens, expected)
        return "max_completion_tokens", self.max_completion_tokens

    def _spelling(self, field: str) -> str:
        return "top_logprobs" if field == "logprobs" else super()._spelling(field)

    @property
    def use_tools(self) -> bool:
        """Whether the model is told of the tools. A forced call is refused: nothing enforces one yet."""
        if self.tool_choice not in (None, "auto", "none"):
            expected = "'auto' or 'none': no call can be forced"
            raise InvalidValue("tool_choice", self.tool_choice, expected)
        return self.tool_choice != "none"

    @property
    def wanted_logprobs(self) -> int | None:
        """Alternatives per token, None when no log-probabilities are wanted."""
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidValue("top_logprobs", self.top_logprobs, "null unless logprobs is true")
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(GenerationRequest):
    """Body of POST /v1/completions; `prompt` is checked by `parse_prompts`."""

    REFUSED = {
        **GenerationRequest.REFUSED,
        "best_of": (None, 1),
        "echo": (None, False),
        "suffix": (None, ""),
    }

    prompt: Any = None
    logprobs: int | None = None


def parse_prompts(prompt: Any, max_prompts: int, vocab_size: int) -> list[str | list[int]]:
    """The prompts of a completion request: strings, or lists of ids that are in the vocabulary.

    Raises InvalidValue naming the prompt at fault.
    """
    expected = "a string, a list of strings, a list of token ids, or a list of lists of token ids"
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise InvalidValue("prompt", prompt, expected)
    if not prompt:
        raise InvalidValue("prompt", prompt, "at least one token")
    if isinstance(prompt[0], int):
        return [_token_ids("prompt", prompt, vocab_size)]
    if len(prompt) > max_prompts:
        raise InvalidValue("prompt", f"{len(prompt)} prompts", f"at most {max_prompts} in one request")
    prompts: list[str | list[int]] = []
    for index, item in enumerate(prompt):
        if isinstance(item, str):
            prompts.append(item)
        elif isinstance(item, list):
            prompts.append(_token_ids(f"prompt[{index}]", item, vocab_size))
        else:
            raise InvalidValue(f"prompt[{index}]", item, expected)
    return prompts


class IgnoredFields:
    """Says once per name, and for a bounded number of names, that a field has no effect."""

    def __init__(self, limit: int = 100) -> None:
        self._limit = limit
        self._seen: set[str] = set()

    def note(self, names: Set[str]) -> None:
        """Log the names not seen before."""
        for name in names - self._seen:
            if len(self._seen) < self._limit:
                self._seen.add(name)
                log.info("request field %r has no effect on this server", name[:60])


def parse_request(kind: type[Request], body: Any, ignored: IgnoredFields) -> Request:
    """Check a decoded JSON body against its form. Raises ApiError naming the field."""
    if not isinstance(body, dict):
        raise ApiError(400, f"body: got {type(body).__name__}; expected a JSON object", code="invalid_json")
    for name, harmless in kind.REFUSED.items():
        if name in body and body[name] not in harmless:
            shown = " or ".join(repr(value) for value in harmless if value is not None) or "null"
            problem = InvalidValue(name, body[name], f"{shown}; other values are not supported")
            raise ApiError(400, str(problem), param=name, code="unsupported_value")
    ignored.note(body.keys() - kind.model_fields.keys() - kind.REFUSED.keys())
    if kind is ChatRequest:
        _refuse_images(body.get("messages"))
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise from_validation(error) from error


def _refuse_images(messages: Any) -> None:
    """Name the part that is not text, before the general check calls it a wrong type."""
    for i, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for j, part in enumerate(content if isinstance(content, list) else ()):
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind != "text":
                param = f"messages[{i}].content[{j}]"
                expected = "one of type 'text'; images, audio and files cannot be read here"
                problem = InvalidValue(param, f"a part of type {kind[:40]}", expected)
                raise ApiError(400, str(problem), param=param, code="unsupported_content")


def _token_ids(name: str, ids: list[Any], vocab_size: int) -> list[int]:
    for index, token in enumerate(ids):
        if type(token) is not int:
            raise InvalidValue(f"{name}[{index}]", token, "a token id")
        if not 0 <= token < vocab_size:
            raise InvalidValue(f"{name}[{index}]", token, f"a token id from 0 to {vocab_size - 1}")
    return ids


def _check_token(name: str, token: int, vocab_size: int) -> None:
    if not 0 <= token < vocab_size:
        raise InvalidValue(name, token, f"token ids from 0 to {vocab_size - 1}")
