"""Runs steps on this machine: one model, one device, pools allocated once."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from flashpoint.cache.config import TierConfig
from flashpoint.cache.disk_store import DiskStore
from flashpoint.cache.transfer import Run
from flashpoint.engine.config import EngineConfig
from flashpoint.engine.executor import Capacity
from flashpoint.engine.memory_plan import DEFAULT_CACHE_TOKENS
from flashpoint.engine.plan import Sampled, StepCounts, StepPlan, StepResult
from flashpoint.errors import InvalidValue
from flashpoint.executor.cache_format import format_key
from flashpoint.executor.mover import Mover
from flashpoint.executor.sampler import sample
from flashpoint.models.deepseek_v41.replay import require_replay
from flashpoint.models.load import LoadedModel

NO_TIERS = TierConfig()


class TorchExecutor:
    """An `engine.executor.Executor` over a loaded model.

    Pools hold `cache_tokens` rounded down to whole blocks; so do the tiers. Raises InvalidValue when the
    configuration does not fit the model's cache spec.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        tiers: TierConfig = NO_TIERS,
        count: Callable[[StepPlan], StepCounts] | None = None,
    ) -> None:
        """count: what a plan asks of the machine, for whoever wants to know."""
        if config.semantics == "replay":
            require_replay(loaded.config.text)
        self._model = loaded.model
        self._count = count
        self._block_tokens = config.block_tokens
        image = loaded.config.image_token_id
        # The model must not write an image placeholder either: it would be read back as an image.
        self._banned = () if image is None else (image,)
        multiple = loaded.cache_spec.block_multiple
        if config.block_tokens % multiple:
            raise InvalidValue("block_tokens", config.block_tokens, f"a multiple of {multiple}")
        trained = loaded.config.text.max_position_embeddings
        max_context = config.max_context or trained
        if max_context > trained:
            raise InvalidValue("max_context", max_context, f"at most {trained}, the model's own limit")
        self._capacity = Capacity(
            blocks=(config.cache_tokens or DEFAULT_CACHE_TOKENS) // config.block_tokens,
            block_tokens=config.block_tokens,
            slots=config.max_running,
            max_context=max_context,
            vocab_size=loaded.config.text.vocab_size,
            cache_spec=loaded.cache_spec,
            image_token_id=image,
            **_tier_blocks(tiers, loaded.cache_spec.block_bytes(config.block_tokens)),
        )
        self._caches = self._model.allocate_caches(
            self._capacity.blocks, self._capacity.block_tokens, self._capacity.slots
        )
        self._stored: tuple[Run, ...] = ()
        self._mover = self._make_mover(loaded, config, tiers) if self._capacity.host_blocks else None

    @property
    def capacity(self) -> Capacity:
        """Fixed for the executor's life."""
        return self._capacity

    @property
    def stored(self) -> tuple[Run, ...]:
        """Runs that the disk tier held at the start."""
        return self._stored

    def close(self) -> None:
        """Finish the transfers in flight and let go of the disk folder."""
        if self._mover is not None:
            self._mover.close()

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run the model on every chunk and sample where a chunk asks for it."""
        began = time.perf_counter()
        if self._mover is not None:
            self._mover.start(plan.transfers)
        sampled = self._compute(plan) if plan.chunks else ()
        landed = () if self._mover is None else self._mover.landed(wait=not plan.chunks)
        seconds = time.perf_counter() - began
        counts = None if self._count is None or not plan.chunks else self._count(plan)
        return StepResult(plan.step, sampled, seconds, landed, counts=counts)

    def _compute(self, plan: StepPlan) -> tuple[Sampled, ...]:
        batch = self._model.build_batch(plan.chunks, self._block_tokens)
        sampling = [index for index, chunk in enumerate(plan.chunks) if chunk.sampling is not None]
        logits = self._model.forward(batch, self._caches, batch.last_rows[sampling])
        return sample(logits, [plan.chunks[index] for index in sampling], self._banned)

    def _make_mover(self, loaded: LoadedModel, config: EngineConfig, tiers: TierConfig) -> Mover:
        disk = None
        if self._capacity.disk_blocks and tiers.disk_folder is not None:
            disk = DiskStore(
                tiers.disk_folder,
                config.block_tokens,
                loaded.cache_spec.block_bytes(config.block_tokens),
                format_key(loaded, config.semantics),
            )
            self._stored = disk.scan()
        return Mover(self._caches.block_views(self._capacity.blocks), self._capacity.host_blocks, disk)


def _tier_blocks(tiers: TierConfig, block_bytes: int) -> dict[str, int]:
    """Capacity's fields for the tiers. Raises InvalidValue for a tier that cannot hold a block."""
    sizes = {"host_memory": tiers.host_memory, "disk_space": tiers.disk_space if tiers.disk_folder else 0}
    for name, size in sizes.items():
        if 0 < size < block_bytes:
            raise InvalidValue(name, size, f"at least {block_bytes} bytes, one block")
    return {
        "host_blocks": sizes["host_memory"] // block_bytes,
        "disk_blocks": sizes["disk_space"] // block_bytes,
    }


def set_threads(count: int) -> None:
    """CPU threads of torch's operators in this process; 0 leaves torch's choice."""
    if count:
        torch.set_num_threads(count)
