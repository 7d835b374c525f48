"""The options of a replay; light to import, so that a command line can list them without loading a client."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from flashpoint.errors import InvalidValue


@dataclass(frozen=True)
class ReplayConfig:
    """What a replay does. Seconds, counts and paths as named."""

    url: str = field(metadata={"help": "root of an OpenAI-compatible server, such as http://127.0.0.1:8000"})
    sessions: Path = field(metadata={"help": "session file (JSON lines)"})
    out: Path = field(metadata={"help": "folder for the run archive; new or empty"})
    concurrency: tuple[int, ...] = field(
        default=(1, 2, 4, 8), metadata={"help": "sessions held live at once; one level after the other"}
    )
    model: str | None = field(
        default=None, metadata={"help": "model name to send; default: the first that /v1/models names"}
    )
    force_length: bool = field(
        default=True,
        metadata={"help": "force answers to max_tokens (min_tokens = max_tokens, ignore_eos)"},
    )
    temperature: float = field(default=0.0, metadata={"help": "sampling temperature"})
    seed: int = field(default=0, metadata={"help": "sampling seed sent with every request"})
    max_turns: int | None = field(default=None, metadata={"help": "play only the first turns of a session"})
    duration: float | None = field(
        default=None,
        metadata={"help": "seconds per level, sessions repeating; default: play the list once"},
    )
    request_timeout: float = field(default=3600.0, metadata={"help": "longest seconds a request may take"})
    stall_timeout: float = field(
        default=600.0, metadata={"help": "longest seconds without data, first token included"}
    )
    accelerators: int = field(
        default=1, metadata={"help": "accelerators that serve the model; throughput is divided by it"}
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", _server_root(self.url))
        if not self.concurrency or min(self.concurrency) < 1:
            raise InvalidValue("concurrency", self.concurrency, "whole numbers of at least 1")
        if len(set(self.concurrency)) < len(self.concurrency):
            raise InvalidValue("concurrency", self.concurrency, "every level once")
        for name in ("accelerators", "max_turns"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidValue(name, value, "a whole number of at least 1")
        for name in ("duration", "request_timeout", "stall_timeout"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise InvalidValue(name, value, "seconds, a number above 0")
        if not 0 <= self.temperature < float("inf"):
            raise InvalidValue("temperature", self.temperature, "a number of at least 0")


def _server_root(url: str) -> str:
    """The URL without a trailing slash or `/v1`."""
    expected = "http://HOST[:PORT] or https://HOST[:PORT]"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        parts.port  # noqa: B018 (reading it raises for a port out of range)
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise InvalidValue("url", url, expected)
    if parts.username is not None or parts.password is not None:
        raise InvalidValue("url", f"{parts.scheme}://…@{parts.hostname}", f"{expected}, without a password")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")
