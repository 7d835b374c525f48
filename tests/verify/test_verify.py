"""Golden folders pass; a broken rule does not; unusable folders are named."""

import dataclasses
import json
import re
import shutil
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from rich.console import Console
from safetensors.torch import load_file, save_file

from flashpoint.cli import main
from flashpoint.errors import CheckpointError, InvalidValue
from flashpoint.models.deepseek_v41 import attention, engram, model, moe
from flashpoint.models.deepseek_v41 import compressor as compressor_module
from flashpoint.models.load import load_model
from flashpoint.ops.backends import TORCH
from flashpoint.ops.indexer import cpu as indexer_cpu
from flashpoint.ops.moe import cpu as moe_cpu
from flashpoint.ops.quantization import reference as quantization
from flashpoint.ops.quantization.codec import Codec
from flashpoint.verify import cases as verify_cases
from flashpoint.verify import run as verify_run
from flashpoint.verify.compare import exact_values
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
    images = verify_folder(golden_checkpoints()["tiny-v"]).not_covered
    assert any("images" in name for name in images)


def source_with_the_decoders_floor(decoder):
    hidden = decoder.batch.window_index < 0
    return dataclasses.replace(decoder, source_window=decoder.source_window.masked_fill(hidden, -1))


def decoder_at_relative_positions(decoder):
    moved = decoder.batch.positions - decoder.batch.positions[0]
    return dataclasses.replace(decoder, batch=dataclasses.replace(decoder.batch, positions=moved))


@pytest.mark.parametrize("broken", [source_with_the_decoders_floor, decoder_at_relative_positions])
def test_replay_is_compared_and_a_broken_view_of_the_decoder_rows_is_noticed(monkeypatch, broken):
    report = verify_folder(golden_checkpoints()["tiny-q"], case="replay_exact")
    assert report.ok and not report.not_covered
    assert {f.tensor for f in report.findings} == {
        f"R{rows}.{how}.logits" for rows in (16, 32) for how in ("whole", "chunked")
    }
    build = model.build_batch

    def build_broken(*args):
        batch = build(*args)
        trimmed = batch.decoder is not None and batch.decoder.batch is not None
        return dataclasses.replace(batch, decoder=broken(batch.decoder)) if trimmed else batch

    monkeypatch.setattr(model, "build_batch", build_broken)
    failing = verify_folder(golden_checkpoints()["tiny-q"], case="replay_exact")
    assert len(failing.failures) == len(failing.findings) == 4


def test_modes_and_cases_are_chosen():
    exact = verify_folder(golden_checkpoints()["tiny-c"], mode="exact", case="short_exact")
    assert {f.case for f in exact.findings} == {"short_exact"}
    with pytest.raises(InvalidValue, match="short_exact"):  # comparing nothing would look like a pass
        verify_folder(golden_checkpoints()["tiny-c"], mode="quantized", case="short_exact")
    with pytest.raises(InvalidValue, match="prefill_exact"):
        verify_folder(golden_checkpoints()["tiny-v"], mode="quantized")


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


def command(monkeypatch, capsys, *arguments):
    """`flashpoint verify` in this process: (exit code, stdout, stderr)."""
    monkeypatch.setattr(sys, "argv", ["flashpoint", "verify", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0, *capsys.readouterr()


def test_the_command_names_what_is_beyond_tolerance_and_exits_1(monkeypatch, capsys, tmp_path):
    folder = tmp_path / "golden"
    shutil.copytree(golden_checkpoints()["tiny-v"], folder)
    code, printed, _ = command(monkeypatch, capsys, folder)
    assert code == 0 and "within tolerance" in printed
    assert "not covered: prefill_exact: drafts, images" in printed

    path = folder / "cases" / "prefill_exact.safetensors"
    tensors = load_file(path)
    tensors["layers.3.attn_out"][2, 5] += 0.01
    save_file(tensors, path)
    code, printed, _ = command(monkeypatch, capsys, folder)
    assert code == 1
    assert re.findall(r"beyond tolerance: (.*?) \|Δ\|", printed) == ["prefill_exact layers.3.attn_out"]
    code, printed, _ = command(monkeypatch, capsys, folder, "--json")
    facts = json.loads(printed)
    assert (code, facts["ok"]) == (1, False)
    assert [f["tensor"] for f in facts["findings"] if not f["ok"]] == ["layers.3.attn_out"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere: 1 problem(s)\n  no such folder"),
        (["tiny-c", "--case", "none"], "case: got 'none'; expected one of batch_exact, "),
        (["tiny-c", "--mode", "fast"], "mode: got 'fast'; expected exact or quantized"),
    ],
)
def test_the_command_exits_2_for_what_it_cannot_use(monkeypatch, capsys, arguments, words):
    name, *options = arguments
    code, printed, message = command(monkeypatch, capsys, golden_checkpoints().get(name, name), *options)
    assert (code, printed) == (2, "")
    assert words in message


def failing(name, case, monkeypatch, **broken_ops):
    """Verify one case with some ops replaced: the kinds of tensors found wrong."""

    def load(folder, numerics):
        return load_model(folder, numerics, ops=dataclasses.replace(TORCH, **broken_ops))

    monkeypatch.setattr(verify_run, "load_model", load)
    # Chunked runs repeat what the whole one shows, and take ten times as long.
    monkeypatch.setattr(verify_cases, "_chunkings", lambda rows: {"whole": [rows]})
    report = verify_folder(golden_checkpoints()[name], case=case)
    console = Console(record=True, width=180)
    render(report, console)
    if report.failures:
        assert "beyond tolerance" in console.export_text()
    return {f.kind for f in report.failures}


@pytest.mark.parametrize(
    ("name", "case"), [("tiny-c", "prefill_exact"), ("tiny-q", "prefill_qdq"), ("tiny-q", "prefill_bf16")]
)
def test_nothing_fails_where_nothing_is_broken(monkeypatch, name, case):
    """The control of every test below: what fails there is due to the broken rule."""
    assert failing(name, case, monkeypatch) == set()


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


def mix_with_released_looking_eps(*args):
    return TORCH.mix(*args[:-1], 1e-6)


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
        {"mix": mix_with_released_looking_eps},
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
        {"sliding_window": 17},
        {"sliding_window": 15},
        {"index_topk": 17},
    ],
    ids=lambda changes: "-".join(map(str, *changes.items())),
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


def test_pure_window_layers_with_the_compressed_rotation_are_noticed(monkeypatch):
    of = attention.AttentionContext.of

    def same_for_all(*args):
        context = of(*args)
        return dataclasses.replace(context, window_frequencies=context.compressed_frequencies)

    monkeypatch.setattr(attention.AttentionContext, "of", same_for_all)
    assert failing("tiny-c", "prefill_exact", monkeypatch)


def test_newest_block_not_pinned_is_noticed(monkeypatch):
    def unpinned(scores, visible, block_size, count):
        blocks = -(-scores.shape[1] // block_size)
        padded = F.pad(scores, (0, blocks * block_size - scores.shape[1]), value=float("-inf"))
        return indexer_cpu.top_positions(padded.unflatten(-1, (blocks, block_size)).amax(-1), count)

    monkeypatch.setattr(indexer_cpu, "candidate_blocks", unpinned)
    assert "candidates" in failing("tiny-c", "prefill_exact", monkeypatch)


def test_a_reused_selection_is_noticed(monkeypatch):
    select = attention.select

    def reuse(context, layer, *args):
        own, previous = select(context, layer, *args), args[-2]
        return own if layer in context.config.kv_source_layer_ids else previous

    monkeypatch.setattr(attention, "select", reuse)
    assert failing("tiny-c", "prefill_exact", monkeypatch)


def biased_weights(x, gate, bias, top_k, scale):
    ids, weights = ROUTE(x, gate, bias, top_k, scale)
    weights = weights + bias[ids]
    return ids, weights / weights.sum(-1, keepdim=True) * scale


def weights_of_any_sum(x, gate, bias, top_k, scale):
    ids, _ = ROUTE(x, gate, bias, top_k, scale)
    return ids, F.softplus(F.linear(x.float(), gate)).sqrt().gather(1, ids) * scale


ROUTE = moe.route


@pytest.mark.parametrize("route", [biased_weights, weights_of_any_sum])
def test_router_rules_are_noticed(monkeypatch, route):
    monkeypatch.setattr(moe, "route", route)
    kinds = failing("tiny-c", "prefill_exact", monkeypatch)
    assert {"moe_weights", "out"} <= kinds


def test_gate_clamped_from_below_is_noticed(monkeypatch):
    swiglu = moe.swiglu

    def both_sides(gate_up, limit, weight=None):
        gate, up = gate_up.chunk(2, dim=-1)
        return swiglu(torch.cat((gate.clamp(min=-limit), up), dim=-1), limit, weight)

    for module in (moe, moe_cpu):
        monkeypatch.setattr(module, "swiglu", both_sides)
    assert "out" in failing("tiny-c", "prefill_exact", monkeypatch)


def test_pre_of_the_same_sublayer_is_noticed(monkeypatch):
    delayed = model.DeepseekV41._finish_layer

    def finish(self, index, layer, stream, *rest):
        stream, pre = delayed(self, index, layer, stream, *rest)
        following = self.weights.layers[index + 1 : index + 2]
        return stream, self._mix(following[0].hc_attn, stream)[0] if following else pre

    monkeypatch.setattr(model.DeepseekV41, "_finish_layer", finish)
    assert failing("tiny-c", "prefill_exact", monkeypatch)


def test_engram_left_out_is_noticed(monkeypatch):
    monkeypatch.setattr(model, "engram", lambda context, weights, stream, rows: stream)
    assert failing("tiny-c", "prefill_exact", monkeypatch)


@pytest.mark.parametrize("changes", [{"pad": 3}, {"token_map": np.arange(400)}], ids=["pad", "raw ids"])
def test_other_hash_inputs_are_noticed(monkeypatch, changes):
    build = engram.EngramRows.__init__
    monkeypatch.setattr(
        engram.EngramRows,
        "__init__",
        lambda self, constants, device: build(self, dataclasses.replace(constants, **changes), device),
    )
    assert {"engram_hash_ids", "out"} <= failing("tiny-c", "prefill_exact", monkeypatch)


def codecs(**broken):
    """The codecs with some replaced by a plain float cache of what the given function makes of the values."""

    def codec(quantise):
        return Codec(
            encode=lambda x: quantise(x).float().contiguous().view(torch.uint8),
            decode=lambda rows, index: rows[index].contiguous().view(torch.float32),
        )

    return dataclasses.replace(TORCH.codecs, **{name: codec(f) for name, f in broken.items()})


BOTH_QUANTIZED = pytest.mark.parametrize("case", ["prefill_qdq", "prefill_bf16"])


@BOTH_QUANTIZED
def test_window_left_unquantised_is_noticed(monkeypatch, case):
    kinds = failing("tiny-q", case, monkeypatch, codecs=codecs(window=unchanged))
    assert {"window_kv", "attn_out"} <= kinds and "ffn_out" not in kinds


@BOTH_QUANTIZED
def test_rope_tail_left_unquantised_is_noticed(monkeypatch, case):
    def tail_left_alone(x):
        # The last 16 of tiny-q's 32 dimensions are rotated.
        return torch.cat((TORCH.fp8_qdq(x)[..., :16], x[..., 16:]), dim=-1)

    kinds = failing("tiny-q", case, monkeypatch, codecs=codecs(window=tail_left_alone))
    assert {"window_kv", "attn_out"} <= kinds and "ffn_out" not in kinds


@BOTH_QUANTIZED
def test_activations_left_unquantised_are_noticed(monkeypatch, case):
    assert {"attn_out", "ffn_out"} <= failing("tiny-q", case, monkeypatch, fp8_qdq=unchanged)


@BOTH_QUANTIZED
def test_routing_weight_after_the_second_product_is_noticed(monkeypatch, case):
    def weigh_last(x, ids, weights, *rest):
        return sum(
            weights[:, [k]] * TORCH.experts(x, ids[:, [k]], torch.ones_like(weights[:, [k]]), *rest)
            for k in range(ids.shape[1])
        )

    assert failing("tiny-q", case, monkeypatch, experts=weigh_last) == {"ffn_out"}


def test_probabilities_of_another_precision_are_noticed(monkeypatch):
    def unrounded(q, window, window_index, entries, *rest):
        return TORCH.sparse_attention(q.float(), window.float(), window_index, entries, *rest).to(q.dtype)

    assert failing("tiny-q", "prefill_bf16", monkeypatch, sparse_attention=unrounded) == {"attn_out"}


def unchanged(x):
    return x


@BOTH_QUANTIZED
@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        ({"entry": unchanged}, "compress_kv"),
        ({"entry": quantization.index_qdq}, "compress_kv"),  # UE8M0 per 32 instead of E4M3 per 16
        ({"index": unchanged}, "index_k"),
    ],
    ids=["entries unquantised", "entries as index keys", "index keys unquantised"],
)
def test_a_broken_codec_is_noticed(monkeypatch, case, broken, kind):
    assert kind in failing("tiny-q", case, monkeypatch, codecs=codecs(**broken))


@pytest.mark.parametrize("case", ["prefill_qdq", "prefill_bf16"])
def test_quantised_runs_judge_what_lies_between_the_sublayers(monkeypatch, case):
    assert "out" in failing("tiny-q", case, monkeypatch, mix=mix_transposed)
    monkeypatch.setattr(model, "engram", lambda context, weights, stream, rows: stream)
    assert "engram_out" in failing("tiny-q", case, monkeypatch)


def test_a_damaged_reference_is_no_pass():
    nan = torch.full((3, 4), float("nan"))
    assert not exact_values("case", "logits", torch.zeros(3, 4), nan).ok
    assert not exact_values("case", "logits", nan, torch.zeros(3, 4)).ok
