"""What the engine asks of whatever runs its steps (DESIGN: torch, distributed or virtual)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from flashpoint.cache.spec import CacheSpec
from flashpoint.cache.transfer import Run
from flashpoint.engine.plan import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an executor has room for.

    blocks: paged blocks, ids 0 … blocks-1.  block_tokens: tokens per block.
    slots: sequences that can run at once.  max_context: tokens of one sequence, prompt and answer.
    vocab_size: valid token ids are 0 … vocab_size-1.
    image_token_id: the id that stands for an image the executor cannot compute; refused in prompts.
    host_blocks, disk_blocks: room of the slower tiers, in blocks; 0 where there is none.
    draft_tokens: drafts that a decoding sequence verifies in each step.
    block_names: values that name the content of a block; None: the ids of its tokens do.
    """

    blocks: int
    block_tokens: int
    slots: int
    max_context: int
    vocab_size: int
    cache_spec: CacheSpec
    image_token_id: int | None = None
    host_blocks: int = 0
    disk_blocks: int = 0
    draft_tokens: int = 0
    block_names: int | None = None


class Executor(Protocol):
    """Runs steps. Not thread safe: one caller."""

    @property
    def capacity(self) -> Capacity:
        """Fixed for the executor's life."""
        ...

    @property
    def stored(self) -> tuple[Run, ...]:
        """Runs that the disk tier held when the executor was made."""
        ...

    def close(self) -> None:
        """Finish what is in flight and give everything back; called once, as the engine's thread ends."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Start the transfers of `plan`, whatever becomes of the rest, then compute every chunk.

        State of a slot starts afresh when a chunk has `start == window_start`. A chunk whose numbers are not
        finite yields `Sampled.error` and harms no other chunk. An exception means that the whole step failed
        and nothing of it may be used.
        """
        ...
