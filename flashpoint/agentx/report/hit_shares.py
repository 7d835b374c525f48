"""How much of the prompts came from the cache over time, against what could have come from it.

A request belongs to the slice of its first token, when its prompt was done. Sources: spec agentx.md section 4
(actual and theoretical hit), section 10 (uncached prefill beside the total).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flashpoint.agentx.report.columns import Columns, Floats
from flashpoint.agentx.report.encode import rounded, rounded_list
from flashpoint.agentx.report.slices import Slices

SESSIONS_SHOWN = 10


def hit_shares(level: Columns, slices: Slices) -> dict[str, Any]:
    """Per slice: `actual` and `theoretical` share of 1, `uncached` prompt tokens/s of the whole system.

    Successful requests, the warm-up's included. A share is None in a slice without such a request; a series
    is None where the archive does not support it at all.
    """
    done = level.take(level.ok & ~np.isnan(level.prompt_tokens))
    at = np.where(np.isnan(done.ttft), done.end, done.start + done.ttft)
    cached = _cached(done)
    prompts = slices.sums(at, done.prompt_tokens)
    known = ~np.isnan(done.hit_blocks) & ~np.isnan(done.total_blocks)
    hits = slices.sums(at[known], done.hit_blocks[known])
    blocks = slices.sums(at[known], done.total_blocks[known])
    return {
        "actual": None if cached is None else _ratio(slices.sums(at, cached), prompts),
        "theoretical": _ratio(hits, blocks) if known.any() else None,
        "uncached": None
        if cached is None
        else rounded_list(slices.sums(at, done.prompt_tokens - cached) / slices.lengths(), 4),
        "shortfalls": shortfalls(level),
    }


def shortfalls(level: Columns) -> list[dict[str, Any]] | None:
    """The sessions with the most prompt tokens that could have been hits and were not, most first.

    Per request max(0, prompt tokens · hit blocks / blocks - cached tokens), which tells where blocks were
    evicted. Counted requests only; None where theoretical or actual hits are unknown.
    """
    done = level.take(level.counted & (level.total_blocks > 0) & ~np.isnan(level.hit_blocks))
    done = done.take(~np.isnan(done.prompt_tokens))
    cached = _cached(done)
    if cached is None:
        return None
    possible = done.prompt_tokens * done.hit_blocks / done.total_blocks
    lost = np.bincount(done.session, weights=np.maximum(0.0, possible - cached), minlength=len(done.sessions))
    could = np.bincount(done.session, weights=possible, minlength=len(done.sessions))
    order = [int(i) for i in np.argsort(-lost, kind="stable")[:SESSIONS_SHOWN] if lost[i] >= 1]
    return [
        {
            "session": done.sessions[i],
            "tokens": round(float(lost[i])),
            "share": rounded(float(lost[i] / could[i]), 3),
        }
        for i in order
    ]


def _cached(done: Columns) -> Floats | None:
    """Cached tokens; a request without a count has none as soon as another one has a count (see metrics)."""
    if np.isnan(done.cached_tokens).all():
        return None
    return np.nan_to_num(done.cached_tokens, nan=0.0)


def _ratio(part: Floats, whole: Floats) -> list[float | None]:
    with np.errstate(invalid="ignore", divide="ignore"):
        return rounded_list(part / whole, 4)
