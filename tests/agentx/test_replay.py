"""Replays end to end, over real sockets against a mock in a thread."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flashpoint.agentx.archive import read_archive
from flashpoint.agentx.client import ChatClient
from flashpoint.agentx.prompts.tokenizer import standard_tokenizer
from flashpoint.agentx.replay import ServerUnusableError, run_replay
from flashpoint.agentx.replay_config import ReplayConfig
from flashpoint.agentx.summary import RunSummary
from flashpoint.agentx.traces.corpus import write_recipe
from flashpoint.errors import InvalidValue
from tests.agentx.mock_server import Behaviour, MockServer
from tests.agentx.small_corpus import QUICK, SMALL


def replay(tmp_path: Path, server: MockServer, **fields: Any) -> tuple[RunSummary, list[str]]:
    """Run a replay; the summary, and the lines of its log."""
    write_recipe(SMALL, tmp_path / "corpus.json")
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    config = ReplayConfig(
        url=server.url, corpus=tmp_path / "corpus.json", out=tmp_path / "run", **(QUICK | fields)
    )
    summary = run_replay(config, console)
    return summary, console.export_text().splitlines()


def test_a_sweep_end_to_end(tmp_path: Path) -> None:
    with MockServer() as server:
        summary, log = replay(tmp_path, server, concurrency=(1, 3), repeat=2)
    assert summary.exit_code == 0
    assert [level.concurrency for level in summary.levels] == [1, 3, 1, 3]
    archive = read_archive(tmp_path / "run")
    assert archive.run.status == "complete" and archive.run.finished
    assert [level.repeat for level in archive.run.levels] == [0, 0, 1, 1]
    assert archive.run.server.models_answer["data"] == [{"id": "mock"}]
    assert archive.run.config["concurrency"] == [1, 3]
    assert archive.run.corpus.sessions == 12 and archive.run.tokenizer and archive.run.prompt_text
    assert len({record.request_id for record in archive.records}) == len(archive.records)
    assert archive.series() is not None and archive.series().num_rows >= 4  # type: ignore[union-attr]
    for info, level in zip(archive.run.levels, summary.levels, strict=True):
        records = [r for r in archive.level(info.level) if r.phase == "measured" and r.status == "ok"]
        assert level.ok == len(records) > 3 and level.errors == 0
        assert level.prompt_tokens == sum(r.prompt_tokens or 0 for r in records)
        assert info.duration == 1.5 and info.measured_from and info.lateness
        assert all(r.start - info.measured_from <= 1.5 for r in records)
        assert all((r.recorded_input or 0) > 0 and r.total_blocks is not None for r in records)
    assert any("c=3" in line and "complete:" in line for line in log)
    assert any("tokenizer is not known" in line for line in log)


def test_prompts_are_what_the_trace_says_and_share_what_it_shares(tmp_path: Path) -> None:
    with MockServer() as server:
        replay(tmp_path, server, concurrency=(2,), warmup_requests=0)
    tokenizer = standard_tokenizer()
    by_stream: dict[str, list[dict[str, Any]]] = {}
    for headers, body in zip(server.headers, server.bodies, strict=True):
        by_stream.setdefault(headers["X-Correlation-ID"], []).append(body)
    records = {r.request_id: r for r in read_archive(tmp_path / "run").records}
    for headers, body in zip(server.headers, server.bodies, strict=True):
        record = records[headers["X-Request-ID"]]
        messages = body["messages"]
        assert messages[-1]["role"] == "user"
        first = next(m["content"] for m in messages if m["role"] == "user")
        marker, blank, _ = first.split("\n", 2)
        assert marker.startswith("[rid:") and len(marker) == 18 and not blank
        tokens = sum(len(tokenizer.encode(m["content"])) for m in messages) - len(
            tokenizer.encode(marker + "\n\n")
        )
        # Text at the cut ends of blocks is encoded anew, so the count is near, not equal.
        assert abs(tokens - (record.recorded_input or 0)) <= 4 + 0.1 * (record.recorded_input or 0)
        assert body["max_completion_tokens"] == record.max_tokens
    for bodies in by_stream.values():
        for before, after in pairwise(bodies):
            common = [m for m, n in zip(before["messages"], after["messages"], strict=False) if m == n]
            assert common or len(before["messages"]) == 1  # all but the last message stays, unless cut


def test_no_play_hits_another_one(tmp_path: Path) -> None:
    with MockServer() as server:
        replay(tmp_path, server, concurrency=(1, 2))
    markers = {}
    for headers, body in zip(server.headers, server.bodies, strict=True):
        run, level, number, stream = headers["X-Correlation-ID"].split("-", 3)
        marker = next(m["content"] for m in body["messages"] if m["role"] == "user")[:18]
        markers.setdefault((run, level, number, stream.split("::")[0]), set()).add(marker)
    assert len({marker for found in markers.values() for marker in found}) >= len(markers) >= 3


def test_a_server_that_stops_short(tmp_path: Path) -> None:
    with MockServer(Behaviour(stop_after=2)) as server:
        summary, _ = replay(tmp_path, server, concurrency=(2,))
    level = summary.levels[0]
    assert level.ok and any("shorter than asked for" in text for text in level.warnings)
    assert level.output_tokens is not None and level.output_tokens <= 2 * level.ok


def test_a_server_without_usage(tmp_path: Path) -> None:
    with MockServer(Behaviour(usage=False)) as server:
        summary, _ = replay(tmp_path, server, concurrency=(2,))
    level = summary.levels[0]
    assert level.ok and level.total_throughput is None and level.interactivity_p90 is None
    assert level.ttft_p50 is not None
    assert any("no usage" in text for text in level.warnings)


def test_ten_tokens_a_chunk_are_ten_tokens(tmp_path: Path) -> None:
    with MockServer(Behaviour(tokens_per_chunk=10, gap=0.05)) as server:
        summary, _ = replay(tmp_path, server, concurrency=(2,))
    records = [
        r for r in read_archive(tmp_path / "run").records if r.status == "ok" and (r.output_tokens or 0) > 20
    ]
    assert records
    for record in records:
        assert record.chunks == -(-record.max_tokens // 10)
        assert record.output_tokens == record.max_tokens == len(record.token_offsets)
    assert summary.levels[0].itl_p90 and summary.levels[0].itl_p90 < 0.05


@pytest.mark.parametrize("fault", ["http_500", "http_429", "no_finish", "bad_usage", "error_event"])
def test_a_server_that_fails_is_stopped_at_once(tmp_path: Path, fault: str) -> None:
    with MockServer(Behaviour(fault_always=fault)) as server:
        summary, _ = replay(tmp_path, server, concurrency=(2,), duration=60.0)
    assert summary.exit_code == 1
    assert summary.run.status == "stopped"
    assert summary.run.status_detail and "failed" in summary.run.status_detail


def test_a_failed_primer_ends_the_run(tmp_path: Path) -> None:
    with MockServer(Behaviour(faults=["http_500"])) as server:
        summary, _ = replay(tmp_path, server, concurrency=(2,), duration=60.0)
    assert summary.run.status == "stopped"
    assert summary.run.status_detail == "a primer failed: HTTP 500: the engine is down"


def test_too_many_failures_stop_the_run(tmp_path: Path) -> None:
    faults = [""] * 12 + ["http_500"] * 1000
    with MockServer(Behaviour(faults=faults)) as server:
        summary, _ = replay(tmp_path, server, concurrency=(2,), duration=60.0)
    assert summary.run.status == "stopped" and summary.exit_code == 1
    assert summary.run.status_detail and "requests failed" in summary.run.status_detail


def test_some_failures_are_counted_and_in_no_figure(tmp_path: Path) -> None:
    faults = [""] * 8 + ["http_500" if i % 12 == 0 else "" for i in range(2000)]
    with MockServer(Behaviour(faults=faults)) as server:
        summary, _ = replay(tmp_path, server, concurrency=(2,))
    level = summary.levels[0]
    assert summary.run.status == "complete" and level.errors >= 1
    assert level.requests == level.ok + level.errors + level.cancelled + level.overflows
    assert any("failed and are not in the figures" in text for text in level.warnings)


def test_an_error_of_this_program_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that raises must not leave its lane waiting until the time is over."""

    async def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(ChatClient, "stream", broken)
    with MockServer() as server, pytest.raises(RuntimeError, match="a defect"):
        replay(tmp_path, server, warmup_grace=3.0)


def test_a_server_lost_just_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inquiry takes longer than what is left of the level, and is waited for."""

    async def silent(_: ChatClient) -> bool:
        return False

    monkeypatch.setattr(ChatClient, "answers", silent)
    faults = ["", "", "", "", "", "", "cut"]
    with MockServer(Behaviour(faults=faults)) as server:
        summary, _ = replay(tmp_path, server, concurrency=(1,), warmup_requests=0)
    assert summary.run.status == "server_lost" and summary.exit_code == 1


def test_an_overflow_ends_a_session_and_is_no_error(tmp_path: Path) -> None:
    faults = [""] * 8 + ["overflow" if i % 10 == 0 else "" for i in range(2000)]
    with MockServer(Behaviour(faults=faults)) as server:
        summary, _ = replay(tmp_path, server, concurrency=(2,))
    level = summary.levels[0]
    assert level.overflows >= 1 and level.errors == 0 and summary.run.status == "complete"
    assert summary.levels[0].sessions_started > 2


def test_a_context_window_leaves_out_whole_sessions(tmp_path: Path) -> None:
    with MockServer() as server:
        _, log = replay(tmp_path, server, concurrency=(1,), context_window=2048)
    corpus = read_archive(tmp_path / "run").run.corpus
    assert corpus.dropped > 0 and corpus.sessions == 12 - corpus.dropped
    assert any("are left out: prompt length P50" in line for line in log)


def test_no_session_fits(tmp_path: Path) -> None:
    with MockServer() as server, pytest.raises(InvalidValue, match="context_window"):
        replay(tmp_path, server, context_window=64)
    assert not (tmp_path / "run").exists()


def test_no_server_no_archive(tmp_path: Path) -> None:
    with MockServer() as server:
        pass
    with pytest.raises(ServerUnusableError, match="no server answers"):
        replay(tmp_path, server)
    assert not (tmp_path / "run").exists()


def test_models_are_checked(tmp_path: Path) -> None:
    with MockServer() as server, pytest.raises(InvalidValue, match="model: got 'other'"):
        replay(tmp_path, server, model="other")
    with MockServer(Behaviour(models=[])) as server, pytest.raises(ServerUnusableError, match="--model"):
        replay(tmp_path, server)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", "ftp://x"),
        ("url", "http://user:secret@host"),
        ("url", "http://a..b"),
        ("metrics_url", "metrics"),
        ("metrics_url", "http://user:secret@host/metrics"),
        ("concurrency", (0,)),
        ("concurrency", (2, 2)),
        ("duration", 0.0),
        ("repeat", 0),
        ("failed_threshold", 1.5),
        ("session_idle_cap", -1.0),
        ("warmup_requests", -1),
        ("start_from", 0.9),
        ("accelerators", 0),
        ("max_sessions", 0),
    ],
)
def test_bad_options_name_the_field(tmp_path: Path, field: str, value: object) -> None:
    values = {"url": "http://h", "corpus": tmp_path, "out": tmp_path / "run"} | {field: value}
    with pytest.raises(InvalidValue, match=field) as caught:
        ReplayConfig(**values)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


def test_an_archive_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("x")
    with MockServer() as server, pytest.raises(InvalidValue, match="never overwritten"):
        replay(tmp_path, server)
    assert not server.bodies
