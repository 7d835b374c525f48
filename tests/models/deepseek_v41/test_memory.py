"""What the memory planner is told of the model, against what the model takes."""

import dataclasses

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from flashpoint.engine.plan import Chunk
from flashpoint.models.deepseek_v41.init import init_checkpoint
from flashpoint.models.deepseek_v41.memory import weight_bytes
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.deepseek_v41.workspace import workspace_bytes
from flashpoint.models.load import load_model
from tests.golden_data import golden_checkpoints

BLOCK = 64


def tensor_bytes(value, seen):
    """Bytes of all tensors in nested dataclasses and tuples, each storage once."""
    if isinstance(value, torch.Tensor):
        key = value.untyped_storage().data_ptr()
        return 0 if key in seen or seen.add(key) else value.untyped_storage().nbytes()
    if dataclasses.is_dataclass(value):
        return sum(tensor_bytes(getattr(value, f.name), seen) for f in dataclasses.fields(value))
    if isinstance(value, (tuple, list)):
        return sum(tensor_bytes(item, seen) for item in value)
    return 0


@pytest.mark.parametrize("name", sorted(golden_checkpoints()))
@pytest.mark.parametrize("numerics", [Numerics("exact"), Numerics("quantized", "bfloat16")])
def test_weights_take_what_is_foretold(name, numerics):
    loaded = load_model(golden_checkpoints()[name], numerics)
    foretold, mapped = weight_bytes(loaded.config, numerics)
    assert foretold == tensor_bytes(loaded.model.weights, set())
    assert (mapped > 0) == bool(loaded.config.text.engram_layer_ids)


@pytest.fixture(scope="module")
def nano(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nano") / "nano"
    init_checkpoint("nano", folder)
    return folder


@pytest.mark.parametrize("mode", ["exact", "quantized"])
@pytest.mark.parametrize(
    ("rows", "sequences", "context"), [(1024, 1, 2000), (8, 8, 1500), (600, 4, 900)], ids=str
)
def test_a_step_stays_within_its_workspace(nano, mode, rows, sequences, context):
    loaded = load_model(nano, Numerics(mode))
    model, text, each = loaded.model, loaded.config.text, rows // sequences
    per_sequence = -(-context // BLOCK)
    caches = model.allocate_caches(per_sequence * sequences, BLOCK, sequences)
    ids = np.random.default_rng(0).integers(3, text.vocab_size, (sequences, context)).astype(np.int32)
    tables = np.arange(per_sequence * sequences, dtype=np.int32).reshape(sequences, -1)

    def step(start, count):
        end = start + count
        chunks = [
            Chunk(str(s), s, start, ids[s][:end], tables[s][: -(-end // BLOCK)], context, None)
            for s in range(sequences)
        ]
        batch = model.build_batch(chunks, BLOCK)
        model.forward(batch, caches, batch.last_rows)

    for start in range(0, context - each, 256):
        step(start, min(256, context - each - start))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step(context - each, each)
    now = peak = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    bound = workspace_bytes(text, rows, sequences, context)
    # The bound is generous, and has tiles of fixed size that a small step does not fill.
    assert peak <= bound <= 10 * peak + 64 * 2**20
