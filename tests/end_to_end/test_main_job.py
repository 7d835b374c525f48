"""Checkpoint → server → replay → archive → curve, as a user runs them."""

import contextlib
import json
import re

import pyarrow.parquet
import pytest

from flashpoint.agentx.archive import read_archive
from flashpoint.agentx.summary import summarize
from tests.end_to_end.conftest import flashpoint, serving


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.json"
    made = flashpoint(
        "sessions", "generate", "--out", path, "--sessions", 6, "--scale", "1/256", "--max-turns", 12
    )
    assert made.returncode == 0, made.stderr
    return path


def replay(url, corpus, out, *options):
    run = flashpoint(
        "replay", "--url", url, "--corpus", corpus, "--concurrency", "1,2", "--out", out, "--duration", 6,
        "--warmup-requests", 1, "--session-idle-cap", 0.2, "--system-idle-cap", 0.2, *options
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def archive(shared_server, corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("replay") / "run"
    return out, json.loads(replay(shared_server.url, corpus, out, "--json"))


def test_every_request_is_archived_and_the_summary_agrees(archive):
    path, summary = archive
    stored = read_archive(path)
    assert [level["concurrency"] for level in summary["levels"]] == [1, 2]
    for level in summary["levels"]:
        records = [r for r in stored.level(level["level"]) if r.phase == "measured"]
        answered = [r for r in records if r.status == "ok"]
        assert len(answered) == level["ok"] > 3
        failed = [r for r in records if r.status == "error"]
        # A random model's only token may have no text, which is a failure by the harness's rule.
        assert all(r.max_tokens == 1 and "no text" in r.error for r in failed)
        assert len(records) == level["requests"] == level["ok"] + level["cancelled"] + len(failed)
        assert all(r.output_tokens == r.max_tokens for r in answered)
        assert level["total_throughput"] > level["output_throughput"] > 0
        # The checkpoint's own tokenizer made the prompts, so the server counts what the trace says, and its
        # template and the marker beside it.
        assert all(abs(r.prompt_tokens - r.recorded_input) <= 60 + r.recorded_input // 4 for r in answered)


def test_what_a_session_shares_is_found_in_the_cache(archive):
    for level in archive[1]["levels"]:
        assert level["cache_hit_share"] > 0.5


def test_the_archive_is_complete(archive):
    path, summary = archive
    run = json.loads((path / "run.json").read_text())
    assert run["status"] == "complete"
    assert [level["status"] for level in run["levels"]] == ["complete", "complete"]
    rows = pyarrow.parquet.read_table(path / "requests.parquet").to_pylist()
    assert len(
        {(r["level"], r["session"], r["play"], r["stream"], r["turn"], r["phase"]) for r in rows}
    ) == len(rows)
    # What is printed is what is stored, to the last digit.
    assert summary == json.loads(json.dumps(summarize(read_archive(path)).as_dict()))


def test_the_table_has_a_row_per_level(shared_server, corpus, tmp_path):
    printed = replay(shared_server.url, corpus, tmp_path / "run")
    rows = [line.split() for line in printed.splitlines() if re.match(r"\s*\d+ ", line)]
    assert [(row[0], row[-1]) for row in rows] == [("1", "0"), ("2", "0")]
    for heading in ("interac-", "TTFT", "cache", "errors"):
        assert heading in printed
    assert summarize(read_archive(tmp_path / "run")).exit_code == 0


def test_the_report_shows_every_point_and_needs_no_network(archive, tmp_path):
    path, summary = archive
    page = tmp_path / "report.html"
    made = flashpoint("report", path, "-o", page)
    assert made.returncode == 0, made.stderr
    html = page.read_text()
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", html)
    assert all(f"c={level['concurrency']}" in html for level in summary["levels"])


def chat(server, **fields):
    body = {"messages": [{"role": "user", "content": "list the files"}], "max_tokens": 12, **fields}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    message = answer.json()["choices"][0]["message"]
    return message.get("reasoning_content"), message["content"]


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"temperature": 0.9, "seed": 11, "top_p": 0.9}])
def test_the_answer_is_the_same_alone_and_in_company(server, fields):
    alone = chat(server, **fields)
    assert chat(server, **fields) == alone
    with contextlib.ExitStack() as company:
        for number in range(1, 9):
            body = {"prompt": "x" * 90 * number, "max_tokens": 2000, "ignore_eos": True, "seed": number}
            company.enter_context(server.stream(body))
        assert chat(server, **fields) == alone
        assert server.client.get("/health").json()["running"] == 8
    assert chat(server, **fields) == alone


def test_another_seed_is_another_answer(server):
    assert len({chat(server, temperature=1, seed=seed) for seed in range(3)}) == 3


def test_logits_do_not_depend_on_where_the_prompt_came_from(server):
    text = "def main():"
    by_text = server.post("/v1/completions", {"prompt": text, "max_tokens": 6, "temperature": 0}).json()
    assert by_text["usage"]["completion_tokens"] == 6
    again = server.post("/v1/completions", {"prompt": [text, text], "max_tokens": 6, "temperature": 0}).json()
    assert [c["text"] for c in again["choices"]] == [by_text["choices"][0]["text"]] * 2


def test_both_stored_forms_with_outliers_serve(tmp_path):
    for form in ("bf16", "quantized"):
        checkpoint = tmp_path / form
        made = flashpoint("checkpoint", "init", "--preset", "nano", "--outliers", "--form", form, checkpoint)
        assert made.returncode == 0, made.stderr
        with serving(checkpoint, checkpoint, "--cache-tokens", "4096") as server:
            assert chat(server, temperature=0) == chat(server, temperature=0)
