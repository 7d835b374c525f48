"""The prefix cache on workload S (`prefix_workload.py`), beside SGLang's.

    python benchmarks/prefix_index.py [--sglang-python PATH] [--json]

Ours, per request: match the prompt, lease its blocks, shared and new, publish them, release the lease. CPU
seconds, one thread, best of three. The peer runs in its own interpreter with its own script (`peers/`), in
the same run; without a path it is left out. Its environment, on a machine without a GPU:

    python3 -m venv /tmp/peers
    /tmp/peers/bin/pip install torch==2.13.0 numpy transformers
    /tmp/peers/bin/pip install --no-deps sglang==0.5.23
    # then what importing it misses, one by one with --no-deps: orjson ipython pydantic psutil requests pyzmq
    # fastapi msgspec setproctitle packaging prometheus_client aiohttp uvloop pillow pybase64 apache-tvm-ffi …
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.prefix_workload import BLOCK_TOKENS, prompts
from flashpoint.cache.block_cache import BlockCache

MILLION = 1_000_000
ROOMY, TIGHT = 80_000, 25_000  # blocks: everything stays; less than a third does


def run_ours(requests: list[npt.NDArray[np.int32]], blocks: int, name: str) -> dict[str, Any]:
    """One pass over the workload with a pool of `blocks`."""
    cache = BlockCache(blocks, BLOCK_TOKENS)
    spent = {"match_s": 0.0, "insert_s": 0.0, "release_s": 0.0}
    hit = 0
    began = time.process_time()
    for prompt in requests:
        start = time.process_time()
        findable = prompt[: (len(prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS]
        lease = cache.acquire(b"", findable, -(-(len(prompt) + 1) // BLOCK_TOKENS), 0)
        matched = time.process_time()
        assert lease is not None
        cache.publish(lease, prompt)
        published = time.process_time()
        cache.release(lease)
        hit += lease.hit_blocks * BLOCK_TOKENS
        spent["match_s"] += matched - start
        spent["insert_s"] += published - matched
        spent["release_s"] += time.process_time() - published
    total = time.process_time() - began
    return {
        "name": name,
        "version": "this tree",
        "requests_per_s": len(requests) / total,
        "matched_blocks_per_s": hit / BLOCK_TOKENS / spent["match_s"],
        "hit_tokens": hit,
        "total_s": total,
        **spent,
    }


def match_a_million(requests: list[npt.NDArray[np.int32]]) -> dict[str, float]:
    """ms to match a prompt of 1M tokens in a full cache: never seen, seen whole, and new after half of it."""
    cache = BlockCache(ROOMY, BLOCK_TOKENS)

    def keep(content: npt.NDArray[np.int32]) -> None:
        lease = cache.acquire(b"", content, -(-len(content) // BLOCK_TOKENS), 0)
        assert lease is not None
        cache.publish(lease, content)
        cache.release(lease)

    for prompt in requests[:300]:
        keep(prompt)
    rng = np.random.default_rng(1)
    seen = rng.integers(0, 129_280, MILLION).astype(np.int32)
    keep(seen)
    half = seen.copy()
    half[MILLION // 2 :] += 1
    cases = {
        "never seen": rng.integers(0, 129_280, MILLION).astype(np.int32),
        "half seen": half,
        "seen": seen,
    }
    times = {}
    for name, content in cases.items():
        began = time.perf_counter()
        cache._tree.match(b"", content)
        times[name] = 1000 * (time.perf_counter() - began)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sglang-python", help="interpreter that has sglang")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    requests = list(prompts())
    rows = [
        min((run_ours(requests, blocks, name) for _ in range(3)), key=lambda row: float(row["total_s"]))
        for name, blocks in (("flashpoint", ROOMY), ("flashpoint, a third fits", TIGHT))
    ]
    if options.sglang_python:
        script = Path(__file__).parent / "peers" / "sglang_prefix_cache.py"
        answer = subprocess.run(
            [options.sglang_python, str(script)], capture_output=True, text=True, check=True
        )
        rows.append(json.loads(answer.stdout.splitlines()[-1]))
    million = match_a_million(requests)
    blocks = sum(len(prompt) // BLOCK_TOKENS for prompt in requests)
    if options.json:
        print(json.dumps({"blocks": blocks, "rows": rows, "match_1m_ms": million}))
        return
    print(f"{len(requests)} requests, {blocks} blocks of {BLOCK_TOKENS}")
    for row in rows:
        print(
            f"{row['name']:26s}{row['requests_per_s']:8.0f} requests/s"
            f"{row['matched_blocks_per_s'] / 1e6:7.2f} M matched blocks/s"
            f"{row['hit_tokens'] / 1e6:7.1f} M hit tokens"
        )
    if options.sglang_python:
        print(f"ours / SGLang {rows[0]['requests_per_s'] / rows[2]['requests_per_s']:.1f}x")
    print("1M tokens matched in " + ", ".join(f"{ms:.3f} ms ({name})" for name, ms in million.items()))


if __name__ == "__main__":
    main()
