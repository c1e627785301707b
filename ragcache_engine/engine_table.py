"""What an engine shows of itself in a notebook."""

from __future__ import annotations

from ragcache_engine.cache_stats import CacheStats
from ragcache_engine.config import EngineConfig
from ragcache_engine.tables import Table
from ragcache_engine.tiers.shared.address import read_address
from ragcache_engine.values import ModelLimits


def engine_table(
    config: EngineConfig, limits: ModelLimits, state: str, stats: CacheStats | None
) -> Table:
    """Return a table of the model, its memory and the counters. stats: None if they are not to be had."""
    rows = [
        ("model", config.model_name),
        ("state", state),
        ("context", f"{limits.context_tokens:,} tokens"),
        ("device cache", f"{limits.device_tokens:,} tokens"),
    ]
    if limits.host_tokens:
        rows.append(("host cache", f"{limits.host_tokens:,} tokens"))
    if config.disk_cache:
        rows.append(("disk cache", config.disk_cache.human_readable()))
    if config.shared_cache:
        rows.append(("shared cache", read_address(config.shared_cache).url))
    if stats is None:
        return Table("RAGCacheEngine", rows)
    counters = stats._table()
    return Table("RAGCacheEngine", [*rows, *counters.rows], counters.bar)
