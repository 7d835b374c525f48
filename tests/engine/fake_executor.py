"""A deterministic executor without a model, which also checks that every plan is legal.

Its "cache" stores token ids at the physical place that the plan names. A token is a hash of the whole
sequence *as read back from that cache*, so a lost block, a shared block, a wrong table or a skipped
position changes the text or fails an assertion. Chunking, batching and preemption must change nothing.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable

import numpy as np

from flashpoint.cache.spec import CacheGroup, CacheSpec
from flashpoint.engine.executor import Capacity
from flashpoint.engine.plan import Chunk, Sampled, StepPlan, StepResult, TokenArray, TokenLogprob
from flashpoint.engine.sampling import SamplingParams

EMPTY = -1


def make_capacity(
    blocks: int = 64, block_tokens: int = 4, slots: int = 4, max_context: int = 128, vocab_size: int = 1000
) -> Capacity:
    """A small capacity with one paged cache group of 4 bytes a token."""
    spec = CacheSpec(groups=(CacheGroup("tokens", "paged", (0,), entry_bytes=4, prefix_cacheable=True),))
    return Capacity(blocks, block_tokens, slots, max_context, vocab_size, spec)


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
    ) -> None:
        self._capacity = capacity or make_capacity()
        self._max_step_tokens = max_step_tokens
        self._seconds = seconds
        self._tokens_per_sample = tokens_per_sample
        self._next_token = next_token
        self.on_step = on_step
        self.poison: set[str] = set()
        self.plans = 0
        self._cache = np.full((self._capacity.blocks, self._capacity.block_tokens), EMPTY, dtype=np.int32)
        # Per slot: whose state it holds and how many positions of it.
        self._slot_state: dict[int, tuple[str, int]] = {}

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def execute(self, plan: StepPlan) -> StepResult:
        if self.on_step is not None:
            self.on_step(plan)
        self._check(plan)
        self.plans += 1
        if self._seconds:
            time.sleep(self._seconds)
        for chunk in plan.chunks:
            self._write(chunk)
        sampled = tuple(self._sample(chunk) for chunk in plan.chunks if chunk.sampling is not None)
        return StepResult(plan.step, sampled, self._seconds)

    def _check(self, plan: StepPlan) -> None:
        size = self._capacity.block_tokens
        assert plan.chunks, "an empty plan"
        if self._max_step_tokens is not None:
            assert plan.rows <= self._max_step_tokens, f"{plan.rows} rows exceed the step's budget"
        slots = [chunk.slot for chunk in plan.chunks]
        assert len(set(slots)) == len(slots), f"a slot is used twice: {slots}"
        ids = [chunk.request_id for chunk in plan.chunks]
        assert len(set(ids)) == len(ids), f"a request appears twice: {ids}"
        tables = np.concatenate([chunk.blocks for chunk in plan.chunks])
        assert len(np.unique(tables)) == len(tables), "two live sequences share a block"
        assert tables.min() >= 0 and tables.max() < self._capacity.blocks, "a block id is out of range"
        for chunk in plan.chunks:
            end = len(chunk.history)
            assert 0 <= chunk.slot < self._capacity.slots, f"slot {chunk.slot} is out of range"
            assert chunk.length >= 1, "an empty chunk"
            assert end <= self._capacity.max_context, "a sequence exceeds the context"
            assert len(chunk.blocks) == -(-end // size), "the block table does not cover the chunk exactly"
            assert chunk.blocks.dtype == np.int32 and chunk.history.dtype == np.int32
            assert not chunk.history.flags.writeable and not chunk.blocks.flags.writeable
            if chunk.start:
                held = self._slot_state.get(chunk.slot)
                assert held == (chunk.request_id, chunk.start), (
                    f"slot {chunk.slot} holds {held}, the chunk continues {chunk.request_id} at {chunk.start}"
                )

    def _write(self, chunk: Chunk) -> None:
        positions = np.arange(chunk.start, len(chunk.history))
        size = self._capacity.block_tokens
        self._cache[chunk.blocks[positions // size], positions % size] = chunk.tokens
        self._slot_state[chunk.slot] = (chunk.request_id, len(chunk.history))

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
