"""Checks that both endpoints make: the model's name, and prompts that cannot fit."""

from __future__ import annotations

from flashpoint.errors import RequestTooLong
from flashpoint.server.context import ServerContext
from flashpoint.server.errors import ApiError


def check_model(context: ServerContext, name: str | None) -> None:
    """Raise ApiError 404 for another model than the one served; no name means this one."""
    if name is not None and name != context.model.name:
        shown = name if len(name) <= 100 else f"{name[:100]}…"
        raise ApiError(
            404,
            f"model: got {shown!r}; expected {context.model.name!r}, the only model served here",
            param="model",
            code="model_not_found",
        )


def resolve_max_tokens(context: ServerContext, prompt_tokens: int, wanted: int | None, default: int) -> int:
    """The answer's limit: what the request wants, else the default as far as the context has room for it.

    Raises RequestTooLong when the prompt and the wanted answer, or else one token, do not fit.
    """
    room = context.engine.max_context - prompt_tokens
    needed = 1 if wanted is None else wanted
    if needed > room:
        raise RequestTooLong(prompt_tokens + needed, context.engine.max_context, CONTEXT)
    return min(default, room) if wanted is None else wanted


def refuse_hopeless(context: ServerContext, text: str) -> None:
    """Raise RequestTooLong for a text that cannot fit whatever its tokens are, before work goes into them."""
    least = -(-len(text) // context.tokenizer.longest_token_bytes)
    if least > context.engine.max_context:
        raise RequestTooLong(least, context.engine.max_context, CONTEXT)


CONTEXT = "the context of this server"
