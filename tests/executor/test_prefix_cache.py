"""Turns of agents on a real model: with the cache, from any tier and after a restart, they read the same."""

from functools import cache

import numpy as np
import pytest

from flashpoint.cache.config import TierConfig
from flashpoint.engine.clock import WallClock
from flashpoint.engine.config import EngineConfig
from flashpoint.engine.core import EngineCore
from flashpoint.engine.request import Request
from flashpoint.engine.sampling import SamplingParams
from flashpoint.engine.scheduler import Scheduler
from flashpoint.executor.torch_executor import TorchExecutor
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.load import load_model
from tests.golden_data import golden_checkpoints

BLOCK = 8


@cache
def loaded(name, mode):
    return load_model(golden_checkpoints()[name], Numerics(mode))


class Engine:
    """An engine that answers turns; sub-agents are submitted while their parent runs."""

    def __init__(self, name, mode, tiers=None, **config):
        settings = EngineConfig(
            **{"max_step_tokens": 96, "max_running": 6, "block_tokens": BLOCK, "cache_tokens": 4096, **config}
        )
        self.executor = TorchExecutor(loaded(name, mode), settings, tiers or TierConfig())
        self.scheduler = Scheduler(settings, self.executor.capacity, self.executor.stored)
        self.core = EngineCore(self.scheduler, self.executor, WallClock())
        self.cached = {}

    def answer(self, prompts, answer_tokens=5):
        """Answers of prompts submitted a step apart, so that the later ones find the first one running."""
        answers = {}
        for index, prompt in enumerate(prompts):
            sampling = SamplingParams(temperature=0, max_tokens=answer_tokens)
            request = Request(f"{len(self.cached)}", np.array(prompt, dtype=np.int32), sampling)
            self.cached[request.request_id] = 0
            self.core.submit(request)
            answers[request.request_id] = []
            self.hear(answers, self.core.step())
            if index == 0:
                self.hear(answers, self.core.step())
        while self.core.has_work:
            self.hear(answers, self.core.step())
        return list(answers.values())

    def hear(self, answers, events):
        for event in events:
            assert event.error is None
            answers[event.request_id] += event.tokens
            self.cached[event.request_id] = event.cached_tokens


def session(engine, seed, vocab, turns, branches=1):
    """The answers of a session in which every turn says all again, and in turn 2 sub-agents fork."""
    rng = np.random.default_rng(seed)
    prompt, answers = rng.integers(3, vocab, 170).tolist(), []
    for turn in range(turns):
        news = [rng.integers(3, vocab, int(n)).tolist() for n in rng.integers(3, 25, 1 + branches)]
        prompts = [prompt + part for part in (news if turn == 2 else news[:1])]
        got = engine.answer(prompts)
        answers += got
        prompt = prompts[0] + got[0]
    return answers


@pytest.mark.parametrize("mode", ["exact", "quantized"])
@pytest.mark.parametrize("name", ["tiny-c", "tiny-q"])
def test_full_semantics_reads_the_same_with_and_without_the_cache(name, mode):
    """Spec 2.5: with all layers on all rows and a replay of every layer's window, hits change nothing."""
    vocab = loaded(name, mode).config.text.vocab_size
    without = Engine(name, mode, semantics="full", prefix_cache=False)
    with_cache = Engine(name, mode, semantics="full")
    expected = session(without, 1, vocab, 4, branches=2)
    assert session(with_cache, 1, vocab, 4, branches=2) == expected
    assert sum(without.cached.values()) == 0
    hits = sum(with_cache.scheduler.hit_tokens)
    assert hits == sum(with_cache.cached.values()) > 0


def test_short_prompts_read_the_same_under_replay():
    """Spec 2.5 (a): up to one window, replay is exact."""
    vocab = loaded("tiny-c", "exact").config.text.vocab_size
    window = loaded("tiny-c", "exact").config.text.sliding_window
    rng = np.random.default_rng(3)
    prompts = [rng.integers(3, vocab, n).tolist() for n in range(1, window + 1)]
    replay, full = (Engine("tiny-c", "exact", semantics=s) for s in ("replay", "full"))
    assert replay.answer(prompts, 1) == full.answer(prompts, 1)


def test_a_session_hits_all_it_said_before():
    engine = Engine("tiny-c", "exact")
    vocab = loaded("tiny-c", "exact").config.text.vocab_size
    prompt = np.random.default_rng(5).integers(3, vocab, 40).tolist()
    for _ in range(5):
        (answer,) = engine.answer([prompt])
        told = prompt + answer
        prompt = [*told, 7, 8, 9, 10]
        engine.answer([prompt], 1)
        # The last answer token is known but was never computed.
        assert list(engine.cached.values())[-1] == (len(told) - 1) // BLOCK * BLOCK


@pytest.mark.parametrize("disk", [False, True], ids=["host", "disk"])
@pytest.mark.parametrize("name, mode", [("tiny-c", "exact"), ("tiny-q", "quantized")])
def test_blocks_that_went_through_slower_tiers_read_the_same(name, mode, disk, tmp_path):
    vocab = loaded(name, mode).config.text.vocab_size
    block_bytes = loaded(name, mode).cache_spec.block_bytes(BLOCK)
    tiers = TierConfig(
        host_memory=(24 if disk else 200) * block_bytes,
        disk_folder=tmp_path / "cache" if disk else None,
        disk_space=400 * block_bytes,
    )
    small = {"cache_tokens": 45 * BLOCK, "semantics": "full"}
    without = Engine(name, mode, semantics="full", prefix_cache=False)
    engine = Engine(name, mode, tiers, **small)

    def rounds(engine):
        """Four sessions in turn, so that each has left the device when it comes back."""
        prompts = [np.random.default_rng(seed).integers(3, vocab, 150).tolist() for seed in range(4)]
        answers = []
        for _ in range(2):
            for index, prompt in enumerate(prompts):
                (answer,) = engine.answer([prompt])
                answers.append(answer)
                prompts[index] = prompt + answer + [5, 6, 7]
        return answers

    expected = rounds(without)
    assert rounds(engine) == expected
    hits = engine.scheduler.hit_tokens
    assert hits[2 if disk else 1] > 0
    assert engine.scheduler.failed_transfers == 0
    engine.core.close()
    if disk:
        again = Engine(name, mode, tiers, **small)
        assert rounds(again) == expected
        assert again.scheduler.hit_tokens[2] > hits[2] // 3, "the disk was not found again"
        again.core.close()


def test_damaged_files_are_misses(tmp_path, caplog):
    name, mode = "tiny-c", "exact"
    vocab = loaded(name, mode).config.text.vocab_size
    block_bytes = loaded(name, mode).cache_spec.block_bytes(BLOCK)
    tiers = TierConfig(host_memory=25 * block_bytes, disk_folder=tmp_path, disk_space=400 * block_bytes)
    prompts = [np.random.default_rng(seed).integers(3, vocab, 150).tolist() for seed in range(4)]
    expected = [Engine(name, mode, semantics="full", prefix_cache=False).answer([p])[0] for p in prompts]
    engine = Engine(name, mode, tiers, cache_tokens=30 * BLOCK, semantics="full")
    assert [engine.answer([prompt])[0] for prompt in prompts] == expected
    files = list(tmp_path.glob("*/*.run"))
    assert files
    for path in files:
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    assert [engine.answer([prompt])[0] for prompt in prompts] == expected
    assert engine.scheduler.failed_transfers > 0
    assert any("does not have its checksum" in record.getMessage() for record in caplog.records)
    engine.core.close()


def test_another_model_does_not_read_these_files(tmp_path):
    block_bytes = loaded("tiny-c", "exact").cache_spec.block_bytes(BLOCK)
    for name, semantics in (("tiny-c", "full"), ("tiny-c", "replay"), ("tiny-q", "full")):
        tiers = TierConfig(host_memory=40 * block_bytes, disk_folder=tmp_path, disk_space=400 * block_bytes)
        engine = Engine(name, "exact", tiers, semantics=semantics, cache_tokens=30 * BLOCK)
        assert engine.executor.stored == ()
        for seed in range(6):
            engine.answer([np.random.default_rng(seed).integers(3, 300, 150).tolist()], 1)
        engine.core.close()
    assert len(list(tmp_path.iterdir())) == 3
