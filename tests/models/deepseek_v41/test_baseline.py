"""The plain model of the benchmarks computes what the engine computes: two statements of one forward pass."""

import numpy as np
import torch

from benchmarks.baseline import PlainModel
from flashpoint.engine.plan import Chunk
from flashpoint.models.deepseek_v41.engram_hash import build_engram_hash
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.load import load_model
from tests.golden_data import golden_checkpoints


def test_plain_and_ragged_logits_agree_over_prefill_and_decode():
    torch.set_num_threads(1)
    folder, numerics = golden_checkpoints()["tiny-c"], Numerics("exact")
    loaded = load_model(folder, numerics)
    constants = build_engram_hash(loaded.config, folder / "tokenizer.json")
    plain = PlainModel(loaded.config.text, loaded.model.weights, constants, numerics)
    ids = np.random.default_rng(3).integers(3, loaded.config.text.vocab_size, 90).astype(np.int32)
    expected = torch.cat([plain.forward(ids[:81].tolist()), *(plain.forward([int(t)]) for t in ids[81:])])
    caches = loaded.model.allocate_caches(6, 16, 1)
    batch = loaded.model.build_batch([Chunk("x", 0, 0, ids, np.arange(6), len(ids), None)], 16)
    got = loaded.model.forward(batch, caches, torch.arange(len(ids)))
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)
