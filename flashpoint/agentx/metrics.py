"""Every number of a report: one function each, with its formula and unit.

Source: the AgentX benchmark's own definitions (the project's spec, agentx.md section 4, and
performance-model.md section 2). The population is the successful requests of the measured phase of one
concurrency level. A metric that the records cannot support (no successful request, a server that sends no
`usage`) is None, never an estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from flashpoint.agentx.records import RequestRecord

Records = Sequence[RequestRecord]

MISMATCH_SHARE = 0.05
MISMATCH_TOKENS = 50


def percentile(values: Sequence[float] | npt.NDArray[np.float64], p: float) -> float | None:
    """The p-th percentile by linear interpolation between order statistics: rank (n - 1) · p / 100."""
    if not len(values):
        return None
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    rank = (len(ordered) - 1) * p / 100
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (rank - below))


def mean(values: Sequence[float]) -> float | None:
    """Arithmetic mean, in the unit of the values."""
    return float(np.mean(values)) if len(values) else None


def standard_deviation(values: Sequence[float]) -> float | None:
    """Standard deviation of the values themselves (divisor n, no estimate of a population's)."""
    return float(np.std(values)) if len(values) else None


def successful(records: Records) -> list[RequestRecord]:
    """The requests that metrics are made of: those of the measured phase that ended well."""
    return [record for record in records if record.status == "ok" and record.phase == "measured"]


def request_latency(record: RequestRecord) -> float:
    """Last content chunk - request start, of one request that ended well. Unit: s.

    The harness's own definition: what comes after the last content (`usage`, the end of the HTTP response)
    is not waited for. An answer without any content counts to the end of its response.
    """
    return record.last_token if record.last_token is not None else record.end - record.start


def window(records: Records) -> tuple[float, float] | None:
    """First start and last content chunk of the successful requests; seconds since the run's start."""
    done = successful(records)
    return (min(r.start for r in done), max(r.start + request_latency(r) for r in done)) if done else None


def window_seconds(records: Records) -> float | None:
    """Length of the window: last content chunk - first start of the successful requests. Unit: s."""
    span = window(records)
    return span[1] - span[0] if span else None


def prompt_tokens(records: Records) -> int | None:
    """Sum of prompt tokens of the successful requests, cached tokens included, as the server counts."""
    return _sum([r.prompt_tokens for r in successful(records)])


def output_tokens(records: Records) -> int | None:
    """Sum of output tokens of the successful requests, as the server counts."""
    return _sum([r.output_tokens for r in successful(records)])


def cached_tokens(records: Records) -> int | None:
    """Sum of prompt tokens that the server took from its prefix cache.

    Some servers leave the count out where it is zero, so a request without one counts as zero as soon as
    any request of the level has one; None where no request has one.
    """
    counts = [r.cached_tokens for r in successful(records)]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def total_throughput(records: Records, accelerators: int) -> float | None:
    """(prompt tokens, cached ones included, + output tokens) / window / accelerators. Unit: tokens/s.

    Sums are over the successful requests; the window is last content - first start of the same requests.
    Mostly cached prompt in agent workloads, so read it beside the output and the uncached rate.
    """
    prompt, output = prompt_tokens(records), output_tokens(records)
    return _rate(records, None if prompt is None or output is None else prompt + output, accelerators)


def output_throughput(records: Records, accelerators: int) -> float | None:
    """Output tokens / window / accelerators. Unit: tokens/s."""
    return _rate(records, output_tokens(records), accelerators)


def input_throughput(records: Records, accelerators: int) -> float | None:
    """Prompt tokens, cached ones included, / window / accelerators. Unit: tokens/s."""
    return _rate(records, prompt_tokens(records), accelerators)


def request_throughput(records: Records) -> float | None:
    """Successful requests / window, of the whole system. Unit: requests/s."""
    done = successful(records)
    return _rate(records, len(done), 1) if done else None


def requests_per_slice(records: Records, seconds: float = 1.0) -> list[int]:
    """How many successful requests ended in each slice of the window, slices without one included.

    Unit: requests per slice. A last slice that the window does not fill is left out. Percentiles of this
    list are InferenceX's QPS (spec agentx.md section 4).
    """
    span = window(records)
    if span is None:
        return []
    slices = [0] * int((span[1] - span[0]) / seconds)
    for record in successful(records):
        number = int((record.start + request_latency(record) - span[0]) / seconds)
        if number < len(slices):
            slices[number] += 1
    return slices


def uncached_input_throughput(records: Records, accelerators: int) -> float | None:
    """(prompt tokens - cached tokens) / window / accelerators: the prompt really computed. Unit: tokens/s."""
    prompt, cached = prompt_tokens(records), cached_tokens(records)
    return _rate(records, None if prompt is None or cached is None else prompt - cached, accelerators)


def cache_hit_share(records: Records) -> float | None:
    """Cached tokens / prompt tokens, from the server's usage. Unit: share of 1."""
    prompt, cached = prompt_tokens(records), cached_tokens(records)
    return cached / prompt if prompt and cached is not None else None


def theoretical_hit_share(records: Records) -> float | None:
    """Leading blocks that the recorded session had sent before / hashed blocks of the requests. Share of 1.

    What one infinite cache per session would have found (spec agentx.md section 4). The difference to the
    cache hit share is what the server's cache lost, less what template and marker add to the prompts.
    """
    blocks = [(r.hit_blocks, r.total_blocks) for r in successful(records)]
    known = [(hit, total) for hit, total in blocks if hit is not None and total is not None]
    total = sum(total for _, total in known)
    return sum(hit for hit, _ in known) / total if total and len(known) == len(blocks) else None


def inter_token_latency(record: RequestRecord) -> float | None:
    """(last content chunk - first content chunk) / (output tokens - 1) of one request. Unit: s.

    Per token even where a chunk carries several. None below two tokens.
    """
    tokens = record.output_tokens or 0
    if tokens < 2 or record.ttft is None or record.last_token is None:
        return None
    return (record.last_token - record.ttft) / (tokens - 1)


def full_response_itl(record: RequestRecord) -> float | None:
    """(end of the HTTP response - first content chunk) / (output tokens - 1) of one request. Unit: s.

    What InferenceX's dashboard prefers to the inter-token latency. None below two tokens.
    """
    tokens = record.output_tokens or 0
    if tokens < 2 or record.ttft is None:
        return None
    return (record.end - record.start - record.ttft) / (tokens - 1)


def full_response_itl_percentile(records: Records, p: float) -> float | None:
    """Percentile over requests of (response end - first chunk) / (output tokens - 1). Unit: s."""
    each = [full_response_itl(r) for r in successful(records)]
    return percentile([latency for latency in each if latency is not None], p)


def inter_token_latencies(records: Records) -> list[float]:
    """The inter-token latency of every successful request that has one. Unit: s."""
    each = [inter_token_latency(r) for r in successful(records)]
    return [latency for latency in each if latency is not None]


def itl_percentile(records: Records, p: float) -> float | None:
    """Percentile over requests of (last chunk - first chunk) / (output tokens - 1). Unit: s."""
    return percentile(inter_token_latencies(records), p)


def token_gaps(record: RequestRecord) -> npt.NDArray[np.float64]:
    """Time between neighbouring output tokens of one request. Unit: s.

    The n tokens of a chunk share the wait for it: n gaps of (this arrival - previous arrival) / n. Tokens
    that come along with the first one have gap 0, so the mean gap is the request's inter-token latency.
    """
    times = record.token_offsets
    if record.output_tokens is None or len(times) < 2:
        return np.empty(0)
    later = np.flatnonzero(times[1:] != times[:-1]) + 1  # first token of every chunk but the first
    if not len(later):
        return np.zeros(len(times) - 1)
    counts = np.append(later[1:], len(times)) - later
    waits = (times[later] - times[later - 1]) / counts
    return np.concatenate([np.zeros(later[0] - 1), np.repeat(waits, counts)])


def pooled_itl_percentiles(records: Records, *ps: float) -> list[float | None]:
    """Percentiles over the token gaps of all requests together, so long answers weigh more. Unit: s."""
    gaps = [token_gaps(r) for r in successful(records)]
    pooled = np.sort(np.concatenate(gaps)) if gaps else np.empty(0)
    return [percentile(pooled, p) for p in ps]


def interactivity(records: Records, p: float) -> float | None:
    """1 / Pxx(inter-token latency over requests). Unit: tokens/s for one user.

    P90 is the slow tail: the speed that 90 % of the requests reach or beat. It is not the 90th percentile
    of the requests' speeds, which is the fast tail.
    """
    latency = itl_percentile(records, p)
    return 1 / latency if latency else None


def e2e_normalised_interactivity(records: Records, p: float) -> float | None:
    """1 / Pxx over requests of (request latency / output tokens). Unit: tokens/s for one user.

    Latency and length are a pair of the same request, so waiting for the first token counts too: about
    1 / (ITL + TTFT / output tokens). P90 is the slow tail (spec agentx.md section 4).
    """
    each = [request_latency(r) / r.output_tokens for r in successful(records) if r.output_tokens]
    latency = percentile(each, p)
    return 1 / latency if latency else None


def time_to_second_token(record: RequestRecord) -> float | None:
    """Second output token - first one, of one request. Unit: s. None below two known arrivals."""
    times = record.token_offsets
    return float(times[1] - times[0]) if len(times) > 1 else None


def ttft_percentile(records: Records, p: float) -> float | None:
    """Percentile over requests of first content chunk (reasoning counts) - request start. Unit: s."""
    return percentile([r.ttft for r in successful(records) if r.ttft is not None], p)


def ttft_answer_percentile(records: Records, p: float) -> float | None:
    """Percentile over requests of first chunk that is not reasoning - request start. Unit: s.

    Requests that stayed in reasoning to their end have none and are left out.
    """
    return percentile([r.ttft_answer for r in successful(records) if r.ttft_answer is not None], p)


def e2e_percentile(records: Records, p: float) -> float | None:
    """Percentile over requests of last content chunk - request start. Unit: s."""
    return percentile([request_latency(r) for r in successful(records)], p)


def mean_in_flight(records: Records) -> float | None:
    """Sum of the request latencies / window: how many requests were open on average. Unit: requests."""
    seconds = window_seconds(records)
    return sum(map(request_latency, successful(records))) / seconds if seconds else None


def output_length_mismatch(record: RequestRecord) -> float | None:
    """(output tokens - tokens asked for) / tokens asked for, of one request. Unit: share of 1."""
    if record.output_tokens is None or not record.max_tokens:
        return None
    return (record.output_tokens - record.max_tokens) / record.max_tokens


def is_output_length_mismatch(record: RequestRecord) -> bool | None:
    """Whether the answer misses the length asked for by more than 5 % of it or more than 50 tokens.

    The smaller of the two counts, as the harness has it (its OSL mismatch). None where a length is unknown.
    """
    if record.output_tokens is None or not record.max_tokens:
        return None
    allowed = min(record.max_tokens * MISMATCH_SHARE, MISMATCH_TOKENS)
    return abs(record.output_tokens - record.max_tokens) > allowed


def output_length_mismatch_share(records: Records) -> float | None:
    """Answers that miss the length asked for / answers of known lengths. Unit: share of 1."""
    each = [is_output_length_mismatch(r) for r in successful(records)]
    known = [missed for missed in each if missed is not None]
    return sum(known) / len(known) if known else None


DEFINITIONS: tuple[tuple[str, Callable[..., object]], ...] = (
    ("Total throughput", total_throughput),
    ("Output throughput", output_throughput),
    ("Uncached input", uncached_input_throughput),
    ("Cache hit share", cache_hit_share),
    ("Theoretical hit share", theoretical_hit_share),
    ("Request throughput", request_throughput),
    ("Inter-token latency (ITL)", inter_token_latency),
    ("Full-response ITL", full_response_itl),
    ("P50 / P90 interactivity", interactivity),
    ("E2E-normalised interactivity", e2e_normalised_interactivity),
    ("Pooled ITL", pooled_itl_percentiles),
    ("Time to first token (TTFT)", ttft_percentile),
    ("Time to first answer token", ttft_answer_percentile),
    ("End-to-end latency", e2e_percentile),
    ("Mean requests in flight", mean_in_flight),
    ("Output length mismatch", output_length_mismatch_share),
    ("Percentile", percentile),
)
"""What a report calls a metric, and the function whose docstring defines it."""


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _rate(records: Records, tokens: int | None, accelerators: int) -> float | None:
    seconds = window_seconds(records)
    return tokens / seconds / accelerators if tokens is not None and seconds else None
