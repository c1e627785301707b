"""What a configuration gives to the tiers below the device. Importable without vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
HOST_MOST_BYTES = 4 * GIB
HOST_BELOW_DISK_BYTES = 1 * GIB


@dataclass(frozen=True, slots=True)
class TierBudget:
    """As in EngineConfig. host_bytes: None leaves the choice to `host_bytes_for`."""

    policy: str
    host_bytes: int | None = None
    disk_bytes: int = 0
    disk_folder: Path | None = None
    reorder_window: int = 32
    cache_depth: int | None = None
    cost_profile: Path | None = None

    def folder(self) -> Path:
        return (self.disk_folder or Path("~/.cache/ragcache/kv")).expanduser()

    def host_bytes_for(self, *, is_cpu: bool, free_bytes: int) -> int:
        """The host tier's bytes on this machine."""
        if self.host_bytes is not None:
            return self.host_bytes
        if is_cpu:  # what could be a host tier is better a larger device cache
            return min(HOST_BELOW_DISK_BYTES, free_bytes // 8) if self.disk_bytes else 0
        return min(HOST_MOST_BYTES, free_bytes // 4)
