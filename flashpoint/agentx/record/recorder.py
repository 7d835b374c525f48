"""`flashpoint sessions record`: find logs of coding agents, turn them into traces, say what was left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from flashpoint.agentx.archive import check_new_folder
from flashpoint.agentx.prompts.tokenizer import load_tokenizer, standard_tokenizer
from flashpoint.agentx.record import claude_code, codex, opencode
from flashpoint.agentx.record.calls import LoggedSession, to_trace
from flashpoint.agentx.record.config import RecordConfig, Source
from flashpoint.agentx.traces.format import write_trace
from flashpoint.agentx.traces.streams import build_session
from flashpoint.errors import InvalidValue

READERS: dict[Source, Callable[[Path], LoggedSession]] = {
    "claude-code": claude_code.read,
    "codex": codex.read,
    "opencode": opencode.read,
}


@dataclass(frozen=True, slots=True)
class Recorded:
    """One log: the trace it became, or why it became none."""

    log: Path
    source: Source
    trace: Path | None
    reason: str | None = None
    calls: int = 0
    agents: int = 0
    peak_input: int = 0
    hit_share: float | None = None
    bad_lines: int = 0

    def as_json(self) -> dict[str, Any]:
        """The same facts as plain data."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"log": str(self.log), "trace": None if self.trace is None else str(self.trace)}


def find_logs(paths: Sequence[Path], source: Source | None) -> list[tuple[Path, Source]]:
    """The logs in `paths`, or in the usual places. Raises `InvalidValue` naming a path without any."""
    if not paths:
        usual: dict[Source, Path] = {
            "claude-code": claude_code.USUAL_PLACE,
            "codex": codex.USUAL_PLACE,
            "opencode": opencode.USUAL_PLACE,
        }
        places = [path.expanduser() for name, path in usual.items() if source in (None, name)]
        found = [log for place in places if place.is_dir() for log in _logs_in(place, source)]
        if not found:
            raise InvalidValue("paths", ", ".join(map(str, places)), "session logs there, or a path to some")
        return found
    found = []
    for path in paths:
        logs = list(_logs_in(path, source))
        if not logs:
            raise InvalidValue("paths", str(path), "a session log or a folder with some")
        found += logs
    return found


def _logs_in(path: Path, source: Source | None) -> Iterator[tuple[Path, Source]]:
    if path.is_file():
        kind = source or _kind(path)
        if kind is not None:
            yield path, kind
        return
    if not path.is_dir():
        raise InvalidValue("paths", str(path), "a file or folder that exists")
    if source in (None, "opencode"):
        yield from ((log, "opencode") for log in opencode.find(path))
    if source in (None, "codex"):
        yield from ((log, "codex") for log in codex.find(path))
    if source in (None, "claude-code"):
        logs = claude_code.find(path)
        yield from ((log, "claude-code") for log in logs if source or _kind(log) == "claude-code")


def _kind(path: Path) -> Source | None:
    """Whose log a file is, by its first readable line."""
    if path.suffix == ".json":
        return "opencode" if any(parent.name == "session" for parent in path.parents) else None
    with path.open("rb") as file:
        for raw in file:
            try:
                line = orjson.loads(raw)
            except orjson.JSONDecodeError:
                continue
            if isinstance(line, dict):
                if codex.is_log(line):
                    return "codex"
                if claude_code.is_log(line):
                    return "claude-code"
    return None


def record(paths: Sequence[Path], config: RecordConfig) -> Iterator[Recorded]:
    """Turn logs into traces, one after the other."""
    check_new_folder(config.out)
    logs = find_logs(paths, config.source)
    tokenizer = load_tokenizer(config.tokenizer) if config.tokenizer else standard_tokenizer()
    names: set[str] = set()
    for log, source in logs:
        session = READERS[source](log)
        calls = len(session.calls) + sum(map(len, session.agents.values()))
        reason = None
        if not session.calls:
            reason = "no call of the session itself"
        elif calls < config.min_calls:
            reason = f"{calls} call(s), fewer than {config.min_calls}"
        elif session.id in names:
            reason = "another log has the same session id"
        if reason:
            yield Recorded(log, source, None, reason, calls=calls, bad_lines=session.bad_lines)
            continue
        names.add(session.id)
        trace = to_trace(session, tokenizer)
        hit, blocks = build_session(trace).theoretical_hit()
        yield Recorded(
            log,
            source,
            write_trace(trace, config.out),
            calls=calls,
            agents=len(trace.subagents),
            peak_input=max(call.input_tokens for call in trace.calls()),
            hit_share=hit / blocks if blocks else None,
            bad_lines=session.bad_lines,
        )
