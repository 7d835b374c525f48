"""The body of a chat request, as the benchmark sends it (spec section 3.6)."""

from __future__ import annotations

import orjson


def chat_body(messages: bytes, model: str, max_tokens: int, *, legacy_max_tokens: bool = False) -> bytes:
    """A streaming request whose answer is to be exactly `max_tokens` long; `messages` is JSON text.

    `legacy_max_tokens` names the limit `max_tokens` for servers that do not know `max_completion_tokens`.
    """
    rest = orjson.dumps(
        {
            "model": model,
            "stream": True,
            "max_tokens" if legacy_max_tokens else "max_completion_tokens": max_tokens,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }
    )
    return b'{"messages":' + messages + b"," + rest[1:]
