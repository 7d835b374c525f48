"""The options of a replay; light to import, so that a command line can list them without loading a client."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from flashpoint.errors import InvalidValue

SessionHeader = Literal["X-Session-ID", "X-SMG-Routing-Key", "X-Dynamo-Session-ID"]


@dataclass(frozen=True, kw_only=True)
class LoadConfig:
    """What is played, wherever to. Defaults are the benchmark's (spec section 3.1); units as named."""

    corpus: Path = field(metadata={"help": "a corpus file, a trace file or a folder of traces"})
    out: Path = field(metadata={"help": "folder for the run archive; new or empty"})
    concurrency: tuple[int, ...] = field(
        default=(1, 2, 4, 8), metadata={"help": "sessions held live at once; one level after the other"}
    )
    duration: float = field(default=3600.0, metadata={"help": "measured seconds per level"})
    repeat: int = field(default=1, metadata={"help": "runs of every level, to see their spread"})
    seed: int = field(default=42, metadata={"help": "seed of start moments and prompts"})
    prompt_text: Path | None = field(
        default=None,
        metadata={"help": "text (or token ids, .npy) that prompts are cut from; default: invented"},
    )
    context_window: int | None = field(
        default=None, metadata={"help": "leave out whole sessions that need more tokens than this"}
    )
    max_sessions: int | None = field(
        default=393, metadata={"help": "use the first sessions of the corpus only"}
    )
    start_from: float = field(
        default=0.25, metadata={"help": "earliest share of its first session a lane enters"}
    )
    start_to: float = field(
        default=0.75, metadata={"help": "latest share of its first session a lane enters"}
    )
    warmup_requests: int = field(
        default=10, metadata={"help": "turns per lane sent without waiting before the measurement"}
    )
    warmup_grace: float = field(default=1800.0, metadata={"help": "longest seconds the warm-up may take"})
    session_idle_cap: float = field(default=300.0, metadata={"help": "longest seconds a session may be idle"})
    system_idle_cap: float = field(default=10.0, metadata={"help": "longest seconds all lanes may be idle"})
    failed_threshold: float = field(
        default=0.10, metadata={"help": "share of failed requests above which the run stops"}
    )
    accelerators: int = field(
        default=1, metadata={"help": "accelerators that serve the model; throughput is divided by it"}
    )

    def __post_init__(self) -> None:
        if not self.concurrency or min(self.concurrency) < 1:
            raise InvalidValue("concurrency", self.concurrency, "whole numbers of at least 1")
        if len(set(self.concurrency)) < len(self.concurrency):
            raise InvalidValue("concurrency", self.concurrency, "every level once; --repeat repeats levels")
        for name in ("accelerators", "repeat", "max_sessions", "context_window"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidValue(name, value, "a whole number of at least 1")
        for name in ("duration", "warmup_grace"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidValue(name, getattr(self, name), "seconds, a number above 0")
        for name in ("session_idle_cap", "system_idle_cap"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidValue(name, getattr(self, name), "seconds, a number of at least 0")
        if not 0 <= self.failed_threshold <= 1:
            raise InvalidValue("failed_threshold", self.failed_threshold, "a share from 0 to 1")
        if not 0 <= self.start_from <= self.start_to <= 1:
            raise InvalidValue(
                "start_from, start_to", (self.start_from, self.start_to), "shares, 0 <= from <= to <= 1"
            )
        if self.warmup_requests < 0:
            raise InvalidValue("warmup_requests", self.warmup_requests, "a whole number of at least 0")


@dataclass(frozen=True, kw_only=True)
class ReplayConfig(LoadConfig):
    """A replay against a server."""

    url: str = field(metadata={"help": "root of an OpenAI-compatible server, such as http://127.0.0.1:8000"})
    tokenizer: Path | None = field(
        default=None,
        metadata={"help": "the served model's tokenizer.json or its folder; default: where /v1/models says"},
    )
    model: str | None = field(
        default=None, metadata={"help": "model name to send; default: the first that /v1/models names"}
    )
    session_header: SessionHeader | None = field(
        default=None, metadata={"help": "one more header with the conversation's id, for a router"}
    )
    legacy_max_tokens: bool = field(
        default=False, metadata={"help": "name the length max_tokens, for servers that know no other"}
    )
    metrics_url: str | None = field(
        default=None, metadata={"help": "the server's Prometheus metrics; default: URL/metrics"}
    )
    request_timeout: float = field(default=3600.0, metadata={"help": "longest seconds a request may take"})
    stall_timeout: float = field(
        default=1800.0, metadata={"help": "longest seconds without data, first token included"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "url", _server_root(self.url))
        if self.metrics_url is not None:
            _check_url("metrics_url", self.metrics_url, "http://HOST[:PORT]/PATH or https://HOST[:PORT]/PATH")
        for name in ("request_timeout", "stall_timeout"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InvalidValue(name, getattr(self, name), "seconds, a number above 0")


def _server_root(url: str) -> str:
    """The URL without a trailing slash or `/v1`."""
    expected = "http://HOST[:PORT] or https://HOST[:PORT]"
    _check_url("url", url, expected)
    if urlsplit(url).query or urlsplit(url).fragment:
        raise InvalidValue("url", url, expected)
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _check_url(field: str, url: str, expected: str) -> None:
    """Refuse what is no HTTP URL, and a password, as the archive would keep it."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
        (parts.hostname or "").encode("idna")  # raises for a name that no resolver takes
        parts.port  # noqa: B018 (reading it raises for a port out of range)
    except ValueError:
        usable = False
    if not usable:
        raise InvalidValue(field, url, expected)
    if parts.username is not None or parts.password is not None:
        raise InvalidValue(field, f"{parts.scheme}://…@{parts.hostname}", f"{expected}, without a password")
