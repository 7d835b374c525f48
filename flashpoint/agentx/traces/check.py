"""Whether a corpus can be played, and what is odd about it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flashpoint.agentx.prompts.conversation import check_prefix
from flashpoint.agentx.traces.corpus import open_corpus, read_trace, trace_files
from flashpoint.agentx.traces.format import Trace
from flashpoint.agentx.traces.streams import build_session
from flashpoint.errors import InvalidValue


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


def check_corpus(path: Path) -> Iterator[tuple[str, list[str], InvalidValue | None]]:
    """(name, oddities, why it cannot be played) of every session; one that cannot does not end the rest.

    The name is the file's in a folder of traces, else the session's. Raises `InvalidValue` for a path that
    holds no corpus at all.
    """
    if not path.is_dir():
        try:
            corpus = open_corpus(path)
        except InvalidValue as error:
            if not path.is_file():
                raise
            yield path.name, [], error
            return
        for trace in corpus:
            yield trace.id, *_findings(trace)
        return
    file_of: dict[str, Path] = {}
    for file in trace_files(path):
        try:
            trace = read_trace(file)
            first = file_of.setdefault(trace.id, file)
            if first is not file:
                raise InvalidValue(f"{file}, id", trace.id, f"an id of its own ({first.name} has the same)")
        except InvalidValue as error:
            yield file.name, [], error
        else:
            yield file.name, *_findings(trace)


def _findings(trace: Trace) -> tuple[list[str], InvalidValue | None]:
    try:
        return oddities(trace), None
    except InvalidValue as error:
        return [], error
