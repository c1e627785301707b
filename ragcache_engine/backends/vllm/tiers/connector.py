"""vLLM's offloading connector, which also tells the keeper what happens to each request."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from ragcache_engine.backends.vllm.tiers.manager import TierManager
from ragcache_engine.backends.vllm.tiers.settings import TierSettings
from ragcache_engine.tiers.prompts import (
    FIELD,
    MalformedRequest,
    adopted_by,
    forgotten_by,
    guess_of,
    prompt_of,
    segments_of,
)

if TYPE_CHECKING:
    from ragcache_engine.tiers.keeper import Keeper

logger = logging.getLogger(__name__)


class TierConnector(OffloadingConnector):
    """One in the scheduler's process, which decides, and one in each worker's, which copies.

    A request's segments come in its `kv_transfer_params` under "ragcache"; there too, at its end, go
    the tiers its tokens came from and the counters so far.
    """

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        assert transfer is not None
        self.settings = TierSettings.from_extra_config(transfer.kv_connector_extra_config)
        self.block_tokens = vllm_config.cache_config.block_size

    @property
    def keeper(self) -> Keeper[KVCacheBlock]:
        """The scheduler side's. Its type of block is vLLM's."""
        manager = self.scheduler.manager
        assert isinstance(manager, TierManager)
        return manager.keeper

    def on_new_request(self, request: Request) -> None:
        if forgotten := forgotten_by(request.kv_transfer_params):
            self.keeper.forget(forgotten)
        start = time.perf_counter()
        self.keeper.adopted(adopted_by(request.kv_transfer_params))
        self._arrived(request)
        self.keeper.spent(request.request_id, time.perf_counter() - start)
        super().on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        keeper, start = self.keeper, time.perf_counter()
        keeper.take_in()
        keeper.looks(request.request_id, num_computed_tokens, time.monotonic())
        keeper.spent(request.request_id, time.perf_counter() - start)
        return super().get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        keeper, start = self.keeper, time.perf_counter()
        keeper.admitted(request.request_id, num_external_tokens)
        keeper.spent(request.request_id, time.perf_counter() - start)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        copied = connector_output.kv_connector_worker_meta
        if isinstance(copied, OffloadingWorkerMetadata):
            loads = copied.transfer_stats.load
            if loads.bytes:
                self.keeper.from_host.copied(loads.bytes, loads.time)
            for request in connector_output.finished_recving or ():
                self.keeper.arrived_on_device(request, loads.bytes, time.monotonic())
        super().update_connector_output(connector_output)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        delays, params = super().request_finished_all_groups(request, block_ids)
        completed = request.status in (
            RequestStatus.FINISHED_STOPPED,
            RequestStatus.FINISHED_LENGTH_CAPPED,
        )
        tokens = self.keeper.ended(request.request_id, completed=completed)
        told = {"tokens": tokens, "counters": self.keeper.counters.as_dict()}
        return delays, {**(params or {}), FIELD: told}

    def _arrived(self, request: Request) -> None:
        try:
            segments = segments_of(request.kv_transfer_params)
        except MalformedRequest as error:
            logger.warning("%s is answered without its segments: %s", request.request_id, error)
            segments = []
        told_by_tokens = not (
            request.lora_request or request.mm_features or request.prompt_embeds is not None
        )
        prompt = prompt_of(
            keys=request.block_hashes[: request.num_prompt_tokens // self.block_tokens],
            token_ids=request.prompt_token_ids if told_by_tokens else None,
            prompt_tokens=request.num_prompt_tokens,
            segments=segments,
            tenant=request.cache_salt,
            block_tokens=self.block_tokens,
            depth=self.settings.cache_depth,
            on_disk=self.settings.disk_bytes > 0,
        )
        guess = guess_of(request.kv_transfer_params)
        self.keeper.arrived(request.request_id, prompt, guess=guess)
