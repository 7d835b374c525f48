import copy
import json
from pathlib import Path
from typing import Any

import pytest

from flashpoint.errors import CheckpointError
from flashpoint.models.deepseek_v41.config import load_config, parse_config
from tests.golden_data import golden_checkpoints

RELEASED: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "flashpoint/models/deepseek_v41/released_config.json").read_text()
)


def problems_of(raw: dict[str, Any]) -> list[str]:
    with pytest.raises(CheckpointError) as caught:
        parse_config(raw)
    return caught.value.problems


def changed(**text: Any) -> dict[str, Any]:
    """The released config with other values in its text part."""
    raw = copy.deepcopy(RELEASED)
    raw["text_config"] |= text
    return raw


def test_released_schedule() -> None:
    text = parse_config(RELEASED).text
    assert text.kv_source_of[:2] == (None, None)
    assert [text.kv_source_of[i] for i in (2, 7, 8, 19, 20, 39)] == [2, 2, 8, 14, 20, 20]
    assert [text.index_source_of[i] for i in (20, 23, 24, 27, 39)] == [20, 20, 24, 24, 36]
    kinds = [text.layer_kind(i) for i in range(40)]
    assert {k: kinds.count(k) for k in set(kinds)} == {"window": 2, "full": 4, "reindex": 4, "reuse": 30}
    assert text.engram_slots == 24


@pytest.mark.parametrize("name", list(golden_checkpoints()))
def test_golden_configs_are_read(name: str) -> None:
    config = load_config(golden_checkpoints()[name])
    assert config.quantized == (name == "tiny-q")
    assert (config.vision_config is not None) == (name == "tiny-v")


def test_an_unknown_layer_kind_is_refused_by_name() -> None:
    ratios = list(RELEASED["text_config"]["compress_ratios"])
    ratios[5] = 4
    (problem,) = problems_of(changed(compress_ratios=ratios))
    assert problem.startswith("text_config.compress_ratios.5: got 4")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"scoring_func": "softmax"}, "text_config.scoring_func: got 'softmax'"),
        ({"attention_bias": True}, "text_config.attention_bias: got True"),
        ({"hc_mult": 2}, "text_config.hc_mult: got 2"),
        ({"gate_temp": 2.0}, "text_config.gate_temp: got 2.0"),
        ({"head_dim": 100}, "text_config.head_dim: got 100"),
        ({"vocab_size": "many"}, "text_config.vocab_size: got 'many'"),
        ({"first_k_dense_replace": 1}, "text_config.first_k_dense_replace: got 1; this build does not know"),
        ({"compress_ratios": [0, 2]}, "compress_ratios: has 2 entries; expected 43"),
        ({"candidate_source_layer_id": 14}, "candidate_source_layer_id: got 14; expected the last KV source"),
        ({"index_source_layer_ids": [2, 8, 20]}, "index_source_layer_ids: lacks the KV sources [14]"),
        ({"kv_source_layer_ids": [1, 2, 8, 14, 20]}, "layer 1 has compress_ratio 0"),
        ({"engram_layer_ids": [1, 40]}, "engram_layer_ids: got [1, 40]"),
        ({"num_experts_per_tok": 385}, "num_experts_per_tok: must not exceed n_routed_experts"),
        ({"dspark_markov_rank": None}, "dspark_markov_rank: missing"),
    ],
)
def test_what_is_not_built_is_refused_by_name(text: dict[str, Any], message: str) -> None:
    assert any(message in problem for problem in problems_of(changed(**text)))


def test_a_missing_field_and_a_wrong_one_are_both_named() -> None:
    raw = changed(hidden_act="gelu")
    del raw["text_config"]["index_topk"]
    raw["model_type"] = "llama"
    problems = problems_of(raw)
    assert "text_config.index_topk: missing" in problems
    assert any(p.startswith("text_config.hidden_act: got 'gelu'") for p in problems)
    assert any(p.startswith("model_type: got 'llama'") for p in problems)


def test_another_quantisation_is_refused() -> None:
    raw = copy.deepcopy(RELEASED)
    raw["quantization_config"]["weight_block_size"] = [128, 128]
    assert any("quantization_config.weight_block_size" in problem for problem in problems_of(raw))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "config.json: missing"),
        (b"{'single': 1}", "config.json: not valid JSON"),
        (b"", "config.json: not valid JSON"),
        (b"\xff\xfe{}", "config.json: not valid JSON"),
        (b"[1, 2]", "config.json: expected a JSON object"),
        (b"{}", "text_config: missing"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        load_config(tmp_path)
    assert any(message in problem for problem in caught.value.problems)


@pytest.mark.parametrize("field", ["bos_token_id", "eos_token_id", "pad_token_id", "image_token_id"])
def test_special_ids_must_be_in_the_vocabulary(field):
    raw = json.loads((golden_checkpoints()["tiny-c"] / "config.json").read_text())
    raw[field] = 400
    with pytest.raises(CheckpointError, match=field):
        parse_config(raw)
