"""How long the report of a run of 100,000 requests takes to write and to open.

    python benchmarks/report_open.py [--requests 100000]

Prints the seconds to write the page, its size, and the seconds from navigation to the load event, to the
first chart and to the first swim lanes, in a headless Chromium on this machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from flashpoint.agentx.archive import ArchiveWriter, LevelInfo
from flashpoint.agentx.metrics import window
from flashpoint.agentx.records import RequestRecord
from flashpoint.agentx.report import write_report
from tests.agentx.browser import Browser
from tests.agentx.made_records import made_run_info

LEVELS = (8, 16, 32, 64)
TURNS = 250
STREAMS = 8
TOKENS = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100_000)
    count = parser.parse_args().requests
    with tempfile.TemporaryDirectory() as folder:
        for name, value in measure(Path(folder), count).items():
            print(f"{name}: {value:.2f}")


def measure(folder: Path, count: int) -> dict[str, float]:
    """Make a run of `count` requests, report it and open the page."""
    write_run(folder / "run", count)
    begin = time.perf_counter()
    write_report([folder / "run"], folder / "page.html")
    written = time.perf_counter() - begin
    with Browser(folder / "profile") as browser:
        browser.open(folder / "page.html")
        load, chart = browser.evaluate(
            "[performance.getEntriesByType('navigation')[0].loadEventStart,"
            " performance.getEntriesByName('first chart')[0].startTime]"
        )
        browser.wait_for("document.querySelectorAll('.request').length > 0")
        lanes = browser.evaluate("performance.getEntriesByName('first lanes')[0].startTime")
    return {
        "requests": count,
        "seconds to write the page": written,
        "MB of page": (folder / "page.html").stat().st_size / 1e6,
        "seconds to the load event": load / 1e3,
        "seconds to the first chart": chart / 1e3,
        "seconds to the swim lanes": lanes / 1e3,
    }


def write_run(path: Path, count: int) -> None:
    """A run whose sizes look like an agent run's; times and lengths are drawn from fixed seeds."""
    rng = np.random.default_rng(0)
    writer = ArchiveWriter(path, made_run_info())
    begin = 0.0
    for level, concurrency in enumerate(LEVELS):
        own = count // len(LEVELS)
        records = [_request(level, concurrency, begin, number, rng) for number in range(own)]
        end = max(record.end for record in records)
        writer.add_level(
            LevelInfo(
                level=level,
                concurrency=concurrency,
                status="complete",
                start=begin,
                end=end,
                duration=end - begin,
                window=window(records),
                sessions_started=own // TURNS + 1,
                requests=own,
                client_lag=None,
            ),
            records,
        )
        begin = end + 10
    writer.finish("complete", None, "2026-01-01T01:00:00+00:00")


def _request(
    level: int, concurrency: int, begin: float, number: int, rng: np.random.Generator
) -> RequestRecord:
    session, turn = divmod(number, TURNS)
    lane = session % concurrency
    prompt = int(rng.lognormal(11.5, 0.8))
    cached = int(prompt * rng.uniform(0.8, 1.0))
    ttft = float(rng.lognormal(0, 1))
    offsets = ttft + np.cumsum(rng.exponential(0.01 + concurrency / 1000, TOKENS))
    due = begin + (session // concurrency) * 900 + turn * 3.5
    start = due + float(rng.exponential(0.02))
    return RequestRecord(
        level=level, concurrency=concurrency, lane=lane, session=f"trace-{session:04d}", play=0, turn=turn,
        request_id=f"{level}-{number}", max_tokens=TOKENS, start=start, end=start + float(offsets[-1]),
        status="ok", ttft=ttft, ttft_answer=ttft, last_token=float(offsets[-1]), token_offsets=offsets,
        chunks=TOKENS, prompt_tokens=prompt, cached_tokens=cached, output_tokens=TOKENS, http_status=200,
        finish_reason="length", stream=f"trace-{session:04d}::sa:{turn % STREAMS}",
        depth=int(turn % STREAMS > 0), due=due, hit_blocks=prompt // 64 - 2, total_blocks=prompt // 64,
    )  # fmt: skip


if __name__ == "__main__":
    main()
