"""Sums over rows of what their cost depends on: how many cached entries each of them sees.

All in closed form and in whole numbers, since every chunk of every simulated step asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashpoint.models.deepseek_v41.config import TextConfig

ROW_TILE = 64
"""Rows of one sequence that share a pass over its index keys: a verify block does, and so does a tile of a
prefill (prior; the kernels' own tile sizes are not published)."""


@dataclass(frozen=True, slots=True)
class RowSums:
    """Sums over rows at positions p. Entries at ratio r: (p + 1) // r.

    windowed: Σ min(window, p+1).  picked1, picked2: Σ min(topk, entries) at ratio 1 and 2.
    entries1, entries2: Σ entries.  candidates: Σ min(candidates, p+1).
    new2: entries of ratio 2 that become complete in these rows; at ratio 1 every row gives one.
    window_span: distinct window positions read.
    streamed1, streamed2, streamed_candidates: index keys read, each once for a tile of `ROW_TILE` rows.
    """

    rows: int = 0
    windowed: int = 0
    picked1: int = 0
    picked2: int = 0
    entries1: int = 0
    entries2: int = 0
    candidates: int = 0
    new2: int = 0
    window_span: int = 0
    streamed1: int = 0
    streamed2: int = 0
    streamed_candidates: int = 0

    def __add__(self, other: RowSums) -> RowSums:
        if not self.rows or not other.rows:
            return self if self.rows else other
        return RowSums(
            self.rows + other.rows,
            self.windowed + other.windowed,
            self.picked1 + other.picked1,
            self.picked2 + other.picked2,
            self.entries1 + other.entries1,
            self.entries2 + other.entries2,
            self.candidates + other.candidates,
            self.new2 + other.new2,
            self.window_span + other.window_span,
            self.streamed1 + other.streamed1,
            self.streamed2 + other.streamed2,
            self.streamed_candidates + other.streamed_candidates,
        )

    def toward(self, other: RowSums, share: float) -> RowSums:
        """Sums between these (share 0) and `other` (share 1), of as many rows."""

        def between(a: int, b: int) -> int:
            return a + round((b - a) * share)

        return RowSums(
            self.rows,
            between(self.windowed, other.windowed),
            between(self.picked1, other.picked1),
            between(self.picked2, other.picked2),
            between(self.entries1, other.entries1),
            between(self.entries2, other.entries2),
            between(self.candidates, other.candidates),
            between(self.new2, other.new2),
            between(self.window_span, other.window_span),
            between(self.streamed1, other.streamed1),
            between(self.streamed2, other.streamed2),
            between(self.streamed_candidates, other.streamed_candidates),
        )


NO_ROWS = RowSums()


def row_sums(config: TextConfig, first: int, rows: int) -> RowSums:
    """Sums of `rows` rows at positions `first`, `first` + 1, …"""
    if not rows:
        return NO_ROWS
    end = first + rows
    topk, candidates = config.index_topk, config.candidate_topk_blocks * config.candidate_block_size
    tiles = -(-rows // ROW_TILE)
    return RowSums(
        rows=rows,
        windowed=_capped(first, end, config.sliding_window),
        picked1=_capped(first, end, topk),
        picked2=_capped_halves(first, end, topk),
        entries1=_total(end) - _total(first),
        entries2=_halves(end) - _halves(first),
        candidates=_capped(first, end, candidates),
        new2=end // 2 - first // 2,
        window_span=rows + min(first, config.sliding_window - 1),
        streamed1=tiles * end,
        streamed2=tiles * (end // 2),
        streamed_candidates=tiles * min(end, candidates),
    )


def many_row_sums(config: TextConfig, firsts: Sequence[int], rows: int) -> RowSums:
    """`row_sums` of many sequences with `rows` rows each, added up.

    Behind the largest window and selection nothing depends on more than the sum of the positions and how many
    of them are odd.
    """
    if not rows:
        return NO_ROWS
    topk, candidates = config.index_topk, config.candidate_topk_blocks * config.candidate_block_size
    window, tiles = config.sliding_window, -(-rows // ROW_TILE)
    full = max(window, 2 * topk, candidates)
    total, far, odd = NO_ROWS, 0, 0
    positions = 0
    for first in firsts:
        if first >= full:
            far += 1
            positions += first
            odd += first & 1
        else:
            total = total + row_sums(config, first, rows)
    count = far * rows
    ends, odd_ends = positions + count, far - odd if rows & 1 else odd
    return total + RowSums(
        rows=count,
        windowed=count * window,
        picked1=count * topk,
        picked2=count * topk,
        entries1=rows * positions + far * _total(rows),
        # (p+1)//2 over p < end adds up to end² // 4.
        entries2=(2 * rows * positions + rows * count - odd_ends + odd) // 4,
        candidates=count * candidates,
        new2=(count - odd_ends + odd) // 2,
        window_span=count + far * (window - 1),
        streamed1=tiles * ends,
        streamed2=tiles * ((ends - odd_ends) // 2),
        streamed_candidates=tiles * far * candidates,
    )


def _total(end: int) -> int:
    """Σ (p+1) over p < end."""
    return end * (end + 1) // 2


def _halves(end: int) -> int:
    """Σ (p+1)//2 over p < end."""
    return (end // 2) * ((end + 1) // 2)


def _capped(first: int, end: int, cap: int) -> int:
    """Σ min(cap, p+1) over first <= p < end."""
    below = min(max(cap, first), end)
    return _total(below) - _total(first) + cap * (end - below)


def _capped_halves(first: int, end: int, cap: int) -> int:
    """Σ min(cap, (p+1)//2) over first <= p < end."""
    below = min(max(2 * cap, first), end)
    return _halves(below) - _halves(first) + cap * (end - below)
