"""Faults others shipped: right on tame weights and short prompts, wrong on real statistics or at 2^k ± 1."""

from functools import cache

import numpy as np
import pytest
import torch

from flashpoint.models.deepseek_v41.init import init_checkpoint
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.load import load_model
from flashpoint.ops.backends import REFERENCE, TORCH, ops_for
from flashpoint.verify.compare import row_errors
from flashpoint.verify.runner import Recorder, Runner

MODES = [Numerics("exact"), Numerics("quantized")]
OUTPUTS = (".attn_out", ".ffn_out", ".window_kv", ".compress_kv", ".index_k")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("presets")
    for outliers in (False, True):
        for form in ("bf16", "quantized"):
            init_checkpoint(preset="nano", out=folder / f"{form}-{outliers}", form=form, outliers=outliers)

    @cache
    def load(name, numerics, ops):
        return load_model(folder / name, numerics, ops=ops)

    return load


def prompt(loaded, length, seed=0):
    return np.random.default_rng(seed).integers(3, loaded.config.text.vocab_size, length).astype(np.int32)


@pytest.mark.parametrize("numerics", MODES, ids=lambda n: n.mode)
@pytest.mark.parametrize("form", ["bf16", "quantized"])
@pytest.mark.parametrize("ops", [TORCH, ops_for("cpu")], ids=["torch", "native"])
def test_each_sublayer_equals_the_reference_ops_on_outlier_weights(checkpoints, form, numerics, ops):
    plain = checkpoints(f"{form}-True", numerics, REFERENCE)
    ids = prompt(plain, 259)
    recorded = Recorder()
    Runner(plain, [ids]).step({0: len(ids)}, recorded)
    expected = recorded.tensors()
    # Every sublayer gets the reference's input, so that one flipped selection does not colour the rest.
    forced = {n: t for n, t in expected.items() if n.endswith((".attn_in", ".ffn_in"))}
    tap = Recorder(forced)
    Runner(checkpoints(f"{form}-True", numerics, ops), [ids]).chunked([130, 1, 1, 64, 63], tap)
    got = tap.tensors()
    for name in (n for n in expected if n.endswith(OUTPUTS)):
        assert torch.isfinite(got[name]).all(), name
        errors = row_errors(got[name], expected[name])
        # Which of two nearly equal scores wins may differ for a few rows.
        assert float(errors.quantile(0.95)) < 1e-4, (name, errors)


@pytest.mark.parametrize("outliers", [False, True])
def test_outlier_weights_are_outliers(checkpoints, outliers):
    loaded = checkpoints(f"bf16-{outliers}", MODES[0], TORCH)
    norms = torch.stack([layer.attn_norm.abs() for layer in loaded.model.weights.layers])
    assert bool(norms.max() > 20 * norms.median()) is outliers


@pytest.mark.parametrize("length", [n + d for n in (16, 32, 64, 128, 256, 512, 1024) for d in (-1, 0, 1)])
def test_logits_at_powers_of_two_and_their_neighbours(checkpoints, length):
    plain, fast = (checkpoints("bf16-False", MODES[0], ops) for ops in (REFERENCE, ops_for("cpu")))
    ids = prompt(plain, length + 1, seed=length)
    expected = _quiet_rows(plain, ids)
    runner = Runner(fast, [ids])
    got = torch.cat([runner.step({0: length})[-1:], runner.step({0: 1})])
    torch.testing.assert_close(got, expected, atol=2e-4, rtol=0)


def _quiet_rows(loaded, ids):
    """The last two rows' logits, computed at once."""
    return Runner(loaded, [ids]).step({0: len(ids)})[-2:]


def test_a_session_turn_by_turn_equals_its_last_turn_alone(checkpoints):
    loaded = checkpoints("bf16-False", MODES[0], ops_for("cpu"))
    turns = [prompt(loaded, n, seed=n) for n in (40, 23, 57)]
    session = Runner(loaded, [turns[0]], room=200)
    for turn in turns[1:]:
        session.greedy(7)
        session.ids[0] = np.concatenate((session.ids[0], turn))
    ids, _ = session.greedy(7)
    history = session.ids[0][:-7]
    alone, _ = Runner(loaded, [history], room=8).greedy(7)
    assert torch.equal(ids, alone)
