"""Chooses the backend that a configuration asks for."""

from __future__ import annotations

from ragcache_engine.backends.memory.budgeted import backend_within
from ragcache_engine.backends.vllm.budget import TierBudget
from ragcache_engine.backends.vllm.installed import require_vllm
from ragcache_engine.backends.vllm.main_guard import require_guarded_main
from ragcache_engine.config import EngineConfig
from ragcache_engine.protocols import Backend


def choose_backend(config: EngineConfig) -> Backend:
    """Make the backend without starting it.

    "auto" never falls back to the memory backend, whose answers are made up.

    Raises BackendUnavailable if vLLM is needed but not installed or not supported; ConfigError if a
    cache of the memory backend is too small for one block.
    """
    if config.backend == "memory":
        return backend_within(config.device_cache, budget_of(config))
    wheel = require_vllm()
    from ragcache_engine.backends.vllm.backend import VLLMBackend

    return VLLMBackend(
        config.model,
        config.device_cache,
        budget_of(config),
        config.vllm_args,
        wheel=wheel,
        tool_parser=config.tool_parser,
    )


def require_guarded_caller(config: EngineConfig) -> None:
    """Raise UnguardedMain if the caller's script would run again in the backend's processes.

    The backend checks its caller itself. Call this first if you make the backend on another thread.
    """
    # vLLM on a CPU always spawns its processes.
    if config.backend != "memory" and require_vllm().is_cpu:
        require_guarded_main()


def budget_of(config: EngineConfig) -> TierBudget:
    """Return the sizes and settings that the configuration gives to the tiers below the device."""
    return TierBudget(
        policy=config.policy,
        host_bytes=config.host_cache,
        disk_bytes=config.disk_cache,
        disk_folder=config.disk_cache_dir,
        reorder_window=config.reorder_window,
        cache_depth=config.cache_depth,
        cost_profile=config.cost_profile,
    )
