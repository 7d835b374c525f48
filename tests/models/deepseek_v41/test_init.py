import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import deepseek_recipe
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from torch import Tensor

from flashpoint.checkpoint.folder import open_checkpoint
from flashpoint.engine.plan import Chunk
from flashpoint.errors import CheckpointError, InvalidValue
from flashpoint.models.deepseek_v41.config import ModelConfig, load_config
from flashpoint.models.deepseek_v41.init import init_checkpoint
from flashpoint.models.deepseek_v41.loader import load_weights
from flashpoint.models.deepseek_v41.manifest import manifest_problems, tensor_manifest
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.deepseek_v41.preset_corpus import CORPUS
from flashpoint.models.deepseek_v41.preset_tokenizers import small_tokenizer
from flashpoint.models.deepseek_v41.presets import PRESETS, preset_files
from flashpoint.models.load import load_model

VARIANTS = [(form, outliers) for form in ("bf16", "quantized") for outliers in (False, True)]


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Path]:
    """A nano checkpoint of each stored form, tame and with outliers."""
    root = tmp_path_factory.mktemp("nano")
    folders = {}
    for form, outliers in VARIANTS:
        folders[form, outliers] = root / f"{form}-{outliers}"
        init_checkpoint("nano", folders[form, outliers], form=form, outliers=outliers)
    return folders


@pytest.fixture(scope="module")
def configs() -> dict[str, ModelConfig]:
    return {name: preset_files(preset, preset.form).config for name, preset in PRESETS.items()}


def sizes(config: ModelConfig) -> tuple[int, int]:
    """(parameters, stored bytes)."""
    specs = tensor_manifest(config).values()
    return sum(s.parameters for s in specs), sum(s.nbytes for s in specs)


def test_sizes(configs: dict[str, ModelConfig]) -> None:
    assert sizes(configs["nano"])[0] == pytest.approx(2e6, rel=0.25)
    assert sizes(configs["micro"])[0] == pytest.approx(40e6, rel=0.1)
    assert 1e9 < sizes(configs["mini"])[1] < 2e9


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_layer_kind_and_shapes_that_exercise_it(configs: dict[str, ModelConfig], name: str) -> None:
    """Spec pitfall 27."""
    text = configs[name].text
    kinds = [(text.layer_kind(i), text.compress_ratios[i]) for i in range(text.num_hidden_layers)]
    for kind in [("window", 0), ("full", 2), ("reuse", 2), ("full", 1), ("reuse", 1), ("reindex", 1)]:
        assert kind in kinds
    assert kinds.count(("full", 2)) >= 2 and kinds.count(("reindex", 1)) >= 2
    source_of_reuse = {
        text.index_source_of[i] for i in range(text.num_hidden_layers) if text.layer_kind(i) == "reuse"
    }
    assert source_of_reuse & (set(text.index_source_layer_ids) - set(text.kv_source_layer_ids))
    assert len(text.engram_layer_ids) == 2
    assert max(text.engram_layer_ids) < text.candidate_source_layer_id

    candidates = text.candidate_topk_blocks * text.candidate_block_size
    usable = text.max_position_embeddings // 8
    assert usable > 4 * text.sliding_window
    assert usable // 2 > 2 * text.index_topk
    assert text.index_topk < candidates < usable
    assert text.n_routed_experts >= 16 and text.num_experts_per_tok == 6
    widths = (text.hidden_size, text.moe_intermediate_size, text.head_dim, text.q_lora_rank)
    assert all(width % 128 for width in widths)


@pytest.mark.parametrize(("form", "outliers"), VARIANTS)
def test_it_is_a_checkpoint_of_its_form(
    nano: dict[tuple[str, bool], Path], form: str, outliers: bool
) -> None:
    folder = nano[form, outliers]
    config = load_config(folder)
    checkpoint = open_checkpoint(folder)
    assert config.quantized == (form == "quantized")
    assert manifest_problems(checkpoint, tensor_manifest(config)) == []
    assert checkpoint.index is not None and len(checkpoint.index.shards) > 1
    load_weights(folder, config, torch.bfloat16)
    if form == "quantized":
        scales = [checkpoint.tensor(n).view(torch.uint8) for n in checkpoint.entries if n.endswith(".scale")]
        assert sum(len(scale.unique()) > 1 for scale in scales) > 0.95 * len(scales)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_seed_decides_every_byte(nano: dict[tuple[str, bool], Path], tmp_path: Path) -> None:
    init_checkpoint("nano", tmp_path / "same", form="quantized", outliers=True)
    init_checkpoint("nano", tmp_path / "other", form="quantized", outliers=True, seed=1)
    assert contents(tmp_path / "same") == contents(nano["quantized", True])
    assert contents(tmp_path / "other") != contents(nano["quantized", True])


@dataclass
class Run:
    """What a model did with a prompt: the logits of its rows, greedy tokens, and taps by name."""

    logits: Tensor
    greedy: list[int]
    taps: dict[str, Tensor]


def run(folder: Path, numerics: Numerics, prompt: int = 120, tokens: int = 12) -> Run:
    """Prefill a piece of the corpus, then decode greedily."""
    loaded = load_model(folder, numerics)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [loaded.config.bos_token_id, *tokenizer.encode(CORPUS[:4000]).ids[: prompt - 1]]
    block = 32
    caches = loaded.model.allocate_caches(-(-(prompt + tokens) // block), block, 1)
    taps: dict[str, Tensor] = {}

    def forward(start: int, wanted: Tensor) -> Tensor:
        history = np.array(ids, dtype=np.int32)
        blocks = np.arange(-(-len(ids) // block), dtype=np.int32)
        chunk = Chunk("r", 0, start, history, blocks, prompt, None)

        def tap(name: str, value: Tensor) -> Tensor:
            if start == 0:
                taps[name] = value
            return value

        return loaded.model.forward(loaded.model.build_batch([chunk], block), caches, wanted, tap)

    logits = forward(0, torch.arange(prompt))
    greedy = [int(logits[-1].argmax())]
    while len(greedy) < tokens:
        ids.append(greedy[-1])
        greedy.append(int(forward(len(ids) - 1, torch.tensor([0]))[0].argmax()))
    return Run(logits, greedy, taps)


EXACT, QUANTIZED = Numerics("exact", "float32"), Numerics("quantized", "bfloat16")


@pytest.mark.parametrize(
    ("form", "outliers", "numerics"),
    [
        ("bf16", False, EXACT),
        ("bf16", True, QUANTIZED),
        ("quantized", False, QUANTIZED),
        ("quantized", True, EXACT),
        ("quantized", True, QUANTIZED),
    ],
)
def test_the_model_is_well_conditioned(
    nano: dict[tuple[str, bool], Path], form: str, outliers: bool, numerics: Numerics
) -> None:
    result = run(nano[form, outliers], numerics)
    assert result.logits.isfinite().all()
    assert 1.0 < result.logits.std() < 2.0
    assert len(set(result.logits.argmax(-1).tolist())) > 40
    assert len(set(result.greedy)) > 6
    text = load_config(nano[form, outliers]).text
    alive = text.n_routed_experts - (2 if outliers else 0)
    for layer in range(text.num_hidden_layers):
        chosen = result.taps[f"layers.{layer}.moe_ids"]
        counts = torch.bincount(chosen.flatten(), minlength=text.n_routed_experts)
        assert (counts[:alive] > 0).sum() >= alive - 2
        assert (counts[alive:] == 0).all()
        assert counts.max() < 0.95 * len(chosen) or outliers


def test_outliers_have_the_statistics_of_real_weights(nano: dict[tuple[str, bool], Path]) -> None:
    folder = nano["quantized", True]
    text = load_config(folder).text
    weights = load_weights(folder, load_config(folder), torch.float32)
    for layer in weights.layers:
        for norm in (layer.attn_norm, layer.ffn_norm, layer.attention.q_norm, layer.attention.kv_norm):
            assert (norm.abs() > 35 * norm.abs().median()).sum() == 2
        assert (layer.moe.bias == -1e4).sum() == 2
        assert layer.attention.sink.max() == 10 and layer.attention.sink.min() == -20
        up = layer.moe.w13[:, text.moe_intermediate_size :]
        assert up.abs().amax((0, 2)).max() > 20 * up.abs().amax((0, 2)).median()
    checkpoint = open_checkpoint(folder)
    codes = checkpoint.tensor("layers.0.attn.wq_b.weight").view(torch.uint8) & 0x7F
    exponents = checkpoint.tensor("layers.0.attn.wq_b.scale").view(torch.uint8)
    assert codes.max() == 0x7E  # 448, the largest
    assert int(exponents.max()) - int(exponents.min()) > 20

    taps = run(folder, EXACT, tokens=1).taps
    largest_fp4_entry = 6 * 448
    assert max(float(v.abs().max()) for n, v in taps.items() if n.endswith("compress_kv")) > largest_fp4_entry


def test_used_folder_and_unknown_names(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(CheckpointError, match="expected a new or empty folder"):
        init_checkpoint("nano", tmp_path)
    with pytest.raises(InvalidValue, match="preset: got 'huge'; expected one of nano, micro, mini"):
        init_checkpoint("huge", tmp_path / "x")
    with pytest.raises(InvalidValue, match="form: got 'fp16'"):
        init_checkpoint("nano", tmp_path / "x", form="fp16")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str(small_tokenizer(768))


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_any_text_survives_the_small_tokenizer(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_small_tokenizer_is_exact_in_size_and_repeatable(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == 768
    assert tokenizer.get_vocab_size() == max(tokenizer.get_vocab().values()) + 1
    assert small_tokenizer(768) == tokenizer.to_str(pretty=True)
    assert Tokenizer.from_str(small_tokenizer(5000)).get_vocab_size() == 5000
    assert [tokenizer.id_to_token(i) for i in range(3)] == [
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜▁pad▁｜>",
    ]
    with pytest.raises(ValueError, match="no room"):
        small_tokenizer(200)


def test_the_authors_prompts_use_single_tokens(tokenizer: Tokenizer) -> None:
    """Every marker the prompt library writes is one id of the small tokenizer."""
    body = {
        "model": "DeepSeek-V4.1-Flash",
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hello"}],
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
            }
        ],
    }
    request = deepseek_recipe.ChatCompletionRequest(body).convert(deepseek_recipe.ConversionOptions())
    rendered = deepseek_recipe.DeepseekV41Encoding().render_conversation(request.conversation)
    prompt = rendered.prompt
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == prompt
    for marker in ("<｜begin▁of▁sentence｜>", "<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "｜DSML｜"):
        assert prompt.count(marker) == ids.count(tokenizer.token_to_id(marker)) > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_mini_is_written_in_little_memory_and_runs(tmp_path: Path) -> None:
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from flashpoint.models.deepseek_v41.init import init_checkpoint\n"
        "init_checkpoint('mini', Path(sys.argv[1]))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    out = tmp_path / "mini"
    done = subprocess.run(
        [sys.executable, "-c", script, str(out)], check=True, capture_output=True, text=True
    )
    assert int(done.stdout) * 1024 < 1e9
    assert 1e9 < open_checkpoint(out).total_bytes < 2e9
    result = run(out, QUANTIZED, prompt=60, tokens=8)
    assert result.logits.isfinite().all() and 1.0 < result.logits.std() < 2.0
    assert len(set(result.greedy)) > 4
