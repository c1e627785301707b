"""The settings of the classes inside vLLM's processes, which travel in vLLM's own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ragcache_engine.tiers.disk.key_ring import KeyRing, open_key_ring

SETTINGS_FIELD = "ragcache"


@dataclass(frozen=True, slots=True)
class TierSettings:
    """Settings as plain values, because they cross process boundaries as JSON.

    policy: a name of POLICIES.
    host_bytes, disk_bytes: the sizes of these tiers; 0 for no tier.
    disk_folder: the disk tier's folder; None without a disk tier. disk_key, shared, host_quota_bytes,
      disk_quota_bytes: as in TierBudget.
    reorder_window: as in ReorderQueue; 1 serves requests first come, first served.
    cache_depth: how many leading documents of a prompt are kept; None keeps all.
    profile: a CostProfile as JSON; None for the default one.
    provisional_step_tokens: the most tokens of a step that prefills a provisional request; 0 for the
      limit of all other steps.
    recompute_ratio: the share of each borrowed document's tokens to compute anew; None borrows nothing.
    any_donors: whether documents may be borrowed from what served prompts left, with donors="any".
    donors_later: whether documents whose donors are missing are computed where they stand, with
      missing_donors="later".
    packs_donors: whether donors are kept in eight bits a number, with donor_dtype="int8".
    recheck_share, least_rouge_l: as in TierBudget.
    """

    policy: str
    host_bytes: int = 0
    disk_bytes: int = 0
    disk_folder: str | None = None
    disk_key: str | None = None
    shared: str | None = None
    host_quota_bytes: int | None = None
    disk_quota_bytes: int | None = None
    reorder_window: int = 32
    cache_depth: int | None = None
    profile: str | None = None
    provisional_step_tokens: int = 0
    recompute_ratio: float | None = None
    any_donors: bool = False
    donors_later: bool = False
    packs_donors: bool = False
    recheck_share: float = 0.0
    least_rouge_l: float | None = None

    def open_keys(self) -> KeyRing | None:
        """Return what the disk tier is encrypted with, if it is. Raises ConfigError, OSError."""
        if self.disk_key is None or self.disk_folder is None:
            return None
        return open_key_ring(Path(self.disk_folder), self.disk_key, self.shared)

    def to_extra_config(self) -> dict[str, Any]:
        """Return the settings as vLLM's `kv_connector_extra_config`."""
        return {
            "spec_name": "TierSpec",
            "spec_module_path": "ragcache_engine.backends.vllm.tiers.spec",
            # vLLM insists on a host tier. One of a single byte has no room for a block.
            "cpu_bytes_to_use": max(1, self.host_bytes),
            SETTINGS_FIELD: asdict(self),
        }

    @classmethod
    def from_extra_config(cls, extra_config: Mapping[str, Any]) -> TierSettings:
        """Read the settings out of vLLM's `kv_connector_extra_config`."""
        return cls(**extra_config[SETTINGS_FIELD])
