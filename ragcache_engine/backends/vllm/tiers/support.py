"""Tells whether the knowledge tree can serve an engine, and whether it knows this version of vLLM."""

from __future__ import annotations

from vllm import __version__ as vllm_version
from vllm.config import VllmConfig
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
from vllm.v1.core.sched.request_queue import FCFSRequestQueue, RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, iter_layer_specs

from ragcache_engine.backends.vllm.untried import find_untried


class UnknownVLLM(RuntimeError):
    """This vLLM has moved something that the knowledge tree takes the place of."""


def find_obstacle(config: VllmConfig, cache: KVCacheConfig) -> str | None:
    """Return why the knowledge tree cannot serve this engine; None if it can.

    The tree needs one group of blocks, each with the tensors of all its tokens. Where no test of ours
    has ever run, vLLM's own cache serves instead.
    """
    if untried := find_untried(config):
        return f"{untried} was never tried with it"
    if len(cache.kv_cache_groups) != 1:
        return f"the model keeps blocks of {len(cache.kv_cache_groups)} kinds"
    (group,) = cache.kv_cache_groups
    for spec in iter_layer_specs(group.kv_cache_spec):
        if type(spec) is not FullAttentionSpec:
            return f"the model keeps blocks of the kind {type(spec).__name__}"
    return None


def require_known_parts(scheduler: Scheduler, free_blocks: type[FreeKVCacheBlockQueue]) -> None:
    """Raise UnknownVLLM unless the parts of vLLM's scheduler that we replace are those we know.

    free_blocks: what takes the place of the queue of free blocks. A method that it does not have would
    read the parent's empty list, and a queue that the scheduler does not read would order nothing.
    """
    pool = getattr(getattr(scheduler, "kv_cache_manager", None), "block_pool", None)
    if type(getattr(pool, "free_block_queue", None)) is not FreeKVCacheBlockQueue:
        raise UnknownVLLM(_describe_move("BlockPool.free_block_queue is another queue"))
    inherited = _public_methods(FreeKVCacheBlockQueue) - set(vars(free_blocks))
    if inherited:
        names = ", ".join(sorted(inherited))
        raise UnknownVLLM(_describe_move(f"its queue of free blocks has new methods: {names}"))
    waiting = getattr(scheduler, "waiting", None)
    if not isinstance(waiting, RequestQueue):
        raise UnknownVLLM(_describe_move("Scheduler.waiting is no RequestQueue"))
    if _public_methods(FCFSRequestQueue) - _public_methods(RequestQueue):
        raise UnknownVLLM(_describe_move("its queue of waiting requests has new methods"))


def _public_methods(of: type) -> set[str]:
    return {name for name, value in vars(of).items() if callable(value) and name[0] != "_"}


def _describe_move(what: str) -> str:
    return (
        f"vLLM {vllm_version} is not the one that RAGCache knows: {what}. Install a version in the range "
        f"that RAGCache names, or switch the tiers off with vllm_args={{'scheduler_cls': None}}"
    )
