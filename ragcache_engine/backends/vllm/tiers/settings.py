"""What the classes inside vLLM's processes are told, as it travels in vLLM's own configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

FIELD = "ragcache"


@dataclass(frozen=True, slots=True)
class TierSettings:
    """Plain values, for they cross process boundaries as JSON.

    host_bytes, disk_bytes: 0 for no such tier. disk_folder: only with a disk tier.
    policy: a name of POLICIES. reorder_window: 1 is first come, first served.
    cache_depth: documents of a prompt that are kept; None keeps all.
    model, rope: what tells this model's tensors from others', for the disk.
    profile: a CostProfile as JSON; None for the default one.
    provisional_step_tokens: of a step, at most, while something provisional is computed; 0 for as many
      as of any other.
    """

    policy: str
    host_bytes: int = 0
    disk_bytes: int = 0
    disk_folder: str | None = None
    reorder_window: int = 32
    cache_depth: int | None = None
    model: str = ""
    rope: str = ""
    profile: str | None = None
    provisional_step_tokens: int = 0

    def to_extra_config(self) -> dict[str, Any]:
        """vLLM's `kv_connector_extra_config`."""
        return {
            "spec_name": "TierSpec",
            "spec_module_path": "ragcache_engine.backends.vllm.tiers.spec",
            # vLLM insists on a host tier; one byte is one without room for a block.
            "cpu_bytes_to_use": max(1, self.host_bytes),
            FIELD: asdict(self),
        }

    @classmethod
    def from_extra_config(cls, extra_config: Mapping[str, Any]) -> TierSettings:
        return cls(**extra_config[FIELD])
