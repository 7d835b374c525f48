from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashpoint.agentx import metrics
from flashpoint.agentx.records import RequestRecord, spread_tokens
from tests.agentx.made_records import failed_record, made_record

seconds = st.floats(0, 1e6, allow_nan=False)


@given(st.lists(seconds, min_size=1), st.floats(0, 100))
def test_percentile_is_numpys_linear_one(values: list[float], p: float) -> None:
    assert metrics.percentile(values, p) == pytest.approx(np.percentile(values, p), rel=1e-12, abs=1e-12)


def test_percentile_by_hand() -> None:
    assert metrics.percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert metrics.percentile([1.0, 2.0, 3.0, 4.0, 5.0], 90) == pytest.approx(4.6)
    assert metrics.percentile([7.0], 90) == 7.0
    assert metrics.percentile([], 90) is None


# Two requests by hand. First: starts at 10, tokens after 0.5, 0.6, 0.8; ends at 11. Second: starts at 10.5,
# tokens after 1.0, 1.4; ends at 12. Window: 10 to 11.9, the last token.
FIRST = made_record(10.0, (0.5, 0.6, 0.8), 0.2, prompt_tokens=1000, cached_tokens=900)
SECOND = made_record(10.5, (1.0, 1.4), 0.1, prompt_tokens=500, cached_tokens=100)
BOTH = [FIRST, SECOND, failed_record(1.0), made_record(2.0, status="cancelled")]


def test_throughputs_by_hand() -> None:
    assert metrics.window(BOTH) == (10.0, 11.9)
    assert metrics.window_seconds(BOTH) == pytest.approx(1.9)
    assert metrics.prompt_tokens(BOTH) == 1500
    assert metrics.cached_tokens(BOTH) == 1000
    assert metrics.output_tokens(BOTH) == 5
    assert metrics.total_throughput(BOTH, 1) == pytest.approx(1505 / 1.9)
    assert metrics.total_throughput(BOTH, 4) == pytest.approx(1505 / 1.9 / 4)
    assert metrics.output_throughput(BOTH, 1) == pytest.approx(5 / 1.9)
    assert metrics.input_throughput(BOTH, 2) == pytest.approx(1500 / 1.9 / 2)
    assert metrics.request_throughput(BOTH) == pytest.approx(2 / 1.9)
    assert metrics.uncached_input_throughput(BOTH, 1) == pytest.approx(500 / 1.9)
    assert metrics.cache_hit_share(BOTH) == pytest.approx(2 / 3)
    assert metrics.mean_in_flight(BOTH) == pytest.approx((0.8 + 1.4) / 1.9)


def test_latencies_by_hand() -> None:
    assert metrics.inter_token_latency(FIRST) == pytest.approx(0.15)
    assert metrics.inter_token_latency(SECOND) == pytest.approx(0.4)
    assert metrics.itl_percentile(BOTH, 50) == pytest.approx(0.275)
    assert metrics.itl_percentile(BOTH, 90) == pytest.approx(0.15 + 0.25 * 0.9)
    assert metrics.interactivity(BOTH, 90) == pytest.approx(1 / 0.375)
    assert metrics.ttft_percentile(BOTH, 50) == pytest.approx(0.75)
    assert metrics.ttft_percentile(BOTH, 90) == pytest.approx(0.95)
    assert metrics.e2e_percentile(BOTH, 50) == pytest.approx(1.1)
    # To the end of the response: 0.5 s for 2 tokens, 0.5 s for 1.
    assert metrics.full_response_itl(FIRST) == pytest.approx(0.25)
    assert metrics.full_response_itl_percentile(BOTH, 90) == pytest.approx(0.25 + 0.25 * 0.9)
    # Seconds per token, first one included: 0.8 / 3 and 1.4 / 2.
    assert metrics.e2e_normalised_interactivity(BOTH, 50) == pytest.approx(2 / (0.8 / 3 + 0.7))
    assert metrics.time_to_second_token(SECOND) == pytest.approx(0.4)
    # Pooled: the gaps 0.1, 0.2 and 0.4 together.
    assert metrics.pooled_itl_percentiles(BOTH, 50, 90) == pytest.approx([0.2, 0.36])


def test_p90_interactivity_is_the_slow_tail() -> None:
    # Nine requests at 100 tokens/s, one at 10: the slow one must show in P90, and the fast ones must not.
    fast = [made_record(i, (0.1, 0.11, 0.12)) for i in range(9)]
    slow = [made_record(9.0, (0.1, 0.2, 0.3))]
    assert metrics.interactivity(fast + slow, 50) == pytest.approx(100)
    assert metrics.interactivity(fast + slow, 90) == pytest.approx(1 / (0.01 + 0.09 * 0.1))


def test_several_tokens_in_a_chunk_are_counted_per_token() -> None:
    # Chunks of 1, 4 and 4 tokens, 0.2 s apart: 9 tokens, 8 gaps of 0.05 s.
    record = made_record(0.0, (0.3,) + (0.5,) * 4 + (0.7,) * 4)
    assert metrics.inter_token_latency(record) == pytest.approx(0.05)
    assert metrics.token_gaps(record) == pytest.approx([0.05] * 8)


def test_reasoning_counts_as_first_token_but_not_as_first_answer_token() -> None:
    records = [made_record(0.0, ttft_answer=0.7), made_record(1.0, ttft_answer=None)]
    assert metrics.ttft_percentile(records, 50) == 0.5
    assert metrics.ttft_answer_percentile(records, 50) == 0.7


@pytest.mark.parametrize("records", [[], [failed_record()], [made_record(status="cancelled")]])
def test_without_a_successful_request_every_metric_is_none(records: list[RequestRecord]) -> None:
    assert metrics.total_throughput(records, 1) is None
    assert metrics.output_throughput(records, 1) is None
    assert metrics.uncached_input_throughput(records, 1) is None
    assert metrics.cache_hit_share(records) is None
    assert metrics.interactivity(records, 90) is None
    assert metrics.itl_percentile(records, 90) is None
    assert metrics.pooled_itl_percentiles(records, 90) == [None]
    assert metrics.ttft_percentile(records, 90) is None
    assert metrics.e2e_percentile(records, 90) is None
    assert metrics.mean_in_flight(records) is None


def test_without_usage_there_is_no_throughput_and_no_token_latency() -> None:
    known = made_record()
    unknown = made_record(1.0, prompt_tokens=None, cached_tokens=None, output_tokens=None)
    assert metrics.total_throughput([known, unknown], 1) is None
    assert metrics.output_throughput([known, unknown], 1) is None
    assert metrics.interactivity([unknown], 90) is None
    assert metrics.pooled_itl_percentiles([unknown], 90) == [None]
    assert metrics.ttft_percentile([unknown], 50) == 0.5


def test_a_left_out_cached_count_is_zero_only_beside_given_ones() -> None:
    absent = made_record(1.0, cached_tokens=None)
    assert metrics.cache_hit_share([made_record(), absent]) == pytest.approx(60 / 200)
    assert metrics.cache_hit_share([absent]) is None


def test_one_token_or_one_chunk_gives_no_interactivity() -> None:
    assert metrics.inter_token_latency(made_record(0.0, (0.5,))) is None
    assert metrics.interactivity([made_record(0.0, (0.5, 0.5, 0.5))], 90) is None


arrivals = st.lists(st.floats(0.001, 10), min_size=1, max_size=20, unique=True).map(sorted)


@st.composite
def streamed(draw: st.DrawFn) -> RequestRecord:
    """A record made as the client makes it: chunk arrivals, and a total spread over them."""
    times = draw(arrivals)
    total = draw(st.integers(0, 60))
    offsets = np.repeat(times, spread_tokens(total, len(times)))
    return made_record(
        draw(st.floats(0, 100)),
        tuple(offsets),
        ttft=times[0],
        last_token=times[-1],
        end=200.0,
        output_tokens=total,
        prompt_tokens=draw(st.integers(0, 1000)),
        cached_tokens=0,
    )


@given(streamed())
def test_mean_gap_is_the_inter_token_latency(record: RequestRecord) -> None:
    latency = metrics.inter_token_latency(record)
    gaps = metrics.token_gaps(record)
    if latency is None:
        assert not len(gaps)
    else:
        assert len(gaps) == (record.output_tokens or 0) - 1
        assert float(np.mean(gaps)) == pytest.approx(latency)


@given(st.lists(streamed(), min_size=1, max_size=8), st.integers(1, 8))
def test_total_is_the_sum_of_its_parts(records: list[RequestRecord], accelerators: int) -> None:
    total = metrics.total_throughput(records, accelerators)
    output = metrics.output_throughput(records, accelerators)
    uncached = metrics.uncached_input_throughput(records, accelerators)
    share = metrics.cache_hit_share(records)
    assert total is not None and output is not None and uncached is not None
    assert total == pytest.approx(output + uncached)  # nothing is cached in these
    assert share in (0, None)
    assert metrics.total_throughput(records, 1) == pytest.approx(total * accelerators)


@given(st.lists(streamed(), min_size=1, max_size=12))
def test_p90_is_never_faster_than_p50(records: list[RequestRecord]) -> None:
    p50, p90 = metrics.interactivity(records, 50), metrics.interactivity(records, 90)
    if p50 is not None and p90 is not None:
        assert p90 <= p50 * (1 + 1e-12)


@given(st.integers(0, 500), st.integers(1, 50))
def test_spread_keeps_the_total_and_gives_first_and_last_chunk_a_token(total: int, chunks: int) -> None:
    counts = spread_tokens(total, chunks)
    assert len(counts) == chunks
    assert sum(counts) == total
    assert min(counts) >= 0
    if total >= 2:
        assert counts[0] >= 1 and counts[-1] >= 1
    if chunks > 1 and total >= 1:
        assert counts[0] == 1
        assert max(counts[1:]) - min(counts[1:]) <= 1
    assert not any(math.isnan(count) for count in counts)


def test_latency_without_content_goes_to_the_end_of_the_response() -> None:
    silent = made_record(3.0, (), 0.7)
    assert metrics.request_latency(silent) == pytest.approx(0.7)
    assert metrics.window([silent]) == pytest.approx((3.0, 3.7))
    assert metrics.full_response_itl(silent) is None
    assert metrics.time_to_second_token(silent) is None


def test_requests_per_slice() -> None:
    # Ends at 0.5, 1.5, 1.75 and 4.25 of a window from 0 to 4.25: four whole slices, the last end in none.
    ends = [made_record(0.0, (end,)) for end in (0.5, 1.5, 1.75, 4.25)]
    assert metrics.requests_per_slice(ends) == [1, 2, 0, 0]
    assert metrics.requests_per_slice(ends, 2.0) == [3, 0]
    assert metrics.requests_per_slice([failed_record(1.0)]) == []


@pytest.mark.parametrize(
    "asked, got, missed",
    [
        (100, 95, False),
        (100, 94, True),
        (100, 106, True),
        (2000, 1950, False),
        (2000, 1949, True),
        (3, 3, False),
    ],
)
def test_output_length_mismatch(asked: int, got: int, missed: bool) -> None:
    record = made_record(max_tokens=asked, output_tokens=got)
    assert metrics.is_output_length_mismatch(record) is missed
    assert metrics.output_length_mismatch(record) == pytest.approx((got - asked) / asked)
    exact = made_record(max_tokens=10, output_tokens=10)
    assert metrics.output_length_mismatch_share([record, exact]) == missed / 2


def test_unknown_lengths_are_no_mismatch() -> None:
    unknown = made_record(max_tokens=None)
    assert metrics.is_output_length_mismatch(unknown) is None
    assert metrics.output_length_mismatch_share([unknown]) is None
    assert metrics.output_length_mismatch_share([unknown, made_record()]) == 0.0


def test_mean_and_deviation() -> None:
    assert metrics.mean([1.0, 2.0, 6.0]) == 3.0
    assert metrics.standard_deviation([2.0, 4.0]) == 1.0
    assert metrics.mean([]) is None and metrics.standard_deviation([]) is None
