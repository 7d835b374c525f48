"""Golden folders pass; a broken rule does not; unusable folders are named."""

import dataclasses
import json
import shutil

import pytest
import torch
from rich.console import Console

from flashpoint.errors import CheckpointError, InvalidValue
from flashpoint.models.deepseek_v41 import attention, model, moe
from flashpoint.models.deepseek_v41 import compressor as compressor_module
from flashpoint.models.load import load_model
from flashpoint.ops.backends import TORCH
from flashpoint.ops.quantization import reference as quantization
from flashpoint.verify import run as verify_run
from flashpoint.verify.run import render, verify_folder
from tests.golden_data import golden_checkpoints

torch.set_num_threads(1)


@pytest.mark.parametrize("name", sorted(golden_checkpoints()))
def test_golden_folders_pass(name):
    report = verify_folder(golden_checkpoints()[name])
    assert report.findings
    assert report.ok, report.failures
    json.dumps(report.as_json())


def test_parts_that_are_not_built_are_named():
    report = verify_folder(golden_checkpoints()["tiny-q"], case="replay_exact")
    assert not report.findings
    assert list(report.not_covered) == ["replay_exact"]
    images = verify_folder(golden_checkpoints()["tiny-v"]).not_covered
    assert any("images" in name for name in images)


def test_modes_and_cases_are_chosen():
    exact = verify_folder(golden_checkpoints()["tiny-c"], mode="exact", case="short_exact")
    assert {f.case for f in exact.findings} == {"short_exact"}
    assert not verify_folder(golden_checkpoints()["tiny-c"], mode="quantized", case="short_exact").findings


@pytest.mark.parametrize(("arguments", "field"), [({"mode": "fast"}, "mode"), ({"case": "none"}, "case")])
def test_unknown_choices_name_themselves(arguments, field):
    with pytest.raises(InvalidValue) as caught:
        verify_folder(golden_checkpoints()["tiny-c"], **arguments)
    assert caught.value.field == field


def test_unusable_folders(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder"):
        verify_folder(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="cases"):
        verify_folder(tmp_path)
    broken = tmp_path / "broken"
    shutil.copytree(golden_checkpoints()["tiny-v"], broken)
    case = broken / "cases" / "prefill_exact.safetensors"
    case.write_bytes(case.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="prefill_exact"):
        verify_folder(broken)


def failing(name, case, monkeypatch, **broken_ops):
    """Verify one case with some ops replaced: the kinds of tensors found wrong."""

    def load(folder, numerics):
        return load_model(folder, numerics, ops=dataclasses.replace(TORCH, **broken_ops))

    monkeypatch.setattr(verify_run, "load_model", load)
    report = verify_folder(golden_checkpoints()[name], case=case)
    console = Console(record=True, width=180)
    render(report, console)
    if report.failures:
        assert "beyond tolerance" in console.export_text()
    return {f.kind for f in report.failures}


def with_config(monkeypatch, **changes):
    """Let the forward pass see another config than the checkpoint's."""
    build = model.DeepseekV41.__init__

    def init(self, config, *rest):
        build(self, config.model_copy(update=changes), *rest)

    monkeypatch.setattr(model.DeepseekV41, "__init__", init)


def attention_without_sink(q, window, window_index, entries, entry_index, sink, scale):
    return TORCH.sparse_attention(
        q, window, window_index, entries, entry_index, torch.full_like(sink, -1e9), scale
    )


def attention_with_short_window(q, window, window_index, *rest):
    return TORCH.sparse_attention(q, window, window_index[:, 1:], *rest)


def selection_of_one_more(*args, **kwargs):
    return TORCH.select_entries(*args[:6], args[6] + 1, *args[7:], **kwargs)


def selection_without_candidates(*args, candidates=None, **kwargs):
    return TORCH.select_entries(*args, **kwargs)


def selection_one_token_late(*args, **kwargs):
    return TORCH.select_entries(*args[:5], (args[5] - 1).clamp(min=0), *args[6:], **kwargs)


def mix_transposed(*args):
    pre, post, comb = TORCH.mix(*args)
    return pre, post, comb.transpose(1, 2)


def mix_with_half_post(*args):
    pre, post, comb = TORCH.mix(*args)
    return pre, post / 2, comb


def mix_three_rounds(stream, fn, base, scale, iterations, *rest):
    return TORCH.mix(stream, fn, base, scale, 3, *rest)


def experts_without_clamp(x, ids, weights, w13, w2, limit, quantise):
    return TORCH.experts(x, ids, weights, w13, w2, 1e9, quantise)


@pytest.mark.parametrize(
    "broken",
    [
        {"sparse_attention": attention_without_sink},
        {"sparse_attention": attention_with_short_window},
        {"select_entries": selection_of_one_more},
        {"select_entries": selection_without_candidates},
        {"select_entries": selection_one_token_late},
        {"mix": mix_transposed},
        {"mix": mix_with_half_post},
        {"mix": mix_three_rounds},
        {"experts": experts_without_clamp},
    ],
    ids=lambda broken: next(iter(broken.values())).__name__,
)
def test_a_broken_op_is_noticed(monkeypatch, broken):
    assert failing("tiny-c", "prefill_exact", monkeypatch, **broken)


@pytest.mark.parametrize(
    "changes",
    [
        {"routed_scaling_factor": 1.0},
        {"swiglu_limit": 1e9},
        {"compress_rope_theta": 10000.0},
        {"rope_theta": 160000.0},
        {"rms_norm_eps": 1e-6},
        {"candidate_topk_blocks": 4},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_wrong_number_is_noticed(monkeypatch, changes):
    with_config(monkeypatch, **changes)
    assert failing("tiny-c", "prefill_exact", monkeypatch)


def test_yarn_left_out_is_noticed(monkeypatch):
    monkeypatch.setattr(
        attention, "yarn_frequencies", lambda dim, base, *_: attention.plain_frequencies(dim, base)
    )
    assert failing("tiny-c", "prefill_exact", monkeypatch)


def test_output_left_rotated_is_noticed(monkeypatch):
    rotate = attention.rotate
    monkeypatch.setattr(attention, "rotate", lambda x, rope, inverse=False: x if inverse else rotate(x, rope))
    assert failing("tiny-c", "prefill_exact", monkeypatch)


def test_index_keys_after_rotation_are_noticed(monkeypatch):
    norm = compressor_module.rms_norm
    rotate = compressor_module.rotate

    def rotated(x, weight, eps):
        out = norm(x, weight, eps)
        if out.shape[-1] == 64 and len(out) == 60:  # the latent of a ratio-2 source of 120 tokens
            rope = compressor_module.rope_table(torch.arange(60) * 2, torch.ones(16))
            return rotate(out, rope)
        return out

    monkeypatch.setattr(compressor_module, "rms_norm", rotated)
    assert failing("tiny-c", "prefill_exact", monkeypatch)


def test_router_rules_are_noticed(monkeypatch):
    route = moe.route

    def biased_weights(x, gate, bias, top_k, scale):
        ids, weights = route(x, gate, bias, top_k, scale)
        weights = weights + bias[ids]
        return ids, weights / weights.sum(-1, keepdim=True) * scale

    monkeypatch.setattr(moe, "route", biased_weights)
    assert "moe_weights" in failing("tiny-c", "prefill_exact", monkeypatch)


def test_pre_of_the_same_sublayer_is_noticed(monkeypatch):
    undelayed = model.DeepseekV41._layer

    def layer(self, index, weights, stream, pre, *rest):
        own, _, _ = self._mix(weights.hc_attn, stream)
        return undelayed(self, index, weights, stream, own, *rest)

    monkeypatch.setattr(model.DeepseekV41, "_layer", layer)
    assert failing("tiny-c", "prefill_exact", monkeypatch)


def test_engram_left_out_is_noticed(monkeypatch):
    monkeypatch.setattr(model, "engram", lambda context, weights, stream, rows: stream)
    assert failing("tiny-c", "prefill_exact", monkeypatch)


def rope_tail_left_alone(x):
    out = TORCH.fp8_qdq(x)
    if x.shape[-1] == 32 and x.ndim == 2:  # window latents of tiny-q: the last 16 of 32 are rotated
        out = torch.cat((out[..., :16], x[..., 16:]), dim=-1)
    return out


def entries_as_index_keys(x):
    return quantization.index_qdq(x)


def unchanged(x):
    return x


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        ({"fp8_qdq": unchanged}, "attn_out"),
        ({"fp8_qdq": rope_tail_left_alone}, "window_kv"),
        ({"entry_qdq": unchanged}, "compress_kv"),
        ({"entry_qdq": entries_as_index_keys}, "compress_kv"),
        ({"index_qdq": unchanged}, "index_k"),
    ],
)
@pytest.mark.parametrize("case", ["prefill_qdq", "prefill_bf16"])
def test_a_broken_codec_is_noticed(monkeypatch, case, broken, kind):
    assert kind in failing("tiny-q", case, monkeypatch, **broken)
