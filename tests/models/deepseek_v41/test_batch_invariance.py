"""A row's logits are the same to the bit alone, in any batch and in any chunking, in both numeric modes.

The quantised mode is discontinuous: a difference in the last bit can flip a code, and then a token.
"""

import numpy as np
import pytest
import torch

from flashpoint.models.deepseek_v41.init import init_checkpoint
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.load import load_model
from flashpoint.verify.runner import Runner


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("presets") / "nano"
    init_checkpoint(preset="nano", out=folder, form="quantized")
    return folder


@pytest.fixture(params=[("exact", 1), ("quantized", 1), ("quantized", 2)], ids=str)
def loaded(request, checkpoint):
    mode, threads = request.param
    torch.set_num_threads(threads)
    yield load_model(checkpoint, Numerics(mode))
    torch.set_num_threads(1)


def prompts(loaded, lengths):
    rng = np.random.default_rng(0)
    return [rng.integers(3, loaded.config.text.vocab_size, n).astype(np.int32) for n in lengths]


def test_chunks_and_single_steps_equal_the_whole(loaded):
    ids = prompts(loaded, [150])[0]
    whole = Runner(loaded, [ids]).step({0: 150})
    for sizes in ([150 - 20, *[1] * 20], [1, 2, 3, 64, 80], [75, 75]):
        parts = torch.cat(Runner(loaded, [ids]).chunked(sizes))
        assert torch.equal(parts, whole), [i for i in range(150) if not torch.equal(parts[i], whole[i])][:5]


def test_every_number_of_companions_gives_the_same_bits(loaded):
    sequences = prompts(loaded, [33] * 12)
    alone = [Runner(loaded, [s]).chunked([30, 1, 1, 1])[-1][0] for s in sequences]
    for count in range(1, 13):
        runner = Runner(loaded, sequences[:count])
        runner.step(dict.fromkeys(range(count), 32))
        assert torch.equal(runner.step(dict.fromkeys(range(count), 1)), torch.stack(alone[:count])), count


def test_company_changes_no_bit(loaded):
    lengths = [150, 40, 97, 5, 201]
    sequences = prompts(loaded, lengths)
    alone = [Runner(loaded, [s]).step({0: len(s)}) for s in sequences]
    together = Runner(loaded, sequences)
    done = [0] * len(lengths)
    rng = np.random.default_rng(1)
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        step = {}
        for s in rng.permutation(len(lengths)).tolist():
            if done[s] < lengths[s]:
                step[s] = min(int(rng.choice([1, 1, 1, 7, 33])), lengths[s] - done[s])
        rows = together.step(step)
        start = 0
        for s, count in step.items():
            expected = alone[s][done[s] : done[s] + count]
            assert torch.equal(rows[start : start + count], expected), (s, done[s], count)
            start += count
            done[s] += count
