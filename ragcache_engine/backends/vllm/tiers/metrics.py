"""Reports the tiers' counters as Prometheus metrics, through vLLM's exporter."""

from __future__ import annotations

from math import isnan, nan

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
    SERIES,
    TIER_METRICS,
    Metric,
    MetricKind,
    read_values,
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
        self._ended = 0
        self._values: list[float] = []
        self._scheduling = Counters().scheduling

    def report(self, counters: Counters) -> OffloadingConnectorStats | None:
        """Report by how much the counters have grown, and the gauges that changed; None if no request
        has ended since the last report.

        vLLM calls this at every step, so the check comes first.
        """
        if counters.ended == self._ended:
            return None
        stats, values = OffloadingConnectorStats(), read_values(counters)
        # The first report names every counter: a rate needs its series to begin at 0.
        last = self._values or [nan] * len(values)
        for (metric, labels), value, before in zip(SERIES, values, last, strict=True):
            if value == before:
                continue
            if metric.kind is MetricKind.GAUGE:
                stats.set_gauge(metric.name, value, labels)
            elif isnan(before):
                stats.increase_counter(metric.name, value, labels)
            elif value > before:
                stats.increase_counter(metric.name, value - before, labels)
        for at, requests in enumerate(counters.scheduling):
            for _ in range(requests - self._scheduling[at]):
                stats.observe_histogram(SCHEDULING.name, OBSERVED_S[at])
        self._ended, self._values = counters.ended, values
        self._scheduling = list(counters.scheduling)
        return None if stats.is_empty() else stats
