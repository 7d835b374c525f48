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

from flashpoint.agentx.archive import Archive, read_archive
from flashpoint.agentx.records import RequestRecord
from flashpoint.agentx.traces.corpus import write_recipe
from tests.agentx.mock_server import mock_process
from tests.agentx.small_corpus import QUICK, SMALL

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, sys
from pathlib import Path
from flashpoint.agentx.replay import run_replay
from flashpoint.agentx.replay_config import ReplayConfig
url, corpus, out, options = sys.argv[1:]
options = json.loads(options)
options["concurrency"] = tuple(options["concurrency"])
sys.exit(run_replay(ReplayConfig(url=url, corpus=Path(corpus), out=Path(out), **options)).exit_code)
"""


@contextlib.contextmanager
def replay_process(tmp_path: Path, url: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    write_recipe(SMALL, tmp_path / "corpus.json")
    options = QUICK | options
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, url, tmp_path / "corpus.json", tmp_path / "run", json.dumps(options)],
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


def measured(archive: Archive, level: int) -> list[RequestRecord]:
    return [record for record in archive.level(level) if record.phase == "measured"]


def test_kill_9_of_the_server_leaves_an_error_per_open_request_and_all_the_rest(tmp_path: Path) -> None:
    with (
        mock_process(ttft=0.05, gap=0.02) as (server, url),
        replay_process(tmp_path, url, concurrency=[8, 4, 2], duration=3.0) as replay,
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
    assert all(record.status in ("ok", "cancelled") for record in archive.level(0))
    failed = [record for record in archive.level(1) if record.status == "error"]
    assert failed
    assert all(record.error and "connection" in record.error for record in failed), failed
    for record in archive.level(1):
        assert record.status in ("ok", "error")


def test_ctrl_c_writes_what_there_is(tmp_path: Path) -> None:
    with (
        mock_process(ttft=0.05, gap=0.02) as (_, url),
        replay_process(tmp_path, url, concurrency=[8, 2], duration=3.0) as replay,
    ):
        wait_for_levels(tmp_path / "run", 1)
        replay.send_signal(signal.SIGINT)
        _, log = replay.communicate(timeout=60)
    assert replay.returncode == 130, log
    assert "Traceback" not in log
    archive = read_archive(tmp_path / "run")
    assert archive.run.status == "interrupted"
    assert [level.status for level in archive.run.levels] == ["complete", "interrupted"]
    assert measured(archive, 0)
    open_then = [record for record in archive.level(1) if record.status == "cancelled"]
    assert all(record.error == "open when the run was interrupted" for record in open_then)


def test_ctrl_c_before_the_first_request(tmp_path: Path) -> None:
    with (
        mock_process(ttft=0.05, gap=0.02) as (_, url),
        replay_process(tmp_path, url, concurrency=[1500], duration=3.0) as replay,
    ):
        wait_for_levels(tmp_path / "run", 0)
        replay.send_signal(signal.SIGINT)
        _, log = replay.communicate(timeout=60)
    assert replay.returncode == 130, log
    assert "Traceback" not in log
    assert read_archive(tmp_path / "run").run.status == "interrupted"


def test_kill_9_of_the_replay_leaves_the_finished_levels(tmp_path: Path) -> None:
    with (
        mock_process(ttft=0.01, gap=0.004) as (_, url),
        replay_process(tmp_path, url, concurrency=[8, 2], duration=3.0) as replay,
    ):
        wait_for_levels(tmp_path / "run", 1)
        replay.kill()
        replay.wait()
    archive = read_archive(tmp_path / "run")
    assert archive.run.status == "running"
    assert len(archive.run.levels) == 1 and measured(archive, 0)
