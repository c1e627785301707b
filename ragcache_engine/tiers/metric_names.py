"""The metrics of the tiers: names, units, help texts and labels, by Prometheus's conventions.

An embedded engine and vLLM's server report the same ones, so one board and one set of alerts serve both.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from ragcache_engine.tiers.counters import Counters, DiskState, TierCounters


class MetricKind(StrEnum):
    """How a metric behaves."""

    COUNTER = "counter"  # only grows; its exported name ends in _total
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    """One metric. name: without the `_total` that exporters add to counters. label: its one label."""

    name: str
    help: str
    kind: MetricKind = MetricKind.COUNTER
    label: str | None = None


class Sample(NamedTuple):
    """The value of a metric. labels: the value of its label, if it has one."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


PROMPT_TOKENS = Metric(
    "ragcache_prompt_tokens",
    "Prompt tokens of finished requests, by where their tensors came from.",
    label="source",
)
EVICTED = Metric("ragcache_evicted_blocks", "Blocks evicted, by tier.", label="tier")
HELD = Metric("ragcache_held_blocks", "Blocks in each tier.", MetricKind.GAUGE, "tier")
CAPACITY = Metric(
    "ragcache_capacity_blocks", "Blocks each tier may hold.", MetricKind.GAUGE, "tier"
)
DISK_STATE = Metric(
    "ragcache_disk_state", "1 for the state the disk tier is in.", MetricKind.GAUGE, "state"
)
SCHEDULING = Metric(
    "ragcache_scheduling_seconds",
    "Time RAGCache takes to schedule a request.",
    MetricKind.HISTOGRAM,
)
PLAIN_COUNTS = {
    "stored_bytes": Metric("ragcache_host_stored_bytes", "Bytes copied from device to host."),
    "loaded_bytes": Metric("ragcache_host_loaded_bytes", "Bytes copied from host to device."),
    "written_bytes": Metric("ragcache_disk_written_bytes", "Bytes written from host to disk."),
    "read_bytes": Metric("ragcache_disk_read_bytes", "Bytes read from disk to host."),
    "refused": Metric("ragcache_refused_blocks", "Blocks that the host holds better ones than."),
    "recomputed": Metric(
        "ragcache_recomputed_blocks", "Cached blocks computed, as that was quicker than loading."
    ),
    "missing": Metric("ragcache_disk_missing_blocks", "Blocks whose file was gone."),
    "damaged": Metric(
        "ragcache_disk_damaged_blocks", "Blocks whose file was unusable, and removed."
    ),
    "unwritten": Metric("ragcache_disk_unwritten_blocks", "Blocks the disk tier did not take."),
    "mended_tokens": Metric(
        "ragcache_mended_tokens", "Tokens of borrowed documents that were computed anew."
    ),
    "donor_tokens": Metric(
        "ragcache_donor_tokens", "Tokens computed so that other prompts can borrow them."
    ),
    "forgotten": Metric("ragcache_forgotten_documents", "Documents dropped on request."),
}
"""Counters without a label, by the field of Counters that they report."""

TOKEN_SOURCES = {
    f"{source}_tokens": source for source in ("device", "host", "disk", "borrowed", "computed")
}
"""The label of PROMPT_TOKENS by field of Counters. Borrowed tokens are approximate, cached ones exact."""

TIER_METRICS = (
    PROMPT_TOKENS,
    EVICTED,
    HELD,
    CAPACITY,
    DISK_STATE,
    SCHEDULING,
    *PLAIN_COUNTS.values(),
)


def sample_counters(counters: Counters | TierCounters) -> Iterator[Sample]:
    """Yield every value of the tiers' counters and gauges, but not the histogram."""
    for field, source in TOKEN_SOURCES.items():
        yield Sample(PROMPT_TOKENS, (source,), getattr(counters, field))
    for field, metric in PLAIN_COUNTS.items():
        yield Sample(metric, (), getattr(counters, field))
    for metric, by_tier in (
        (EVICTED, counters.evicted),
        (HELD, counters.held),
        (CAPACITY, counters.capacity),
    ):
        for tier, blocks in by_tier.items():
            yield Sample(metric, (tier,), blocks)
    for state in DiskState:
        yield Sample(DISK_STATE, (state.value,), float(counters.disk == state))
