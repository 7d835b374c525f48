"""Hand-made transfers of real caches: blocks that went out and came back elsewhere give the same logits."""

import numpy as np
import pytest
import torch

from flashpoint.cache.chain_hash import KEY_BYTES
from flashpoint.cache.config import TierConfig
from flashpoint.cache.transfer import Fetch, Load, Run, Save, Store
from flashpoint.engine.config import EngineConfig
from flashpoint.engine.plan import Chunk, StepPlan
from flashpoint.engine.sampling import MAX_LOGPROBS, SamplingParams
from flashpoint.executor.torch_executor import TorchExecutor
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.load import load_model
from tests.golden_data import golden_checkpoints

BLOCK, BLOCKS = 8, 12
PROMPT = 5 * BLOCK + 3
FULL = np.arange(PROMPT // BLOCK, dtype=np.int32)  # the prompt's finished blocks; its last one is part filled
TAIL = 5
SETTINGS = EngineConfig(
    max_step_tokens=64, max_running=1, block_tokens=BLOCK, cache_tokens=BLOCKS * BLOCK, semantics="full"
)
CHOICE = SamplingParams(temperature=0, logprobs=MAX_LOGPROBS)


class Sequence:
    """One sequence in slot 0 of an executor; its blocks are given with each step."""

    def __init__(self, name, mode, folder):
        model = load_model(golden_checkpoints()[name], Numerics(mode))
        size = model.cache_spec.block_bytes(BLOCK)
        tiers = TierConfig(host_memory=20 * size, disk_folder=folder, disk_space=20 * size)
        self.executor = TorchExecutor(model, SETTINGS, tiers)
        rng = np.random.default_rng(11)
        self.ids = rng.integers(3, model.config.text.vocab_size, PROMPT + 1).astype(np.int32)
        self.steps = 0

    def compute(self, start, end, blocks):
        """What the step sampled after position end - 1, log-probabilities included."""
        history = self.ids[:end]
        chunk = Chunk("r", 0, start, history, np.array(blocks, dtype=np.int32), PROMPT, CHOICE)
        self.steps += 1
        (sampled,) = self.executor.execute(StepPlan(self.steps, (chunk,))).sampled
        return sampled

    def move(self, transfer):
        """Carry out one transfer in steps that compute nothing."""
        landed, transfers = (), (transfer,)
        for _ in range(100):
            self.steps += 1
            landed = self.executor.execute(StepPlan(self.steps, (), transfers)).landed
            if landed:
                break
            transfers = ()
        assert [(item.transfer_id, item.error) for item in landed] == [(transfer.transfer_id, None)]

    def poison(self, blocks):
        """Overwrite device blocks with bytes that are NaN in every format."""
        with torch.inference_mode():
            for view in self.executor._caches.block_views(BLOCKS):
                view[torch.from_numpy(blocks.astype(np.int64))] = 0xFF


@pytest.mark.parametrize("name, mode", [("tiny-c", "exact"), ("tiny-q", "quantized")])
def test_blocks_out_to_disk_and_back_elsewhere_give_the_same_logits(name, mode, tmp_path):
    stayed, moved = (Sequence(name, mode, tmp_path / where) for where in ("stayed", "moved"))
    table = [*FULL, TAIL]
    assert stayed.compute(0, PROMPT, table) == moved.compute(0, PROMPT, table)
    expected = stayed.compute(PROMPT, PROMPT + 1, table)
    assert expected.error is None and len(expected.logprobs[0].top) == MAX_LOGPROBS

    host = np.array([7, 3, 15, 0, 9], dtype=np.int32)
    other_host = np.array([2, 19, 4, 11, 1], dtype=np.int32)
    back = np.array([10, 6, 11, 8, 7], dtype=np.int32)
    run = Run(bytes([1]) * KEY_BYTES, bytes(KEY_BYTES), b"", moved.ids[: len(FULL) * BLOCK])
    moved.move(Save(1, FULL, host))
    moved.poison(FULL)
    moved.poison(back)
    moved.move(Store(2, host, run))
    moved.move(Fetch(3, run.key, 0, other_host))
    assert moved.compute(PROMPT, PROMPT + 1, [*back, TAIL]).error, (
        "the poison is not read: this proves nothing"
    )
    moved.move(Load(4, other_host, back))
    assert moved.compute(PROMPT, PROMPT + 1, [*back, TAIL]) == expected
    stayed.executor.close()
    moved.executor.close()

    again = Sequence(name, mode, tmp_path / "moved")
    (found,) = again.executor.stored
    assert (found.key, found.content.tolist()) == (run.key, run.content.tolist())
    again.executor.close()
