"""Chooses the backend that a configuration asks for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ragcache_engine.anywhere.calibration import find_calibration, with_ratio
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.backends.memory.budgeted import backend_within
from ragcache_engine.backends.vllm.budget import TierBudget
from ragcache_engine.backends.vllm.collection import importing_vllm
from ragcache_engine.backends.vllm.installed import require_vllm
from ragcache_engine.backends.vllm.log import choose_log
from ragcache_engine.backends.vllm.main_guard import require_guarded_main
from ragcache_engine.config import EngineConfig
from ragcache_engine.errors import BackendUnavailable, CannotBorrow
from ragcache_engine.protocols import Backend

if TYPE_CHECKING:
    from ragcache_engine.backends.server.finding import FoundServer


API_KEY = "RAGCACHE_API_KEY"
"""The environment variable with a client's key, if its configuration has none."""


def choose_backend(config: EngineConfig) -> Backend:
    """Make a backend of this process without starting it; for a server, see find_configured_server.

    "auto" never falls back to the memory backend, whose answers are made up.

    Raises BackendUnavailable if vLLM is needed but not installed or not supported; ConfigError if a
    cache of the memory backend is too small for one block, or what budget_of raises.
    """
    require_borrowing(config)
    if config.backend == "memory":
        return backend_within(config.device_cache, budget_of(config))
    require_vllm()
    log = choose_log(config.vllm_log, config.vllm_args)
    log.open()  # vLLM logs while it is imported
    try:
        with importing_vllm():
            from ragcache_engine.backends.vllm.backend import VLLMBackend

        return VLLMBackend(
            config.model,
            config.device_cache,
            budget_of(config),
            _vllm_args(config),
            log=log,
            tool_parser=config.tool_parser,
        )
    except BaseException:
        log.close()
        raise


def _vllm_args(config: EngineConfig) -> dict[str, Any]:
    """Return the arguments for vLLM, whose guides then wait for the end of reasoning."""
    parser = config.reasoning_parser
    return {**({"reasoning_parser": parser} if parser else {}), **config.vllm_args}


def find_configured_server(config: EngineConfig, model: str | None) -> FoundServer:
    """Ask the configured server what it is. model: which it must serve; None: whatever it serves.

    Raises what `find_server` does, and BackendUnavailable.
    """
    assert config.server_url is not None
    try:
        from ragcache_engine.backends.server.finding import find_server
    except ModuleNotFoundError as error:
        if error.name != "httpx2":
            raise
        raise BackendUnavailable(
            "connecting to a server needs httpx2: pip install 'ragcache-integrations[client]'"
        ) from error
    key = config.api_key.get_secret_value() if config.api_key else os.environ.get(API_KEY)
    return find_server(config.server_url, key, model)


def require_guarded_caller(config: EngineConfig) -> None:
    """Raise UnguardedMain if the caller's script would run again in the backend's processes.

    The backend checks its caller itself. Call this first if you make the backend on another thread.
    """
    if config.backend not in ("memory", "server"):
        require_vllm()
        require_guarded_main()


def require_borrowing(config: EngineConfig, backend: Backend | None = None) -> None:
    """Raise CannotBorrow if the configuration wants reuse="anywhere" and the backend cannot borrow.

    backend: one to use instead of the one that the configuration names.
    """
    asked = backend or (MemoryBackend if config.backend == "memory" else None)
    if config.reuse == "anywhere" and asked is not None and not asked.borrows:
        raise CannotBorrow(
            'this backend cannot borrow documents from other contexts: set reuse="prefix", give a '
            'MemoryBackend a recompute_ratio, or use backend="vllm" with a model'
        )


def budget_of(config: EngineConfig) -> TierBudget:
    """Return the sizes and settings that the configuration gives to the tiers below the device.

    Raises UnusableCalibration if it leaves the recompute ratio to a calibration that is damaged.
    """
    calibration = find_calibration(config)
    config = with_ratio(config, calibration)
    return TierBudget(
        policy=config.policy,
        host_bytes=config.host_cache,
        disk_bytes=config.disk_cache,
        disk_folder=config.disk_cache_dir,
        disk_key=config.disk_cache_key,
        shared=config.shared_cache,
        host_quota_bytes=config.host_cache_per_tenant,
        disk_quota_bytes=config.disk_cache_per_tenant,
        reorder_window=config.reorder_window,
        cache_depth=config.cache_depth,
        cost_profile=config.cost_profile,
        recompute_ratio=config.recompute_ratio,  # None unless reuse is "anywhere"
        any_donors=config.donors == "any",
        donors_later=config.prepares_later,
        packs_donors=config.donor_dtype == "int8",
        recheck_share=config.share_to_recheck,
        least_rouge_l=calibration.least_rouge_l if calibration else None,
    )
