"""What bounded replay costs in exactness, and what it saves, on preset `micro`.

    python benchmarks/replay_effect.py [--prompts 24] [--checkpoint DIR] [--json]

For random prompts: the next-token distribution with every layer on every row ("full") against (a) a cold
prefill whose decoder runs on the last window only, and (b) the same after a prefix hit whose windows were
replayed (spec 2.3 to 2.5). KL(full || replay) in nats and whether the greedy token agrees. And the time of a
cold prefill, full over replay, run in turn in one process. The weights are random: nothing here speaks of
quality.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from flashpoint.engine.plan import Chunk
from flashpoint.models.deepseek_v41.init import init_checkpoint
from flashpoint.models.deepseek_v41.model import DeepseekV41
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.load import load_model

BLOCK = 64
LONGEST = 2048
BLOCKS = LONGEST // BLOCK


class Prompt:
    """A prompt's logits under full semantics, cold replay and replay after a hit."""

    def __init__(self, model: DeepseekV41, ids: np.ndarray) -> None:
        self._model, self._ids = model, ids
        self._window = model.config.sliding_window

    def last_logits(self, hit: int, replay: bool) -> Tensor:
        """fp32 [vocab] after the prompt; its first `hit` tokens come from another sequence's blocks."""
        caches = self._model.allocate_caches(2 * BLOCKS, BLOCK, 2)
        table = np.arange(BLOCKS, dtype=np.int32)
        if hit:
            self._run(caches, table, 0, 0, hit, 0, replay)
            table = np.concatenate((table[: hit // BLOCK], np.arange(BLOCKS, 2 * BLOCKS, dtype=np.int32)))
        start = max(0, hit - self._window)
        return self._run(caches, table, 1, start, len(self._ids), hit, replay)

    def _run(
        self, caches: Any, table: np.ndarray, slot: int, start: int, end: int, hit: int, replay: bool
    ) -> Tensor:
        rows = min(self._window, end - start) if replay else end - start
        chunk = Chunk(
            request_id="r",
            slot=slot,
            start=start,
            history=self._ids[:end],
            blocks=table[: -(-end // BLOCK)],
            prompt_tokens=end,
            sampling=None,
            write_from=hit,
            window_start=start,
            decoder_rows=rows,
            decoder_start=end - rows,
        )
        batch = self._model.build_batch([chunk], BLOCK)
        return self._model.forward(batch, caches, batch.last_rows)[0]


def divergence(full: Tensor, other: Tensor) -> float:
    """KL(full || other) of two rows of logits, in nats."""
    p, q = (torch.log_softmax(logits.double(), -1) for logits in (full, other))
    return float((p.exp() * (p - q)).sum())


def measure(model: DeepseekV41, prompts: int) -> dict[str, Any]:
    """KL and agreement over `prompts` prompts of 300 to 2 000 tokens, and the prefill's time ratio."""
    rng = np.random.default_rng(0)
    kl: dict[str, list[float]] = {"cold": [], "hit": []}
    agree = {"cold": 0, "hit": 0}
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(prompts):
        length = int(rng.integers(300, LONGEST))
        prompt = Prompt(model, rng.integers(3, model.config.vocab_size, length).astype(np.int32))
        results = {}
        for replay in (False, True):
            began = time.process_time()
            results[replay] = prompt.last_logits(0, replay)
            seconds[replay].append(time.process_time() - began)
        hit = prompt.last_logits(int(rng.integers(2, length // BLOCK + 1)) * BLOCK - BLOCK, True)
        for name, logits in (("cold", results[True]), ("hit", hit)):
            kl[name].append(divergence(results[False], logits))
            agree[name] += int(results[False].argmax() == logits.argmax())
    return {
        "prompts": prompts,
        **{f"kl_mean_{name}": statistics.mean(values) for name, values in kl.items()},
        **{f"kl_max_{name}": max(values) for name, values in kl.items()},
        **{f"greedy_agree_{name}": agree[name] for name in agree},
        "prefill_full_over_replay": sum(seconds[False]) / sum(seconds[True]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--checkpoint", type=Path, help="default: a fresh micro")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = options.checkpoint
        if checkpoint is None:
            checkpoint = Path(folder) / "micro"
            init_checkpoint("micro", checkpoint)
        result = measure(load_model(checkpoint, Numerics("exact")).model, options.prompts)
    if options.json:
        print(json.dumps(result))
        return
    for name in ("cold", "hit"):
        print(
            f"{name:5s} KL mean {result[f'kl_mean_{name}']:.2e}, max {result[f'kl_max_{name}']:.2e} nats; "
            f"greedy token equal in {result[f'greedy_agree_{name}']} of {result['prompts']}"
        )
    print(f"cold prefill, full / replay: {result['prefill_full_over_replay']:.2f}x the time")


if __name__ == "__main__":
    main()
