"""Whether a corpus can be played, and what is odd about it."""

from __future__ import annotations

from collections.abc import Iterator

from flashpoint.agentx.prompts.conversation import check_prefix
from flashpoint.agentx.traces.corpus import Corpus
from flashpoint.agentx.traces.format import Trace
from flashpoint.agentx.traces.streams import build_session


def oddities(trace: Trace) -> list[str]:
    """What a replay of `trace` does that its recording does not show. Raises `InvalidValue` if unplayable."""
    session = build_session(trace)
    for stream in session.streams:
        check_prefix(stream, trace.block_size)
    calls = list(trace.calls())
    short = sum(len(call.hash_ids) < call.input_tokens // trace.block_size for call in calls)
    empty = sum(call.output_tokens == 0 for call in calls)
    timeless = sum(call.api_time is None for call in calls)
    found = []
    if session.dropped:
        names = ", ".join(session.dropped[:5])
        found.append(
            f"{len(session.dropped)} sub-agents begin before the session does and are left out: {names}"
        )
    if short:
        found.append(
            f"{short} calls have fewer hashes than blocks; the rest of their prompt is shared with nothing"
        )
    if empty:
        found.append(f"{empty} calls have an empty answer; a replay asks for one token")
    if timeless:
        found.append(f"{timeless} calls have no api_time; waits count from their start")
    flat = sum(stream.kind == "flat" for stream in session.streams)
    if flat:
        found.append(f"{flat} agents were found in the session's own list of calls")
    return found


def check_corpus(corpus: Corpus) -> Iterator[tuple[str, list[str]]]:
    """(id, oddities) of every session. Raises `InvalidValue` at the first that cannot be played."""
    for trace in corpus:
        yield trace.id, oddities(trace)
