"""Engine against the plain baseline on `micro`: decode of 16 sequences and prefill of 4K tokens.

    python benchmarks/engine_speed.py [--threads 2] [--numerics exact] [--json]

Both sides run in turn, several rounds, in one process on one set of weights; the ratio is that of their
medians. Tokens and weights are random, logits are compared first. Shares are of limits
measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.baseline import PlainModel
from benchmarks.machine import measure_machine
from flashpoint.engine.plan import Chunk
from flashpoint.models.deepseek_v41.engram_hash import build_engram_hash
from flashpoint.models.deepseek_v41.init import init_checkpoint
from flashpoint.models.deepseek_v41.inspect import active_parameters
from flashpoint.models.deepseek_v41.manifest import tensor_manifest
from flashpoint.models.deepseek_v41.numerics import Numerics
from flashpoint.models.load import LoadedModel, load_model

SEQUENCES = 16
CONTEXT = 1024
PROMPT = 4096
STEP = 2048
BLOCK = 64
BLOCKS_EACH = (PROMPT + BLOCK) // BLOCK


class Engine:
    """The engine's forward pass with hand-made plans: sequence s owns slot s and a run of blocks."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.model = loaded.model
        self.caches = self.model.allocate_caches(SEQUENCES * BLOCKS_EACH, BLOCK, SEQUENCES)

    def step(self, spans: list[tuple[int, np.ndarray, int]]) -> torch.Tensor:
        """Compute ids[start:] of each (sequence, ids, start); logits of each last row."""
        chunks = [
            Chunk(str(s), s, start, ids, np.arange(s * BLOCKS_EACH, (s + 1) * BLOCKS_EACH), len(ids), None)
            for s, ids, start in spans
        ]
        batch = self.model.build_batch(chunks, BLOCK)
        return self.model.forward(batch, self.caches, batch.last_rows)


def alternate(rounds: int, *runs: Callable[[], None]) -> list[float]:
    """Median seconds of each run, the runs taking turns so that both meet the same machine."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for spent, run in zip(times, runs, strict=True):
            began = time.perf_counter()
            run()
            spent.append(time.perf_counter() - began)
    return [statistics.median(t) for t in times]


def measure(checkpoint: Path, numerics: Numerics, rounds: int) -> dict[str, object]:
    """All figures; see the keys."""
    machine = measure_machine()
    loaded = load_model(checkpoint, numerics)
    text = loaded.config.text
    engine = Engine(loaded)
    constants = build_engram_hash(loaded.config, checkpoint / "tokenizer.json")
    plain = PlainModel(text, loaded.model.weights, constants, numerics)
    rng = np.random.default_rng(0)
    ids = [rng.integers(3, text.vocab_size, PROMPT + 64).astype(np.int32) for _ in range(SEQUENCES)]

    expected = plain.forward(ids[0][:301].tolist())[-1]
    engine.step([(0, ids[0][:300], 0)])
    difference = float((engine.step([(0, ids[0][:301], 300)])[0] - expected).abs().max())

    for s in range(SEQUENCES):
        engine.step([(s, ids[s][:CONTEXT], 0)])
    plain.reset()
    plain.forward(ids[0][:CONTEXT].tolist())
    places = {"engine": CONTEXT, "plain": CONTEXT}

    def decode_engine() -> None:
        places["engine"] += 1
        at = places["engine"]
        engine.step([(s, ids[s][:at], at - 1) for s in range(SEQUENCES)])

    def decode_plain() -> None:
        places["plain"] += 1
        plain.forward([int(ids[0][places["plain"] - 1])])

    def prefill_engine() -> None:
        for start in range(0, PROMPT, STEP):
            engine.step([(0, ids[0][: start + STEP], start)])

    def prefill_plain() -> None:
        plain.reset()
        plain.forward(ids[0][:PROMPT].tolist())

    decode = alternate(4 * rounds, decode_engine, decode_plain)
    prefill = alternate(rounds, prefill_engine, prefill_plain)
    active = active_parameters(loaded.config, tensor_manifest(loaded.config))
    # At 16 rows x 6 experts practically every expert is read: a step reads every weight once.
    weight_bytes = sum(t.numel() * t.element_size() for t in _step_weights(loaded))
    return {
        "machine": asdict(machine),
        "numerics": numerics.mode,
        "largest_logit_difference": difference,
        "decode_engine_tokens_per_s": SEQUENCES / decode[0],
        "decode_plain_tokens_per_s": 1 / decode[1],
        "decode_ratio": SEQUENCES / decode[0] * decode[1],
        "decode_bandwidth_share": weight_bytes / decode[0] / machine.read_bytes_per_s,
        "prefill_engine_tokens_per_s": PROMPT / prefill[0],
        "prefill_plain_tokens_per_s": PROMPT / prefill[1],
        "prefill_ratio": prefill[1] / prefill[0],
        "prefill_gemm_share": 2 * active * PROMPT / prefill[0] / machine.gemm_flops_per_s,
    }


def _step_weights(loaded: LoadedModel) -> list[torch.Tensor]:
    weights = loaded.model.weights
    tensors = [weights.head]
    for layer in weights.layers:
        a, m = layer.attention, layer.moe
        linears = [a.wq_a, a.wq_b, a.wkv, a.wo_b, m.shared_w13, m.shared_w2]
        tensors += [x.weight for x in linears] + [
            a.wo_a,
            m.w13,
            m.w2,
            m.gate,
            layer.hc_attn.fn,
            layer.hc_ffn.fn,
        ]
    return tensors


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--numerics", choices=("exact", "quantized"), default="exact")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "micro"
        init_checkpoint(preset="micro", out=checkpoint)
        result = measure(checkpoint, Numerics(options.numerics), options.rounds)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:30s} {value:.4g}" if isinstance(value, float) else f"{name:30s} {value}")


if __name__ == "__main__":
    main()
