"""What the cache tiers move: blocks of the released model between device, host memory and disk.

    python benchmarks/tiers.py [--blocks 1024] [--run-blocks 64] [--folder DIR] [--rounds 5] [--json]

A block is 64 tokens in packed codes, 56,960 bytes in eight pools; blocks are moved in shuffled order by the
mover, as the scheduler asks. Each rate stands beside a limit measured in turn with it: one plain copy of the
same bytes, plain synced files of the same sizes, plain reads. "Cold" reads come after the files have left the
system's cache. Last, how much longer a step of many small operators takes beside the moves, and beside plain
copies that hold no interpreter lock: that much is the machine's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import flashpoint.models.deepseek_v41 as deepseek_v41
from benchmarks.engine_speed import alternate
from benchmarks.machine import measure_machine
from flashpoint.cache.chain_hash import KEY_BYTES
from flashpoint.cache.disk_store import DiskStore
from flashpoint.cache.transfer import Fetch, Load, Run, Save, Store, Transfer
from flashpoint.executor.mover import Mover
from flashpoint.models.deepseek_v41.cache_spec import cache_spec
from flashpoint.models.deepseek_v41.config import parse_config

BLOCK_TOKENS = 64
SPEC = cache_spec(
    parse_config(json.loads((Path(deepseek_v41.__path__[0]) / "released_config.json").read_text())).text,
    "codes",
)
BLOCK_BYTES = SPEC.block_bytes(BLOCK_TOKENS)


def device_pools(blocks: int) -> list[Tensor]:
    """The paged pools as a model hands them to the mover: uint8 [blocks, bytes of a block]."""
    return [
        torch.randint(
            0, 256, (blocks, group.entry_bytes * BLOCK_TOKENS // group.tokens_per_entry), dtype=torch.uint8
        )
        for group in SPEC.groups
        if group.kind == "paged"
        for _ in group.layers
    ]


def carry_out(mover: Mover, transfers: Sequence[Transfer]) -> None:
    """Start all and wait for all."""
    mover.start(transfers)
    left = len(transfers)
    while left:
        for item in mover.landed(wait=True):
            if item.error is not None:
                raise RuntimeError(item.error)
            left -= 1


class Moves:
    """The same blocks moved each way, a transfer for each run."""

    def __init__(self, blocks: int, run_blocks: int, folder: Path) -> None:
        rng = np.random.default_rng(0)
        self.bytes = blocks * BLOCK_BYTES
        self.folder = folder
        self.device = device_pools(blocks)
        disk = DiskStore(folder / "runs", BLOCK_TOKENS, BLOCK_BYTES, b"benchmark")
        self.mover = Mover(self.device, blocks, disk)
        device, host = (rng.permutation(blocks).astype(np.int32).reshape(-1, run_blocks) for _ in range(2))
        content = np.zeros(run_blocks * BLOCK_TOKENS, dtype=np.int32)
        runs = [Run(rng.bytes(KEY_BYTES), bytes(KEY_BYTES), b"", content) for _ in host]
        pairs = list(enumerate(zip(device, host, runs, strict=True)))
        self.saves = [Save(n, d, h) for n, (d, h, _) in pairs]
        self.loads = [Load(n, h, d) for n, (d, h, _) in pairs]
        self.stores = [Store(n, h, run) for n, (_, h, run) in pairs]
        self.fetches = [Fetch(n, run.key, 0, h) for n, (_, h, run) in pairs]
        self.plain_bytes = rng.integers(0, 256, run_blocks * BLOCK_BYTES).astype(np.uint8)
        self.plain_files = [folder / f"plain{n}" for n in range(len(runs))]
        self.one, self.other = torch.zeros(2, self.bytes, dtype=torch.uint8)

    def run(self, transfers: Sequence[Transfer]) -> Callable[[], None]:
        """What carries out `transfers`."""
        return lambda: carry_out(self.mover, transfers)

    def copy_plainly(self) -> None:
        """The limit of saves and loads."""
        self.one.copy_(self.other)

    def write_plainly(self) -> None:
        """The limit of stores."""
        for path in self.plain_files:
            with path.open("wb") as file:
                file.write(self.plain_bytes.data)
                os.fsync(file.fileno())

    def read_plainly(self) -> None:
        """The limit of fetches."""
        for path in self.plain_files:
            with path.open("rb", buffering=0) as file:
                file.readinto(self.plain_bytes.data)

    def cold(self, run: Callable[[], None]) -> float:
        """Seconds of `run` after the files have left the system's cache."""
        for path in (*self.plain_files, *self.folder.glob("runs/*/*.run")):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        run()
        return time.perf_counter() - began


def small_operators() -> None:
    """A step as Python sees it: operators that take some ten microseconds each."""
    x = torch.ones(16, 320)
    w = torch.ones(320, 320)
    for _ in range(2000):
        x = torch.tanh(x @ w)


def beside(run: Callable[[], None]) -> float:
    """Seconds of `small_operators` while another thread repeats `run`."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.is_set():
            run()

    thread = threading.Thread(target=repeat)
    thread.start()
    began = time.perf_counter()
    small_operators()
    spent = time.perf_counter() - began
    stop.set()
    thread.join()
    return spent


def measure(blocks: int, run_blocks: int, folder: Path, rounds: int) -> dict[str, object]:
    """All figures; see the keys."""
    moves = Moves(blocks, run_blocks, folder)
    save_all, load_all, store_all, fetch_all = (
        moves.run(transfers) for transfers in (moves.saves, moves.loads, moves.stores, moves.fetches)
    )
    memory = (moves.copy_plainly, save_all, load_all)
    for run in (*memory, moves.write_plainly, store_all):
        run()  # first touch of every page and file
    plain_copy, save, load = alternate(rounds, *memory)
    plain_write, store = alternate(rounds, moves.write_plainly, store_all)
    plain_read, warm = alternate(rounds, moves.read_plainly, fetch_all)
    cold = [(moves.cold(moves.read_plainly), moves.cold(fetch_all)) for _ in range(rounds)]
    plain_cold, cold_fetch = (statistics.median(times) for times in zip(*cold, strict=True))
    steps = [
        (
            alternate(1, small_operators)[0],
            *(beside(run) for run in (moves.copy_plainly, save_all, store_all)),
        )
        for _ in range(rounds)
    ]
    alone, copying, saving, storing = (statistics.median(times) for times in zip(*steps, strict=True))
    moves.mover.close()

    def rate(seconds: float) -> float:
        return moves.bytes / seconds / 1e6

    return {
        "machine": asdict(measure_machine()),
        "block_bytes": BLOCK_BYTES,
        "moved_bytes": moves.bytes,
        "run_blocks": run_blocks,
        "save_mb_per_s": rate(save),
        "load_mb_per_s": rate(load),
        "plain_copy_mb_per_s": rate(plain_copy),
        "store_mb_per_s": rate(store),
        "plain_write_mb_per_s": rate(plain_write),
        "fetch_warm_mb_per_s": rate(warm),
        "plain_read_warm_mb_per_s": rate(plain_read),
        "fetch_cold_mb_per_s": rate(cold_fetch),
        "plain_read_cold_mb_per_s": rate(plain_cold),
        "step_beside_plain_copies_ratio": copying / alone,
        "step_beside_saves_ratio": saving / alone,
        "step_beside_stores_ratio": storing / alone,
    }


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=1024, help="blocks moved each way")
    parser.add_argument("--run-blocks", type=int, default=64, help="blocks of one transfer and one file")
    parser.add_argument("--folder", type=Path, help="where the files go; default: a temporary folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.blocks % options.run_blocks:
        parser.error("--blocks must be a multiple of --run-blocks")
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        result = measure(options.blocks, options.run_blocks, Path(folder), options.rounds)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:28s} {value:.4g}" if isinstance(value, float) else f"{name:28s} {value}")


if __name__ == "__main__":
    main()
