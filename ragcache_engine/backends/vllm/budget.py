"""The sizes and settings of the tiers below the device. Importable without vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ragcache_engine.cache_home import cache_home
from ragcache_engine.tiers.disk.key_ring import KeyRing, open_key_ring

GIB = 1 << 30
HOST_MOST_BYTES = 4 * GIB
"""The largest host tier that RAGCache chooses on a GPU."""

HOST_BELOW_DISK_BYTES = 1 * GIB
"""The largest host tier that RAGCache chooses on a CPU, where only a disk tier needs one."""

HOST_LEAST_BYTES = 256 << 20
"""The smallest host tier that RAGCache chooses where shared memory is short."""

QUEUES_BYTES = 64 << 20
"""Shared memory to leave to vLLM's queues. They are larger, but only what messages touch takes room."""


@dataclass(frozen=True, slots=True)
class TierBudget:
    """All fields are as in EngineConfig, but these.

    host_bytes: None leaves the choice to `host_bytes_for`. disk_key, shared: as `disk_cache_key` and
      `shared_cache` there.
    host_quota_bytes, disk_quota_bytes: as `host_cache_per_tenant` and `disk_cache_per_tenant` there.
    recompute_ratio: the share of each borrowed document to compute anew; None borrows nothing.
    any_donors: whether documents may be borrowed from what served prompts left, with donors="any".
    donors_later: whether documents whose donors are missing are computed where they stand, with
      missing_donors="later".
    packs_donors: whether donors are kept in eight bits a number, with donor_dtype="int8".
    recheck_share, least_rouge_l: which share of answers a server rechecks, and the least mean likeness of
      them; see Drift. An engine rechecks by itself.
    """

    policy: str
    host_bytes: int | None = None
    disk_bytes: int = 0
    disk_folder: Path | None = None
    disk_key: str | None = None
    shared: str | None = None
    host_quota_bytes: int | None = None
    disk_quota_bytes: int | None = None
    reorder_window: int = 32
    cache_depth: int | None = None
    cost_profile: Path | None = None
    recompute_ratio: float | None = None
    any_donors: bool = False
    donors_later: bool = False
    packs_donors: bool = False
    recheck_share: float = 0.0
    least_rouge_l: float | None = None

    def folder(self) -> Path:
        """The disk tier's folder."""
        return (self.disk_folder or cache_home() / "kv").expanduser()

    def open_keys(self) -> KeyRing | None:
        """Return what the disk tier is encrypted with, if it is. Raises ConfigError, OSError."""
        if self.disk_key is None:
            return None
        return open_key_ring(self.folder(), self.disk_key, self.shared)

    def host_bytes_for(self, *, is_cpu: bool, free_bytes: int) -> int:
        """Return the host tier's bytes on a machine with this much free memory."""
        if self.host_bytes is not None:
            return self.host_bytes
        if is_cpu:  # both are the same memory, so a larger device cache serves better
            return min(HOST_BELOW_DISK_BYTES, free_bytes // 8) if self.disk_bytes else 0
        return min(HOST_MOST_BYTES, free_bytes // 4)

    def host_bytes_within(self, wanted_bytes: int, shared_bytes: int) -> int:
        """Return the bytes of a host tier that fits into shared memory; 0 if there is no room for one.

        wanted_bytes: what host_bytes_for returned. shared_bytes: how much of shared memory is free.
        A size that the user chose is kept or given up; one that RAGCache chose may also shrink.
        """
        room_bytes = shared_bytes - QUEUES_BYTES
        if wanted_bytes <= room_bytes:
            return wanted_bytes
        shrinks = self.host_bytes is None and room_bytes >= HOST_LEAST_BYTES
        return room_bytes if shrinks else 0
