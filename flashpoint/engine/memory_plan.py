"""Who gets how much of a memory limit: weights, a step's workspace, windows, and the rest for the block pool.

Everything is allocated before the first request, so what this says is what is used: no request can run the
pool out of memory, it waits or is refused.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from flashpoint.cache.spec import CacheSpec
from flashpoint.engine.config import EngineConfig
from flashpoint.errors import InvalidValue
from flashpoint.sizes import format_size

DEFAULT_CACHE_TOKENS = 65_536


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What a model takes before it caches anything, in bytes.

    weights: as loaded.  workspace: what a step may take on top, at most.
    mapped: stored weights that stay in the file and are read when needed; not counted against the limit.
    """

    weights: int
    workspace: int
    mapped: int = 0


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes by use. limit: None when none was given.

    sequences: windows and tails of `max_running` sequences.  blocks, block_tokens, block_bytes: the pool.
    host: pool of the host tier; `limit` covers it where device and host memory are the same.
    """

    limit: int | None
    weights: int
    mapped: int
    workspace: int
    sequences: int
    blocks: int
    block_tokens: int
    block_bytes: int
    host: int

    @property
    def cache(self) -> int:
        """Bytes of the block pool."""
        return self.blocks * self.block_bytes

    @property
    def cache_tokens(self) -> int:
        """Tokens the block pool holds."""
        return self.blocks * self.block_tokens

    @property
    def total(self) -> int:
        """Bytes of everything."""
        return self.weights + self.workspace + self.sequences + self.cache + self.host

    def rows(self) -> list[tuple[str, str, str]]:
        """(what, how much, remark) lines of a table."""
        per_token = self.block_bytes / self.block_tokens
        lines = [
            ("weights", self.weights, "as loaded"),
            ("step workspace", self.workspace, "at most"),
            ("windows and tails", self.sequences, "of max_running sequences"),
            (
                "cache blocks",
                self.cache,
                f"{self.blocks:,} blocks of {self.block_tokens} = {self.cache_tokens:,} tokens, "
                f"{per_token:g} bytes each",
            ),
            ("host tier", self.host, "cached blocks that left the pool"),
            ("total", self.total, "" if self.limit is None else f"of {format_size(self.limit)}"),
        ]
        shown = [(name, format_size(size), remark) for name, size, remark in lines]
        if self.mapped:
            shown.append(("mapped", format_size(self.mapped), "weights read from the file when needed"))
        return shown

    def as_json(self) -> dict[str, Any]:
        """The same facts."""
        sums = {"cache": self.cache, "cache_tokens": self.cache_tokens, "total": self.total}
        return {**asdict(self), **sums}


def plan_memory(
    config: EngineConfig, spec: CacheSpec, model: ModelMemory, host_bytes: int, available: int
) -> MemoryPlan:
    """Divide `config.memory_limit`, or check `config.cache_tokens` against what is `available`.

    Raises InvalidValue, with the numbers, when a block or the asked-for tokens do not fit.
    """
    block_bytes = spec.block_bytes(config.block_tokens)
    fixed = model.weights + model.workspace + spec.bytes_per_sequence * config.max_running + host_bytes
    limit = available if config.memory_limit is None else config.memory_limit
    room = (limit - fixed) // block_bytes
    parts = (
        f"weights {format_size(model.weights)}, a step's workspace {format_size(model.workspace)}, windows "
        f"{format_size(spec.bytes_per_sequence * config.max_running)} and host tier {format_size(host_bytes)}"
    )
    if room < 1:
        name = "memory_limit" if config.memory_limit is not None else "available memory"
        raise InvalidValue(
            name,
            format_size(limit),
            f"more than {format_size(fixed + block_bytes)}: {parts} and one cache block "
            f"({format_size(block_bytes)}); less max_running or max_step_tokens needs less",
        )
    if config.cache_tokens is not None:
        blocks = config.cache_tokens // config.block_tokens
    elif config.memory_limit is not None:
        blocks = room
    else:
        blocks = min(room, DEFAULT_CACHE_TOKENS // config.block_tokens)
    if blocks > room:
        raise InvalidValue(
            "cache_tokens",
            config.cache_tokens,
            f"at most {room * config.block_tokens}: {format_size(limit)} less {parts} leave "
            f"{format_size(room * block_bytes)}",
        )
    return MemoryPlan(
        limit=config.memory_limit,
        weights=model.weights,
        mapped=model.mapped,
        workspace=model.workspace,
        sequences=spec.bytes_per_sequence * config.max_running,
        blocks=blocks,
        block_tokens=config.block_tokens,
        block_bytes=block_bytes,
        host=host_bytes,
    )
