from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashpoint.agentx import sse
from flashpoint.agentx.sse import SseError, SseParser

STREAM = b': hello\r\n\r\ndata: {"a": 1}\r\n\r\nevent: x\nid: 4\ndata:two\ndata: lines\n\ndata: [DONE]\n\n'
EVENTS = [b'{"a": 1}', b"two\nlines", b"[DONE]"]


@given(st.sets(st.integers(1, len(STREAM) - 1)))
def test_events_do_not_depend_on_where_the_bytes_are_cut(cuts: set[int]) -> None:
    parser = SseParser()
    edges = [0, *sorted(cuts), len(STREAM)]
    events = [event for start, end in pairwise(edges) for event in parser.feed(STREAM[start:end])]
    assert events == EVENTS


PLAIN = STREAM.replace(b"\r", b"")


@given(st.sets(st.integers(1, len(PLAIN) - 1)))
def test_nor_without_carriage_returns(cuts: set[int]) -> None:
    parser = SseParser()
    edges = [0, *sorted(cuts), len(PLAIN)]
    events = [event for start, end in pairwise(edges) for event in parser.feed(PLAIN[start:end])]
    assert events == EVENTS


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    parser = SseParser()
    with pytest.raises(SseError, match="more than 1000 bytes"):
        for _ in range(101):
            parser.feed(b"data: xxxx")
