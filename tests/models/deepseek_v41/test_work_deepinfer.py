"""The FLOPs of a step against DeepInfer's estimator: equal to the unit once definitions are aligned.

Source of the numbers: deepinfer 0.1.0 (PyPI, source), `FlopsEstimator` of csrc/engine/flops_estimator.hpp
compiled alone and given the released config.json by the rules of its own loader; `total` of `calc_flops`,
in FP8-equivalent FLOPs: a multiply-add is 1 in FP4, 2 in FP8, 4 in BF16, 8 in TF32 and FP32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from flashpoint.models.work import StepShape, StepWork
from flashpoint.parallel.layout import Layout
from tests.models.deepseek_v41.test_work import TEXT, WORK

KEEP = 128
"""Rows that its "compact" mode keeps for the decoder: a window, as ours replays."""

RATES = {"fp4": 0.5, "fp8": 1, "bf16": 2, "fp32": 4}
BF16_MORE = 2
"""What a multiply-add weighs more in BF16 than in FP8."""


@dataclass(frozen=True)
class Step:
    """`rows` new tokens of one sequence, `seen` tokens with them; a prompt of `full` tokens."""

    kind: Literal["decode", "whole prefill", "compact prefill"]
    rows: int
    seen: int
    full: int
    deepinfer: int

    @property
    def decoder_rows(self) -> int:
        if self.kind != "compact prefill":
            return self.rows
        return min(self.rows, max(1, self.seen - (self.full - KEEP)))


STEPS = [
    Step("decode", 1, 1, 1, 34_111_688_704),
    Step("decode", 1, 129, 129, 36_419_866_624),
    Step("decode", 1, 4097, 4097, 40_647_462_912),
    Step("decode", 1, 32_769, 32_769, 41_142_259_712),
    Step("decode", 1, 152_001, 152_001, 42_363_195_392),
    Step("decode", 1, 262_145, 262_145, 43_491_069_952),
    Step("decode", 1, 2**20, 2**20, 51_544_129_536),
    Step("decode", 6, 152_006, 152_006, 254_179_344_384),
    Step("whole prefill", 1024, 1024, 1024, 36_808_237_776_896),
    Step("whole prefill", 4096, 4096, 4096, 153_416_606_154_752),
    Step("whole prefill", 1024, 152_000, 200_000, 40_665_588_170_752),
    Step("whole prefill", 4096, 152_000, 200_000, 162_589_985_210_368),
    Step("compact prefill", 4096, 152_000, 200_000, 82_255_999_008_768),
    Step("compact prefill", 1024, 1024, 1024, 20_699_449_393_152),
    Step("compact prefill", 1024, 152_000, 152_000, 23_040_365_953_024),
    Step("compact prefill", 4096, 32_768, 32_768, 81_643_416_322_048),
    Step("compact prefill", 1024, 2**20, 2**20, 29_151_198_445_568),
]


def ours(step: Step) -> StepWork:
    few = step.decoder_rows
    encoder = WORK.sums(step.seen - step.rows, step.rows)
    decoder = WORK.sums(step.seen - few, few)
    head = step.rows if step.kind == "decode" else 1
    return WORK.step(StepShape(encoder, decoder, head, 0, step.rows, few), Layout())


def fp8_equivalent(work: StepWork) -> float:
    return sum(RATES[p] * n for k in work.kernels.values() for p, n in k.flops.items())


def definitions(step: Step) -> dict[str, float]:
    """What DeepInfer counts more than we do, by reason; negative where it counts less."""
    c, rows, few = TEXT, step.rows, step.decoder_rows
    source = c.kv_source_layer_ids[-1]
    behind = c.num_hidden_layers - source
    stream = c.hc_mult * c.hidden_size
    # Mixers: TF32 for the matrix, and the sums over the copies before and after a sublayer, in FP32.
    read, write = 8 * stream * c.hc_mult * (c.hc_mult + 2) + 8 * stream, 8 * stream * (c.hc_mult + 1)
    mixers = 2 * (read + write) * (source * rows + behind * few) - 8 * stream * (rows - few)
    if step.kind == "compact prefill":
        mixers += read * (rows - few)  # rows that stop still read the boundary layer's mix
    mixers -= RATES["bf16"] * 2 * WORK.mixer_parameters * (source * rows + behind * few)
    # Head weights of the indexers in BF16; ours are FP8 like the rest of the query side.
    indexers = sum(layer < source for layer in c.index_source_layer_ids)
    indexer_rows = indexers * rows + (len(c.index_source_layer_ids) - indexers) * few
    # Index keys of pairs are projected once they are complete; ours for every row, as in a decode step.
    pairs = rows - (step.seen // 2 - (step.seen - step.rows) // 2) if step.kind != "decode" else 0
    halves = sum(c.compress_ratios[layer] == 2 for layer in c.kv_source_layer_ids)
    # The last candidate block is scored whole.
    block, most = c.candidate_block_size, c.candidate_topk_blocks
    picks = range(step.seen - few + 1, step.seen + 1)
    rounded = sum(min(-(-n // block), most) * block - min(n, most * block) for n in picks)
    rescoring = len(c.index_source_layer_ids) - indexers - 1
    found = {
        "mixers": mixers,
        "engram gates": 8 * stream * len(c.engram_layer_ids) * rows,
        "index head weights": BF16_MORE * c.hidden_size * c.index_n_heads * indexer_rows,
        "index keys of pairs": -4 * c.head_dim * c.index_head_dim * halves * pairs,
        "candidate blocks": rescoring * rounded * c.index_n_heads * c.index_head_dim,
    }
    if step.kind == "compact prefill":
        # Decoder windows begin empty at the first row kept; ours are as full as the context allows.
        begun = step.full - KEEP
        full = sum(min(n, c.sliding_window) for n in picks)
        empty = sum(min(max(0, n - max(0, begun)), c.sliding_window) for n in picks)
        found["windows"] = -8 * c.num_attention_heads * c.head_dim * behind * (full - empty)
        # It projects no window of the last source for rows that stop there.
        found["window of rows that stop"] = -2 * c.hidden_size * c.head_dim * (rows - few)
    return found


@pytest.mark.parametrize("step", STEPS, ids=lambda s: f"{s.kind}-{s.rows}-of-{s.seen}")
def test_equal_to_the_unit_in_deepinfer_s_definitions(step):
    assert fp8_equivalent(ours(step)) + sum(definitions(step).values()) == step.deepinfer


@pytest.mark.parametrize("step", STEPS, ids=lambda s: f"{s.kind}-{s.rows}-of-{s.seen}")
def test_definitions_differ_by_less_than_a_percent(step):
    """Nearly all of it is the mixers: TF32 at a quarter of the FP8 rate there, BF16 at half of it here."""
    assert fp8_equivalent(ours(step)) == pytest.approx(step.deepinfer, rel=0.008)
