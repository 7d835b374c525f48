"""The AgentX benchmark's rules, applied to one level of a run (spec agentx.md section 5).

A rule that the records cannot decide is neither passed nor failed: `ok` is None and the detail says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashpoint.agentx import metrics
from flashpoint.agentx.archive import LevelInfo, RunInfo
from flashpoint.agentx.records import RequestRecord

DURATION_SECONDS = 900.0
FAILED_SHARE = 0.10
FAILED_JUDGED_FROM = 10
OVERFLOW_SHARE = 0.01
COVERAGE_SHARE = 0.95
LAG_SHARE = 0.01
PINNED_CORPORA = ("cc-traces-weka-062126", "cc_traces_weka_062126")
"""Names under which the published corpus goes (spec agentx.md section 8)."""

SUBMISSION_RULES = ("corpus", "duration", "verdict of the source")
"""Rules that decide whether a run could be submitted; its figures hold all the same where these fail.

The reasons of another tool that bear on figures have a rule of their own here.
"""

Records = Sequence[RequestRecord]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule says of one level; `ok` is None where it could not be judged."""

    rule: str
    ok: bool | None
    detail: str


def check_level(run: RunInfo, info: LevelInfo, records: Records) -> list[Finding]:
    """Every rule in a fixed order; `records` are the level's own, warm-up included."""
    measured = [record for record in records if record.phase == "measured"]
    checks: tuple[tuple[str, Callable[[], _Verdict]], ...] = (
        ("ended", lambda: _ended(info)),
        ("corpus", lambda: _corpus(run)),
        ("duration", lambda: _duration(info)),
        ("completions", lambda: _completions(info, measured)),
        ("failed requests", lambda: _failed(info, measured)),
        ("context overflows", lambda: _overflows(measured)),
        ("coverage", lambda: _coverage(info, measured)),
        ("warm-up", lambda: _warm_up(records)),
        ("output lengths", lambda: _output_lengths(measured)),
        ("usage", lambda: _usage(measured)),
        ("client lag", lambda: _client_lag(info, measured)),
        ("verdict of the source", lambda: _source(run, info)),
    )
    return [Finding(rule, *check()) for rule, check in checks]


def failed(findings: Sequence[Finding]) -> list[Finding]:
    """The rules that do not hold."""
    return [finding for finding in findings if finding.ok is False]


def doubtful(findings: Sequence[Finding]) -> list[Finding]:
    """The failed rules that bear on the figures themselves, not only on whether they could be submitted."""
    return [finding for finding in failed(findings) if finding.rule not in SUBMISSION_RULES]


def lag_distortion(info: LevelInfo, done: Records) -> dict[str, float]:
    """By what share of 1 the client's own P90 lag may change P90 TTFT and P90 ITL, by metric.

    The lag adds to a TTFT once, and to an ITL spread over the answer's tokens. Empty where the lag was not
    measured or there is no figure to distort.
    """
    if info.client_lag is None:
        return {}
    lag = info.client_lag.p90
    shares = {}
    if ttft := metrics.ttft_percentile(done, 90):
        shares["TTFT"] = lag / ttft
    tokens, itl = metrics.output_tokens(done), metrics.itl_percentile(done, 90)
    if tokens and itl:
        shares["ITL"] = lag / max(1.0, tokens / len(done) - 1) / itl
    return shares


_Verdict = tuple[bool | None, str]


def _ended(info: LevelInfo) -> _Verdict:
    words = {
        "complete": "the level ran to its end",
        "interrupted": "interrupted: the level is partial",
        "server_lost": "the server was lost: the level is partial",
        "stopped": "stopped by a rule: the level is partial",
    }
    detail = words[info.status] + (f" ({info.status_detail})" if info.status_detail else "")
    return info.status == "complete", detail


def _corpus(run: RunInfo) -> _Verdict:
    """Only the pinned corpora can be submitted; a local folder always needs the override."""
    path = run.corpus.path
    if run.source == "flashpoint":
        return False, f"not a submission: {path} is a local corpus, not a pinned one"
    if any(name in path for name in PINNED_CORPORA):
        return True, f"{path} is a pinned corpus by its name"
    if not path:
        return None, "the source does not name its corpus"
    return False, f"not a submission: {path} is not a pinned corpus"


def _duration(info: LevelInfo) -> _Verdict:
    """Duration asked for ≥ 900 s."""
    if info.duration is None:
        return False, f"not a submission: no duration was set; at least {DURATION_SECONDS:.0f} s are needed"
    if info.duration < DURATION_SECONDS:
        return False, f"not a submission: {info.duration:g} s of at least {DURATION_SECONDS:.0f} s"
    return True, f"{info.duration:g} s"


def _completions(info: LevelInfo, measured: Records) -> _Verdict:
    if info.reported and not measured:
        return None, "the source gives aggregate figures alone"
    done = sum(record.status == "ok" for record in measured)
    return done > 0, f"{done} requests succeeded" if measured else "no request was recorded"


def _responses(measured: Records) -> int:
    """Requests that were answered in some way; those cut at the end of the level are not."""
    return sum(record.status != "cancelled" for record in measured)


def _failed(info: LevelInfo, measured: Records) -> _Verdict:
    """Failed requests > 10 % (strict), judged once max(lanes, 10) have ended."""
    ended, errors = _responses(measured), sum(record.status == "error" for record in measured)
    needed = max(info.concurrency, FAILED_JUDGED_FROM)
    if ended < needed:
        return None, f"{errors} of {ended} failed; judged from {needed} ended requests on"
    detail = f"{errors} of {ended} = {errors / ended:.1%}, allowed {FAILED_SHARE:.0%}"
    return errors / ended <= FAILED_SHARE, detail


def _overflows(measured: Records) -> _Verdict:
    """Prompts beyond the context window > 1 % of responses."""
    ended, overflows = _responses(measured), sum(record.status == "overflow" for record in measured)
    if not ended:
        return None, "no request ended"
    detail = f"{overflows} of {ended} = {overflows / ended:.1%}, allowed {OVERFLOW_SHARE:.0%}"
    return overflows / ended <= OVERFLOW_SHARE, detail


def _coverage(info: LevelInfo, measured: Records) -> _Verdict:
    """(last TTFT observation, last ITL observation) / duration, each ≥ 0.95, from 900 s on."""
    if info.duration is None or info.duration < DURATION_SECONDS:
        return None, f"judged from a duration of {DURATION_SECONDS:.0f} s on"
    done = metrics.successful(measured)
    begin = info.start if info.measured_from is None else info.measured_from
    ttft = [record.start + record.ttft for record in done if record.ttft is not None]
    itl = [
        record.start + record.last_token
        for record in done
        if record.last_token is not None and metrics.inter_token_latency(record) is not None
    ]
    shares = [max(0.0, max(times, default=begin) - begin) / info.duration for times in (ttft, itl)]
    detail = f"last TTFT at {shares[0]:.1%}, last ITL at {shares[1]:.1%} of the duration"
    return min(shares) >= COVERAGE_SHARE, f"{detail}, needed {COVERAGE_SHARE:.0%}"


def _warm_up(records: Records) -> _Verdict:
    """A primer that fails aborts a run; the records do not tell primers from the turns that follow them."""
    warm_up = [record for record in records if record.phase == "warmup"]
    if not warm_up:
        return None, "there was no warm-up"
    broken = sum(record.status in ("error", "overflow") for record in warm_up)
    return broken == 0, f"{broken} of {len(warm_up)} warm-up requests failed"


def _output_lengths(measured: Records) -> _Verdict:
    """Answers of another length than was forced (5 % or 50 tokens, whichever is less)."""
    each = [metrics.is_output_length_mismatch(record) for record in metrics.successful(measured)]
    known = [missed for missed in each if missed is not None]
    if not known:
        return None, "no answer whose length and wanted length are known"
    missed = sum(known)
    return missed == 0, f"{missed} of {len(known)} answers are not as long as was asked for"


def _usage(measured: Records) -> _Verdict:
    done = metrics.successful(measured)
    if not done:
        return None, "no request succeeded"
    without = sum(record.output_tokens is None or record.prompt_tokens is None for record in done)
    return without == 0, f"the server sent no usage for {without} of {len(done)} requests"


def _client_lag(info: LevelInfo, measured: Records) -> _Verdict:
    """The client's own lateness must not change a P90 by more than 1 %."""
    if info.client_lag is None:
        return None, "the client's lag was not measured"
    shares = lag_distortion(info, metrics.successful(measured))
    if not shares:
        return None, "there is no figure that lag could distort"
    parts = ", ".join(f"P90 {name} by up to {share:.1%}" for name, share in shares.items())
    lag = info.client_lag.p90 * 1e3
    return max(shares.values()) <= LAG_SHARE, f"P90 lag {lag:.2f} ms, which distorts {parts}"


def _source(run: RunInfo, info: LevelInfo) -> _Verdict:
    """What another tool said of the run it made."""
    if run.source == "flashpoint":
        return None, "not imported"
    if info.invalid:
        return False, f"{run.source} calls it invalid: {', '.join(info.invalid)}"
    return True, f"{run.source} gives no reason against it"
