"""What the sections compute from columns, against the same from the records one by one."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashpoint.agentx import metrics
from flashpoint.agentx.archive import SERIES_SCHEMA, Archive, read_archive
from flashpoint.agentx.records import RequestRecord
from flashpoint.agentx.report.columns import read_columns
from flashpoint.agentx.report.distributions import distributions
from flashpoint.agentx.report.encode import pack
from flashpoint.agentx.report.hit_shares import hit_shares
from flashpoint.agentx.report.server_series import server_series
from flashpoint.agentx.report.slices import Slices, slices_of
from flashpoint.agentx.report.steps import level_steps, step_series
from flashpoint.agentx.report.swim_lanes import MISSING, TICKS_PER_SECOND, pack_sessions
from tests.agentx.made_records import made_archive, made_level_info, made_record, made_steps

times = st.floats(0, 50).map(lambda value: round(value, 4))
record = st.builds(
    made_record,
    times,
    st.lists(times, min_size=1, max_size=4).map(lambda arrivals: tuple(sorted(arrivals))),
    session=st.sampled_from(["a", "b", "ü"]),
    stream=st.sampled_from(["", "a::sa:1"]),
    play=st.integers(0, 1),
    status=st.sampled_from(["ok", "ok", "error", "cancelled", "overflow"]),
    phase=st.sampled_from(["measured", "measured", "warmup"]),
    prompt_tokens=st.none() | st.integers(1, 1000),
    cached_tokens=st.none() | st.integers(0, 1000),
    hit_blocks=st.none() | st.integers(0, 9),
    total_blocks=st.none() | st.integers(1, 9),
    due=st.none() | times,
)
records = st.lists(record, max_size=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("archives")


def archive_of(folder: Path, *levels: list[RequestRecord]) -> Archive:
    path = folder / str(len(list(folder.iterdir())))
    return made_archive(path, dict(enumerate(levels, 1)))


def unpacked(text: str) -> dict[str, Any]:
    content = gzip.decompress(base64.b64decode(text))
    length = int.from_bytes(content[:4], "little")
    values = json.loads(content[4 : 4 + length])
    at = -(-(4 + length) // 4) * 4
    for name, width, count in values["columns"]:
        values[name] = np.frombuffer(content, f"<u{width}", count, at).tolist()
        at += -(-width * count // 4) * 4
    return values


@settings(max_examples=40, deadline=None)
@given(st.lists(records, min_size=1, max_size=3))
def test_packed_sessions_hold_every_request(folder: Path, levels: list[list[RequestRecord]]) -> None:
    archive = archive_of(folder, *levels)
    found = unpacked(pack_sessions(read_columns(archive)))
    ends = [*found["playFirst"][1:], len(found["start"])] if archive.records else []
    seen = []
    for play, (first, end) in enumerate(zip(found["playFirst"], ends, strict=True)):
        assert found["start"][first:end] == sorted(found["start"][first:end])
        session = found["sessions"][found["playSession"][play]]
        for i in range(first, end):
            ttft, cached = found["ttft"][i], found["cached"][i]
            seen.append(
                (
                    found["playLevel"][play], session, found["playNumber"][play],
                    found["streams"][found["stream"][i]],
                    found["start"][i] / TICKS_PER_SECOND,
                    None if ttft == MISSING else ttft / TICKS_PER_SECOND,
                    None if cached == MISSING else cached,
                    ["ok", "error", "overflow", "cancelled"][found["status"][i] & 3],
                    "warmup" if found["status"][i] & 4 else "measured",
                )
            )  # fmt: skip
    expected = [
        (r.level, r.session, r.play, r.stream, r.start, r.ttft, r.cached_tokens, r.status, r.phase)
        for r in archive.records
    ]
    order = lambda row: [str(value) for value in row]  # noqa: E731
    assert sorted(seen, key=order) == sorted(expected, key=order)


@settings(max_examples=40, deadline=None)
@given(records)
def test_distributions_are_those_of_the_metrics(folder: Path, level: list[RequestRecord]) -> None:
    archive = archive_of(folder, level)
    found = distributions(read_columns(archive))
    for name, value in (("ttft", metrics.ttft_percentile), ("itl", metrics.itl_percentile)):
        if value(archive.records, 50) is None:
            assert found[name] is None
            continue
        for p in (50, 90, 99):
            assert found[name]["marked"][f"P{p}"] == pytest.approx(value(archive.records, p), rel=1e-4)
        assert found[name]["values"] == sorted(found[name]["values"])
        assert found[name]["shares"][-1] == 1 and len(found[name]["values"]) == found[name]["count"]


def test_a_long_distribution_keeps_its_ends_and_its_shape(folder: Path) -> None:
    level = [made_record(float(i), (1 + i / 1000, 2 + i / 1000)) for i in range(1500)]
    found = distributions(read_columns(archive_of(folder, level)))["ttft"]
    assert found["count"] == 1500 and len(found["values"]) == 400
    assert (found["values"][0], found["values"][-1]) == (1.0, 2.499)
    for value, share in zip(found["values"], found["shares"], strict=True):
        assert share == pytest.approx((round((value - 1) * 1000) + 1) / 1500, rel=1e-4)


@settings(max_examples=60, deadline=None)
@given(records)
def test_hit_shares_slice_by_slice(folder: Path, level: list[RequestRecord]) -> None:
    archive = archive_of(folder, level)
    slices = Slices(0.0, 101.0, 10.0, 11)
    found = hit_shares(read_columns(archive), slices)
    done = [r for r in archive.records if r.status == "ok" and r.prompt_tokens is not None]
    has_cached = any(r.cached_tokens is not None for r in done)
    assert (found["actual"] is None) == (not has_cached)
    for number in range(11):
        own = [r for r in done if min(10, int((r.start + r.ttft) // 10)) == number]
        prompt, cached = sum(r.prompt_tokens for r in own), sum(r.cached_tokens or 0 for r in own)
        if has_cached:
            assert found["actual"][number] == (pytest.approx(cached / prompt, rel=1e-3) if own else None)
            seconds = 1.0 if number == 10 else 10.0
            assert found["uncached"][number] == pytest.approx((prompt - cached) / seconds, rel=1e-3)
        known = [r for r in own if r.hit_blocks is not None and r.total_blocks is not None]
        if known:
            share = sum(r.hit_blocks for r in known) / sum(r.total_blocks for r in known)
            assert found["theoretical"][number] == pytest.approx(share, rel=1e-3)


def test_sessions_that_missed_hits(folder: Path) -> None:
    fields: dict[str, Any] = {"prompt_tokens": 1000, "hit_blocks": 9, "total_blocks": 10}
    level = [
        made_record(0.0, session="evicted", cached_tokens=100, **fields),
        made_record(1.0, session="evicted", cached_tokens=1000, **fields),
        made_record(2.0, session="fine", cached_tokens=900, **fields),
        made_record(3.0, session="warm", phase="warmup", cached_tokens=0, **fields),
    ]
    found = hit_shares(read_columns(archive_of(folder, level)), Slices(0.0, 4.0, 1.0, 4))
    assert found["shortfalls"] == [{"session": "evicted", "tokens": 800, "share": 0.444}]


@given(st.floats(0, 1e5), st.floats(1e-3, 1e6))
def test_slices_are_round_and_cover_the_level(start: float, seconds: float) -> None:
    info = made_level_info([], start=start, end=start + seconds)
    slices = slices_of(info)
    if slices is None:
        assert info.end == info.start
        return
    assert 1 <= slices.count <= 121
    assert slices.width * slices.count >= (info.end - info.start) * (1 - 1e-6)
    assert float(f"{slices.width:.0e}") == pytest.approx(slices.width)
    assert slices_of(made_level_info([], start=start, end=start)) is None


def series(*rows: tuple[int, float, str, str, float]) -> pa.Table:
    return pa.table([list(column) for column in zip(*rows, strict=True)], schema=SERIES_SCHEMA)


def test_server_series() -> None:
    slices = Slices(10.0, 14.0, 1.0, 4)
    table = series(
        (0, 10.2, "vllm:kv_cache_usage_perc", '{"engine":"0"}', 0.2),
        (0, 10.8, "vllm:kv_cache_usage_perc", '{"engine":"0"}', 0.4),
        (0, 10.8, "vllm:kv_cache_usage_perc", '{"engine":"1"}', 0.5),
        (0, 10.1, "vllm:num_requests_running", '{"engine":"0"}', 3.0),
        (0, 10.1, "vllm:num_requests_running", '{"engine":"1"}', 4.0),
        (0, 12.1, "vllm:num_requests_running", '{"engine":"0"}', 9.0),
        (1, 11.5, "vllm:num_requests_running", '{"engine":"0"}', 99.0),
    )
    found = server_series(table, 0, slices)
    # The third slice has a sample of one engine only: the sum is unknown, not 9.
    assert found == {
        "kv": [0.4, None, None, None],
        "running": [7.0, None, None, None],
        "names": ["vllm:kv_cache_usage_perc", "vllm:num_requests_running"],
    }
    assert server_series(None, 0, slices) is None
    assert server_series(series((0, 10.0, "other", "{}", 1.0)), 0, slices) is None


def test_our_own_servers_series() -> None:
    table = series(
        (0, 0.5, "flashpoint_cache_blocks_used", "{}", 30.0),
        (0, 0.5, "flashpoint_cache_blocks_capacity", "{}", 120.0),
        (0, 0.5, "flashpoint_engine_waiting_requests", "{}", 2.0),
    )
    found = server_series(table, 0, Slices(0.0, 1.0, 1.0, 1))
    assert found is not None and (found["kv"], found["waiting"]) == ([0.25], [2.0])


def step(start: float, seconds: float, **values: Any) -> dict[str, Any]:
    return {"start": start, "seconds": seconds, **values}


def counted(start: float, seconds: float, memory: float, math: float, **values: Any) -> dict[str, Any]:
    """A step that reads 8e9 bytes/s at full memory speed, and makes 1e12 FLOP/s."""
    counts = {"flops": math * seconds * 1e12, "memory_bytes": memory * seconds * 8e9, "link_bytes": 0.0}
    shares = {"memory_share": memory, "math_share": math, "link_share": 0.0, "host_share": 0.0}
    return step(start, seconds, host_bytes=0.0, **counts, **shares, **values)


def test_steps_by_kind_and_their_shares_of_the_machine() -> None:
    table = made_steps(
        counted(0.0, 0.5, 0.2, 0.6, prefill_tokens=1000, decode_tokens=10),
        counted(0.5, 0.25, 0.8, 0.1, decode_tokens=20, steps=4),
        step(0.75, 0.05, decode_tokens=20),  # failed: nobody counted
        counted(0.8, 0.1, 0.4, 0.1, level=1),
    )
    info = made_level_info([], start=0.0, end=1.0)
    found = level_steps(table, info)
    assert found is not None and found.idle_share == pytest.approx(0.2)
    assert found.counted and found.limited
    prefill, decode, both = found.kinds
    assert (prefill.prefill_tokens, prefill.decode_tokens, decode.decode_tokens) == (1000, 10, 100)
    assert prefill.shares == pytest.approx({"memory": 0.2, "math": 0.6, "link": 0.0, "host": 0.0})
    assert prefill.nearest == {"memory": 0.0, "math": 1.0, "link": 0.0, "host": 0.0}
    # What was not counted is left out, its seconds too, but it was nearest to no limit.
    assert decode.rates["memory_bytes"] == pytest.approx(0.8 * 8e9)
    assert decode.nearest["memory"] == pytest.approx(0.25 / 0.3)
    assert both.shares["math"] == pytest.approx((0.5 * 0.6 + 0.25 * 0.1) / 0.75)
    assert level_steps(None, info) is None


def test_steps_without_a_machine_or_without_counts() -> None:
    info = made_level_info([], start=0.0, end=1.0)
    slices = Slices(0.0, 1.0, 0.5, 2)
    plain = level_steps(made_steps(step(0.0, 0.5, flops=1e9, memory_bytes=5.0)), info)
    assert plain is not None and plain.counted and not plain.limited
    assert plain.kinds[2].rates["flops"] == 2e9 and plain.kinds[2].shares["math"] is None
    series = step_series(made_steps(step(0.0, 0.5, flops=1e9, memory_bytes=5.0)), info, slices)
    assert series is not None and not series["limits"]
    assert series["lines"]["flops"] == [2e9, None] and series["lines"]["link_bytes"] is None
    before = made_steps(step(0.0, 0.5))
    found = level_steps(before, info)
    assert found is not None and not found.counted and not found.limited
    assert step_series(before, info, slices) is None
    assert step_series(None, info, slices) is None


def test_shares_over_time_are_those_of_the_seconds_in_steps() -> None:
    table = made_steps(
        counted(0.0, 0.5, 0.4, 0.1),
        counted(1.0, 2.0, 0.2, 0.3, steps=10),  # lasts over two slices
        counted(0.5, 0.5, 0.8, 0.1, rank=1),
        counted(9.0, 0.5, 0.8, 0.1, level=1),
    )
    found = step_series(table, made_level_info([], start=0.0, end=4.0), Slices(0.0, 4.0, 1.0, 4))
    assert found is not None and found["limits"]
    assert found["lines"]["memory"] == pytest.approx([0.6, 0.2, 0.2, None])
    assert found["lines"]["math"] == pytest.approx([0.1, 0.3, 0.3, None])
    assert found["lines"]["link"] is None


def test_only_unsigned_columns_can_be_packed() -> None:
    with pytest.raises(TypeError, match="int64"):
        pack({}, {"x": np.array([-1])})  # type: ignore[dict-item]
    assert unpacked(
        pack({"a": "ä"}, {"x": np.array([1, 2, 3], np.uint8), "y": np.array([7], np.uint32)})
    ) == {
        "a": "ä",
        "columns": [["x", 1, 3], ["y", 4, 1]],
        "x": [1, 2, 3],
        "y": [7],
    }


def test_a_level_that_run_json_does_not_name_is_left_out(tmp_path: Path) -> None:
    archive = made_archive(tmp_path / "run", {1: [made_record()], 2: [made_record(), made_record(1.0)]})
    cut = archive.run.model_copy(update={"levels": archive.run.levels[:1]})
    (tmp_path / "run" / "run.json").write_text(cut.model_dump_json())
    assert len(read_columns(read_archive(tmp_path / "run"))) == 1
