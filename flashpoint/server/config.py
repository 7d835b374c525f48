"""The HTTP server's settings. The command line is generated from the fields and their help."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flashpoint.errors import InvalidValue

LOG_LEVELS = ("debug", "info", "warning", "error")


def _setting(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Everything about the HTTP side of a server. Raises InvalidValue naming the field."""

    host: str = _setting("127.0.0.1", "address to listen on; 0.0.0.0 for every interface")
    port: int = _setting(8000, "port to listen on; 0 takes a free one")
    served_model_name: str | None = _setting(
        None, "model name in the API; the checkpoint folder's name if not given"
    )
    max_body_bytes: int = _setting(32 * 2**20, "larger request bodies are refused with 413")
    max_prompts: int = _setting(64, "prompts one /v1/completions request may hold")
    request_seconds: float = _setting(60.0, "time a client has to send a whole request")
    keep_alive_seconds: float = _setting(75.0, "time an idle connection is kept for a next request")
    drain_seconds: float = _setting(30.0, "time running requests have to finish after SIGTERM")
    stall_seconds: float = _setting(
        30.0, "/health fails when the engine has work and made no progress for so long"
    )
    tokenizer_threads: int = _setting(2, "threads that turn long prompts into tokens")
    tokenizer_cache_bytes: int = _setting(
        64 * 2**20, "memory for the token ids of texts seen before; 0 turns the cache off"
    )
    log_level: str = _setting("info", "debug, info, warning or error")

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidValue("port", self.port, "0 to 65535")
        for name in ("max_body_bytes", "max_prompts", "tokenizer_threads"):
            if getattr(self, name) < 1:
                raise InvalidValue(name, getattr(self, name), "an integer of at least 1")
        if self.tokenizer_cache_bytes < 0:
            raise InvalidValue("tokenizer_cache_bytes", self.tokenizer_cache_bytes, "0 or more")
        for name in ("request_seconds", "keep_alive_seconds", "stall_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidValue(name, getattr(self, name), "a number of seconds above 0")
        if not self.drain_seconds >= 0:
            raise InvalidValue("drain_seconds", self.drain_seconds, "0 or more seconds")
        if self.log_level not in LOG_LEVELS:
            raise InvalidValue("log_level", self.log_level, f"one of {', '.join(LOG_LEVELS)}")
