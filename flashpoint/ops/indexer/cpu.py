"""Selection in row tiles.

Single-row sequences (decode) share one batched product; long chunks are cut so that a tile scores only what
its last row can see; where candidates are few, only they are scored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashpoint.ops.indexer.reference import NEVER, candidate_blocks, mask_invisible, mask_outside
from flashpoint.ops.indexer.reference import top_positions as stable_top_positions
from flashpoint.ops.rows import Rows

# Floats of one tile's per-head scores: 4 MiB.
_TILE_FLOATS = 1 << 20


def top_positions(scores: Tensor, count: int) -> Tensor:
    """As `reference.top_positions`: a partial sort, and a stable one only for rows with a tie at the edge."""
    width = scores.shape[1]
    if count >= width:
        return stable_top_positions(scores, count)
    best = scores.topk(count, dim=-1)
    edge = best.values[:, -1:]
    tied = ((scores >= edge).sum(-1) > count) & (edge[:, 0] > NEVER)
    chosen = best.indices.masked_fill(best.values == NEVER, width).sort(dim=-1).values
    chosen.masked_fill_(chosen == width, -1)
    if bool(tied.any()):
        chosen[tied] = stable_top_positions(scores[tied], count)
    return chosen


def select_entries(
    q: Tensor,
    weights: Tensor,
    keys: Rows,
    key_rows: Tensor,
    row_offsets: list[int],
    visible: Tensor,
    top_k: int,
    block_size: int,
    publish: int = 0,
    candidates: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `reference.select_entries`."""
    chosen = torch.full((len(q), top_k), -1, dtype=torch.int64, device=q.device)
    blocks = torch.full((len(q), publish), -1, dtype=torch.int64, device=q.device) if publish else None
    seen = visible.tolist()
    heads = q.shape[1]
    for start, stop, first, last in _tiles(row_offsets, seen, heads):
        width = max(seen[start:stop])
        if width == 0:
            continue
        part = slice(start, stop)
        if candidates is not None and _worth_gathering(candidates, block_size, width):
            chosen[part] = _among_candidates(
                q[part],
                weights[part],
                keys,
                _rows_of(key_rows, stop - start, first, last),
                visible[part],
                candidates[part],
                block_size,
                top_k,
            )
            continue
        if last - first == 1:
            scores = _shared_keys(q[part], weights[part], keys[key_rows[first, :width]])
        else:
            scores = _own_keys(q[part], weights[part], keys[key_rows[first:last, :width]])
        scores = mask_invisible(scores, visible[part])
        if blocks is not None:
            blocks[part] = candidate_blocks(scores, visible[part], block_size, publish)
        if candidates is not None:
            scores = mask_outside(scores, candidates[part], block_size)
        chosen[part] = top_positions(scores, top_k)
    return chosen, blocks


def _worth_gathering(candidates: Tensor, block_size: int, width: int) -> bool:
    # A gathered key costs about three times a streamed one here (docs/log.md).
    return candidates.shape[1] * block_size * 3 < width


def _rows_of(key_rows: Tensor, rows: int, first: int, last: int) -> Tensor:
    """key_rows of each of a tile's rows: [rows, entries]."""
    return key_rows[first:last].expand(rows, -1) if last - first == 1 else key_rows[first:last]


def _among_candidates(
    q: Tensor,
    weights: Tensor,
    keys: Rows,
    key_rows: Tensor,
    visible: Tensor,
    blocks: Tensor,
    block_size: int,
    top_k: int,
) -> Tensor:
    """The selection of some rows, scoring the entries of their candidate blocks alone."""
    positions = (blocks.unsqueeze(-1) * block_size + torch.arange(block_size, device=q.device)).flatten(1)
    absent = (positions < 0) | (positions >= visible.unsqueeze(1))
    positions = positions.masked_fill(absent, 0)
    chosen_keys = keys[key_rows.gather(1, positions)]
    scores = _own_keys(q, weights, chosen_keys).masked_fill(absent, NEVER)
    # Blocks ascend, so the lower place of a tie is the lower position.
    places = top_positions(scores, top_k)
    return positions.gather(1, places.clamp(min=0)).masked_fill(places < 0, -1)


def _tiles(row_offsets: list[int], seen: list[int], heads: int) -> list[tuple[int, int, int, int]]:
    """(first row, end row, first sequence, end sequence): either one row each of several sequences, or
    several rows of one."""
    tiles: list[tuple[int, int, int, int]] = []
    sequences = len(row_offsets) - 1
    sequence = 0
    while sequence < sequences:
        start, stop = row_offsets[sequence], row_offsets[sequence + 1]
        if stop - start == 1:
            last = sequence + 1
            widest = seen[start]
            while last < sequences and row_offsets[last + 1] - row_offsets[last] == 1:
                widest = max(widest, seen[row_offsets[last]])
                if (last + 1 - sequence) * widest * heads > _TILE_FLOATS:
                    break
                last += 1
            tiles.append((start, row_offsets[last], sequence, last))
            sequence = last
            continue
        row = start
        while row < stop:
            rows = max(1, _TILE_FLOATS // max(1, seen[stop - 1] * heads))
            end = min(row + rows, stop)
            tiles.append((row, end, sequence, sequence + 1))
            row = end
        sequence += 1
    return tiles


def _shared_keys(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    rows, heads, width = q.shape
    dots = torch.mm(q.float().view(rows * heads, width), keys.float().T).view(rows, heads, -1)
    return _weigh(dots, weights, q.dtype)


def _own_keys(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    return _weigh(torch.bmm(q.float(), keys.float().transpose(1, 2)), weights, q.dtype)


def _weigh(dots: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.float32:
        return torch.bmm(weights.unsqueeze(1), dots.relu_()).squeeze(1)
    return (dots.to(dtype).relu_() * weights.unsqueeze(-1)).sum(1).float()
