"""What `benchmarks/simulator.py` plays, and what it asks AISimulate."""

from __future__ import annotations

from benchmarks import aisimulate, simulator
from flashpoint.simulate.config import DeploymentConfig
from flashpoint.simulate.deployment import Deployment


def test_every_session_is_played_once(tmp_path, monkeypatch):
    monkeypatch.setattr(simulator, "SESSIONS", 5)
    monkeypatch.setattr(simulator, "TURNS", 3)
    path = simulator.write_sessions(tmp_path)
    found = simulator.play(DeploymentConfig(layout="TP4"), path, 2)
    calls = [call for number in range(5) for call in simulator.session(number).calls()]
    assert found["requests"] == len(calls) == 15
    assert found["prompt_tokens"] == sum(call.input_tokens for call in calls)
    assert found["output_tokens"] == sum(call.output_tokens for call in calls)


def test_v4_flash_s_sizes_in_our_structure(tmp_path):
    model = aisimulate.v4_flash_sized(tmp_path)
    deployment = Deployment(DeploymentConfig(model=str(model), layout="DEP8", drafts=0))
    assert deployment.text.num_hidden_layers == 43
    assert round(deployment.work.active_full / 1e9, 1) == 12.9  # as docs/vs-aisimulate.md says


def test_layouts_in_its_words():
    names = ("tensor", "attention_data", "moe_tensor", "moe_expert")
    for layout, words in {"TP4": (4, 1, 4, 1), "TP4/EP4": (4, 1, 1, 4), "DEP8": (1, 8, 1, 8)}.items():
        assert aisimulate.parallelism(layout) == dict(zip(names, words, strict=True))
