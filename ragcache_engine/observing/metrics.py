"""An engine's figures as Prometheus metrics, for a program that embeds the engine.

A server has vLLM's metrics and those of the tiers; of these here, it has those of idle work and of
registered documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from ragcache_engine.cache_stats import CacheStats
from ragcache_engine.observing.request_log import TTFT_BUCKETS_S, TimesToFirstToken
from ragcache_engine.tiers.counters import SCHEDULING_BUCKETS_S
from ragcache_engine.tiers.metric_names import (
    SCHEDULING,
    Metric,
    MetricKind,
    Sample,
    sample_counters,
)
from ragcache_engine.values import SpeculationStats

if TYPE_CHECKING:
    from prometheus_client import Metric as Family

REQUESTS = Metric("ragcache_requests", "Requests that ended, by how they ended.", label="outcome")
RUNNING = Metric("ragcache_running_requests", "Requests that run now.", MetricKind.GAUGE)
RETRIES = Metric("ragcache_retries", "Second attempts of requests whose first attempt failed.")
RESTARTS = Metric("ragcache_restarts", "Starts of the model's process after it had died.")
OUTPUT_TOKENS = Metric("ragcache_output_tokens", "Tokens of finished answers.")
SPECULATIONS = Metric(
    "ragcache_speculations", "Speculations, by what became of them.", label="outcome"
)
WASTED = Metric(
    "ragcache_wasted_prefill_tokens", "Prompt tokens computed for speculations without use."
)
RECHECKED = Metric(
    "ragcache_rechecked_answers", "Approximate answers that were computed once more, exactly."
)
LIKENESS = Metric(
    "ragcache_recheck_likeness_ratio",
    "Mean ROUGE-L of the last rechecked answers with the exact ones; 1 for equal ones.",
    MetricKind.GAUGE,
)
SWITCHED_OFF = Metric(
    "ragcache_borrowing_switched_off",
    "1 once rechecked answers were too unlike, so that the engine borrows no more.",
    MetricKind.GAUGE,
)
PREPARED = Metric(
    "ragcache_prepared_prompts", "Prompts whose missing donors were computed in idle time."
)
UNPREPARED = Metric(
    "ragcache_unprepared_prompts",
    "Prompts whose missing donors wait to be computed in idle time.",
    MetricKind.GAUGE,
)
UNPREPARED_FOUND = Metric(
    "ragcache_unprepared_documents",
    "Documents near those of prompts, or found by searches, that wait to be computed in idle time.",
    MetricKind.GAUGE,
)
REGISTERED = Metric(
    "ragcache_registered_documents", "Documents that clients registered.", MetricKind.GAUGE
)
REGISTERED_BYTES = Metric(
    "ragcache_registered_bytes", "Memory that registered documents take.", MetricKind.GAUGE
)
RECOGNISED = Metric(
    "ragcache_recognised_documents", "Registered documents found in clients' prompts."
)
TTFT = Metric(
    "ragcache_time_to_first_token_seconds",
    "Time from a question to the first token of its answer.",
    MetricKind.HISTOGRAM,
)


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What an engine reports at one moment."""

    stats: CacheStats
    ttft: TimesToFirstToken


class SampleCollector:
    """A collector of counters and gauges for prometheus_client.

    read: returns the samples of this moment; any thread calls it. labels: labels for every metric.
    """

    def __init__(
        self, read: Callable[[], Iterable[Sample]], labels: Mapping[str, str] | None = None
    ) -> None:
        self._read_samples = read
        self._labels = dict(labels or {})

    def collect(self) -> Iterator[Family]:
        """Yield every metric, as prometheus_client asks for them."""
        yield from self._families(self._read_samples())

    def describe(self) -> Iterable[Family]:
        """Return nothing: registering must not wait for figures."""
        return ()

    def _families(self, samples: Iterable[Sample]) -> Iterator[Family]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for metric, labels, value in samples:
            family = families.get(metric.name)
            if family is None:
                kind = (
                    CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
                )
                names = [*self._labels, *((metric.label,) if metric.label else ())]
                family = families[metric.name] = kind(metric.name, metric.help, labels=names)
            family.add_metric([*self._labels.values(), *labels], value)
        yield from families.values()


class EngineCollector(SampleCollector):
    """A collector for prometheus_client: register it, and the engine's metrics are exported with yours.

        >>> from prometheus_client import CollectorRegistry
        >>> registry = CollectorRegistry()
        >>> with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
        ...     registry.register(engine.collector({"chain": "support"}))
        ...     _ = engine.generate("Why is the sky blue?")
        ...     labels = {"chain": "support", "outcome": "finished"}
        ...     registry.get_sample_value("ragcache_requests_total", labels)
        1

    labels: labels for every metric. Two engines in one registry need labels that tell them apart.
    """

    def __init__(
        self, read: Callable[[], EngineFigures], labels: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(lambda: sample_figures(read().stats), labels)
        self._read = read

    def collect(self) -> Iterator[Family]:
        """Yield every metric, as prometheus_client asks for them."""
        from prometheus_client.core import HistogramMetricFamily

        figures = self._read()
        yield from self._families(sample_figures(figures.stats))
        tiers = figures.stats.tiers
        for metric, bounds, counts, sum_s in (
            (SCHEDULING, SCHEDULING_BUCKETS_S, tiers.scheduling, tiers.scheduling_s),
            (TTFT, TTFT_BUCKETS_S, figures.ttft.counts, figures.ttft.sum_s),
        ):
            family = HistogramMetricFamily(metric.name, metric.help, labels=list(self._labels))
            family.add_metric(list(self._labels.values()), _buckets(bounds, counts), sum_s)
            yield family


def sample_figures(stats: CacheStats) -> Iterator[Sample]:
    """Yield the value of every metric but the histograms."""
    for outcome in ("finished", "cancelled", "failed"):
        yield Sample(REQUESTS, (outcome,), getattr(stats, outcome))
    yield Sample(RUNNING, (), stats.running)
    yield Sample(RETRIES, (), stats.retried)
    yield Sample(RESTARTS, (), stats.restarts)
    yield Sample(OUTPUT_TOKENS, (), stats.output_tokens)
    yield from _sample_speculation(stats.speculation)
    yield from sample_idle_work(stats)
    yield from sample_counters(stats.tiers)


def _sample_speculation(stats: SpeculationStats) -> Iterator[Sample]:
    for outcome in ("adopted", "prefilled", "cancelled", "expired", "failed"):
        yield Sample(SPECULATIONS, (outcome,), getattr(stats, outcome))
    yield Sample(WASTED, (), stats.wasted_prefill_tokens)


def sample_idle_work(stats: CacheStats) -> Iterator[Sample]:
    """Yield what is done while no request runs: documents prepared, answers rechecked."""
    yield Sample(PREPARED, (), stats.prepared)
    yield Sample(UNPREPARED, (), stats.unprepared)
    yield Sample(UNPREPARED_FOUND, (), stats.found_unprepared)
    yield Sample(RECHECKED, (), stats.rechecked)
    yield Sample(SWITCHED_OFF, (), float(stats.is_switched_off))
    if stats.drift is not None:
        yield Sample(LIKENESS, (), 1 - stats.drift)


def sample_corpora(documents: int, size_bytes: int, recognised: int) -> Iterator[Sample]:
    """Yield what a server keeps of registered documents, and how many it has found in prompts."""
    yield Sample(REGISTERED, (), documents)
    yield Sample(REGISTERED_BYTES, (), size_bytes)
    yield Sample(RECOGNISED, (), recognised)


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return cumulative buckets, as Prometheus writes them."""
    names = [*map(str, bounds), "+Inf"]
    return list(zip(names, accumulate(map(float, counts)), strict=True))


def write_metrics(collector: EngineCollector) -> str:
    """Return the metrics in Prometheus's text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry).decode()
