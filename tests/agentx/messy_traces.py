"""Traces as no recorder would write them twice: forks, seams, groups, short hash lists, side calls."""

from __future__ import annotations

import random
from typing import Any

MODELS = ("main-model", "small-model")


def messy_trace(seed: int) -> dict[str, Any]:
    """A random trace as JSON data, valid and full of odd cases."""
    rng = random.Random(seed)
    fresh = iter(range(1, 10**9))
    declared = rng.choice((0, 0, 0, 100, 200))
    shared = [next(fresh) for _ in range(rng.randint(4, 30))]
    states: list[list[int]] = []
    t = rng.choice((0.0, 5.0))

    def call(ids: list[int], model: str) -> dict[str, Any]:
        kept = ids if rng.random() < 0.85 else ids[: max(4, rng.randint(len(ids) // 2, len(ids)))]
        tokens = len(ids) * 64 + rng.choice((0, 0, rng.randint(1, 63)))
        if rng.random() < 0.1:
            tokens = max(64, tokens - rng.randint(1, 63))  # the last block is hashed, but not full
            kept = kept[: -(-tokens // 64)]
        return {
            "t": round(t, 3),
            "type": rng.choice("ns"),
            "model": model,
            "in": tokens,
            "out": rng.choice((0, 1, 5, 60, 64, 65, 300, 3000)),
            "hash_ids": kept,
            "api_time": rng.choice((None, 0.0, round(rng.uniform(0.1, 20), 3))),
        }

    def next_ids() -> list[int]:
        kind = rng.random()
        if not states or kind < 0.08:
            grown = [
                *shared[: rng.choice((0, 4, len(shared)))],
                *(next(fresh) for _ in range(rng.randint(1, 300))),
            ]
            grown = grown if not declared else [*shared[:4], *grown[4:]]
            states.append(grown)
            return grown
        number = rng.randrange(len(states))
        before = states[number]
        if kind < 0.7:
            grown = [*before, *(next(fresh) for _ in range(rng.randint(0, 12)))]
        elif kind < 0.85:  # a seam: cut back and grown anew, or cut back only
            grown = before[: max(4, rng.randint(2, len(before)))]
            grown = grown + [next(fresh) for _ in range(rng.choice((0, 0, 3, 20)))]
        else:  # a fork
            grown = [*before[: rng.randint(1, len(before))], *(next(fresh) for _ in range(rng.randint(1, 9)))]
            states.append(grown)
            return grown
        states[number] = grown
        return grown

    def step() -> float:
        return rng.choice(
            (0.0, 0.5, rng.uniform(0, 30), rng.uniform(0, 8000) if rng.random() < 0.05 else 2.0)
        )

    entries: list[dict[str, Any]] = []
    for number in range(rng.randint(2, 40)):
        if entries and rng.random() < 0.12:
            inner = []
            spawn = round(t, 3)
            for _ in range(rng.randint(0, 8)):
                inner.append(call(next_ids(), rng.choice(MODELS) if rng.random() < 0.1 else MODELS[0]))
                t += step() / 4 + 0.002
            entry = {
                "t": spawn,
                "type": "subagent",
                "agent_id": f"agent_{number}",
                "subagent_type": "Explore",
                "status": "completed",
                "requests": inner,
                "models": list(MODELS),
                "tool_tokens": rng.choice((0, 0, 100)) if declared else 0,
            }
            if rng.random() < 0.7:
                entry["duration_ms"] = round(1000 * max(0.0, t - spawn + rng.uniform(-1, 5)))
            entries.append(entry)
            t = spawn if rng.random() < 0.3 else t
        else:
            entries.append(call(next_ids(), MODELS[0] if rng.random() < 0.93 else MODELS[1]))
        t += step() + 0.002
    return {
        "id": f"messy-{seed}",
        "models": list(MODELS),
        "block_size": 64,
        "hash_id_scope": "local",
        "tool_tokens": declared // 2,
        "system_tokens": declared - declared // 2,
        "requests": entries,
    }
