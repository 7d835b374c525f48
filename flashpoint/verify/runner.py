"""Runs sequences through the model as the engine would, looking at every row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flashpoint.engine.plan import Chunk
from flashpoint.models.load import LoadedModel

BLOCK_TOKENS = 8


class Recorder:
    """A tap that keeps what passes, in row order, and feeds recorded sublayer inputs when it has them."""

    def __init__(self, forced: dict[str, Tensor] | None = None) -> None:
        self._forced = forced or {}
        self._row = 0
        self._parts: dict[str, list[Tensor]] = defaultdict(list)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Keep `value`; return the forced rows of that name instead, where there are any."""
        if name == "embed" and self._parts["embed"]:
            self._row += len(self._parts["embed"][-1])
        self._parts[name].append(value.clone())
        if name in self._forced:
            return self._forced[name][self._row : self._row + len(value)].to(value.dtype)
        return value

    def tensors(self) -> dict[str, Tensor]:
        """Everything seen, steps concatenated; tensors of another width per step keep the last one's."""
        return {
            name: torch.cat(parts) if all(p.shape[1:] == parts[0].shape[1:] for p in parts) else parts[-1]
            for name, parts in self._parts.items()
        }


class Runner:
    """Some sequences over one set of pools. Block tables are deliberately out of order."""

    def __init__(self, loaded: LoadedModel, prompts: Sequence[npt.NDArray[np.int32]], room: int = 0) -> None:
        self._model = loaded.model
        self.ids = [np.asarray(p, dtype=np.int32) for p in prompts]
        self.computed = [0] * len(prompts)
        blocks = max(-(-(len(p) + room) // BLOCK_TOKENS) for p in self.ids) + 1
        count = len(prompts)
        self._tables = [np.arange(blocks, dtype=np.int32)[::-1] * count + index for index in range(count)]
        # Slot 0 stays unused, so that a forgotten slot index shows as NaN.
        self._caches = self._model.allocate_caches(blocks * count, BLOCK_TOKENS, count + 1)

    def step(
        self, lengths: dict[int, int], tap: Recorder | None = None, decoder_rows: int | None = None
    ) -> Tensor:
        """Compute `lengths[s]` further rows of each sequence s: logits of all rows [T, vocab].

        With `decoder_rows` only so many last rows of each run the layers behind the last KV source, blind to
        what lies before them there; logits are theirs alone.
        """
        chunks = []
        for sequence, length in lengths.items():
            start = self.computed[sequence]
            end = start + length
            chunks.append(
                Chunk(
                    request_id=str(sequence),
                    slot=sequence + 1,
                    start=start,
                    history=self.ids[sequence][:end],
                    blocks=self._tables[sequence][: -(-end // BLOCK_TOKENS)],
                    prompt_tokens=end,
                    sampling=None,
                    decoder_rows=decoder_rows,
                    decoder_start=0 if decoder_rows is None else end - decoder_rows,
                )
            )
            self.computed[sequence] = end
        batch = self._model.build_batch(chunks, BLOCK_TOKENS)
        rows = torch.arange(batch.row_offsets[-1]) if batch.decoder is None else batch.decoder.rows
        return self._model.forward(batch, self._caches, rows, tap or Recorder())

    def chunked(self, sizes: Sequence[int], tap: Recorder | None = None) -> list[Tensor]:
        """Run sequence 0 in chunks of `sizes`; logits of each chunk's rows."""
        return [self.step({0: size}, tap) for size in sizes]

    def append(self, sequence: int, token: int) -> None:
        """Add a token to a sequence, to be computed by the next step."""
        self.ids[sequence] = np.append(self.ids[sequence], np.int32(token))

    def greedy(self, count: int) -> tuple[Tensor, Tensor]:
        """`count` greedy tokens for every sequence, batched: (ids [S, count], logits [S, count, vocab])."""
        ids, logits = [], []
        for _ in range(count):
            lengths = {s: len(i) - c for s, (i, c) in enumerate(zip(self.ids, self.computed, strict=True))}
            rows = self.step(lengths)
            last = torch.tensor(list(lengths.values())).cumsum(0) - 1
            logits.append(rows[last])
            ids.append(rows[last].argmax(-1))
            for sequence, token in enumerate(ids[-1].tolist()):
                self.append(sequence, token)
        return torch.stack(ids, 1), torch.stack(logits, 1)
