"""The systems of the bench on the virtual clock, and one more: longest prefix first, as SGLang serves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from comparing.systems import ABLATIONS, ARC, FULL, LRU, OFF, ON, RAGCACHE, STOCK, System
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from ragcache_engine.backends.vllm.tiers.scheduler import TierScheduler
from ragcache_engine.backends.vllm.tiers.waiting import WaitingQueue
from virtual.engine import VirtualEngine
from virtual.machines import Machine

LONGEST_PREFIX = System(
    "longest-prefix", "vLLM, longest prefix first", STOCK, {"prefix_caching": True}
)
"""SGLang's order of serving over vLLM's prefix cache."""
SAME_HERE = ("no-speculation", "worker")
"""These are RAGCache here: every search takes under a millisecond, so that nothing is guessed; and no
model runs, in whichever process."""
SYSTEMS = (
    OFF,
    ON,
    LONGEST_PREFIX,
    LRU,
    ARC,
    FULL,
    *(one for one in ABLATIONS if one.key not in SAME_HERE),
)
BY_KEY = {one.key: one for one in SYSTEMS}
LPM_MOST_WAITING = 128
"""With more requests waiting, SGLang serves first come, first served, as looking at all would be slow."""


class _PrefixFirst(Scheduler):
    """vLLM's scheduler, which serves the waiting request with the longest prefix on the device first."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # No request is protected from being overtaken; SGLang protects none either.
        self.waiting = WaitingQueue(self._prefix, 1 << 30)

    def _prefix(self, request: Request) -> float:
        if len(self.waiting) > LPM_MOST_WAITING:
            return 0.0  # all alike: by arrival
        pool = self.kv_cache_manager.block_pool
        at = 0
        for at, key in enumerate(request.block_hashes):
            if not pool.get_cached_block(key, [0]):
                return at
        return at


class _AsyncPrefixFirst(_PrefixFirst, AsyncScheduler):
    """The same for engines that schedule a step while the one before still runs."""


@contextmanager
def open_system(system: System, machine: Machine, model: str) -> Iterator[VirtualEngine]:
    """Make a system on a machine, with empty caches. model: a folder with the model's configuration."""
    settings, arguments = dict(system.settings), {}
    ahead = machine.steps_ahead > 1
    arguments["async_scheduling"] = ahead
    chosen: dict[str, Any] = {}
    if system.kind == RAGCACHE:
        scheduler: type = TierScheduler
        settings.pop("document_order", None)  # the prompts have it
        chosen |= settings
    else:
        scheduler = AsyncScheduler if ahead else Scheduler
        if system is LONGEST_PREFIX:
            scheduler = _AsyncPrefixFirst if ahead else _PrefixFirst
        arguments["enable_prefix_caching"] = settings["prefix_caching"]
        if policy := settings.get("offload"):
            chosen["stock_policy"] = policy
    with TemporaryDirectory(prefix="ragcache-virtual-") as folder:
        engine = VirtualEngine(
            model,
            machine,
            scheduler=scheduler,
            has_host=system.kind == RAGCACHE or "offload" in settings,
            has_disk=system.has_disk,
            disk_folder=Path(folder) if system.has_disk else None,
            arguments=arguments,
            **chosen,
        )
        try:
            yield engine
        finally:
            engine.close()


def document_order(system: System) -> str:
    """Return the name of the document order of a system's prompts."""
    return str(system.settings.get("document_order", "retrieved"))
