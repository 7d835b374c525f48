"""What a turn of 142K tokens costs in front of the model, from the request's bytes to a scheduled chunk.

    python benchmarks/turn_overhead.py [--context 142000] [--new 5000] [--json]

A conversation grows turn by turn through the functions the server calls, with the released V4 tokenizer
and the authors' chat template. CPU time of the process, all threads; the warm turn is the median of several
around that length. Beside it: encoding the last prompt whole with the `tokenizers` library, and cold with the
encoder in use.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import orjson

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.agent_text import AgentConversation
from flashpoint.cache.spec import CacheGroup, CacheSpec
from flashpoint.encoder import StandardEncoder
from flashpoint.engine.config import EngineConfig
from flashpoint.engine.executor import Capacity
from flashpoint.engine.plan import Sampled, StepPlan, StepResult
from flashpoint.engine.request import Request
from flashpoint.engine.sampling import SamplingParams
from flashpoint.engine.scheduler import Scheduler
from flashpoint.models.deepseek_v41.chat import DeepseekRenderer
from flashpoint.models.deepseek_v41.preset_tokenizers import v4_tokenizer
from flashpoint.server.chat_api import conversation_of
from flashpoint.server.protocol import ChatRequest, IgnoredFields, parse_request
from flashpoint.server.tokenizer import Tokenizer

T = TypeVar("T")
CACHE_BYTES = 256 << 20
CHARACTERS_PER_TOKEN = 4.3  # of this text; only steers how fast the conversation grows


class Front:
    """Everything between a request's bytes and the executor."""

    def __init__(self, definition: dict[str, Any], context: int) -> None:
        self.tokenizer = Tokenizer(definition, frozenset({1}), CACHE_BYTES)
        self._renderer = DeepseekRenderer()
        self._ignored = IgnoredFields()
        groups = (
            CacheGroup("global", "paged", (0,), entry_bytes=890, prefix_cacheable=True),
            CacheGroup("window", "ring", tuple(range(40)), 528, entries=128, replay_tokens=128),
        )
        capacity = Capacity(
            blocks=2 * context // 64,
            block_tokens=64,
            slots=4,
            max_context=2 * context,
            vocab_size=len(self.tokenizer),
            cache_spec=CacheSpec(groups, prefill_tail=128),
        )
        self._scheduler = Scheduler(EngineConfig(max_running=4, max_step_tokens=8192), capacity)
        self._turns = 0

    def turn(self, body: bytes) -> tuple[dict[str, float], Request, list[str]]:
        """(ms by part, the request, the texts encoded) of one turn; its chunks are then run to the end."""
        parts: dict[str, float] = {}
        raw = _timed(parts, "parse JSON", lambda: orjson.loads(body))
        request = _timed(parts, "validate", lambda: parse_request(ChatRequest, raw, self._ignored))
        conversation = _timed(parts, "to messages", lambda: conversation_of(request))
        rendered = _timed(parts, "template", lambda: self._renderer.render(conversation))
        ids = _timed(parts, "tokenize", lambda: self.tokenizer.encode_segments(rendered.segments))
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        name = f"turn-{self._turns}"
        self._turns += 1
        queued = _timed(parts, "queue (copy, check ids)", lambda: self._submit(Request(name, ids, sampling)))
        plan = self._plan(parts)
        while plan is not None:
            sampled = tuple(Sampled(c.request_id, (5,)) for c in plan.chunks if c.sampling is not None)
            self._scheduler.apply(StepResult(plan.step, sampled))
            plan = self._scheduler.plan()
        return parts, queued, [segment.text for segment in rendered.segments if not segment.special]

    def _submit(self, request: Request) -> Request:
        self._scheduler.submit(request)
        return request

    def _plan(self, parts: dict[str, float]) -> StepPlan | None:
        """Plan the first step, with the search of the prefix tree counted apart."""
        cache, match = self._scheduler._cache, {"ms": 0.0}
        acquire = cache.acquire
        cache.acquire = lambda *a: _timed(match, "ms", lambda: acquire(*a))  # type: ignore[method-assign]
        plan = _timed(parts, "schedule", self._scheduler.plan)
        del cache.acquire  # type: ignore[method-assign]
        parts["match (compares, hashes nothing)"] = match["ms"]
        parts["schedule"] -= match["ms"]
        return plan


def _timed(parts: dict[str, float], name: str, run: Callable[[], T]) -> T:
    began = time.process_time()
    result = run()
    parts[name] = 1000 * (time.process_time() - began)
    return result


def measure(context: int, new: int, warm_turns: int) -> dict[str, Any]:
    """Grow a conversation to `context` tokens, then measure `warm_turns` turns of `new` tokens each."""
    definition = json.loads(v4_tokenizer())
    front, agent = Front(definition, context + (warm_turns + 2) * new), AgentConversation(seed=1)
    length = 0
    while length < context - new * (1 + warm_turns // 2):
        agent.turn(int(new * CHARACTERS_PER_TOKEN))
        _, request, _ = front.turn(orjson.dumps(agent.body()))
        length = request.length
    turns = []
    for _ in range(warm_turns):
        agent.turn(int(new * CHARACTERS_PER_TOKEN))
        before = request.prompt_tokens
        parts, request, texts = front.turn(orjson.dumps(agent.body()))
        turns.append(parts)
        assert request.cached_tokens is not None
    parts = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    warm = statistics.median(sum(turn.values()) for turn in turns)
    whole: dict[str, float] = {}
    standard = StandardEncoder({**definition, "added_tokens": []})
    expected = _timed(whole, "standard", lambda: standard.encode(texts))
    cold = Tokenizer(definition, frozenset({1}))
    ids = _timed(whole, "cold", lambda: cold._plain.encode(texts))
    assert all(np.array_equal(a, b) for a, b in zip(ids, expected, strict=True)), "the encoders disagree"
    return {
        "prompt_tokens": request.prompt_tokens,
        "new_tokens": request.prompt_tokens - before,
        "cached_tokens": request.cached_tokens,
        "parts_ms": parts,
        "warm_turn_ms": warm,
        "whole_standard_ms": whole["standard"],
        "whole_cold_ms": whole["cold"],
        "ratio_to_standard": whole["standard"] / warm,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--context", type=int, default=142_000, help="tokens of the prompt")
    parser.add_argument("--new", type=int, default=5_000, help="tokens a turn adds")
    parser.add_argument("--turns", type=int, default=9, help="warm turns measured")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options.context, options.new, options.turns)
    if options.json:
        print(json.dumps(result))
        return
    tokens = [f"{result[name]:,}" for name in ("prompt_tokens", "new_tokens", "cached_tokens")]
    print("last turn: {} tokens, {} new, {} cached".format(*tokens))
    for name, ms in result["parts_ms"].items():
        print(f"  {name:34s}{ms:8.2f} ms")
    print(f"  {'warm turn':34s}{result['warm_turn_ms']:8.2f} ms of CPU")
    print(f"  {'encoding it whole, tokenizers':34s}{result['whole_standard_ms']:8.2f} ms")
    print(f"  {'encoding it whole, encoder in use':34s}{result['whole_cold_ms']:8.2f} ms")
    print(f"  {'tokenizers / warm turn':34s}{result['ratio_to_standard']:8.1f} x")


if __name__ == "__main__":
    main()
