"""Prometheus metrics of one server, in a registry of its own. docs/server.md lists and defines them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flashpoint.engine.service import EngineStats

_MILLISECONDS = (1, 2, 5, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1e3, 2e3, 5e3, 1e4, 3e4, 6e4, 12e4)
_BUCKETS = tuple(bound / 1000 for bound in _MILLISECONDS)
STATES = ("preparing", "waiting", "streaming")


class Metrics:
    """What the server itself measures, and the engine's counters read at scrape time."""

    def __init__(self, engine_stats: Callable[[], EngineStats]) -> None:
        self.registry = registry = CollectorRegistry()
        registry.register(_EngineCollector(engine_stats))
        self.refused = self._counter("requests_refused", "Requests answered with an error", "code")
        self.finished = self._counter("requests_finished", "Answers that ended, by reason", "reason")
        self.usage = self._counter("usage_tokens", "Tokens as `usage` reports them", "kind")
        self.in_flight = Gauge(
            "flashpoint_requests_in_flight", "Requests by what they wait for", ["state"], registry=registry
        )
        self.ttft = self._histogram("time_to_first_token", "From a request's arrival to its first token")
        self.itl = self._histogram("inter_token_latency", "From a token to the next one of its answer")
        self.duration = self._histogram("request_duration", "From a request's arrival to its end")
        self.step = self._histogram("engine_step", "One engine step")
        for state in STATES:
            self.in_flight.labels(state)

    def _counter(self, name: str, help_text: str, label: str) -> Counter:
        return Counter(f"flashpoint_{name}", help_text, [label], registry=self.registry)

    def _histogram(self, name: str, help_text: str) -> Histogram:
        return Histogram(f"flashpoint_{name}_seconds", help_text, buckets=_BUCKETS, registry=self.registry)

    def exposition(self) -> bytes:
        """The text that a scraper reads."""
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    """The engine's own counters and gauges, taken from one consistent snapshot per scrape."""

    def __init__(self, engine_stats: Callable[[], EngineStats]) -> None:
        self._engine_stats = engine_stats

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        stats = self._engine_stats()
        gauges = {
            "engine_waiting_requests": ("Requests queued in the engine", stats.waiting),
            "engine_running_requests": ("Requests that have a slot", stats.running),
            "engine_seconds_since_progress": ("0 while idle", stats.seconds_since_progress),
            "cache_blocks_capacity": ("KV cache blocks", stats.total_blocks),
            "cache_blocks_used": ("KV cache blocks requests hold", stats.total_blocks - stats.free_blocks),
            "cache_blocks_kept": ("KV cache blocks kept for later requests only", stats.cached_blocks),
            "engine_slots_capacity": ("Sequences that can run at once", stats.total_slots),
            "engine_slots_used": ("Slots not free", stats.total_slots - stats.free_slots),
        }
        counters = {
            "engine_steps": ("Steps", stats.steps),
            "engine_prompt_tokens": ("Tokens of accepted prompts", stats.prompt_tokens),
            "engine_cached_prompt_tokens": ("Prompt tokens found in the cache", stats.cached_tokens),
            "engine_computed_prompt_tokens": (
                "Prompt rows computed, those repeated after a hit or a preemption included",
                stats.computed_prompt_tokens,
            ),
            "engine_replayed_tokens": ("Rows computed to refill windows after a hit", stats.replayed_tokens),
            "cache_failed_transfers": ("Moves between cache tiers that failed", stats.failed_transfers),
            "engine_generated_tokens": ("Answer tokens", stats.generated_tokens),
            "engine_preemptions": ("Times a running request had to yield", stats.preemptions),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"flashpoint_{name}", text, value)
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"flashpoint_{name}", text, value)
        hits = CounterMetricFamily("flashpoint_cache_hit_tokens", "Prompt tokens found", labels=["tier"])
        for tier, tokens in zip(("device", "host", "disk"), stats.cached_tokens_by_tier, strict=True):
            hits.add_metric([tier], tokens)
        yield hits
