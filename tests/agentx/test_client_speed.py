"""The client's own cost, against a server of known timing in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashpoint.agentx.archive import read_archive
from flashpoint.agentx.replay import run_replay
from flashpoint.agentx.replay_config import ReplayConfig
from flashpoint.agentx.synthetic import GenerateConfig, generate
from tests.agentx.mock_server import mock_process

pytestmark = pytest.mark.slow


def test_a_known_server_is_measured_as_it_is(tmp_path: Path) -> None:
    """TTFT 100 ms, 20 ms per token: never below, and at most a quarter above (a busy machine)."""
    generate(GenerateConfig(tmp_path / "s.jsonl", sessions=8, turns=4, max_tokens=40))
    with mock_process(ttft=0.1, gap=0.02) as (_, url):
        summary = run_replay(ReplayConfig(url, tmp_path / "s.jsonl", tmp_path / "run", concurrency=(4,)))
    level = summary.levels[0]
    assert level.ttft_p50 and level.itl_p50 and level.errors == 0
    assert 0.1 <= level.ttft_p50 <= 0.125
    assert 0.02 <= level.itl_p50 <= 0.025


def test_32_streams_add_little(tmp_path: Path) -> None:
    """32 lanes, 5 ms to the first token, 0.5 ms gaps. The client's own lag is what it adds to a TTFT."""
    generate(GenerateConfig(tmp_path / "s.jsonl", sessions=64, turns=6, max_tokens=20))
    with mock_process(ttft=0.005, gap=0.0005, cached_tokens=False) as (_, url):
        summary = run_replay(ReplayConfig(url, tmp_path / "s.jsonl", tmp_path / "run", concurrency=(32,)))
    level = summary.levels[0]
    lag = read_archive(tmp_path / "run").run.levels[0].client_lag
    assert level.errors == 0 and lag is not None
    assert lag.p50 <= 0.005
