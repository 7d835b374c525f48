import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from flashpoint.errors import CheckpointError
from flashpoint.models.deepseek_v41.config import load_config
from flashpoint.models.deepseek_v41.loader import load_weights
from flashpoint.models.deepseek_v41.weights import ModelWeights
from flashpoint.ops.quantization.weights import (
    dequantize_fp4_rows,
    dequantize_fp8_blocks,
    dequantize_fp8_rows,
)
from tests.golden_data import golden_checkpoints

Edit = Callable[[dict[str, Tensor]], None]


def edited(source: str, target: Path, edit: Edit) -> Path:
    """A copy of a golden checkpoint with its tensors changed by `edit`, as a lone model.safetensors."""
    folder = golden_checkpoints()[source]
    target.mkdir(exist_ok=True)
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(folder / name, target / name)
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, target / "model.safetensors")
    return target


def load(folder: Path, compute: torch.dtype = torch.float32) -> ModelWeights:
    return load_weights(folder, load_config(folder), compute)


@pytest.mark.parametrize("name", list(golden_checkpoints()))
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_golden_checkpoints_load(name: str, compute: torch.dtype) -> None:
    folder = golden_checkpoints()[name]
    text = load_config(folder).text
    weights = load(folder, compute)
    assert weights.compute == weights.embed.dtype == compute
    assert weights.head.dtype == weights.norm.dtype == torch.float32
    assert len(weights.layers) == text.num_hidden_layers
    for number, layer in enumerate(weights.layers):
        width = text.moe_intermediate_size
        assert layer.moe.w13.shape == (text.n_routed_experts, 2 * width, text.hidden_size)
        assert layer.moe.w2.dtype == layer.attention.wo_a.dtype == compute
        assert layer.moe.gate.dtype == layer.hc_attn.fn.dtype == layer.attention.sink.dtype == torch.float32
        source = number in text.kv_source_layer_ids
        assert (layer.attention.compressor is not None) == source
        if layer.attention.compressor is not None:
            ratio = text.compress_ratios[number]
            assert (layer.attention.compressor.wgate is not None) == (ratio == 2)
            assert layer.attention.compressor.wkv.dtype == (torch.float32 if ratio == 2 else compute)
        indexer = layer.attention.indexer
        assert (indexer is not None) == (number in text.index_source_layer_ids)
        if indexer is not None:
            assert (indexer.wk is not None) == (indexer.k_norm is not None) == source
        assert (layer.engram is not None) == (number in text.engram_layer_ids)


def test_unquantised_values_are_those_of_the_file() -> None:
    folder = golden_checkpoints()["tiny-c"]
    stored = load_file(folder / "model.safetensors")
    layer = load(folder).layers[2]
    assert layer.engram is not None
    prefix = "layers.2."
    width = layer.moe.w2.shape[2]
    assert torch.equal(layer.moe.w13[5, :width], stored[f"{prefix}ffn.experts.5.w1.weight"].float())
    assert torch.equal(layer.moe.w13[5, width:], stored[f"{prefix}ffn.experts.5.w3.weight"].float())
    assert torch.equal(layer.moe.w2[7], stored[f"{prefix}ffn.experts.7.w2.weight"].float())
    assert torch.equal(
        layer.moe.shared_w13.weight[width:], stored[f"{prefix}ffn.shared_experts.w3.weight"].float()
    )
    assert torch.equal(layer.attention.wo_a.flatten(0, 1), stored[f"{prefix}attn.wo_a.weight"].float())
    assert not layer.attention.wq_a.quantized and not layer.moe.quantized
    rows = torch.tensor([[3, 0], [433, 7]])
    expected = stored[f"{prefix}engram.embed.weight"][rows.flatten()].float().view(2, -1)
    assert torch.equal(layer.engram.table.lookup(rows), expected)


@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_quantised_values_are_dequantised_exactly(compute: torch.dtype) -> None:
    folder = golden_checkpoints()["tiny-q"]
    stored = load_file(folder / "model.safetensors")

    def pair(name: str) -> tuple[Tensor, Tensor]:
        return stored[f"layers.1.{name}.weight"], stored[f"layers.1.{name}.scale"]

    layer = load(folder, compute).layers[1]
    width = layer.moe.w2.shape[2]
    assert layer.engram is not None
    assert layer.attention.wq_b.quantized and layer.moe.quantized and layer.engram.wkv.quantized
    wq_b = dequantize_fp8_blocks(*pair("attn.wq_b"), torch.float32)
    assert torch.equal(layer.attention.wq_b.weight.float(), wq_b)
    w3 = dequantize_fp4_rows(*pair("ffn.experts.3.w3"), torch.float32)
    assert torch.equal(layer.moe.w13[3, width:].float(), w3)
    rows = torch.tensor([[3, 0, 303]])
    codes, scale = pair("engram.embed")
    expected = dequantize_fp8_rows(codes, scale, torch.float32)[rows.flatten()]
    looked_up = layer.engram.table.lookup(rows)
    assert looked_up.dtype == compute
    assert torch.equal(looked_up.float(), expected.view(1, -1))


def test_progress_counts_every_loaded_byte() -> None:
    folder = golden_checkpoints()["tiny-q"]
    seen: list[tuple[int, int]] = []
    load_weights(folder, load_config(folder), torch.float32, progress=lambda *step: seen.append(step))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0


def test_drafts_and_vision_are_said_to_be_left_out(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    load(golden_checkpoints()["tiny-v"])
    assert "draft and vision tensors are present and not loaded" in caplog.text


def test_missing_surplus_shape_and_dtype_are_in_one_error(tmp_path: Path) -> None:
    def edit(tensors: dict[str, Tensor]) -> None:
        del tensors["layers.0.attn.wq_a.weight"]
        del tensors["norm.weight"]
        tensors["layers.99.attn.wq_a.weight"] = torch.zeros(2)
        tensors["embed.weight"] = tensors["embed.weight"][:-1].clone()
        tensors["head.weight"] = tensors["head.weight"].float()

    folder = edited("tiny-c", tmp_path / "c", edit)
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert sorted(caught.value.problems) == [
        "embed.weight: has shape [399, 96]; expected [400, 96]",
        "head.weight: has dtype F32; expected BF16",
        "layers.0.attn.wq_a.weight: missing; expected BF16 [64, 96]",
        "layers.99.attn.wq_a.weight: surplus; the config asks for no such tensor",
        "norm.weight: missing; expected BF16 [96]",
    ]


def test_draft_tensors_are_checked_too(tmp_path: Path) -> None:
    folder = edited("tiny-v", tmp_path / "v", lambda tensors: tensors.__delitem__("mtp.0.main_norm.weight"))
    with pytest.raises(CheckpointError, match=r"mtp\.0\.main_norm\.weight: missing"):
        load(folder)


def test_every_tensor_that_is_not_finite_is_named(tmp_path: Path) -> None:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors["embed.weight"][5, 3] = float("nan")
        tensors["layers.1.attn.attn_sink"][0] = float("inf")
        tensors["layers.2.engram.embed.weight"][100, 1] = float("-inf")
        tensors["layers.8.ffn.experts.7.w2.weight"][0, 0] = float("nan")

    folder = edited("tiny-c", tmp_path / "c", edit)
    with pytest.raises(CheckpointError) as caught:
        load(folder, torch.bfloat16)
    assert sorted(caught.value.problems) == [
        "embed.weight: holds NaN or infinity",
        "layers.1.attn.attn_sink: holds NaN or infinity",
        "layers.2.engram.embed.weight: holds NaN or infinity",
        "layers.8.ffn.experts.7.w2.weight: holds NaN or infinity",
    ]


def test_nan_codes_and_scales_of_the_quantised_form_are_named(tmp_path: Path) -> None:
    def edit(tensors: dict[str, Tensor]) -> None:
        tensors["layers.0.attn.wq_a.weight"].view(torch.uint8)[3, 3] = 0xFF
        tensors["layers.0.attn.wo_b.scale"].view(torch.uint8)[0, 1] = 0xFF
        tensors["layers.0.ffn.experts.2.w1.scale"].view(torch.uint8)[7, 0] = 0xFF
        tensors["layers.1.engram.embed.weight"].view(torch.uint8)[50, 0] = 0x7F
        tensors["layers.4.engram.embed.scale"].view(torch.uint8)[461, 0] = 0xFF

    folder = edited("tiny-q", tmp_path / "q", edit)
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert sorted(problem.split(":")[0] for problem in caught.value.problems) == [
        "layers.0.attn.wo_b.scale",
        "layers.0.attn.wq_a.weight",
        "layers.0.ffn.experts.2.w1.scale",
        "layers.1.engram.embed.weight",
        "layers.4.engram.embed.scale",
    ]


def test_truncated_checkpoint(tmp_path: Path) -> None:
    folder = edited("tiny-c", tmp_path / "c", lambda tensors: None)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=r"truncated\?"):
        load(folder)


def test_index_naming_a_missing_shard(tmp_path: Path) -> None:
    folder = golden_checkpoints()["tiny-c"]
    shutil.copytree(folder, tmp_path / "c", ignore=shutil.ignore_patterns("model.safetensors", "cases"))
    with pytest.raises(CheckpointError, match=r"model\.safetensors: missing; the index places 434 tensor"):
        load(tmp_path / "c")


def test_a_quantised_config_over_unquantised_tensors(tmp_path: Path) -> None:
    folder = edited("tiny-c", tmp_path / "c", lambda tensors: None)
    raw = json.loads((folder / "config.json").read_text())
    quantized = json.loads((golden_checkpoints()["tiny-q"] / "config.json").read_text())
    raw["quantization_config"] = quantized["quantization_config"]
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    assert "layers.0.attn.wq_a.weight: has dtype BF16; expected F8_E4M3" in caught.value.problems
    assert "layers.0.attn.wq_a.scale: missing; expected F8_E8M0 [2, 3]" in caught.value.problems
