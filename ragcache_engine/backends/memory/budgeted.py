"""Make a memory backend whose tiers have the sizes in bytes that a configuration gives."""

from __future__ import annotations

from ragcache_engine.backends.memory.backend import MemoryBackend, linear_prefill
from ragcache_engine.backends.vllm.budget import TierBudget
from ragcache_engine.errors import ConfigError
from ragcache_engine.knowledge import CostProfile
from ragcache_engine.simulation.sizes import NOMINAL_TOKEN_BYTES

BLOCK_TOKENS = 16
"""Tokens in a block, as on a GPU with vLLM."""

DEVICE_BLOCKS = 1024
"""Blocks on the device if the configuration sets no size."""

BLOCK_BYTES = BLOCK_TOKENS * NOMINAL_TOKEN_BYTES

FILE_BYTES = 1024
"""Bytes that a block's file takes on disk in addition to its tensors."""

AMPLE_BYTES = 1 << 40
"""A size of free memory that never limits a host tier."""


def backend_within(device_bytes: int | None, budget: TierBudget) -> MemoryBackend:
    """Make a memory backend with as many blocks of BLOCK_BYTES as these sizes in bytes hold.

    device_bytes: None for DEVICE_BLOCKS. budget: the sizes and settings of the slower tiers; sizes that
      it leaves open are chosen as on a CPU, and its folder is ignored. If it has a cost profile,
      prefills take that profile's times.
    Raises ConfigError if a tier that is asked for cannot hold one block.
    """
    host_bytes = budget.host_bytes_for(is_cpu=True, free_bytes=AMPLE_BYTES)
    path = budget.cost_profile
    profile = CostProfile.from_json(path.read_text(encoding="utf-8")) if path else None
    return MemoryBackend(
        block_tokens=BLOCK_TOKENS,
        device_blocks=(
            DEVICE_BLOCKS
            if device_bytes is None
            else _whole_blocks("device_cache", device_bytes, BLOCK_BYTES)
        ),
        host_blocks=_whole_blocks("host_cache", host_bytes, BLOCK_BYTES),
        disk_blocks=_whole_blocks("disk_cache", budget.disk_bytes, BLOCK_BYTES + FILE_BYTES),
        host_quota_blocks=_quota("host", budget.host_quota_bytes, BLOCK_BYTES),
        disk_quota_blocks=_quota("disk", budget.disk_quota_bytes, BLOCK_BYTES + FILE_BYTES),
        prefill_s=profile.prefill_s if profile else linear_prefill,
        policy=budget.policy,
        reorder_window=budget.reorder_window,
        cache_depth=budget.cache_depth,
        recompute_ratio=budget.recompute_ratio,
        any_donors=budget.any_donors,
        donors_later=budget.donors_later,
        cost_profile=profile,
    )


def _quota(tier: str, quota_bytes: int | None, block_bytes: int) -> int | None:
    if quota_bytes is None:
        return None
    return _whole_blocks(f"{tier}_cache_per_tenant", quota_bytes, block_bytes)


def _whole_blocks(setting: str, size_bytes: int, block_bytes: int) -> int:
    """Return how many blocks a tier of this size holds. Raises ConfigError if too small."""
    if 0 < size_bytes < block_bytes:
        raise ConfigError(
            f"{setting} is {size_bytes:,} bytes, and one block of the memory backend takes "
            f"{block_bytes:,}: give it more"
        )
    return size_bytes // block_bytes
