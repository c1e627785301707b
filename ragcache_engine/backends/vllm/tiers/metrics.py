"""Reports the tiers' counters as Prometheus metrics, through vLLM's exporter and in its naming style."""

from __future__ import annotations

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
)

from ragcache_engine.tiers.counters import SCHEDULING_BUCKETS_S, Counters

PROMPT_TOKENS = "ragcache:prompt_tokens"
EVICTED = "ragcache:evicted_blocks"
SCHEDULING = "ragcache:scheduling_seconds"
PLAIN_COUNTS = {
    "stored_bytes": ("ragcache:stored_bytes", "Bytes copied from device to host."),
    "loaded_bytes": ("ragcache:loaded_bytes", "Bytes copied from host to device."),
    "written_bytes": ("ragcache:disk_written_bytes", "Bytes written from host to disk."),
    "read_bytes": ("ragcache:disk_read_bytes", "Bytes read from disk to host."),
    "refused": ("ragcache:refused_blocks", "Blocks the host holds better ones than."),
    "recomputed": ("ragcache:recomputed_blocks", "Cached blocks computed, as that was quicker."),
    "missing": ("ragcache:disk_missing_blocks", "Blocks whose file was gone."),
    "damaged": ("ragcache:disk_damaged_blocks", "Blocks whose file was unusable, and removed."),
    "unwritten": ("ragcache:disk_unwritten_blocks", "Blocks the disk tier did not take."),
    "forgotten": ("ragcache:forgotten_documents", "Documents dropped on request."),
}
TOKEN_SOURCES = {f"{source}_tokens": source for source in ("device", "host", "disk", "computed")}
OBSERVED_S = (*SCHEDULING_BUCKETS_S, 2 * SCHEDULING_BUCKETS_S[-1])
"""For each bucket of scheduling times, one time that falls into the bucket, in seconds."""


def build_definitions() -> dict[str, OffloadingMetricMetadata]:
    """Define every metric for vLLM's exporter, by name."""
    return {
        PROMPT_TOKENS: OffloadingCounterMetadata(
            "Prompt tokens of finished requests, by where their tensors came from.", ("source",)
        ),
        EVICTED: OffloadingCounterMetadata("Blocks evicted, by tier.", ("tier",)),
        SCHEDULING: OffloadingHistogramMetadata(
            "Time RAGCache takes to schedule a request, in seconds.", buckets=SCHEDULING_BUCKETS_S
        ),
        **{name: OffloadingCounterMetadata(text) for name, text in PLAIN_COUNTS.values()},
    }


class CounterReporter:
    """Reports how much the counters have grown since the last report, as vLLM's exporter wants it."""

    def __init__(self) -> None:
        self._last = Counters().as_dict()

    def report(self, counters: Counters) -> OffloadingConnectorStats | None:
        """Report the growth of the counters; None if no request has ended since the last report.

        vLLM calls this at every step, so the check comes first.
        """
        if counters.ended == self._last["ended"]:
            return None
        last, self._last = self._last, counters.as_dict()
        now = self._last
        stats = OffloadingConnectorStats()
        for field, source in TOKEN_SOURCES.items():
            if more := now[field] - last[field]:
                stats.increase_counter(PROMPT_TOKENS, more, (source,))
        for tier, blocks in now["evicted"].items():
            if more := blocks - last["evicted"][tier]:
                stats.increase_counter(EVICTED, more, (tier,))
        for field, (name, _) in PLAIN_COUNTS.items():
            if more := now[field] - last[field]:
                stats.increase_counter(name, more)
        for at, requests in enumerate(now["scheduling"]):
            for _ in range(requests - last["scheduling"][at]):
                stats.observe_histogram(SCHEDULING, OBSERVED_S[at])
        return None if stats.is_empty() else stats
