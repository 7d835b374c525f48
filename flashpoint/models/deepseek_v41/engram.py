"""Engram: n-gram memory added to the stream before a layer (spec 7)."""

from __future__ import annotations

import torch
from torch import Tensor

from flashpoint.models.deepseek_v41 import weights as w
from flashpoint.models.deepseek_v41.attention import AttentionContext
from flashpoint.models.deepseek_v41.batch import RaggedBatch
from flashpoint.models.deepseek_v41.engram_hash import EngramHash
from flashpoint.ops.engram.gate import inject
from flashpoint.ops.engram.reference import ngram_rows


class EngramRows:
    """Which table rows each token reads; hash constants on the model's device."""

    def __init__(self, constants: EngramHash, device: torch.device) -> None:
        self._token_map = torch.from_numpy(constants.token_map).to(device)
        self._pad = constants.pad
        self._multipliers = torch.from_numpy(constants.multipliers).to(device)
        self._primes = torch.from_numpy(constants.primes).to(device)
        self._offsets = torch.from_numpy(constants.offsets).to(device)

    def of_batch(self, batch: RaggedBatch) -> Tensor:
        """int64 [T, Engram layers, slots]. Depends on token ids alone."""
        return ngram_rows(
            batch.token_ids,
            batch.previous_ids,
            self._token_map,
            self._pad,
            self._multipliers,
            self._primes,
            self._offsets,
        )


def engram(context: AttentionContext, weights: w.Engram, stream: Tensor, rows: Tensor) -> Tensor:
    """Stream [T, 4, hidden] with the memory of `rows` int64 [T, slots] added."""
    memory = context.linear(weights.table.lookup(rows), weights.wkv)
    return inject(stream, memory, weights.q_weight, weights.k_weight, context.config.rms_norm_eps)
