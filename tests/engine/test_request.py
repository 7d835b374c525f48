from __future__ import annotations

import itertools

import numpy as np
import pytest

from flashpoint.cache.block_cache import BlockCache
from flashpoint.engine.events import FinishReason
from flashpoint.engine.request import Event, Int32Buffer, Request, State
from flashpoint.engine.sampling import SamplingParams
from flashpoint.errors import IllegalTransition, InvalidValue

LEGAL = {
    ("waiting", "admit", "prefilling"),
    ("waiting", "abort", "finished"),
    ("prefilling", "advance", "prefilling"),
    ("prefilling", "sample", "decoding"),
    ("prefilling", "preempt", "preempted"),
    ("prefilling", "finish", "finished"),
    ("prefilling", "abort", "finished"),
    ("decoding", "advance", "decoding"),
    ("decoding", "sample", "decoding"),
    ("decoding", "preempt", "preempted"),
    ("decoding", "finish", "finished"),
    ("decoding", "abort", "finished"),
    ("preempted", "admit", "prefilling"),
    ("preempted", "abort", "finished"),
    ("finished", "abort", "finished"),
}


CACHE = BlockCache(1000, 4)


def request_in(state: State) -> Request:
    request = Request("r", np.arange(1, 6, dtype=np.int32), SamplingParams(max_tokens=8))
    if state is not State.WAITING:
        request.admit(0, CACHE.acquire(b"", request.history(0), 2, 0), 0, 0)
    if state is State.DECODING:
        request.sample(5, (7,))
    if state is State.PREEMPTED:
        request.preempt()
    if state is State.FINISHED:
        request.end(FinishReason.STOP)
    assert request.state is state
    return request


def send(request: Request, event: Event) -> None:
    match event:
        case Event.ADMIT:
            request.admit(1, CACHE.acquire(b"", request.history(0), 2, 0), 0, 0)
        case Event.ADVANCE:
            request.advance(3)
        case Event.SAMPLE:
            request.sample(request.length, (9,))
        case Event.PREEMPT:
            request.preempt()
        case Event.FINISH:
            request.end(FinishReason.LENGTH)
        case Event.ABORT:
            request.end(FinishReason.ABORT)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_state_accepts_exactly_its_events(state: State, event: Event) -> None:
    """INV-5."""
    request = request_in(state)
    after = {to for at, what, to in LEGAL if (at, what) == (state, event)}
    if after:
        send(request, event)
        assert {request.state} == after
    else:
        before = (request.length, request.computed)
        with pytest.raises(IllegalTransition, match=f"'{event}' is not accepted in state '{state}'"):
            send(request, event)
        assert (request.state, request.length, request.computed) == (state, *before)


def test_abort_after_the_end_keeps_the_reason() -> None:
    request = request_in(State.FINISHED)
    request.end(FinishReason.ABORT)
    assert request.finish is FinishReason.STOP


def test_readmission_starts_where_it_is_told_with_all_tokens_known() -> None:
    request = request_in(State.DECODING)
    assert (request.computed, request.pending, request.generated) == (5, 1, 1)
    request.preempt()
    request.admit(2, CACHE.acquire(b"", request.history(0), 3, 0), 4, 3)
    assert (request.computed, request.pending, request.slot) == (3, 3, 2)
    assert (request.write_from, request.window_start, request.cached_tokens) == (4, 3, 0)
    assert request.history(6).tolist() == [1, 2, 3, 4, 5, 7]


def test_the_prompt_is_copied_and_its_type_checked() -> None:
    prompt = np.arange(1, 4, dtype=np.int32)
    request = Request("r", prompt, SamplingParams())
    prompt[0] = 99
    assert request.history(3).tolist() == [1, 2, 3]
    for wrong in (np.arange(3), np.zeros((1, 3), dtype=np.int32)):
        with pytest.raises(InvalidValue, match="prompt"):
            Request("r", wrong, SamplingParams())


def test_views_are_read_only_zero_copy_and_survive_growth() -> None:
    buffer = Int32Buffer(np.arange(10, dtype=np.int32))
    view = buffer.view(10)
    assert np.shares_memory(view, buffer.view(4))
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    for value in range(10, 1000):
        buffer.extend((value,))
    assert view.tolist() == list(range(10))
    assert buffer.view(1000).tolist() == list(range(1000))
