"""From options to a fleet in virtual time: what fits into memory, and how long its steps take."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from flashpoint.engine.config import EngineConfig
from flashpoint.engine.core import EngineCore
from flashpoint.engine.executor import Capacity
from flashpoint.engine.scheduler import Scheduler
from flashpoint.errors import InvalidValue
from flashpoint.hardware.acceptance import Acceptance, make_acceptance
from flashpoint.hardware.collectives import check_reach, copy_seconds
from flashpoint.hardware.cost import CostOptions, Limits, StepPricer, StepTime
from flashpoint.hardware.machine import Machine, load_machine
from flashpoint.hardware.replica import Replica
from flashpoint.hardware.virtual_clock import VirtualClock
from flashpoint.hardware.virtual_rank import VirtualRank
from flashpoint.models.deepseek_v41.cache_spec import cache_spec
from flashpoint.models.deepseek_v41.work import V41Work
from flashpoint.models.deepseek_v41.work_formats import computed_formats, released_formats
from flashpoint.models.deepseek_v41.work_kernels import decode_path
from flashpoint.models.deepseek_v41.workspace import workspace_bytes
from flashpoint.models.work import StepShape, StepWork
from flashpoint.parallel.layout import Layout
from flashpoint.parallel.router import Router
from flashpoint.simulate.config import DeploymentConfig
from flashpoint.simulate.fleet import EnginePool, Fleet
from flashpoint.simulate.front_end import FrontEnd, FrontEndCost
from flashpoint.simulate.models import load_model_config
from flashpoint.sizes import format_size


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of one accelerator's memory, by use."""

    usable: float
    weights: float
    workspace: float
    windows: float
    block: int

    @property
    def blocks(self) -> int:
        """Cache blocks that fit into what is left."""
        return max(0, int((self.usable - self.weights - self.workspace - self.windows) // self.block))


class Deployment:
    """A model on a machine in a layout. Makes fleets, and prices single steps.

    Raises InvalidValue, with the arithmetic, for what cannot be: weights that do not fit, experts that do not
    divide, ranks beyond the machine's domain that have no network.
    """

    def __init__(
        self, config: DeploymentConfig, machine: Machine | None = None, *, token_share: int = 64
    ) -> None:
        """machine: instead of the one that `config` names, as it is.
        token_share: tokens of a trace's block; a cache block is one or several of them."""
        self.config = config
        model = load_model_config(config.model)
        self.text = model.text
        self.machine = machine or load_machine(config.hardware).at(config.end)
        self.formats = (
            released_formats(self.text, config.expert_math)
            if config.formats == "released"
            else computed_formats(self.text, config.formats, "codes", quantized=model.quantized)
        )
        self.spec = cache_spec(self.text, "codes")
        if config.block_tokens % token_share:
            raise InvalidValue(
                "block_tokens", config.block_tokens, f"a multiple of {token_share}, the trace's"
            )
        self._names = config.block_tokens // token_share
        path = decode_path(
            fused_reductions=config.fused_reductions,
            shared_in_routed=config.shared_in_routed,
            early_loads=config.early_loads,
        )
        self.work = V41Work(self.text, self.formats, drafts=config.drafts > 0, skew=config.skew, path=path)
        self.work.draft_tokens = config.drafts
        options = CostOptions(config.graphs, config.early_loads, config.fused_reductions)
        self._pricer = StepPricer(self.machine, options)
        self._acceptance(config.drafts, 0)  # refuses what no engine could accept
        self._host_blocks = self._tier_blocks()
        self.layout, self.prefill_layout = config.layouts()
        for layout in (self.layout, self.prefill_layout):
            if layout is not None:
                self._check(layout)
        if self.prefill_layout is not None:
            check_reach(self.accelerators, self.machine)

    @property
    def accelerators(self) -> int:
        """All of them."""
        return self.config.accelerators

    @property
    def limits(self) -> Limits:
        """The physical limits of one accelerator."""
        return self._pricer.limits

    def memory(self, layout: Layout, step_tokens: int) -> RankMemory:
        """How a rank's memory divides. Raises InvalidValue when not even one block is left."""
        slots = self.config.sequences
        memory = RankMemory(
            usable=self.machine.memory * self.config.memory_use,
            weights=self.work.weight_bytes(layout),
            workspace=workspace_bytes(self.text, step_tokens, slots, 1) / layout.tp,
            windows=float(self.spec.bytes_per_sequence * slots),
            block=self.spec.block_bytes(self.config.block_tokens),
        )
        if memory.blocks < 1:
            used = [memory.weights, memory.workspace, memory.windows]
            names = ("weights", "a step's workspace", f"windows of {slots} sequences")
            parts = ", ".join(f"{n} {format_size(round(v))}" for n, v in zip(names, used, strict=True))
            raise InvalidValue(
                "layout",
                str(layout),
                f"one whose ranks fit into {format_size(round(memory.usable))}, "
                f"{self.config.memory_use:.0%} of {self.machine.name}; {parts} take "
                f"{format_size(round(sum(used)))}",
            )
        return memory

    def step_work(self, shape: StepShape[Any], layout: Layout) -> StepWork:
        """The work of the busiest rank."""
        return self.work.step(shape, layout)

    def step_time(self, shape: StepShape[Any], layout: Layout) -> StepTime:
        """How long a step of that shape takes."""
        return self._pricer(self.work.step(shape, layout))

    def hand_over_seconds(self, tokens: int) -> float:
        """Seconds until the caches of `tokens` tokens, and the windows, are on a decode engine."""
        per_token = self.spec.block_bytes(self.config.block_tokens) / self.config.block_tokens
        moved = tokens * per_token + self.spec.bytes_per_sequence
        return copy_seconds(moved, self.accelerators, self.machine)

    def fleet(self, clock: VirtualClock, seed: int) -> tuple[Fleet, list[EngineCore]]:
        """A fresh fleet on `clock`, and its engines."""
        c = self.config
        host = self._host_blocks
        prefill = None
        if self.prefill_layout is not None:
            prefill = self._pool(
                clock, self.prefill_layout, c.prefill_replicas, c.prefill_step_tokens, 0, host, seed
            )
            host = 0  # what the device lacks is handed over, and would be copied from host memory once more
        engines = self._pool(clock, self.layout, c.replicas, c.step_tokens, c.drafts, host, seed)
        cost = FrontEndCost(c.front_end_request, c.front_end_prompt_token, c.front_end_answer_token)
        front_end = FrontEnd(c.front_end_cores, cost)
        fleet = Fleet(clock, engines, prefill, front_end, self.hand_over_seconds)
        pools = [engines] if prefill is None else [engines, prefill]
        return fleet, [core for pool in pools for _, _, core in pool.engines]

    @property
    def max_context(self) -> int:
        """Tokens of the longest sequence that every engine takes."""
        blocks = self._blocks(self.layout, self.config.step_tokens)
        if self.prefill_layout is not None:
            blocks = min(blocks, self._blocks(self.prefill_layout, self.config.prefill_step_tokens))
        return min(self.text.max_position_embeddings, blocks * self.config.block_tokens)

    def _blocks(self, layout: Layout, step_tokens: int) -> int:
        """Cache blocks of an engine: what its memory leaves, or what was asked for if that is there."""
        room = self.memory(layout, step_tokens).blocks
        if self.config.cache_tokens is None:
            return room
        blocks = self.config.cache_tokens // self.config.block_tokens
        if blocks > room:
            most = room * self.config.block_tokens
            raise InvalidValue("cache_tokens", self.config.cache_tokens, f"at most {most}, all that fits")
        return blocks

    def _tier_blocks(self) -> int:
        """Blocks of an engine's host tier."""
        size, block = self.config.host_memory, self.spec.block_bytes(self.config.block_tokens)
        if 0 < size < block:
            raise InvalidValue("host_memory", size, f"at least {block} bytes, one block")
        return size // block

    def _pool(
        self,
        clock: VirtualClock,
        layout: Layout,
        replicas: int,
        step_tokens: int,
        drafts: int,
        host_blocks: int,
        seed: int,
    ) -> EnginePool:
        c = self.config
        blocks = self._blocks(layout, step_tokens)
        capacity = Capacity(
            blocks=blocks,
            block_tokens=c.block_tokens,
            slots=c.sequences,
            max_context=self.text.max_position_embeddings,
            vocab_size=self.text.vocab_size,
            cache_spec=self.spec,
            draft_tokens=drafts,
            block_names=self._names,
            host_blocks=host_blocks,
        )
        engine = EngineConfig(
            max_step_tokens=step_tokens,
            max_running=c.sequences,
            max_waiting=1_000_000,
            block_tokens=c.block_tokens,
        )
        timer = functools.partial(self.step_time, layout=layout)
        per_block = self.spec.block_bytes(c.block_tokens) / self.machine.host_bandwidth
        made = []
        for _ in range(replicas):
            pairs = []
            for _ in range(layout.dp):
                rank = VirtualRank(capacity, self.work, self._acceptance(drafts, seed), per_block)
                pairs.append((EngineCore(Scheduler(engine, capacity), rank, clock), rank))
            replica = Replica(clock, pairs, timer, self.work.load, token_times=c.token_times)
            made.append((replica, [core for core, _ in pairs]))
        return EnginePool(made, Router(c.routing, replicas * layout.dp))

    def _acceptance(self, drafts: int, seed: int) -> Acceptance:
        mean = self.config.acceptance if drafts else Fraction(1)
        return make_acceptance(self.config.acceptance_rule, mean, drafts, seed)

    def _check(self, layout: Layout) -> None:
        check_reach(layout.ranks, self.machine)
        experts = self.text.n_routed_experts
        if layout.ep > 1 and experts % layout.ep:
            raise InvalidValue("layout", str(layout), f"EP that divides {experts} experts")
        heads, groups = self.text.num_attention_heads, self.text.o_groups
        if heads % layout.tp or groups % layout.tp:
            raise InvalidValue("layout", str(layout), f"TP that divides {heads} heads and {groups} groups")
        tokens = self.config.prefill_step_tokens if layout is self.prefill_layout else self.config.step_tokens
        self.memory(layout, tokens)
