"""The connector: vLLM's offloading connector, which also tells the cache manager about each request."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from ragcache_engine.backends.vllm.tiers.no_tiers import NoTiers
from ragcache_engine.backends.vllm.tiers.offloading import TierOffloadingManager
from ragcache_engine.backends.vllm.tiers.origin import WorkerLayout, describe_worker
from ragcache_engine.backends.vllm.tiers.settings import TierSettings
from ragcache_engine.backends.vllm.tiers.support import find_obstacle
from ragcache_engine.processes import ignore_interrupts
from ragcache_engine.tiers.prompts import Prompt, describe_prompt
from ragcache_engine.tiers.wire import FinishMessage, MalformedRequest, RequestMessage

if TYPE_CHECKING:
    from ragcache_engine.tiers.manager import CacheManager

logger = logging.getLogger(__name__)


class TierConnector(OffloadingConnector):
    """Connects one process of vLLM: the scheduler's process decides, each worker's process copies.

    vLLM makes one connector in each process. A RequestMessage comes with each request, and a
    FinishMessage goes back at the request's end.
    provisional: names of the requests that a running search may still take back.
    """

    def __new__(  # type: ignore[misc]  # vLLM asks this class alone, whatever the model
        cls, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> TierConnector | NoTiers:
        """Make a connector, or one that does nothing where the knowledge tree cannot serve the engine."""
        if role is KVConnectorRole.WORKER:
            ignore_interrupts()  # vLLM has set the worker's own handlers by now
        obstacle = find_obstacle(vllm_config, kv_cache_config)
        if obstacle is None:
            return super().__new__(cls)
        if role is KVConnectorRole.SCHEDULER:
            logger.warning(
                "vLLM's own cache is used, without knowledge tree and tiers: %s", obstacle
            )
        return NoTiers(vllm_config, role, kv_cache_config)

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        assert transfer is not None
        self.settings = TierSettings.from_extra_config(transfer.kv_connector_extra_config)
        self.provisional: set[str] = set()
        self._blocks = kv_cache_config.num_blocks

    @property
    def offloading(self) -> TierOffloadingManager:
        """What vLLM asks about blocks. Only the scheduler's process has it."""
        offloading = self.scheduler.manager
        assert isinstance(offloading, TierOffloadingManager)
        return offloading

    @property
    def cache(self) -> CacheManager[KVCacheBlock]:
        """The cache manager. Only the scheduler's process has one."""
        return self.offloading.cache

    # -- once, at the start ------------------------------------------------------------------------

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return describe_worker(self._vllm_config, self._blocks)

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        # Only now is everything known that determines the bytes of tensors on disk.
        workers = {
            rank: worker for rank, worker in metadata.items() if isinstance(worker, WorkerLayout)
        }
        self.offloading.complete(self._vllm_config, workers)

    # -- each request ------------------------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        message = _read_message(request)
        if message.forget:
            if self.settings.is_operator(message.operator_key):
                self.cache.forget(message.forget, message.tombstones or None)
            else:
                logger.warning(
                    "%s asked to forget documents without the operator's key; nothing is forgotten",
                    request.request_id,
                )
        start = time.perf_counter()
        self.cache.adopt_guesses(message.adopted)
        if message.is_provisional:
            self.provisional.add(request.request_id)
        prompt = self._describe_prompt(request, message)
        self.cache.add_request(request.request_id, prompt, guess=message.guess)
        self.cache.add_scheduling_time(request.request_id, time.perf_counter() - start)
        super().on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        cache, start = self.cache, time.perf_counter()
        cache.collect_disk_results()
        cache.plan_admission(request.request_id, num_computed_tokens, time.monotonic())
        cache.add_scheduling_time(request.request_id, time.perf_counter() - start)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        cache, start = self.cache, time.perf_counter()
        cache.record_admission(request.request_id, num_external_tokens)
        cache.add_scheduling_time(request.request_id, time.perf_counter() - start)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        copied = connector_output.kv_connector_worker_meta
        if isinstance(copied, OffloadingWorkerMetadata):
            loads = copied.transfer_stats.load
            if loads.bytes:
                self.cache.speeds.from_host.record_copy(loads.bytes, loads.time)
            for request in connector_output.finished_recving or ():
                self.cache.record_load_wait(request, loads.bytes, time.monotonic())
        super().update_connector_output(connector_output)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        delays, params = super().request_finished_all_groups(request, block_ids)
        completed = request.status in (
            RequestStatus.FINISHED_STOPPED,
            RequestStatus.FINISHED_LENGTH_CAPPED,
        )
        tokens = self.cache.finish_request(request.request_id, completed=completed)
        message = FinishMessage(tokens, self.cache.counters)
        return delays, {**(params or {}), **message.to_dict()}

    def _describe_prompt(self, request: Request, message: RequestMessage) -> Prompt:
        tokens_determine_tensors = not (
            request.lora_request or request.mm_features or request.prompt_embeds is not None
        )
        return describe_prompt(
            keys=request.block_hashes[: request.num_prompt_tokens // self.cache.block_tokens],
            token_ids=request.prompt_token_ids if tokens_determine_tensors else None,
            prompt_tokens=request.num_prompt_tokens,
            segments=message.segments,
            tenant=request.cache_salt,
            block_tokens=self.cache.block_tokens,
            depth=self.settings.cache_depth,
            on_disk=self.settings.disk_bytes > 0,
        )


def _read_message(request: Request) -> RequestMessage:
    """Read the request's message; ignore its segments, with a warning, if they are malformed."""
    try:
        return RequestMessage.from_dict(request.kv_transfer_params)
    except MalformedRequest as error:
        logger.warning("%s is answered without its segments: %s", request.request_id, error)
        return RequestMessage.from_dict(request.kv_transfer_params, ignore_segments=True)
