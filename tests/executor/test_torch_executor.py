"""The engine with a real model under it: golden tokens, preemption, batches, bad numbers."""

from functools import cache

import numpy as np
import pytest
import torch

from flashpoint.engine.clock import WallClock
from flashpoint.engine.config import EngineConfig
from flashpoint.engine.core import EngineCore
from flashpoint.engine.events import FinishReason
from flashpoint.engine.request import Request
from flashpoint.engine.sampling import SamplingParams
from flashpoint.engine.scheduler import Scheduler
from flashpoint.errors import InvalidValue
from flashpoint.executor.torch_executor import TorchExecutor
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.load import load_model
from tests.golden_data import golden_checkpoints, load_case


@cache
def loaded(name="tiny-c", mode="exact"):
    torch.set_num_threads(1)
    return load_model(golden_checkpoints()[name], Numerics(mode))


def engine(config, name="tiny-c", mode="exact"):
    executor = TorchExecutor(loaded(name, mode), config)
    return EngineCore(Scheduler(config, executor.capacity), executor, WallClock())


def generate(core, prompts, params):
    """Tokens of each prompt, all submitted at once."""
    for index, (prompt, sampling) in enumerate(zip(prompts, params, strict=True)):
        core.submit(Request(str(index), np.asarray(prompt, dtype=np.int32), sampling))
    tokens = {str(i): [] for i in range(len(prompts))}
    finish = {}
    while core.has_work:
        for event in core.step():
            tokens[event.request_id] += event.tokens
            if event.finish is not None:
                finish[event.request_id] = event
    return [tokens[str(i)] for i in range(len(prompts))], [finish[str(i)] for i in range(len(prompts))]


ROOMY = EngineConfig(max_step_tokens=64, max_running=8, block_tokens=8, cache_tokens=2048, semantics="full")
TIGHT = EngineConfig(max_step_tokens=24, max_running=8, block_tokens=8, cache_tokens=96, semantics="full")


@pytest.mark.parametrize("name", ["tiny-c", "tiny-q"])
@pytest.mark.parametrize("config", [ROOMY, TIGHT])
def test_greedy_tokens_of_the_reference(name, config):
    case, _ = load_case(golden_checkpoints()[name], "greedy_exact")
    prompts = [case[f"{n}.prompt_ids"].tolist() for n in ("short", "long")]
    expected = [case[f"{n}.gen_ids"].tolist() for n in ("short", "long")]
    params = [SamplingParams(temperature=0, max_tokens=len(e)) for e in expected]
    got, finish = generate(engine(config, name), prompts, params)
    assert got == expected
    assert [f.finish for f in finish] == [FinishReason.LENGTH] * 2


def prompts_and_params(count):
    rng = np.random.default_rng(7)
    prompts = [rng.integers(3, 400, int(n)).tolist() for n in rng.integers(1, 40, count)]
    params = [
        SamplingParams(temperature=0.8, top_p=0.95, seed=int(s), max_tokens=20)
        for s in rng.integers(0, 99, count)
    ]
    return prompts, params


def test_preemption_and_company_change_no_token():
    prompts, params = prompts_and_params(6)
    alone = [generate(engine(ROOMY), [p], [s])[0][0] for p, s in zip(prompts, params, strict=True)]
    core = engine(TIGHT)
    together, _ = generate(core, prompts, params)
    assert core.stats().preemptions > 0
    assert together == alone
    stats = core.stats()
    assert (stats.free_blocks, stats.free_slots) == (stats.total_blocks, stats.total_slots)


def test_a_request_with_bad_numbers_harms_no_other(monkeypatch):
    core = engine(ROOMY)
    prompts, params = prompts_and_params(3)
    expected, _ = generate(engine(ROOMY), [prompts[0]], [params[0]])
    model = loaded().model
    forward = type(model).forward

    def poisoned(self, batch, caches, logit_rows, *rest):
        logits = forward(self, batch, caches, logit_rows, *rest).clone()
        logits[1:2] = float("nan")
        return logits

    monkeypatch.setattr(type(model), "forward", poisoned)
    got, finish = generate(core, prompts, params)
    monkeypatch.undo()
    assert FinishReason.ERROR in {f.finish for f in finish}
    assert got[0] == expected[0]
    stats = core.stats()
    assert stats.free_blocks == stats.total_blocks


def test_quantized_mode_generates():
    prompts, params = prompts_and_params(2)
    got, _ = generate(engine(ROOMY, "tiny-q", "quantized"), prompts, params)
    assert [len(t) for t in got] == [20, 20]


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("block_tokens", EngineConfig(block_tokens=7, cache_tokens=700)),
        ("max_context", EngineConfig(max_context=10_000)),
    ],
)
def test_configurations_the_model_cannot_take(field, config):
    with pytest.raises(InvalidValue) as caught:
        TorchExecutor(loaded(), config)
    assert caught.value.field == field


def test_image_placeholders_are_refused_and_never_written():
    core = engine(ROOMY, "tiny-v")
    image = loaded("tiny-v").config.image_token_id
    with pytest.raises(InvalidValue, match="image"):
        core.submit(Request("x", np.array([5, image], dtype=np.int32), SamplingParams()))
    bias = {image: 100.0}
    got, _ = generate(core, [[5, 6]], [SamplingParams(temperature=0, logit_bias=bias, max_tokens=3)])
    assert image not in got[0]


def test_numerics_must_agree_with_the_dtype():
    with pytest.raises(InvalidValue) as caught:
        Numerics("exact", "bfloat16")
    assert caught.value.field == "compute_dtype"
