"""The metrics of the tiers: names, units, help texts and labels, by Prometheus's conventions.

An embedded engine and vLLM's server report the same ones, so one board and one set of alerts serve both.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from ragcache_engine.tiers.counters import BlocksByTier, Counters, DiskState, TierCounters


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
    "Prompt tokens of finished requests by source: device, host, disk (exact), borrowed, computed.",
    label="source",
)
EVICTED = Metric("ragcache_evicted_blocks", "Blocks evicted, by tier.", label="tier")
HELD = Metric("ragcache_held_blocks", "Blocks in each tier.", MetricKind.GAUGE, "tier")
CAPACITY = Metric(
    "ragcache_capacity_blocks", "Blocks each tier may hold.", MetricKind.GAUGE, "tier"
)
KEPT = Metric(
    "ragcache_kept_blocks", "Blocks kept from eviction in each tier.", MetricKind.GAUGE, "tier"
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
    "recomputed_blocks": Metric(
        "ragcache_recomputed_blocks", "Cached blocks computed, as that was quicker than loading."
    ),
    "missing": Metric("ragcache_disk_missing_blocks", "Blocks whose file was gone."),
    "damaged": Metric(
        "ragcache_disk_damaged_blocks", "Blocks whose file was unusable, and removed."
    ),
    "unwritten": Metric("ragcache_disk_unwritten_blocks", "Blocks the disk tier did not take."),
    "recomputed_tokens": Metric(
        "ragcache_recomputed_tokens",
        "Recomputed tokens of borrowed documents; they count as computed too.",
    ),
    "donor_tokens": Metric(
        "ragcache_donor_tokens", "Tokens computed so that other prompts can borrow them."
    ),
    "forgotten": Metric("ragcache_forgotten_documents", "Documents dropped on request."),
    "shared_tokens": Metric(
        "ragcache_shared_tokens",
        "Prompt tokens from the shared store; they count as those from disk too.",
    ),
    "shared_read_bytes": Metric(
        "ragcache_shared_read_bytes", "Bytes read from the shared store to host."
    ),
    "shared_written_bytes": Metric(
        "ragcache_shared_written_bytes", "Bytes written from host to the shared store."
    ),
    "unshared": Metric("ragcache_unshared_blocks", "Blocks the shared store did not take."),
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
    KEPT,
    DISK_STATE,
    SCHEDULING,
    *PLAIN_COUNTS.values(),
)


TIER_BLOCKS = {EVICTED: "evicted", HELD: "held", CAPACITY: "capacity", KEPT: "kept"}
"""The field of Counters, blocks by tier, that each of these metrics reports."""

SERIES: tuple[tuple[Metric, tuple[str, ...]], ...] = (
    *((PROMPT_TOKENS, (source,)) for source in TOKEN_SOURCES.values()),
    *((metric, ()) for metric in PLAIN_COUNTS.values()),
    *((metric, (tier,)) for metric in TIER_BLOCKS for tier in BlocksByTier()),
    *((DISK_STATE, (state.value,)) for state in DiskState),
)
"""Every metric of the tiers with the value of its label, but not the histogram."""

_read_counts = attrgetter(*TOKEN_SOURCES, *PLAIN_COUNTS)
_read_blocks = attrgetter(*TIER_BLOCKS.values())


def read_values(counters: Counters | TierCounters) -> list[float]:
    """Return the values of SERIES, in the same order.

    The scheduler does this after each request, so it takes some microseconds.
    """
    values: list[float] = [*_read_counts(counters)]
    for by_tier in _read_blocks(counters):
        values += (by_tier["device"], by_tier["host"], by_tier["disk"])
    values += (float(counters.disk == state) for state in DiskState)
    return values


def sample_counters(counters: Counters | TierCounters) -> Iterator[Sample]:
    """Yield every value of the tiers' counters and gauges, but not the histogram."""
    for (metric, labels), value in zip(SERIES, read_values(counters), strict=True):
        yield Sample(metric, labels, value)
