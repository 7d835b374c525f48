"""Index scores and the two-level selection (spec 4.3, 4.4)."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from flashpoint.ops.rows import Rows

NEVER = float("-inf")


def index_scores(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """Σ_h relu(q_h · k_j) · w_h for one sequence: q [T, H, D], weights [T, H], keys [E, D] -> fp32 [T, E].

    Products, weighting and head sum are each rounded to q's dtype, as the authors' code does.
    """
    dots = torch.einsum("thd,ed->the", q.float(), keys.float()).to(q.dtype)
    return (dots.relu() * weights.unsqueeze(-1)).sum(1).float()


def mask_invisible(scores: Tensor, visible: Tensor) -> Tensor:
    """Set scores [T, E] of entries at or beyond `visible` [T] to -inf."""
    entry = torch.arange(scores.shape[1], device=scores.device)
    return scores.masked_fill(entry >= visible.unsqueeze(1), NEVER)


def top_positions(scores: Tensor, count: int) -> Tensor:
    """The `count` best columns of each row, ascending, int64 [T, count]; -1 where a row has fewer than that
    above -inf. Ties go to the lower position."""
    width = scores.shape[1]
    order = torch.sort(scores, dim=-1, descending=True, stable=True)
    chosen = order.indices[:, :count].masked_fill(order.values[:, :count] == NEVER, width)
    if chosen.shape[1] < count:
        missing = chosen.new_full((len(chosen), count - chosen.shape[1]), width)
        chosen = torch.cat((chosen, missing), dim=1)
    chosen = chosen.sort(dim=-1).values
    return chosen.masked_fill(chosen == width, -1)


def candidate_blocks(scores: Tensor, visible: Tensor, block_size: int, count: int) -> Tensor:
    """Blocks of `block_size` entries that later index sources may choose from (spec 4.4).

    scores [T, E], already masked; the block of the newest visible entry is always in. Returns block ids
    ascending, int64 [T, count], -1 where fewer exist.
    """
    blocks = -(-scores.shape[1] // block_size)
    padded = torch.nn.functional.pad(scores, (0, blocks * block_size - scores.shape[1]), value=NEVER)
    best = padded.unflatten(-1, (blocks, block_size)).amax(-1)
    newest = (visible - 1).clamp(min=0) // block_size
    pinned = torch.where(visible > 0, float("inf"), NEVER).to(best.dtype)
    best.scatter_(1, newest.unsqueeze(1), pinned.unsqueeze(1))
    return top_positions(best, count)


def mask_outside(scores: Tensor, blocks: Tensor, block_size: int) -> Tensor:
    """Set scores [T, E] outside the candidate `blocks` [T, count] to -inf."""
    total = -(-scores.shape[1] // block_size)
    allowed = torch.zeros(len(scores), total + 1, dtype=torch.bool, device=scores.device)
    allowed.scatter_(1, blocks.masked_fill(blocks < 0, total), True)
    inside = allowed[:, :total].repeat_interleave(block_size, dim=1)[:, : scores.shape[1]]
    return scores.masked_fill(~inside, NEVER)


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
    """The selection of every row of a ragged batch.

    q [T, H, D], weights [T, H]; keys [P, D] is the whole paged pool and key_rows int64 [S, E] the pool row of
    each entry of each sequence; sequence s owns rows row_offsets[s] … row_offsets[s+1]-1; visible int64 [T]
    counts the entries a row may see. `publish` > 0 asks for that many candidate blocks, chosen over the full
    range; `candidates` int64 [T, C] restricts the selection to earlier published blocks.
    Returns (entry positions within the sequence, ascending, -1 = unused, int64 [T, top_k]; blocks or None).
    """
    chosen = torch.full((len(q), top_k), -1, dtype=torch.int64, device=q.device)
    blocks = torch.full((len(q), publish), -1, dtype=torch.int64, device=q.device) if publish else None
    for sequence, (start, stop) in enumerate(itertools.pairwise(row_offsets)):
        seen = int(visible[stop - 1])
        if seen == 0:
            continue
        part = slice(start, stop)
        scores = index_scores(q[part], weights[part], keys[key_rows[sequence, :seen]])
        scores = mask_invisible(scores, visible[part])
        if blocks is not None:
            blocks[part] = candidate_blocks(scores, visible[part], block_size, publish)
        if candidates is not None:
            scores = mask_outside(scores, candidates[part], block_size)
        chosen[part] = top_positions(scores, top_k)
    return chosen, blocks
