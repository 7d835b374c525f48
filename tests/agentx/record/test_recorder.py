"""Logs of the three agents become traces, and nothing of what was said is in them."""

import json
from itertools import pairwise

import numpy as np
import pytest
from typer.testing import CliRunner

from flashpoint.agentx.record.config import RecordConfig
from flashpoint.agentx.record.recorder import record
from flashpoint.agentx.traces.chains import shared_blocks
from flashpoint.agentx.traces.format import parse_trace
from flashpoint.cli import app
from flashpoint.errors import InvalidValue
from tests.agentx.record.made_logs import (
    SECRET,
    SYSTEM,
    ClaudeLog,
    claude_session,
    codex_lines,
    opencode_storage,
    text,
)


def traces(out):
    return [parse_trace(path.read_bytes(), path.name) for path in sorted(out.glob("*.json"))]


def test_claude_code(tmp_path):
    claude_session().write(tmp_path / "logs" / "project")
    (found,) = record([tmp_path / "logs"], RecordConfig(tmp_path / "out"))
    assert (found.source, found.calls, found.agents, found.bad_lines) == ("claude-code", 5, 1, 1)
    (trace,) = traces(tmp_path / "out")
    first, second, third = trace.root_calls
    assert [c.input_tokens for c in (first, second, third)] == [SYSTEM + 1300, SYSTEM + 3200, SYSTEM + 5200]
    assert [c.output_tokens for c in (first, second, third)] == [300, 200, 210]
    assert first.output_types == ("thinking", "tool_use") and first.stop == "tool_use"
    assert second.input_types == ("tool_result",) and second.stop == "end_turn"
    assert first.model == "claude-opus-4" and first.t == 0 and first.api_time == 1.0
    # A prompt begins with all of the one before: the system prompt of its session too.
    for before, after in pairwise((first, second, third)):
        assert shared_blocks(before.hash_ids, after.hash_ids) >= len(before.hash_ids) - 1
        assert len(after.hash_ids) <= -(-after.input_tokens // 64)
    (agent,) = trace.subagents
    assert [c.input_tokens for c in agent.calls] == [2500, 3400] and agent.t == agent.calls[0].t > first.t
    assert 0.3 < found.hit_share < 1


def test_sub_agents_in_files_of_their_own(tmp_path):
    log = claude_session()
    own = [line for line in log.lines if '"isSidechain": true' in line]
    log.lines = [line for line in log.lines if line not in own]
    path = log.write(tmp_path / "logs")
    (tmp_path / "logs" / "agent-abc.jsonl").write_text("\n".join(own))
    (found,) = record([tmp_path / "logs"], RecordConfig(tmp_path / "out"))
    assert found.log == path and found.agents == 1 and found.calls == 5


def test_codex(tmp_path):
    log = tmp_path / "sessions" / "2026" / "06" / "rollout-x.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text("\n".join(map(json.dumps, codex_lines())))
    (found,) = record([tmp_path / "sessions"], RecordConfig(tmp_path / "out"))
    assert (found.source, found.calls, found.bad_lines) == ("codex", 3, 0)
    (trace,) = traces(tmp_path / "out")
    first, second, third = trace.root_calls
    assert [c.input_tokens for c in (first, second, third)] == [4000, 6000, 5000]
    assert [c.output_tokens for c in (first, second, third)] == [150, 90, 70]
    assert first.output_types == ("thinking", "tool_use") and second.input_types == ("tool_result",)
    assert first.api_time == 3.0 and second.t == 5.0 and first.model == "gpt-5-codex"
    assert shared_blocks(first.hash_ids, second.hash_ids) >= len(first.hash_ids) - 1
    unlogged = shared_blocks(second.hash_ids, third.hash_ids)
    assert 0 < unlogged < len(first.hash_ids)  # only the system prompt survives a compaction


def test_opencode(tmp_path):
    storage = opencode_storage(tmp_path)
    (found,) = record([storage], RecordConfig(tmp_path / "out"))
    assert (found.source, found.calls, found.agents) == ("opencode", 4, 1)
    (trace,) = traces(tmp_path / "out")
    first, second = trace.root_calls
    assert [c.input_tokens for c in (first, second)] == [4000, 5500]
    assert [c.output_tokens for c in (first, second)] == [123, 83]
    assert first.stop == "tool_use" and second.stop == "end_turn"
    assert shared_blocks(first.hash_ids, second.hash_ids) >= len(first.hash_ids) - 1
    assert len(trace.subagents[0].calls) == 2


def test_nothing_of_what_was_said_is_written(tmp_path):
    logs = tmp_path / "logs"
    claude_session().write(logs)
    (logs / "rollout-x.jsonl").write_text("\n".join(map(json.dumps, codex_lines())))
    opencode_storage(logs)
    for source in ("claude-code", "codex", "opencode"):
        out = tmp_path / source
        where = logs / "storage" if source == "opencode" else logs
        assert [r.trace for r in record([where], RecordConfig(out, source=source)) if r.trace]
        for path in out.iterdir():
            written = path.read_text()
            assert SECRET not in written and "canary" not in written and "word" not in written
            call = {"t", "type", "model", "in", "out", "hash_ids", "stop", "api_time"}
            call |= {"input_types", "output_types"}
            agent = {"agent_id", "subagent_type", "duration_ms", "status"}
            session = {
                "id",
                "models",
                "block_size",
                "hash_id_scope",
                "tool_tokens",
                "system_tokens",
                "requests",
            }
            allowed = call | agent | session

            def keys(value, allowed=allowed):
                if isinstance(value, dict):
                    assert set(value) <= allowed
                    list(map(keys, value.values()))
                elif isinstance(value, list):
                    list(map(keys, value))

            keys(json.loads(written))


def test_words_of_a_log_do_not_leak_through_types(tmp_path):
    log = ClaudeLog()
    log.user([{"type": SECRET, "text": "x"}])
    log.answer("m1", [{"type": SECRET, "text": text(1)}], 500, 20)
    log.lines[-1] = log.lines[-1].replace("end_turn", SECRET)
    log.user("more")
    log.answer("m2", [{"type": "text", "text": "fine"}], 900, 20)
    log.write(tmp_path / "logs")
    list(record([tmp_path / "logs"], RecordConfig(tmp_path / "out")))
    assert SECRET not in next((tmp_path / "out").iterdir()).read_text()


def test_what_is_left_out_is_said(tmp_path):
    logs = tmp_path / "logs"
    short = ClaudeLog("one-call")
    short.user(text(1))
    short.answer("m1", [{"type": "text", "text": "done"}], 900, 20)
    short.write(logs)
    (logs / "junk.jsonl").write_text('{"sessionId": "s", "uuid": "u", "type": "user"}\nnot json\n[1]\n')
    found = {r.log.stem: r for r in record([logs], RecordConfig(tmp_path / "out"))}
    assert found["one-call"].reason == "1 call(s), fewer than 2"
    assert found["junk"].reason == "no call of the session itself" and found["junk"].bad_lines == 2
    assert not (tmp_path / "out").exists()


def test_without_usage_tokens_are_counted(tmp_path):
    log = claude_session()
    log.lines = [line.replace('"usage"', '"other"') for line in log.lines]
    log.write(tmp_path / "logs")
    list(record([tmp_path / "logs"], RecordConfig(tmp_path / "out")))
    (trace,) = traces(tmp_path / "out")
    assert all(c.input_tokens > 300 and c.output_tokens > 10 for c in trace.root_calls)
    assert np.all(np.diff([c.input_tokens for c in trace.root_calls]) > 0)


@pytest.mark.parametrize("where", ["nowhere", "empty"])
def test_nothing_to_record(tmp_path, where):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidValue, match="paths"):
        list(record([tmp_path / where], RecordConfig(tmp_path / "out")))


def test_the_command(tmp_path):
    claude_session().write(tmp_path / "logs")
    shown = CliRunner().invoke(
        app, ["sessions", "record", str(tmp_path / "logs"), "--out", str(tmp_path / "out")]
    )
    assert shown.exit_code == 0 and "1 of 1 logs became traces" in shown.output
    again = CliRunner().invoke(
        app, ["sessions", "record", str(tmp_path / "logs"), "--out", str(tmp_path / "out")]
    )
    assert again.exit_code != 0 and isinstance(again.exception, InvalidValue)
    stats = CliRunner().invoke(app, ["sessions", "stats", str(tmp_path / "out")])
    assert stats.exit_code == 0 and "1 sessions, 5 requests" in stats.output
