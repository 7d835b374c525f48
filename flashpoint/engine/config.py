"""The engine's settings: one frozen dataclass, from which the command line is generated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from flashpoint.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How much an engine runs at once. Raises InvalidValue naming the field.

    `max_step_tokens` must cover one row for each of `max_running` sequences, so that a full batch of
    decodes always fits into a step.
    """

    max_step_tokens: int = field(default=2048, metadata={"help": "token rows computed in one step at most"})
    max_running: int = field(default=16, metadata={"help": "sequences that run at once"})
    max_waiting: int = field(default=10_000, metadata={"help": "queued requests; further ones are refused"})
    block_tokens: int = field(default=64, metadata={"help": "tokens of one cache block"})
    cache_tokens: int | None = field(
        default=None,
        metadata={"help": "tokens the cache pool holds; default: what memory_limit leaves, or 65536"},
    )
    memory_limit: int | None = field(
        default=None,
        metadata={"help": "memory for weights, a step, windows, caches and host tier", "size": True},
    )
    max_context: int | None = field(
        default=None, metadata={"help": "tokens of one sequence, prompt and answer; default: the model's"}
    )
    prefix_cache: bool = field(
        default=True, metadata={"help": "keep the caches of finished prompts and answers for later ones"}
    )
    semantics: Literal["replay", "full"] = field(
        default="replay",
        metadata={
            "help": "replay: the model's own serving mode, bounded work after a cache hit and in a prefill; "
            "full: exact, every layer computes every token, and more is computed again after a hit"
        },
    )

    def __post_init__(self) -> None:
        _at_least("max_running", self.max_running, 1)
        _at_least("max_step_tokens", self.max_step_tokens, self.max_running, " (one row per running request)")
        _at_least("max_waiting", self.max_waiting, 1)
        _at_least("block_tokens", self.block_tokens, 1)
        if self.cache_tokens is not None:
            _at_least("cache_tokens", self.cache_tokens, self.block_tokens, " (one block)")
        if self.memory_limit is not None:
            _at_least("memory_limit", self.memory_limit, 1)
        if self.max_context is not None:
            _at_least("max_context", self.max_context, 2, " (a prompt token and an answer token)")
        if self.semantics not in ("replay", "full"):
            raise InvalidValue("semantics", self.semantics, "'replay' or 'full'")


def _at_least(name: str, value: object, low: int, why: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise InvalidValue(name, value, f"an integer of at least {low}{why}")
