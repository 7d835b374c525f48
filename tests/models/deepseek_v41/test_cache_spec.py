import json
from pathlib import Path

import pytest

from flashpoint.models.deepseek_v41.cache_spec import cache_spec
from flashpoint.models.deepseek_v41.config import TextConfig, load_config, parse_config
from tests.golden_data import golden_checkpoints

RELEASED = Path(__file__).parents[3] / "flashpoint/models/deepseek_v41/released_config.json"


@pytest.fixture(scope="module")
def released() -> TextConfig:
    return parse_config(json.loads(RELEASED.read_text())).text


def test_released_bytes(released: TextConfig) -> None:
    spec = cache_spec(released, "codes")
    assert spec.bytes_per_token == 890
    assert {g.name: g.entry_bytes for g in spec.groups} == {
        "global_r2": 288,
        "index_keys_r2": 68,
        "global_r1": 288,
        "index_keys_r1": 68,
        "window": 528,
        "compressor_tail": 4096,
        "engram_history": 0,
    }
    assert spec.bytes_per_sequence == 2_703_360 + 12_288
    assert spec.block_multiple == 2
    assert spec.block_bytes(64) == 64 * 890


def test_released_bytes_dequantised(released: TextConfig) -> None:
    """Spec 10.1: 3200 bytes with bf16 global storage."""
    assert cache_spec(released, "bfloat16").bytes_per_token == 3200
    assert cache_spec(released, "float32").bytes_per_token == 6400


def test_who_owns_what(released: TextConfig) -> None:
    spec = cache_spec(released, "codes")
    assert spec.group("global_r2").layers == (2, 8, 14)
    assert spec.group("index_keys_r1").layers == (20,)
    assert spec.group("compressor_tail").layers == (2, 8, 14)
    window = spec.group("window")
    assert window.layers == tuple(range(40))
    assert window.entries == window.replay_tokens == 128 and not window.prefix_cacheable
    history = spec.group("engram_history")
    assert history.kind == "history" and history.layers == (1, 14) and history.entries == 3
    assert [g.name for g in spec.groups if g.prefix_cacheable] == [
        "global_r2",
        "index_keys_r2",
        "global_r1",
        "index_keys_r1",
    ]


@pytest.mark.parametrize("name", list(golden_checkpoints()))
def test_every_source_has_entries_and_keys(name: str) -> None:
    text = load_config(golden_checkpoints()[name]).text
    spec = cache_spec(text, "float32")
    owners = sorted(layer for g in spec.groups if g.name.startswith("global") for layer in g.layers)
    assert owners == list(text.kv_source_layer_ids)
    for group in spec.groups:
        if group.kind == "paged":
            assert {text.compress_ratios[layer] for layer in group.layers} == {group.tokens_per_entry}
