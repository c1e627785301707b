"""The interface through which vLLM asks the cache manager what to load and store, and where."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
    OffloadingConnectorStats,
)
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.kv_offload.base import (
    LoadStoreSpec,
    LookupResult,
    OffloadingManager,
    OffloadKey,
    OffloadPolicy,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    get_offload_block_hash,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

from ragcache_engine.backends.vllm.tiers.metrics import CounterReporter
from ragcache_engine.backends.vllm.tiers.origin import WorkerLayout
from ragcache_engine.tiers.manager import CacheManager, Presence

Workers = Mapping[tuple[int, int], WorkerLayout]
"""What the workers described, by their ranks in pipeline and tensor parallelism."""

_LOOKUP_RESULTS = {
    Presence.HIT: LookupResult.HIT,
    Presence.HIT_PENDING: LookupResult.HIT_PENDING,
    Presence.MISS: LookupResult.MISS,
}


class TierOffloadingManager(OffloadingManager):
    """Translates between vLLM's offloading keys and the cache manager's.

    vLLM's scheduler looks blocks up one at a time, and offers each request's new blocks together.
    cache: makes the decisions.
    complete: called once, when vLLM's configuration is final and every worker has described itself.
    close: called at shutdown; frees the memory and ends the disk's threads.
    """

    def __init__(
        self,
        cache: CacheManager[KVCacheBlock],
        complete: Callable[[VllmConfig, Workers], None],
        close: Callable[[], None],
    ) -> None:
        self.cache = cache
        self.complete = complete
        self._close = close
        self._reporter = CounterReporter()

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        # Let vLLM offer all of a request's blocks, not only those it computed: a document that was hit
        # on the device may by now deserve a place in the host that it did not get before.
        return RequestOffloadingContext(OffloadPolicy.REQUEST_LEVEL)

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return _LOOKUP_RESULTS[self.cache.lookup(req_context.req_id, get_offload_block_hash(key))]

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        return CPULoadStoreSpec(self.cache.begin_load(map(get_offload_block_hash, keys)))

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.cache.finish_load(map(get_offload_block_hash, keys))

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput:
        start = time.perf_counter()
        offered = {get_offload_block_hash(key): key for key in keys}
        stored = self.cache.begin_store(req_context.req_id, list(offered))
        self.cache.add_scheduling_time(req_context.req_id, time.perf_counter() - start)
        return PrepareStoreOutput(
            keys_to_store=[offered[key] for key, _ in stored],
            store_spec=CPULoadStoreSpec([slot for _, slot in stored]),
            evicted_keys=[],
        )

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        self.cache.finish_store(map(get_offload_block_hash, keys))

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        for request in context.preempted_req_ids:
            self.cache.requeue(request)
        self.cache.step()

    def has_pending_work(self) -> bool:
        return self.cache.is_reading_disk

    def reset_cache(self) -> None:
        self.cache.clear_host()

    def get_stats(self) -> OffloadingConnectorStats | None:
        return self._reporter.report(self.cache.counters)

    def shutdown(self) -> None:
        self.cache.step()
        self.cache.flush_to_disk()
        self._close()
