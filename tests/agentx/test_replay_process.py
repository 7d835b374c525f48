"""Replays as real processes: a server that is killed, a user who presses Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flashpoint.agentx.archive import read_archive
from flashpoint.agentx.summary import summarize
from flashpoint.agentx.synthetic import GenerateConfig, generate
from tests.agentx.mock_server import mock_process

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, sys
from pathlib import Path
from flashpoint.agentx.replay import run_replay
from flashpoint.agentx.replay_config import ReplayConfig
url, sessions, out, options = sys.argv[1:]
options = json.loads(options)
options["concurrency"] = tuple(options["concurrency"])
sys.exit(run_replay(ReplayConfig(url, Path(sessions), Path(out), **options)).exit_code)
"""


@contextlib.contextmanager
def replay_process(tmp_path: Path, url: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    generate(GenerateConfig(tmp_path / "s.jsonl", sessions=8, turns=4, max_tokens=50))
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, url, tmp_path / "s.jsonl", tmp_path / "run", json.dumps(options)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for_levels(path: Path, levels: int) -> None:
    """Until the run has finished that many levels and is some requests into the next."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception):
            if len(read_archive(path).run.levels) >= levels:
                time.sleep(0.3)
                return
        time.sleep(0.02)
    raise AssertionError("the replay did not get that far")


def test_kill_9_of_the_server_leaves_an_error_per_open_request_and_all_the_rest(tmp_path: Path) -> None:
    with (
        mock_process(ttft=0.01, gap=0.004) as (server, url),
        replay_process(tmp_path, url, concurrency=[8, 4, 2]) as replay,
    ):
        wait_for_levels(tmp_path / "run", 1)
        server.kill()
        _, log = replay.communicate(timeout=60)
    assert replay.returncode == 1, log
    archive = read_archive(tmp_path / "run")
    assert archive.run.status == "server_lost"
    assert archive.run.status_detail and url in archive.run.status_detail
    first, second = archive.run.levels  # the third level is not begun
    assert (first.status, second.status) == ("complete", "server_lost")
    assert len(archive.level(0)) == 32 and all(record.status == "ok" for record in archive.level(0))
    failed = [record for record in archive.level(1) if record.status == "error"]
    # One per lane: the request that was open, or, between two turns, the one that found nobody.
    assert sorted(record.lane for record in failed) == [0, 1, 2, 3]
    assert all(record.error and "connection" in record.error for record in failed), failed
    for record in archive.level(1):
        assert record.status in ("ok", "error")
    assert summarize(archive).levels[1].ok == len(archive.level(1)) - 4


def test_ctrl_c_writes_what_there_is(tmp_path: Path) -> None:
    with (
        mock_process(ttft=0.01, gap=0.004) as (_, url),
        replay_process(tmp_path, url, concurrency=[8, 2]) as replay,
    ):
        wait_for_levels(tmp_path / "run", 1)
        replay.send_signal(signal.SIGINT)
        _, log = replay.communicate(timeout=60)
    assert replay.returncode == 130, log
    assert "Traceback" not in log
    archive = read_archive(tmp_path / "run")
    assert archive.run.status == "interrupted"
    assert [level.status for level in archive.run.levels] == ["complete", "interrupted"]
    assert len(archive.level(0)) == 32
    open_then = [record for record in archive.level(1) if record.status == "cancelled"]
    assert 1 <= len(open_then) <= 2
    assert all(record.error == "open when the run was interrupted" for record in open_then)


def test_kill_9_of_the_replay_leaves_the_finished_levels(tmp_path: Path) -> None:
    with (
        mock_process(ttft=0.01, gap=0.004) as (_, url),
        replay_process(tmp_path, url, concurrency=[8, 2]) as replay,
    ):
        wait_for_levels(tmp_path / "run", 1)
        replay.kill()
        replay.wait()
    archive = read_archive(tmp_path / "run")
    assert archive.run.status == "running"
    assert len(archive.records) == 32 and len(archive.run.levels) == 1
