"""A deterministic executor without a model, which also checks that every plan is legal.

Its "cache" stores token ids at the physical place that the plan names. A token is a hash of the whole
sequence *as read back from that cache*, so a lost block, a shared block, a wrong table or a skipped
position changes the text or fails an assertion. Chunking, batching and preemption must change nothing.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable

import numpy as np

from flashpoint.cache.spec import CacheGroup, CacheSpec
from flashpoint.cache.transfer import Landed, Run
from flashpoint.engine.executor import Capacity
from flashpoint.engine.plan import Chunk, Sampled, StepPlan, StepResult, TokenArray, TokenLogprob
from flashpoint.engine.sampling import SamplingParams
from tests.cache.memory import Memory

EMPTY = -1


def make_capacity(
    blocks: int = 64,
    block_tokens: int = 4,
    slots: int = 4,
    max_context: int = 128,
    vocab_size: int = 1000,
    window: int = 0,
    host_blocks: int = 0,
    disk_blocks: int = 0,
) -> Capacity:
    """A small capacity: a paged cache group of 4 bytes a token and, if asked for, windows of 2 layers."""
    paged = CacheGroup("tokens", "paged", (0,), entry_bytes=4, prefix_cacheable=True)
    ring = CacheGroup("window", "ring", (0, 1), entry_bytes=4, entries=window, replay_tokens=window)
    spec = CacheSpec((paged, ring), prefill_tail=window) if window else CacheSpec((paged,))
    return Capacity(
        blocks,
        block_tokens,
        slots,
        max_context,
        vocab_size,
        spec,
        host_blocks=host_blocks,
        disk_blocks=disk_blocks,
    )


def hash_token(history: TokenArray, sampling: SamplingParams, prompt_tokens: int, vocab_size: int) -> int:
    """The token after `history`: a hash of it (and of the seed unless greedy), never a masked stop id."""
    key = 0 if sampling.greedy else sampling.seed & 0xFFFFFFFF
    token = zlib.crc32(np.ascontiguousarray(history).tobytes(), key) % vocab_size
    if len(history) - prompt_tokens < sampling.min_tokens:
        while token in sampling.stop_ids:
            token = (token + 1) % vocab_size
    return token


def reference_tokens(
    prompt: TokenArray, sampling: SamplingParams, capacity: Capacity
) -> tuple[tuple[int, ...], str]:
    """Tokens and finish reason of a request that runs alone, computed without engine or cache."""
    limit = min(capacity.max_context, capacity.blocks * capacity.block_tokens)
    history = np.asarray(prompt, dtype=np.int32)
    tokens: list[int] = []
    while True:
        token = hash_token(history, sampling, len(prompt), capacity.vocab_size)
        if token in sampling.stop_ids and len(tokens) >= sampling.min_tokens:
            return tuple(tokens), "stop"
        tokens.append(token)
        history = np.append(history, np.int32(token))
        if len(tokens) == sampling.max_tokens or len(history) >= limit:
            return tuple(tokens), "length"


class FakeExecutor:
    """Executes plans by hashing; see the module's docstring.

    max_step_tokens: when given, a plan with more rows fails an assertion.
    seconds: time to sleep in each step.
    tokens_per_sample: how many tokens each sampling chunk returns (more than one as accepted drafts would).
    next_token: replaces the hash, to script answers.
    on_step: called with each plan before it runs; what it raises is what `execute` raises.
    poison: ids of requests whose sampling reports `Sampled.error`.
    plans: number of steps executed.
    transfer_steps: steps that a transfer takes to land.
    disk: the disk tier's runs; hand it to another executor to restart.
    """

    def __init__(
        self,
        capacity: Capacity | None = None,
        *,
        max_step_tokens: int | None = None,
        seconds: float = 0.0,
        tokens_per_sample: int = 1,
        next_token: Callable[[Chunk], int] | None = None,
        on_step: Callable[[StepPlan], None] | None = None,
        transfer_steps: int = 1,
        disk: dict[bytes, tuple[Run, list[object]]] | None = None,
    ) -> None:
        self._capacity = capacity or make_capacity()
        self._max_step_tokens = max_step_tokens
        self._seconds = seconds
        self._tokens_per_sample = tokens_per_sample
        self._next_token = next_token
        self.on_step = on_step
        self.poison: set[str] = set()
        self.plans = 0
        self.closed = False
        self._cache = np.full((self._capacity.blocks, self._capacity.block_tokens), EMPTY, dtype=np.int32)
        self._memory = Memory(disk)
        self._transfer_steps = transfer_steps
        self._waits: list[int] = []
        # Per slot: whose windows it holds, of which positions: through the encoder, through every layer.
        self._windows: dict[int, tuple[str, range, range]] = {}

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    @property
    def disk(self) -> dict[bytes, tuple[Run, list[object]]]:
        return self._memory.disk

    @property
    def stored(self) -> tuple[Run, ...]:
        return tuple(run for run, _ in self.disk.values())

    def close(self) -> None:
        self.closed = True

    def execute(self, plan: StepPlan) -> StepResult:
        self._start(plan)
        if self.on_step is not None:
            self.on_step(plan)
        self._check(plan)
        self.plans += 1
        if self._seconds:
            time.sleep(self._seconds)
        for chunk in plan.chunks:
            self._write(chunk)
        sampled = tuple(self._sample(chunk) for chunk in plan.chunks if chunk.sampling is not None)
        return StepResult(plan.step, sampled, self._seconds, self._landed(plan))

    def _start(self, plan: StepPlan) -> None:
        if not plan.transfers:
            return
        self._memory.device = dict(enumerate(self._cache.tolist()))
        self._memory.start(plan.transfers)
        self._waits += [self._transfer_steps] * len(plan.transfers)
        self._cache[:] = self._device_rows()

    def _landed(self, plan: StepPlan) -> tuple[Landed, ...]:
        assert plan.chunks or self._waits, "a step without chunks, and nothing to wait for"
        if not self._waits:
            return ()
        self._waits = [steps - 1 for steps in self._waits]
        if not plan.chunks:
            self._waits[0] = 0
        self._memory.device = dict(enumerate(self._cache.tolist()))
        landed = []
        while self._waits and self._waits[0] <= 0:
            del self._waits[0]
            landed.append(self._memory.land())
        self._cache[:] = self._device_rows()
        return tuple(landed)

    def _device_rows(self) -> list[object]:
        poison = [EMPTY] * self._capacity.block_tokens
        rows = [self._memory.device[block] for block in range(self._capacity.blocks)]
        return [poison if row == "poison" else row for row in rows]

    def _check(self, plan: StepPlan) -> None:
        size = self._capacity.block_tokens
        if self._max_step_tokens is not None:
            assert plan.rows <= self._max_step_tokens, f"{plan.rows} rows exceed the step's budget"
        slots = [chunk.slot for chunk in plan.chunks]
        assert len(set(slots)) == len(slots), f"a slot is used twice: {slots}"
        ids = [chunk.request_id for chunk in plan.chunks]
        assert len(set(ids)) == len(ids), f"a request appears twice: {ids}"
        tables = [block for chunk in plan.chunks for block in chunk.blocks.tolist()]
        uses = Counter(tables)
        assert not tables or 0 <= min(tables) <= max(tables) < self._capacity.blocks, "a block out of range"
        for chunk in plan.chunks:
            written = chunk.blocks[max(chunk.start, chunk.write_from) // size :].tolist()
            assert all(uses[block] == 1 for block in written), "it writes a block that another one reads"
            end = len(chunk.history)
            assert 0 <= chunk.slot < self._capacity.slots, f"slot {chunk.slot} is out of range"
            assert chunk.length >= 1, "an empty chunk"
            assert end <= self._capacity.max_context, "a sequence exceeds the context"
            assert len(chunk.blocks) == -(-end // size), "the block table does not cover the chunk exactly"
            assert chunk.blocks.dtype == np.int32 and chunk.history.dtype == np.int32
            assert not chunk.history.flags.writeable and not chunk.blocks.flags.writeable
            assert chunk.write_from % size == 0 and chunk.window_start <= min(chunk.start, chunk.write_from)
            assert chunk.sampling is None or chunk.decoder_rows != 0, "no row to sample from"

    def _write(self, chunk: Chunk) -> None:
        end, size = len(chunk.history), self._capacity.block_tokens
        positions = np.arange(chunk.start, end)
        shared, own = np.split(positions, [max(0, chunk.write_from - chunk.start)])
        held = self._cache[chunk.blocks[shared // size], shared % size]
        assert np.array_equal(held, chunk.history[shared]), "a shared block holds something else"
        self._cache[chunk.blocks[own // size], own % size] = chunk.history[own]
        decoder_rows = chunk.length if chunk.decoder_rows is None else chunk.decoder_rows
        name, encoder, decoder = self._windows.get(chunk.slot, ("", range(0), range(0)))
        if name != chunk.request_id or chunk.start == chunk.window_start:
            encoder = decoder = range(0)  # whatever another sequence left there
        encoder = self._seen(encoder, chunk.window_start, chunk.start, end)
        if decoder_rows:
            decoder = self._seen(decoder, chunk.decoder_start, end - decoder_rows, end)
        self._windows[chunk.slot] = chunk.request_id, encoder, decoder

    def _seen(self, window: range, floor: int, start: int, end: int) -> range:
        """The positions a window covers after rows `start` … `end`-1, which may look back to `floor`."""
        (ring,) = [g for g in self._capacity.cache_spec.groups if g.kind == "ring"] or [None]
        oldest = max(floor, start - (ring.entries if ring else 1) + 1)
        assert oldest >= start or (window.start <= oldest and window.stop == start), (
            f"rows from {start} look back to {oldest}, the window holds {window}"
        )
        return range(window.start if window.stop == start and len(window) else start, end)

    def _sample(self, chunk: Chunk) -> Sampled:
        assert chunk.sampling is not None
        if chunk.request_id in self.poison:
            return Sampled(chunk.request_id, error="logits are not finite")
        history = self._cache[chunk.blocks].reshape(-1)[: len(chunk.history)]
        assert np.array_equal(history, chunk.history), f"the cache of {chunk.request_id} was overwritten"
        tokens: list[int] = []
        for _ in range(self._tokens_per_sample):
            if self._next_token is not None:
                token = self._next_token(chunk)
            else:
                token = hash_token(history, chunk.sampling, chunk.prompt_tokens, self._capacity.vocab_size)
            tokens.append(token)
            history = np.append(history, np.int32(token))
        return Sampled(chunk.request_id, tuple(tokens), self._logprobs(tokens, chunk.sampling))

    @staticmethod
    def _logprobs(tokens: list[int], sampling: SamplingParams) -> tuple[TokenLogprob, ...]:
        if sampling.logprobs is None:
            return ()
        return tuple(
            TokenLogprob(token, -0.5, tuple((token + i, -0.5 - i) for i in range(sampling.logprobs)))
            for token in tokens
        )
