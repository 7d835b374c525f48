"""A step's chunks as index tensors: where each row's keys lie and where its results go.

Everything here follows from positions and block tables alone and is shared by all layers of the step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flashpoint.engine.plan import Chunk
from flashpoint.models.deepseek_v41.config import TextConfig

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EntryRows:
    """Compressed entries of one ratio. M entries are completed by this step's rows.

    visible int64 [T]: entries a row may attend to.
    key_rows int64 [S, E]: pool row of each entry of each sequence (beyond a sequence's last entry: any row).
    done_rows int64 [M]: the row that completes each new entry.
    done_positions int64 [M]: token position the entry is rotated at.
    done_pool int64 [M]: pool row it is written to.
    first int64 [M]: index of a pair's first token in [tails of the S sequences | T rows] (ratio 2).
    tail_rows, tail_slots int64: rows left waiting for their partner, and where they wait (ratio 2).
    """

    visible: Tensor
    key_rows: Tensor
    done_rows: Tensor
    done_positions: Tensor
    done_pool: Tensor
    first: Tensor
    tail_rows: Tensor
    tail_slots: Tensor


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """T rows of S sequences; sequence s owns rows row_offsets[s] … row_offsets[s+1]-1.

    token_ids, positions, sequence int64 [T].  slots int64 [S].
    previous_ids int64 [T, n]: ids before each row, newest first, -1 before the start (Engram look-back).
    window_index int64 [T, W]: each row's window keys in [ring_rows' keys | T rows], -1 for none.
    ring_rows int64: ring rows (slot · W + position mod W) read before anything is written.
    ring_sources, ring_targets int64: rows kept for the next step, and the ring rows they go to.
    entries: per compression ratio.
    decoder: what the layers behind the last KV source run on; None: the same rows and windows.
    """

    token_ids: Tensor
    positions: Tensor
    sequence: Tensor
    slots: Tensor
    row_offsets: list[int]
    previous_ids: Tensor
    window_index: Tensor
    ring_rows: Tensor
    ring_sources: Tensor
    ring_targets: Tensor
    entries: dict[int, EntryRows]
    decoder: DecoderRows | None = None

    @property
    def last_rows(self) -> Tensor:
        """int64 [S]: the last row of each sequence."""
        return torch.tensor(self.row_offsets[1:], dtype=torch.int64, device=self.token_ids.device) - 1


@dataclass(frozen=True, slots=True)
class DecoderRows:
    """The K rows that run the layers behind the last KV source, where these do not see the step as the layers
    before them do: fewer rows, or windows that begin later (spec 2.3).

    rows int64 [K]: which of the step's T rows, ascending.
    source_window int64 [K, W]: their window keys in the last KV source, which has keys of all T rows.
    batch: these rows as a step of their own; None when there are none.
    """

    rows: Tensor
    source_window: Tensor
    batch: RaggedBatch | None

    def places(self, step_rows: Tensor) -> Tensor:
        """Where rows of the step, int64 [N], lie among these. Raises ValueError for a row that does not."""
        places = torch.searchsorted(self.rows, step_rows)
        missing = step_rows[~torch.isin(step_rows, self.rows)].tolist()
        if missing:
            raise ValueError(f"logit rows {missing} skip the layers behind the last KV source: no logits")
        return places


def build_batch(
    chunks: Sequence[Chunk], config: TextConfig, block_tokens: int, device: torch.device
) -> RaggedBatch:
    """Index tensors of a step. `chunks` must be non-empty, each with at least one row.

    Raises ValueError for a chunk whose replay fields contradict each other.
    """
    for chunk in chunks:
        _check_replay_fields(chunk, max(config.compress_ratios))
    layers = config.num_hidden_layers
    batch = _batch(chunks, config, config.compress_ratios[:layers], block_tokens, device)
    if not any(_decoder_differs(chunk, config.sliding_window) for chunk in chunks):
        return batch
    kept = [_decoder_chunk(chunk) for chunk in chunks if _decoder_rows(chunk) > 0]
    ends = batch.row_offsets[1:]
    spans = [
        torch.arange(end - _decoder_rows(chunk), end, device=device)
        for chunk, end in zip(chunks, ends, strict=True)
    ]
    rows = torch.cat(spans)
    ratios = config.compress_ratios[config.kv_source_layer_ids[-1] : layers]
    behind = _batch(kept, config, ratios, block_tokens, device) if kept else None
    return replace(batch, decoder=DecoderRows(rows, batch.window_index[rows], behind))


def _decoder_rows(chunk: Chunk) -> int:
    return chunk.length if chunk.decoder_rows is None else chunk.decoder_rows


def _decoder_floor(chunk: Chunk) -> int:
    return max(chunk.window_start, chunk.decoder_start)


def _decoder_differs(chunk: Chunk, window: int) -> bool:
    """False once the floor of the decoder's windows lies where no row of the chunk looks."""
    oldest_key = max(chunk.start - window + 1, chunk.window_start)
    return _decoder_rows(chunk) < chunk.length or _decoder_floor(chunk) > oldest_key


def _decoder_chunk(chunk: Chunk) -> Chunk:
    """The chunk as the layers behind the last KV source see it: its last rows, under their own floor."""
    start = len(chunk.history) - _decoder_rows(chunk)
    return chunk._replace(start=start, window_start=_decoder_floor(chunk))


def _check_replay_fields(chunk: Chunk, ratio: int) -> None:
    kept, end = _decoder_rows(chunk), len(chunk.history)
    first_kept, floor = end - kept, _decoder_floor(chunk)
    problem = None
    if not 0 <= chunk.window_start <= chunk.start:
        problem = f"window_start is {chunk.window_start}; expected 0 … start = {chunk.start}"
    elif chunk.write_from % max(ratio, 1):
        problem = f"write_from is {chunk.write_from}; expected a multiple of {ratio}: an entry is not split"
    elif not 0 <= kept <= chunk.length:
        problem = f"decoder_rows is {kept}; expected 0 … {chunk.length}, the chunk's rows"
    elif kept and floor > first_kept:
        problem = f"decoder_start is {floor}; expected at most {first_kept}, the first decoder row"
    elif 0 < kept < chunk.length and floor < first_kept:
        # The rows in between leave nothing in the decoder's rings.
        problem = f"decoder_start is {floor}; expected {first_kept}, the first decoder row of a trimmed chunk"
    if problem:
        raise ValueError(f"chunk of request {chunk.request_id}: {problem}")


def _batch(
    chunks: Sequence[Chunk],
    config: TextConfig,
    ratios: Collection[int],
    block_tokens: int,
    device: torch.device,
) -> RaggedBatch:
    """The step with every chunk's rows running alike; entries of the `ratios` above 0."""
    layout = _Layout.of(chunks)
    window = config.sliding_window
    window_index, ring_rows = _window(layout, window)
    ends = layout.starts + layout.lengths
    kept = np.flatnonzero(layout.positions >= ends[layout.sequence] - window)
    ring_targets = layout.slots[layout.sequence[kept]] * window + layout.positions[kept] % window
    tables = _padded_tables(chunks)

    def tensor(values: Ints) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(device)

    return RaggedBatch(
        token_ids=tensor(np.concatenate([c.tokens for c in chunks])),
        positions=tensor(layout.positions),
        sequence=tensor(layout.sequence),
        slots=tensor(layout.slots),
        row_offsets=layout.offsets.tolist(),
        previous_ids=tensor(_previous_ids(chunks, config.engram_max_ngram_size - 1)),
        window_index=tensor(window_index),
        ring_rows=tensor(ring_rows),
        ring_sources=tensor(kept),
        ring_targets=tensor(ring_targets),
        entries={
            ratio: EntryRows(
                **{k: tensor(v) for k, v in _entries(layout, ratio, tables, block_tokens).items()}
            )
            for ratio in sorted({r for r in ratios if r > 0})
        },
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """Per sequence: starts, lengths, slots, first position a window may hold, first position whose entry is
    written, row offsets (one more); per row: sequence, position."""

    starts: Ints
    lengths: Ints
    slots: Ints
    window_starts: Ints
    writes_from: Ints
    offsets: Ints
    sequence: Ints
    positions: Ints

    @staticmethod
    def of(chunks: Sequence[Chunk]) -> _Layout:
        starts, lengths, slots, window_starts, writes_from = np.array(
            [(c.start, c.length, c.slot, c.window_start, c.write_from) for c in chunks], dtype=np.int64
        ).T
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        sequence = np.repeat(np.arange(len(chunks)), lengths)
        positions = np.arange(offsets[-1]) - offsets[sequence] + starts[sequence]
        return _Layout(starts, lengths, slots, window_starts, writes_from, offsets, sequence, positions)


def _window(layout: _Layout, window: int) -> tuple[Ints, Ints]:
    """(window_index [T, W], ring_rows): the ring supplies what precedes a chunk, its own rows the rest. Ring
    rows of positions before the sequence's window start are another request's."""
    before = np.minimum(layout.starts - layout.window_starts, window - 1)
    ring_offsets = np.concatenate(([0], np.cumsum(before)))
    owner = np.repeat(np.arange(len(before)), before)
    ring_positions = np.arange(ring_offsets[-1]) - ring_offsets[owner] + (layout.starts - before)[owner]
    ring_rows = layout.slots[owner] * window + ring_positions % window

    sequence = layout.sequence
    keys = layout.positions[:, None] + np.arange(1 - window, 1)
    in_ring = keys + (ring_offsets[:-1] - layout.starts + before)[sequence][:, None]
    in_chunk = keys + (ring_offsets[-1] + layout.offsets[:-1] - layout.starts)[sequence][:, None]
    index = np.where(keys >= layout.starts[sequence][:, None], in_chunk, in_ring)
    index[keys < layout.window_starts[sequence][:, None]] = -1
    return index, ring_rows


def _previous_ids(chunks: Sequence[Chunk], count: int) -> Ints:
    parts = []
    for chunk in chunks:
        padded = np.concatenate(
            (np.full(count, -1, dtype=np.int64), chunk.history[max(0, chunk.start - count) :])
        )
        # `padded` ends with the chunk; its row i sits at this offset, whatever preceded it.
        first = len(padded) - chunk.length
        parts.append(
            np.stack([padded[first - back : len(padded) - back] for back in range(1, count + 1)], axis=1)
        )
    return np.concatenate(parts)


def _padded_tables(chunks: Sequence[Chunk]) -> Ints:
    table = np.zeros((len(chunks), max(len(c.blocks) for c in chunks)), dtype=np.int64)
    for row, chunk in zip(table, chunks, strict=True):
        row[: len(chunk.blocks)] = chunk.blocks
    return table


def _entries(layout: _Layout, ratio: int, tables: Ints, block_tokens: int) -> dict[str, Ints]:
    """The fields of EntryRows. Entries of positions below `writes_from` hold their values already: rows there
    complete none and leave no tail."""
    per_block = block_tokens // ratio
    ends = layout.starts + layout.lengths
    columns = np.arange(int(ends.max()) // ratio)
    new = layout.positions >= layout.writes_from[layout.sequence]
    done = np.flatnonzero(new & ((layout.positions + 1) % ratio == 0))
    owner = layout.sequence[done]
    entry = layout.positions[done] // ratio
    none = np.zeros(0, dtype=np.int64)
    first, tail_rows, tail_slots = none, none, none
    if ratio == 2:
        partner_waits = layout.positions[done] == layout.starts[owner]
        first = np.where(partner_waits, owner, len(ends) + done - 1)
        waiting = np.flatnonzero((ends % 2 == 1) & (ends > layout.writes_from))
        tail_rows, tail_slots = layout.offsets[waiting + 1] - 1, layout.slots[waiting]
    return {
        "visible": (layout.positions + 1) // ratio,
        "key_rows": tables[:, columns // per_block] * per_block + columns % per_block,
        "done_rows": done,
        "done_positions": entry * ratio,
        "done_pool": tables[owner, entry // per_block] * per_block + entry % per_block,
        "first": first,
        "tail_rows": tail_rows,
        "tail_slots": tail_slots,
    }
