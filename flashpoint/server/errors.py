"""Errors as the OpenAI API writes them: `{"error": {message, type, param, code}}` and a status."""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import ValidationError

from flashpoint.errors import EngineStopped, FlashpointError, InvalidValue, QueueFull, RequestTooLong

# Types that pydantic puts into the location of an error in a union.
_UNION_MEMBERS = ("str", "list[str]", "list[TextPart]")


class ApiError(Exception):
    """An answer that is an error. `param` is the request field at fault, in the client's spelling."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}
        super().__init__(message)

    @property
    def kind(self) -> str:
        """The `type` of the error object."""
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def body(self) -> bytes:
        """The JSON body."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})


def from_flashpoint(error: FlashpointError, prompt_param: str) -> ApiError:
    """The answer to a fault of the request; `prompt_param` is the field that holds the prompt."""
    if isinstance(error, RequestTooLong):
        return ApiError(400, str(error), param=prompt_param, code="context_length_exceeded")
    if isinstance(error, QueueFull):
        return ApiError(429, str(error), code="queue_full", headers={"retry-after": "1"})
    if isinstance(error, EngineStopped):
        return ApiError(503, str(error), code="engine_stopped")
    param = error.field if isinstance(error, InvalidValue) else None
    return ApiError(400, str(error), param=param, code="invalid_value")


def from_validation(error: ValidationError) -> ApiError:
    """The answer to what pydantic refused: the innermost field, since a union blames its members too."""
    worst = max(error.errors(include_url=False), key=lambda found: len(found["loc"]))
    param = _dotted(worst["loc"])
    expected = worst["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    missing = worst["type"] == "missing"
    problem = (
        FlashpointError(f"{param}: missing; expected this field to be present")
        if missing
        else InvalidValue(param, worst["input"], expected)
    )
    return ApiError(400, str(problem), param=param, code="missing_field" if missing else "invalid_value")


def _dotted(location: tuple[Any, ...]) -> str:
    """`("messages", 0, "content", "list[TextPart]", 1)` -> `messages[0].content[1]`."""
    path = ""
    for step in location:
        if step in _UNION_MEMBERS:
            continue
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    return path
