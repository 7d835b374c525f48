"""Runs steps on this machine: one model, one device, pools allocated once."""

from __future__ import annotations

import time

import torch

from flashpoint.cache.transfer import Run
from flashpoint.engine.config import EngineConfig
from flashpoint.engine.executor import Capacity
from flashpoint.engine.plan import StepPlan, StepResult
from flashpoint.errors import InvalidValue
from flashpoint.executor.sampler import sample
from flashpoint.models.load import LoadedModel


class TorchExecutor:
    """An `engine.executor.Executor` over a loaded model.

    Pools hold `cache_tokens` rounded down to whole blocks. Raises InvalidValue when the configuration does
    not fit the model's cache spec.
    """

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        self._model = loaded.model
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
            blocks=config.cache_tokens // config.block_tokens,
            block_tokens=config.block_tokens,
            slots=config.max_running,
            max_context=max_context,
            vocab_size=loaded.config.text.vocab_size,
            cache_spec=loaded.cache_spec,
            image_token_id=image,
        )
        self._caches = self._model.allocate_caches(
            self._capacity.blocks, self._capacity.block_tokens, self._capacity.slots
        )

    @property
    def capacity(self) -> Capacity:
        """Fixed for the executor's life."""
        return self._capacity

    @property
    def stored(self) -> tuple[Run, ...]:
        """Nothing: there is no disk tier yet."""
        return ()

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run the model on every chunk and sample where a chunk asks for it."""
        began = time.perf_counter()
        batch = self._model.build_batch(plan.chunks, self._block_tokens)
        sampling = [index for index, chunk in enumerate(plan.chunks) if chunk.sampling is not None]
        logits = self._model.forward(batch, self._caches, batch.last_rows[sampling])
        sampled = sample(logits, [plan.chunks[index] for index in sampling], self._banned)
        return StepResult(plan.step, sampled, time.perf_counter() - began)


def set_threads(count: int) -> None:
    """CPU threads of torch's operators in this process; 0 leaves torch's choice."""
    if count:
        torch.set_num_threads(count)
