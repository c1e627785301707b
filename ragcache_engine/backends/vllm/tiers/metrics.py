"""Reports the tiers' counters as Prometheus metrics, through vLLM's exporter."""

from __future__ import annotations

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
)

from ragcache_engine.tiers.counters import SCHEDULING_BUCKETS_S, Counters
from ragcache_engine.tiers.metric_names import (
    SCHEDULING,
    TIER_METRICS,
    Metric,
    MetricKind,
    sample_counters,
)

OBSERVED_S = (*SCHEDULING_BUCKETS_S, 2 * SCHEDULING_BUCKETS_S[-1])
"""For each bucket of scheduling times, one time that falls into the bucket, in seconds."""


def build_definitions() -> dict[str, OffloadingMetricMetadata]:
    """Define every metric for vLLM's exporter, by name."""
    return {metric.name: _define(metric) for metric in TIER_METRICS}


def _define(metric: Metric) -> OffloadingMetricMetadata:
    labels = (metric.label,) if metric.label else ()
    if metric.kind is MetricKind.COUNTER:
        return OffloadingCounterMetadata(metric.help, labels)
    if metric.kind is MetricKind.GAUGE:
        return OffloadingGaugeMetadata(metric.help, labels)
    return OffloadingHistogramMetadata(metric.help, labels, buckets=SCHEDULING_BUCKETS_S)


class CounterReporter:
    """Reports what the counters say since the last report, as vLLM's exporter wants it."""

    def __init__(self) -> None:
        self._last = Counters()
        self._reported: dict[tuple[str, tuple[str, ...]], float] = {}

    def report(self, counters: Counters) -> OffloadingConnectorStats | None:
        """Report by how much the counters have grown, and the gauges that changed; None if no request
        has ended since the last report.

        vLLM calls this at every step, so the check comes first.
        """
        if counters.ended == self._last.ended:
            return None
        stats = OffloadingConnectorStats()
        for metric, labels, value in sample_counters(counters):
            before = self._reported.get((metric.name, labels))
            self._reported[metric.name, labels] = value
            if metric.kind is MetricKind.GAUGE:
                if value != before:
                    stats.set_gauge(metric.name, value, labels)
            else:
                # The first report names every counter: a rate needs its series to begin at 0.
                if before is None or value > before:
                    stats.increase_counter(metric.name, value - (before or 0), labels)
        for at, requests in enumerate(counters.scheduling):
            for _ in range(requests - self._last.scheduling[at]):
                stats.observe_histogram(SCHEDULING.name, OBSERVED_S[at])
        self._last = Counters.from_dict(counters.as_dict())
        return None if stats.is_empty() else stats
