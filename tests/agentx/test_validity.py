from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashpoint.agentx.archive import ClientLag, CorpusInfo, LevelInfo
from flashpoint.agentx.records import RequestRecord
from flashpoint.agentx.summary import summarize
from flashpoint.agentx.table import render_table
from flashpoint.agentx.validity import Finding, check_level, doubtful
from tests.agentx.made_records import (
    failed_record,
    made_archive,
    made_level_info,
    made_record,
    made_run_info,
)


def check(
    records: list[RequestRecord], run: dict[str, Any] | None = None, **level: Any
) -> dict[str, Finding]:
    info: LevelInfo = made_level_info(records, **level)
    return {finding.rule: finding for finding in check_level(made_run_info(**run or {}), info, records)}


def overflow(start: float) -> RequestRecord:
    return failed_record(start, "context length", status="overflow")


def test_a_good_local_run_fails_as_a_submission_only() -> None:
    records = [made_record(float(i)) for i in range(12)]
    found = check(records)
    assert [rule for rule, finding in found.items() if finding.ok is False] == ["corpus", "duration"]
    assert not doubtful(list(found.values()))
    assert found["corpus"].detail == "not a submission: corpus is a local corpus, not a pinned one"
    assert found["coverage"].ok is None and found["warm-up"].ok is None


@pytest.mark.parametrize(
    ("source", "path", "ok"),
    [
        ("flashpoint", "semianalysis_cc_traces_weka_062126", False),
        ("agentx-harness", "semianalysis_cc_traces_weka_062126", True),
        ("inferencex", "x/cc-traces-weka-062126", True),
        ("agentx-harness", "/home/me/traces", False),
        ("agentx-harness", "", None),
    ],
)
def test_corpus(source: str, path: str, ok: bool | None) -> None:
    run = {"source": source, "corpus": CorpusInfo(path=path, sha256=None, sessions=None)}
    assert check([made_record()], run)["corpus"].ok is ok


@pytest.mark.parametrize(("duration", "ok"), [(None, False), (899.9, False), (900.0, True)])
def test_duration(duration: float | None, ok: bool) -> None:
    assert check([made_record()], duration=duration)["duration"].ok is ok


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 5), st.integers(1, 30))
def test_failed_requests(ok: int, errors: int, cut: int, concurrency: int) -> None:
    records = [made_record() for _ in range(ok)] + [failed_record() for _ in range(errors)]
    records += [made_record(status="cancelled") for _ in range(cut)]
    found = check(records, concurrency=concurrency)
    if ok + errors < max(concurrency, 10):
        assert found["failed requests"].ok is None
    else:
        assert found["failed requests"].ok is (errors * 10 <= ok + errors)
    assert found["completions"].ok is (ok > 0)


@given(st.integers(0, 300), st.integers(0, 5))
def test_overflows(ok: int, overflows: int) -> None:
    records = [made_record() for _ in range(ok)] + [overflow(0.0) for _ in range(overflows)]
    expected = None if not records else overflows * 100 <= len(records)
    assert check(records)["context overflows"].ok is expected


@pytest.mark.parametrize(("last", "ok"), [(954.0, False), (955.5, True)])
def test_coverage_counts_from_the_end_of_the_warm_up(last: float, ok: bool) -> None:
    # The last request's own last token is 0.7 s after its start.
    records = [made_record(100.0), made_record(last)]
    assert check(records, duration=900.0, measured_from=100.0)["coverage"].ok is ok


def test_coverage_needs_an_itl_too() -> None:
    records = [made_record(100.0), made_record(950.0, (0.5,))]
    assert check(records, duration=900.0)["coverage"].ok is False
    assert check(records, duration=899.0)["coverage"].ok is None


def test_warm_up_failures() -> None:
    warm = made_record(phase="warmup")
    assert check([warm, made_record(1.0)])["warm-up"].ok is True
    broken = check([warm, failed_record(phase="warmup"), made_record(1.0)])
    assert broken["warm-up"] == Finding("warm-up", False, "1 of 2 warm-up requests failed")
    assert broken["failed requests"].detail.startswith("0 of 1")


def test_lengths_and_usage() -> None:
    found = check([made_record(max_tokens=30), made_record(output_tokens=None, prompt_tokens=None)])
    assert found["output lengths"] == Finding(
        "output lengths", False, "1 of 1 answers are not as long as was asked for"
    )
    assert found["usage"] == Finding("usage", False, "the server sent no usage for 1 of 2 requests")
    assert check([failed_record()])["usage"].ok is None


@pytest.mark.parametrize(("lag", "ok"), [(0.0009, True), (0.0011, False), (None, None)])
def test_client_lag_against_itl(lag: float | None, ok: bool | None) -> None:
    # ITL 0.1 s over two gaps: the lag may be 1 % of 0.2 s at most; TTFT 0.5 s allows more.
    client_lag = None if lag is None else ClientLag(p50=lag, p90=lag * 1.9, p99=lag, max=lag)
    assert check([made_record()], client_lag=client_lag)["client lag"].ok is ok


@pytest.mark.parametrize("status", ["interrupted", "server_lost", "stopped"])
def test_a_partial_level(status: str) -> None:
    found = check([made_record()], status=status, status_detail="why")["ended"]
    assert found.ok is False and found.detail.endswith("(why)")


def test_the_verdict_of_another_tool() -> None:
    run = {"source": "agentx-harness"}
    found = check([made_record()], run, invalid=["unsafe_override"])["verdict of the source"]
    assert found.ok is False and "unsafe_override" in found.detail
    assert check([made_record()], run)["verdict of the source"].ok is True
    assert check([made_record()])["verdict of the source"].ok is None


def test_the_table_names_the_rules_that_fail(tmp_path: Path) -> None:
    made_archive(tmp_path / "run", {1: [made_record()], 2: [made_record()], 4: [failed_record()]})
    from flashpoint.agentx.archive import read_archive

    summary = summarize(read_archive(tmp_path / "run"))
    notes = [str(part) for part in render_table(summary).renderables[1:]]
    assert "AgentX rules that do not hold, c=1, 2: corpus, duration" in notes
    assert "AgentX rules that do not hold, c=4: corpus, duration, completions" in notes
    assert summary.as_dict()["levels"][2]["validity"][3] == {
        "rule": "completions",
        "ok": False,
        "detail": "0 requests succeeded",
    }
