"""Agent sessions on a real model: what the prefix cache finds, what a warm turn costs, where hits come from.

    python benchmarks/agent_cache.py [--sessions 3] [--turns 43] [--checkpoint DIR] [--json]

Preset `micro`, one process, greedy. Every turn says all that was said before and some more; some turns fork
sub-agents while their parent runs. Three parts:

1. hit share against the theoretical one: for each request, the longest prefix it shares with anything
   computed before, in whole blocks;
2. time to first token of the last turns, warm and cold (a second engine without a cache);
3. the same sessions on a pool too small for them, with a host and a disk tier: hits by tier.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from flashpoint.cache.config import TierConfig
from flashpoint.engine.clock import WallClock
from flashpoint.engine.config import EngineConfig
from flashpoint.engine.core import EngineCore
from flashpoint.engine.request import Request
from flashpoint.engine.sampling import SamplingParams
from flashpoint.engine.scheduler import Scheduler
from flashpoint.executor.torch_executor import TorchExecutor
from flashpoint.models.deepseek_v41.init import init_checkpoint
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.load import LoadedModel, load_model

BLOCK = 64
ANSWER = 8


@dataclass
class Turn:
    """One request's outcome."""

    prompt: int
    cached: int = 0
    theoretical: int = 0
    ttft: float = 0.0
    answer: list[int] = field(default_factory=list)


class Engine:
    """An engine that runs one turn, with its forks, at a time, and knows what a perfect cache would have."""

    def __init__(self, loaded: LoadedModel, tiers: TierConfig | None = None, **config: Any) -> None:
        settings = EngineConfig(**{"max_step_tokens": 512, "max_running": 8, "block_tokens": BLOCK, **config})
        executor = TorchExecutor(loaded, settings, tiers or TierConfig())
        self.scheduler = Scheduler(settings, executor.capacity, executor.stored)
        self.core = EngineCore(self.scheduler, executor, WallClock())
        self.turns: list[Turn] = []
        self._known: set[bytes] = set()
        self._requests: dict[str, Request] = {}

    def run(self, prompt: list[int], forks: list[list[int]] = ()) -> Turn:  # type: ignore[assignment]
        """Answer `prompt`; `forks` are submitted when its first token is there. Returns its turn."""
        turn = self._submit(prompt)
        waiting = list(forks)
        while self.core.has_work:
            self._hear(self.core.step())
            if waiting and turn.answer:
                for fork in waiting:
                    self._submit(fork)
                waiting = []
        return turn

    def _submit(self, prompt: list[int]) -> Turn:
        turn = Turn(len(prompt))
        turn.ttft = -time.perf_counter()
        content = np.array(prompt, dtype=np.int32)
        for end in range(BLOCK, (len(prompt) - 1) // BLOCK * BLOCK + 1, BLOCK):
            if content[:end].tobytes() not in self._known:
                break
            turn.theoretical = end
        name = str(len(self.turns))
        self.turns.append(turn)
        self._requests[name] = Request(name, content, SamplingParams(max_tokens=ANSWER, temperature=0.0))
        self.core.submit(self._requests[name])
        return turn

    def _hear(self, events: list[Any]) -> None:
        for event in events:
            turn, request = self.turns[int(event.request_id)], self._requests[event.request_id]
            if not turn.answer:
                turn.ttft += time.perf_counter()
            turn.answer += event.tokens
            turn.cached = event.cached_tokens
            computed = request.history(request.computed)
            for end in range(BLOCK, request.computed + 1, BLOCK):
                self._known.add(computed[:end].tobytes())


def play(engine: Engine, sessions: int, turns: int, vocab: int, new_tokens: int) -> list[Turn]:
    """Sessions in turn, one turn each, so that they push each other out of a small pool. Every fifth turn
    forks three sub-agents, of two turns each. Returns the turns of the sessions themselves."""
    rng = np.random.default_rng(3)

    def words(count: int) -> list[int]:
        return rng.integers(3, vocab, count).tolist()

    system = words(700)
    said = [system + words(300) for _ in range(sessions)]
    main_turns = []
    for number in range(turns):
        for session in range(sessions):
            prompt = said[session] + words(int(rng.integers(new_tokens // 2, 2 * new_tokens)))
            forks = [prompt + words(40) for _ in range(3)] if number % 5 == 4 else []
            first = len(engine.turns) + 1
            turn = engine.run(prompt, forks)
            main_turns.append(turn)
            for index, fork in enumerate(forks):
                answer = engine.turns[first + index].answer
                engine.run(fork + answer + words(30))
            said[session] = prompt + turn.answer
    return main_turns


def shares(engine: Engine) -> dict[str, float]:
    """Cached tokens over prompt tokens: measured, and of a cache that forgets nothing."""
    prompt = sum(turn.prompt for turn in engine.turns)
    return {
        "requests": len(engine.turns),
        "prompt_tokens": prompt,
        "hit_share": sum(turn.cached for turn in engine.turns) / prompt,
        "theoretical_share": sum(turn.theoretical for turn in engine.turns) / prompt,
    }


def ttft(loaded: LoadedModel, length: int, new: int, repeats: int) -> dict[str, float]:
    """Seconds to the first token of a prompt of `length` tokens, `new` of them new: warm, and cold."""
    rng = np.random.default_rng(5)
    vocab = loaded.config.text.vocab_size
    warm, cold = Engine(loaded), Engine(loaded, prefix_cache=False)
    base = rng.integers(3, vocab, length - new).tolist()
    warm.run(base)
    times: dict[str, list[float]] = {"warm": [], "cold": []}
    for _ in range(repeats):
        prompt = base + rng.integers(3, vocab, new).tolist()
        times["warm"].append(warm.run(prompt).ttft)
        times["cold"].append(cold.run(prompt).ttft)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {"length": length, "new": new, **medians, "ratio": medians["cold"] / medians["warm"]}


def measure(loaded: LoadedModel, sessions: int, turns: int, folder: Path) -> dict[str, Any]:
    """All three parts."""
    vocab = loaded.config.text.vocab_size
    roomy = Engine(loaded)
    play(roomy, sessions, turns, vocab, new_tokens=100)
    block_bytes = loaded.cache_spec.block_bytes(BLOCK)
    longest = max(turn.prompt for turn in roomy.turns) // BLOCK + 2
    # The device holds little more than the session that runs; host memory holds one more; disk the rest.
    tiers = TierConfig(host_memory=longest * block_bytes, disk_folder=folder, disk_space=1 << 30)
    small = Engine(loaded, tiers, cache_tokens=int(1.4 * longest) * BLOCK)
    play(small, sessions, turns, vocab, new_tokens=100)
    small.core.close()
    hits = small.scheduler.hit_tokens
    prompt = sum(turn.prompt for turn in small.turns)
    return {
        "roomy": shares(roomy),
        "ttft": [ttft(loaded, length, 128, 5) for length in (1024, 4096)],
        "tiers": {
            **shares(small),
            **dict(zip(("device", "host", "disk"), (tokens / prompt for tokens in hits), strict=True)),
            "failed_transfers": small.scheduler.failed_transfers,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--turns", type=int, default=43)
    parser.add_argument("--checkpoint", type=Path, help="default: a fresh micro")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = options.checkpoint
        if checkpoint is None:
            checkpoint = Path(folder) / "micro"
            init_checkpoint("micro", checkpoint)
        loaded = load_model(checkpoint, Numerics("quantized"))
        result = measure(loaded, options.sessions, options.turns, Path(folder) / "cache")
    if options.json:
        print(json.dumps(result))
        return
    for name in ("roomy", "tiers"):
        row = result[name]
        print(
            f"{name}: {row['requests']} requests, {row['prompt_tokens']:,} prompt tokens, "
            f"hit share {row['hit_share']:.4f}, theoretical {row['theoretical_share']:.4f}"
        )
    by_tier = ", ".join(f"{tier} {result['tiers'][tier]:.4f}" for tier in ("device", "host", "disk"))
    print(f"hit share by tier: {by_tier}; failed transfers {result['tiers']['failed_transfers']}")
    for row in result["ttft"]:
        print(
            f"TTFT of {row['length']} tokens, {row['new']} new: warm {1000 * row['warm']:.0f} ms, "
            f"cold {1000 * row['cold']:.0f} ms, {row['ratio']:.1f}x"
        )


if __name__ == "__main__":
    main()
