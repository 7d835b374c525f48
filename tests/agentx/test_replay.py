from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flashpoint.agentx import lanes
from flashpoint.agentx.archive import read_archive
from flashpoint.agentx.lanes import plays
from flashpoint.agentx.replay import ServerUnusableError, run_replay
from flashpoint.agentx.replay_config import ReplayConfig
from flashpoint.agentx.sessions import Session, Turn, write_sessions
from flashpoint.agentx.summary import RunSummary
from flashpoint.errors import InvalidValue
from tests.agentx.mock_server import Behaviour, MockServer


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "PAUSE_AFTER_ERROR_SECONDS", 0.05)


def sessions_of(
    count: int, turns: int = 3, system: str = "You are an agent.", tokens: int = 4
) -> list[Session]:
    return [
        Session(f"s{i}", system, tuple(Turn(f"u{i}.{k}", tokens, 0.0) for k in range(turns)))
        for i in range(count)
    ]


def replay(
    tmp_path: Path, server: MockServer, sessions: list[Session], **fields: Any
) -> tuple[RunSummary, list[str]]:
    """Run a replay; the summary, and the lines of its log."""
    write_sessions(tmp_path / "s.jsonl", sessions)
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    config = ReplayConfig(server.url, tmp_path / "s.jsonl", tmp_path / "run", **fields)
    summary = run_replay(config, console)
    return summary, console.export_text().splitlines()


def test_a_sweep_end_to_end(tmp_path: Path) -> None:
    with MockServer() as server:
        summary, log = replay(tmp_path, server, sessions_of(3), concurrency=(1, 3))
    assert summary.exit_code == 0
    assert [(level.concurrency, level.ok, level.errors) for level in summary.levels] == [(1, 9, 0), (3, 9, 0)]
    for level in summary.levels:
        assert level.output_tokens == 36
        assert level.prompt_tokens == sum(
            len("\n".join(message["content"] for message in body["messages"]))
            for body in server.bodies[9 * level.level : 9 * level.level + 9]
        )
        assert level.window_seconds and level.total_throughput and level.prompt_tokens
        assert level.total_throughput == pytest.approx((level.prompt_tokens + 36) / level.window_seconds)
    archive = read_archive(tmp_path / "run")
    assert archive.run.status == "complete" and archive.run.finished
    assert archive.run.sessions.sessions == 3 and archive.run.sessions.turns == 9
    assert archive.run.server.models_answer["data"] == [{"id": "mock"}]
    assert archive.run.config["concurrency"] == [1, 3]
    assert len({record.request_id for record in archive.records}) == 18
    assert any("c=3" in line and "complete: 9 requests ok, 0 failed" in line for line in log)


def test_the_live_answer_is_the_history_of_the_next_turn(tmp_path: Path) -> None:
    with MockServer(Behaviour(reasoning_tokens=1)) as server:
        replay(tmp_path, server, sessions_of(1, turns=3), concurrency=(1,))
    first, second, third = (body["messages"] for body in server.bodies)
    assert [message["role"] for message in first] == ["system", "user"]
    assert second[:2] == first
    assert second[2] == {
        "role": "assistant",
        "content": "w0.1 w0.2 w0.3 ",
        "reasoning_content": "w0.0 ",
    }
    assert second[3] == {"role": "user", "content": "u0.1"}
    assert third[:4] == second and len(third) == 6


def test_every_play_has_a_marker_of_its_own_at_the_very_front(tmp_path: Path) -> None:
    with MockServer() as server:
        replay(tmp_path, server, sessions_of(2, turns=2), concurrency=(1, 2, 4))
        write_sessions(tmp_path / "n.jsonl", sessions_of(1, turns=1, system=""))
        run_replay(ReplayConfig(server.url, tmp_path / "n.jsonl", tmp_path / "again", concurrency=(1,)))
    fronts = [body["messages"][0]["content"] for body in server.bodies]
    markers = [front.split("\n\n")[0] for front in fronts]
    assert all(marker.startswith("[rid:") and len(marker) == 18 for marker in markers)
    # 2 + 2 plays, then 4 of 2 sessions in two passes, then 1 of another run; turns of a play share it.
    assert len(set(markers)) == 2 + 2 + 4 + 1
    assert server.bodies[-1]["messages"][0] == {"role": "user", "content": f"{markers[-1]}\n\nu0.0"}
    counts = {marker: markers.count(marker) for marker in markers[:-1]}
    assert set(counts.values()) == {2}


def test_cache_hits_are_those_of_a_first_visit(tmp_path: Path) -> None:
    with MockServer() as server:
        summary, _ = replay(tmp_path, server, sessions_of(2, turns=3), concurrency=(1, 2))
    shares = [level.cache_hit_share for level in summary.levels]
    assert shares[0] is not None and shares[0] > 0.4
    # The mock also finds the few characters that markers share by chance.
    assert shares[1] == pytest.approx(shares[0], abs=0.03)


def test_every_session_is_played_equally_often() -> None:
    sessions = sessions_of(3)
    assert [(n, s.id) for n, s in plays(sessions, 2, endless=False)] == [(0, "s0"), (0, "s1"), (0, "s2")]
    assert [n for n, _ in plays(sessions, 4, endless=False)] == [0, 0, 0, 1, 1, 1]
    endless = plays(sessions, 1, endless=True)
    assert [next(endless)[0] for _ in range(10)] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]


def test_lanes_hold_the_concurrency(tmp_path: Path) -> None:
    with MockServer(Behaviour(ttft=0.05)) as server:
        summary, _ = replay(tmp_path, server, sessions_of(8, turns=2), concurrency=(4,))
    assert server.most_open == 4
    assert {record.lane for record in read_archive(tmp_path / "run").records} == {0, 1, 2, 3}
    assert summary.levels[0].mean_in_flight == pytest.approx(4, abs=1.5)


def test_duration_keeps_the_load_and_cuts_what_is_open(tmp_path: Path) -> None:
    with MockServer(Behaviour(ttft=0.02)) as server:
        summary, _ = replay(tmp_path, server, sessions_of(1, turns=2), concurrency=(3,), duration=0.7)
    level = summary.levels[0]
    assert summary.exit_code == 0 and level.status == "complete"
    assert level.sessions_started > 3
    assert level.errors == 0 and 1 <= level.cancelled <= 3
    cut = [record for record in read_archive(tmp_path / "run").records if record.status == "cancelled"]
    assert all(record.error == "open when the level's duration was over" for record in cut)
    assert read_archive(tmp_path / "run").run.levels[0].load_dropped_at is None


def test_max_turns_think_time_and_model(tmp_path: Path) -> None:
    session = Session("s", "", tuple(Turn(f"u{i}", 2, 0.15 if i else 0.0) for i in range(5)))
    with MockServer(Behaviour(models=["a", "b"])) as server:
        replay(tmp_path, server, [session], concurrency=(1,), max_turns=2, model="b", seed=9)
    assert [body["model"] for body in server.bodies] == ["b", "b"]
    assert [body["seed"] for body in server.bodies] == [9, 9]
    first, second = read_archive(tmp_path / "run").records
    assert second.start - first.end >= 0.14  # timers have a resolution of a millisecond or two


def test_a_failed_request_ends_its_session_and_no_other(tmp_path: Path) -> None:
    with MockServer(Behaviour(faults=["", "http_500", "cut", "", "bad_usage"])) as server:
        summary, _ = replay(tmp_path, server, sessions_of(4, turns=2), concurrency=(1,))
    # s0: ok, 500. s1: cut. s2: ok, bad usage. s3: ok, ok.
    records = read_archive(tmp_path / "run").records
    assert [(record.session, record.turn, record.status) for record in records] == [
        ("s0", 0, "ok"),
        ("s0", 1, "error"),
        ("s1", 0, "error"),
        ("s2", 0, "ok"),
        ("s2", 1, "error"),
        ("s3", 0, "ok"),
        ("s3", 1, "ok"),
    ]
    assert records[1].http_status == 500 and records[1].error == "HTTP 500: the engine is down"
    level = summary.levels[0]
    assert (level.ok, level.errors) == (4, 3)
    assert "3 of 7 requests failed and are not in the figures" in level.warnings
    assert summary.exit_code == 0


def test_a_server_that_refuses_everything(tmp_path: Path) -> None:
    with MockServer(Behaviour(fault_always="http_429")) as server:
        summary, _ = replay(tmp_path, server, sessions_of(2), concurrency=(1, 2))
    assert summary.exit_code == 1 and summary.run.status == "complete"
    assert [level.warnings for level in summary.levels] == [("no request succeeded",)] * 2
    assert summary.levels[0].total_throughput is None


def test_figures_a_server_does_not_support_are_absent_and_said_so(tmp_path: Path) -> None:
    with MockServer(Behaviour(usage=False)) as server:
        level = replay(tmp_path, server, sessions_of(1), concurrency=(1,))[0].levels[0]
    assert level.total_throughput is None and level.interactivity_p90 is None
    assert level.ttft_p50 is not None
    assert "the server sent no usage for 3 requests: no throughput can be given" in level.warnings


def test_short_answers_lumps_and_unreported_cache_are_said(tmp_path: Path) -> None:
    with MockServer(Behaviour(stop_after=3, tokens_per_chunk=3, cached_tokens=False)) as server:
        level = replay(tmp_path, server, sessions_of(1), concurrency=(1,))[0].levels[0]
    assert level.cache_hit_share is None and level.uncached_input_throughput is None
    assert "the server reports no cached tokens: no cache hit share can be given" in level.warnings
    assert "3 answers are shorter than asked for (end of text was not ignored)" in level.warnings
    assert any(text.startswith("3 answers of several tokens came in one chunk") for text in level.warnings)


def test_accelerators_divide_the_throughput(tmp_path: Path) -> None:
    with MockServer() as server:
        level = replay(tmp_path, server, sessions_of(1), concurrency=(1,), accelerators=4)[0].levels[0]
    assert level.output_throughput and level.output_tokens and level.window_seconds
    assert level.output_throughput == pytest.approx(level.output_tokens / level.window_seconds / 4)


def test_json_summary_is_plain(tmp_path: Path) -> None:
    with MockServer() as server:
        summary, _ = replay(tmp_path, server, sessions_of(1), concurrency=(1,))
    data = json.loads(json.dumps(summary.as_dict(), allow_nan=False))
    assert data["model"] == "mock" and data["levels"][0]["ok"] == 3


def test_nothing_is_written_where_nothing_can_be_sent(tmp_path: Path) -> None:
    with MockServer(Behaviour(models=[])) as server:
        with pytest.raises(ServerUnusableError, match="names no model; name it with --model"):
            replay(tmp_path, server, sessions_of(1))
        server.behaviour.models = ["a"]
        with pytest.raises(InvalidValue, match="model: got 'x'; expected a model of this server: a"):
            replay(tmp_path, server, sessions_of(1), model="x")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "mine").write_text("")
        with pytest.raises(InvalidValue, match=r"out: .*new or empty"):
            replay(tmp_path, server, sessions_of(1))
        (tmp_path / "run" / "mine").unlink()
    with pytest.raises(ServerUnusableError, match=r"no server answers at http://127.0.0.1:\d+"):
        replay(tmp_path, server, sessions_of(1))
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", "127.0.0.1:8000"),
        ("url", "ftp://host"),
        ("url", "http://"),
        ("url", "http://host:99999"),
        ("url", "http://host/?q=1"),
        ("url", "http://me:secret@host"),
        ("concurrency", ()),
        ("concurrency", (0,)),
        ("concurrency", (1, 1)),
        ("accelerators", 0),
        ("max_turns", 0),
        ("duration", 0.0),
        ("duration", float("inf")),
        ("request_timeout", -1.0),
        ("stall_timeout", float("nan")),
        ("temperature", -0.5),
    ],
)
def test_bad_options_are_refused_by_name(field: str, value: Any) -> None:
    options: dict[str, Any] = {"url": "http://h", "sessions": Path("s"), "out": Path("o")} | {field: value}
    with pytest.raises(InvalidValue, match=f"^{field}: ") as caught:
        ReplayConfig(**options)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_the_url_may_end_in_v1(url: str) -> None:
    assert ReplayConfig(url, Path("s"), Path("o")).url == "http://h:1"
