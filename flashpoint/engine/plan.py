"""What crosses from the scheduler to an executor and back: plain data, no tensors.

What there is one of per sequence and step is a named tuple: it costs a third of a frozen dataclass to make.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flashpoint.cache.transfer import Landed, Transfer
from flashpoint.engine.sampling import SamplingParams

TokenArray = npt.NDArray[np.int32]

WAIT_SECONDS = 0.1
"""How long a step without chunks waits for a transfer at most."""


class Chunk(NamedTuple):
    """One sequence's share of a step: positions `start` … `len(history) - 1`.

    Prefill, a piece of a prefill and a decode step differ only in length.

    request_id: whose tokens these are.
    slot: index of the sequence's window rings and tails, 0 <= slot < Capacity.slots.
    start: tokens already in the caches; the first computed position.
    history: int32 ids of positions 0 … end-1 (a read-only view of the request's own buffer). The chunk's
        inputs are `history[start:]`; what precedes serves Engram look-back and penalties.
    blocks: int32 block table covering positions 0 … end-1, in order.
    prompt_tokens: how many of `history` are prompt (penalties treat prompt and output apart).
    sampling: how to choose the token after the last row; None when the chunk ends inside known tokens.
    write_from: compressed entries and index keys of positions below it are shared with other sequences and
        hold their values already: rows there are computed again for their windows only (spec 2.4, INV-11).
    window_start: the first position computed since the sequence took its slot. Nothing older is in its window
        rings, so no row looks further back (spec 2.4: s, the replay start).
    decoder_rows: the last rows that run the layers behind the last KV source; None: all of them (spec 2.3).
    decoder_start: as `window_start`, for those layers.
    draft_tokens: positions behind `history` that the executor fills with drafts of its own and verifies.
    room: tokens that the sequence may still get before it ends, whatever they are.
    """

    request_id: str
    slot: int
    start: int
    history: TokenArray
    blocks: npt.NDArray[np.int32]
    prompt_tokens: int
    sampling: SamplingParams | None
    write_from: int = 0
    window_start: int = 0
    decoder_rows: int | None = None
    decoder_start: int = 0
    draft_tokens: int = 0
    room: int = 1

    @property
    def length(self) -> int:
        """Known tokens this chunk computes."""
        return len(self.history) - self.start

    @property
    def rows(self) -> int:
        """Rows this chunk adds to the step, drafts included."""
        return len(self.history) - self.start + self.draft_tokens

    @property
    def tokens(self) -> TokenArray:
        """The ids computed in this step, int32 [length]."""
        return self.history[self.start :]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One engine step: a ragged batch of chunks, each of another sequence.

    transfers: moves between tiers to start, in this order, before anything is computed. A step without
        chunks only waits: it ends when a transfer in flight has landed, or after `WAIT_SECONDS`.
    repeat_blocks: None where the next step must be planned anew. Else the same sequences decode on as long as
        none of them ends, none arrives and no transfer lands: an executor that computes no tokens may run
        several such steps as one, as long as all of them together need no more than so many further blocks.
    """

    step: int
    chunks: tuple[Chunk, ...]
    transfers: tuple[Transfer, ...] = ()
    repeat_blocks: int | None = None

    @property
    def rows(self) -> int:
        """Token rows of the step, drafts included."""
        return sum(chunk.rows for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probabilities at one position: the chosen token's, and the most likely ones, best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sampled(NamedTuple):
    """Tokens one chunk produced (1 … k, more than one only with accepted drafts), or why it could not."""

    request_id: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None


class StepCounts(NamedTuple):
    """What steps ask of one accelerator, of the busiest one where an engine has several.

    Counted from what a plan computes, not measured, so that real and virtual steps of a plan have the same.
    flops_*: by the precision in which is multiplied, 2 per multiply-add.
    memory_bytes: traffic of the accelerator's own memory that cannot be saved, each byte once.
    link_bytes: handed to exchanges with other accelerators.  host_bytes: fetched from the CPU's memory.
    kernels: launches that wait for each other.
    """

    flops_fp4: float = 0.0
    flops_fp8: float = 0.0
    flops_bf16: float = 0.0
    flops_fp32: float = 0.0
    memory_bytes: float = 0.0
    link_bytes: float = 0.0
    host_bytes: float = 0.0
    kernels: float = 0.0

    @property
    def flops(self) -> float:
        """FLOPs in any precision."""
        return self.flops_fp4 + self.flops_fp8 + self.flops_bf16 + self.flops_fp32


def total_counts(parts: Sequence[tuple[StepCounts, float]]) -> StepCounts:
    """The sum of counts, each taken as often as the number beside it says."""
    if not parts:
        return StepCounts()
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    counts, times = zip(*parts, strict=True)
    return StepCounts(*[sum(map(mul, column, times)) for column in zip(*counts, strict=True)])


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave: one `Sampled` per chunk that samples, and the seconds it took.

    landed: transfers, of this or of earlier steps, that are over.
    steps: how many steps were run as one (`StepPlan.repeat_blocks`).
    before_last: where these are several, the tokens that each chunk got in all of them but the last.
    counts: what all of them asked of the machine; None where nobody counts.
    """

    step: int
    sampled: tuple[Sampled, ...] = field(default_factory=tuple)
    seconds: float = 0.0
    landed: tuple[Landed, ...] = ()
    steps: int = 1
    before_last: Sequence[int] = ()
    counts: StepCounts | None = None
