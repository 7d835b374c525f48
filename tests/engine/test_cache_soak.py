"""Thousands of short agent turns on a full pool: forks, cancels, preemptions; no leak, no wrong hit."""

from __future__ import annotations

import random

import numpy as np
import pytest

from flashpoint.engine.config import EngineConfig
from flashpoint.engine.events import FinishReason
from flashpoint.engine.request import Request
from flashpoint.engine.sampling import SamplingParams
from flashpoint.engine.scheduler import Scheduler
from tests.cache.memory import check
from tests.engine.fake_executor import FakeExecutor, make_capacity, reference_tokens

VOCAB = 50


class Agents:
    """Sessions whose next prompt is all that was said so far, and sub-agents that fork from one in flight."""

    def __init__(self, rng: random.Random, most_tokens: int) -> None:
        self._rng = rng
        self._most_tokens = most_tokens
        self._sessions = [self._words(12) for _ in range(8)]
        self.owner: dict[str, int | None] = {}

    def _words(self, count: int) -> list[int]:
        return [self._rng.randrange(VOCAB) for _ in range(count)]

    def prompt(self, name: str) -> np.ndarray:
        """The next turn of a session that has none open, or a fork of any."""
        which = self._rng.randrange(len(self._sessions))
        busy = which in self.owner.values()
        tokens = self._sessions[which] + self._words(self._rng.randint(1, 6))
        if len(tokens) > self._most_tokens:
            tokens = tokens[: self._rng.randint(4, 16)]
        self.owner[name] = None if busy else which
        if not busy:
            self._sessions[which] = tokens
        return np.array(tokens, dtype=np.int32)

    def answer(self, name: str, tokens: list[int]) -> None:
        which = self.owner.pop(name)
        if which is not None:
            self._sessions[which] = self._sessions[which] + tokens


def soak(seed: int, turns: int, semantics: str, slower: tuple[int, int]) -> None:
    rng = random.Random(seed)
    capacity = make_capacity(
        blocks=48, slots=6, max_context=120, vocab_size=VOCAB, window=5, host_blocks=slower[0],
        disk_blocks=slower[1],
    )  # fmt: skip
    config = EngineConfig(max_step_tokens=40, max_running=6, semantics=semantics)
    scheduler = Scheduler(config, capacity)
    executor = FakeExecutor(capacity, max_step_tokens=40, transfer_steps=2)
    agents = Agents(rng, most_tokens=100)
    open_requests: dict[str, Request] = {}
    answers: dict[str, list[int]] = {}
    submitted = fullest = prompt_tokens = 0

    def hear(events) -> None:
        for event in events:
            answers[event.request_id] += event.tokens
            if event.finish is None:
                continue
            request = open_requests.pop(event.request_id)
            prompt = request.history(request.prompt_tokens)
            want, reason = reference_tokens(prompt, request.sampling, capacity)
            got = tuple(answers.pop(event.request_id))
            if event.finish is FinishReason.ABORT:
                assert got == want[: len(got)]
            else:
                assert (got, event.finish) == (want, reason), "a wrong hit"
            agents.answer(event.request_id, list(got))

    while submitted < turns or open_requests:
        while submitted < turns and len(open_requests) < 9:
            name = f"t{submitted}"
            sampling = SamplingParams(max_tokens=rng.randint(1, 12), temperature=0.0)
            request = Request(name, agents.prompt(name), sampling)
            scheduler.submit(request)
            open_requests[name], answers[name] = request, []
            submitted += 1
            prompt_tokens += request.prompt_tokens
        if rng.random() < 0.02:
            event = scheduler.abort(rng.choice(list(open_requests)))
            hear([event])
        plan = scheduler.plan()
        if plan is not None:
            hear(scheduler.apply(executor.execute(plan)))
        used = capacity.blocks - scheduler.free_blocks + scheduler.cached_blocks
        fullest += used >= 0.95 * capacity.blocks
        if submitted % 50 == 0:
            holders = [request for request in open_requests.values() if request.lease is not None]
            check(scheduler._cache, [request.lease for request in holders])
    check(scheduler._cache, [])
    assert scheduler.free_blocks == capacity.blocks and scheduler.free_slots == capacity.slots
    assert scheduler.preemptions > 0
    assert fullest > turns, "the pool is not under pressure"
    # Full semantics computes a halo of 8 tokens again and discards shorter hits, like replay its 5.
    assert sum(scheduler.hit_tokens) > 0.3 * prompt_tokens
    if slower[0]:
        assert scheduler.hit_tokens[1] > 0
    if slower[1]:
        assert scheduler.hit_tokens[2] > 0


SLOWER = {"device": (0, 0), "host": (24, 0), "disk": (16, 300)}


@pytest.mark.parametrize("semantics", ["replay", "full"])
@pytest.mark.parametrize("tiers", SLOWER)
def test_soak(semantics: str, tiers: str) -> None:
    soak(1, 700, semantics, SLOWER[tiers])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("tiers", SLOWER)
def test_30000_turns(tiers: str) -> None:
    soak(2, 30_000, "replay", SLOWER[tiers])
