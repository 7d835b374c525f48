"""A model whose step costs a fixed time, more per row and a little per position: easy to check."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from flashpoint.cache.spec import CacheGroup, CacheSpec
from flashpoint.engine.config import EngineConfig
from flashpoint.engine.core import EngineCore
from flashpoint.engine.executor import Capacity
from flashpoint.engine.plan import StepCounts
from flashpoint.engine.scheduler import Scheduler
from flashpoint.hardware.acceptance import ForcedAcceptance
from flashpoint.hardware.cost import StepTime
from flashpoint.hardware.replica import Replica
from flashpoint.hardware.virtual_clock import VirtualClock
from flashpoint.hardware.virtual_rank import VirtualRank
from flashpoint.models.work import StepShape, StepWork

STEP, ROW, POSITION = 0.010, 1e-5, 1e-9


@dataclass(frozen=True)
class ToySums:
    rows: int
    positions: int

    def __add__(self, other):
        return ToySums(self.rows + other.rows, self.positions + other.positions)

    def toward(self, other, share):
        return ToySums(self.rows, self.positions + (other.positions - self.positions) * share)


class ToyWork:
    def sums(self, first, rows):
        return ToySums(rows, rows * first + rows * (rows - 1) // 2)

    def sums_of(self, firsts, rows):
        return ToySums(rows * len(firsts), rows * sum(firsts) + len(firsts) * rows * (rows - 1) // 2)

    def load(self, rows):
        return rows.positions

    def step(self, shape, layout):
        return StepWork({})


def toy_time(shape: StepShape) -> StepTime:
    seconds = STEP + ROW * shape.group_encoder_rows + POSITION * shape.decoder.positions
    counts = StepCounts(memory_bytes=shape.decoder.positions, kernels=1)
    return StepTime(seconds, {}, {"math": seconds}, {"math": seconds / 2}, counts)


SPEC = CacheSpec(
    (
        CacheGroup("global", "paged", (0,), 64, tokens_per_entry=1, prefix_cacheable=True),
        CacheGroup("window", "ring", (0,), 8, entries=16, replay_tokens=16),
    ),
    prefill_tail=16,
)


def toy_cores(
    clock,
    ranks=1,
    blocks=4096,
    slots=64,
    mean=Fraction(351, 100),
    drafts=5,
    step_tokens=2048,
    host_blocks=0,
    block_seconds=1e-5,
    **config,
):
    capacity = Capacity(
        blocks=blocks, block_tokens=64, slots=slots, max_context=2**20, vocab_size=1000, cache_spec=SPEC,
        draft_tokens=drafts, block_names=1, host_blocks=host_blocks,
    )  # fmt: skip
    engine = EngineConfig(max_step_tokens=step_tokens, max_running=slots, block_tokens=64, **config)
    pairs = []
    for _ in range(ranks):
        rank = VirtualRank(capacity, ToyWork(), ForcedAcceptance(mean, drafts), block_seconds)
        pairs.append((EngineCore(Scheduler(engine, capacity), rank, clock), rank))
    return pairs


def toy_replica(clock=None, token_times=True, timer=toy_time, **options):
    clock = clock or VirtualClock()
    pairs = toy_cores(clock, **options)
    replica = Replica(clock, pairs, timer, ToyWork().load, token_times=token_times)
    return clock, replica, [core for core, _ in pairs]
