"""The engine's counters as one value that can cross threads."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A consistent snapshot of the engine's counters. Counters only grow; gauges are named so.

    waiting, running: gauges, requests.  free_blocks, total_blocks, free_slots, total_slots: gauges.
        Free blocks may hold something in the cache: cached_blocks (gauge) of them do.
    prompt_tokens: tokens of accepted prompts.  cached_tokens: of them, found in the prefix cache, counted at
        admission; also by the tier they were found in: device, host, disk.
    computed_prompt_tokens: prompt rows that steps computed, those repeated after a cache hit or a preemption
        included.  replayed_tokens: rows computed only to refill windows after a hit.
    failed_transfers: moves between tiers that failed (a damaged file, a full disk).
    generated_tokens: answer tokens delivered in events.
    finished: ended requests by `FinishReason`.
    seconds_since_progress: gauge; 0 while idle, else seconds since a step last completed.
    """

    waiting: int = 0
    running: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    cached_blocks: int = 0
    free_slots: int = 0
    total_slots: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cached_tokens_by_tier: tuple[int, int, int] = (0, 0, 0)
    computed_prompt_tokens: int = 0
    replayed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    failed_transfers: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    seconds_since_progress: float = 0.0
