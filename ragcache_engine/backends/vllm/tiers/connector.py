"""The connector: vLLM's offloading connector, which also tells the cache manager about each request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.forward_context import ForwardContext
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from ragcache_engine.backends.vllm.borrowing.job import TierMetadata
from ragcache_engine.backends.vllm.borrowing.scheduling import BorrowScheduling, make_block_hasher
from ragcache_engine.backends.vllm.lazy_compiling import keep_eager
from ragcache_engine.backends.vllm.tiers.no_tiers import NoTiers
from ragcache_engine.backends.vllm.tiers.offloading import TierOffloadingManager
from ragcache_engine.backends.vllm.tiers.origin import WorkerLayout, describe_worker
from ragcache_engine.backends.vllm.tiers.settings import TierSettings
from ragcache_engine.backends.vllm.tiers.support import find_obstacle
from ragcache_engine.processes import ignore_interrupts
from ragcache_engine.tiers.borrowing.plan import WhyExact
from ragcache_engine.tiers.borrowing.trusted_contexts import TrustedContexts
from ragcache_engine.tiers.kept import KeptAnswer, NoRoomToKeep
from ragcache_engine.tiers.prompts import Prompt, describe_prompt
from ragcache_engine.tiers.served_requests import ServedRequests
from ragcache_engine.tiers.tree_snapshot import TreeSnapshot
from ragcache_engine.tiers.wire import FinishMessage, LookedUp, MalformedRequest, RequestMessage
from ragcache_engine.visible import describe_failure, visible

if TYPE_CHECKING:
    from ragcache_engine.backends.vllm.borrowing.carrier import BorrowCarrier
    from ragcache_engine.tiers.manager import CacheManager

logger = logging.getLogger(__name__)


class TierConnector(OffloadingConnector):
    """Connects one process of vLLM: the scheduler's process decides, each worker's process copies.

    vLLM makes one connector in each process. A RequestMessage comes with each request, and a
    FinishMessage goes back at the request's end; of a request with stop strings, with each token.
    provisional: names of the requests that a running search may still take back.
    served: times the requests, for observers.
    now: the clock by which decisions depend on time. The scheduler reads it too; a simulation sets it.
    exports_stats: whether vLLM's exporter is there. Without it, vLLM asks for stats and drops them.
    """

    def __new__(  # type: ignore[misc]  # vLLM asks this class alone, whatever the model
        cls, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> TierConnector | NoTiers:
        """Make a connector, or one that does nothing where the knowledge tree cannot serve the engine."""
        if role is KVConnectorRole.WORKER:
            ignore_interrupts()  # vLLM has set the worker's own handlers by now
            keep_eager(vllm_config)
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
        self.borrowing: BorrowScheduling | None = None  # the scheduler sets it
        self._why_exact: dict[str, WhyExact] = {}
        self._carrier: BorrowCarrier | None = None
        self.served = ServedRequests(time.monotonic, time.time)
        self.now: Callable[[], float] = time.monotonic
        self.exports_stats = True
        self._messages: dict[str, RequestMessage] = {}
        self._contexts = TrustedContexts()
        self._held: dict[str, list[bool]] = {}
        self._kept: dict[str, KeptAnswer] = {}
        # Of the requests with stop strings: what to tell with each token; nothing before the first one.
        self._told: dict[str, dict[str, Any]] = {}
        self._blocks = kv_cache_config.num_blocks
        self._workers = vllm_config.parallel_config.world_size

    @cached_property
    def offloading(self) -> TierOffloadingManager:
        """What vLLM asks about blocks. Only the scheduler's process has it."""
        offloading = self.scheduler.manager
        assert isinstance(offloading, TierOffloadingManager)
        return offloading

    @cached_property
    def cache(self) -> CacheManager[KVCacheBlock]:
        """The cache manager. Only the scheduler's process has one."""
        return self.offloading.cache

    @cached_property
    def _hasher(self) -> Callable[[Request], list[BlockHash]]:
        return make_block_hasher(self._vllm_config)

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
        message = self._messages[request.request_id] = self._read(request)
        if message.forget:
            if message.is_trusted:
                self.cache.forget(message.forget, message.tombstones or None)
                self._contexts.forget(message.forget)
                if self.borrowing:
                    self.borrowing.forget(message.forget)
            else:
                logger.warning(
                    "%s asked to forget documents and is not the engine's own; nothing is forgotten",
                    visible(request.request_id),
                )
        if message.is_trusted and (message.keep or message.release or message.lists_kept):
            self._kept[request.request_id] = self._keep(request, message)
        elif message.looked_up and message.is_trusted:
            self._held[request.request_id] = self._use_what_is_held(request, message.looked_up)
        if request.sampling_params and request.sampling_params.stop:
            self._told[request.request_id] = {}
        start = time.perf_counter()
        self.cache.adopt_guesses(message.adopted)
        if message.is_provisional:
            self.provisional.add(request.request_id)
        self._add_request(request, message)
        is_donor = self.borrowing and self.borrowing.describe_donor(request)
        if not message.is_upkeep and not is_donor:
            self.served.arrive(
                request.request_id,
                request.num_prompt_tokens,
                message.segments,
                request.max_tokens,
            )
        self.cache.add_scheduling_time(request.request_id, time.perf_counter() - start)
        super().on_new_request(request)

    def _add_request(self, request: Request, message: RequestMessage) -> None:
        name, borrowing = request.request_id, self.borrowing
        donor = borrowing.describe_donor(request) if borrowing else None
        if borrowing and donor is not None:
            stored_blocks = borrowing.count_stored_blocks(request)
            self.cache.add_request(
                name,
                donor,
                is_donor=True,
                is_packed=borrowing.is_packed(request),
                stored_blocks=stored_blocks,
            )
            return
        donors: Sequence[Prompt] = ()
        in_place: Sequence[str] = ()
        try:
            prompt = self._describe_prompt(request, message)
            plan = borrowing.plan(request, message) if borrowing else None
            if isinstance(plan, WhyExact):
                self._why_exact[name] = plan
            elif borrowing and plan:
                donors = borrowing.add(request, plan)
                prompt, in_place = prompt.before(plan.exact_blocks), plan.computed_in_place
        except Exception as error:
            # Nothing has been changed yet, and all other requests must go on.
            _log_defect(name, error)
            prompt = self._describe_prompt(request, RequestMessage())
        self.cache.add_request(
            name,
            prompt,
            guess=message.guess,
            donors=donors,
            in_place=in_place,
            withdrawn=message.withdrawn,
        )

    def _read(self, request: Request) -> RequestMessage:
        """Return what a request says, with what is known of its documents; nothing if that fails."""
        message = _read_message(request)
        try:
            return self._contexts.complete(message, request.cache_salt)
        except Exception as error:
            _log_defect(request.request_id, error)
            return RequestMessage()

    def _keep(self, asking: Request, message: RequestMessage) -> KeptAnswer:
        """Do what a message says of keeping documents, and return what the answer says of it."""
        cache, order = self.cache, message.keep
        try:
            for documents, tenant in message.release:
                cache.release_documents(documents, tenant)
            if order is None:
                return KeptAnswer(cache.kept_documents() if message.lists_kept else ())
            wanted = {
                (order.set_of(one.message.documents), one.tenant): self._prompts_to_keep(
                    asking, one
                )
                for one in message.looked_up
            }
            kept = cache.keep_documents(
                order,
                [(documents, tenant, prompts) for (documents, tenant), prompts in wanted.items()],
            )
            of_each = dict(zip(wanted, kept, strict=True))
            return KeptAnswer(
                [
                    of_each[order.set_of(one.message.documents), one.tenant]
                    for one in message.looked_up
                ]
            )
        except NoRoomToKeep as error:
            return KeptAnswer((), (error.needed_tokens, error.free_tokens))
        except Exception as error:
            _log_defect(asking.request_id, error)
            return KeptAnswer(has_failed=True)

    def _use_what_is_held(self, asking: Request, looked_up: Sequence[LookedUp]) -> list[bool]:
        try:
            return [self._use_if_held(asking, one) for one in looked_up]
        except Exception as error:
            _log_defect(asking.request_id, error)
            return [False] * len(looked_up)

    def _use_if_held(self, asking: Request, looked_up: LookedUp) -> bool:
        """Return whether a prompt, or every donor that it would borrow from, is cached whole.

        If so, count a use of its documents, unless it is a guess.
        """
        prompts = self._prompts_to_keep(asking, looked_up)
        return self.cache.touch_if_cached(prompts, is_guess=looked_up.message.guess is not None)

    def _prompts_to_keep(self, asking: Request, looked_up: LookedUp) -> list[Prompt]:
        """Return what a prompt would leave in the cache: itself, or the donors that it borrows from.

        asking: the request that carries the question.
        """
        request = Request(
            request_id=asking.request_id,
            prompt_token_ids=list(looked_up.token_ids),
            sampling_params=SamplingParams(max_tokens=1),
            pooling_params=None,
            arrival_time=asking.arrival_time,
            cache_salt=looked_up.tenant,
            block_hasher=self._hasher,
        )
        prompts, borrowing = [self._describe_prompt(request, looked_up.message)], self.borrowing
        if borrowing:
            plan = borrowing.plan(request, looked_up.message)
            if not isinstance(plan, WhyExact):
                prompts = borrowing.describe_donors(request, plan)
        return prompts

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        cache, start = self.cache, time.perf_counter()
        if self.borrowing and not self.borrowing.may_admit(request):
            return None, False  # its donors are on their way
        cache.collect_disk_results()
        cache.plan_admission(request.request_id, num_computed_tokens, self.now())
        cache.add_scheduling_time(request.request_id, time.perf_counter() - start)
        loaded, is_later = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if self.borrowing and loaded is not None:
            if self.borrowing.defer_packed(request, num_computed_tokens + loaded):
                return None, False
            borrowed = self.borrowing.borrowed_tokens(request, num_computed_tokens)
            if borrowed is not None:
                return borrowed, False
        return loaded, is_later

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        cache, start = self.cache, time.perf_counter()
        borrower = self.borrowing and self.borrowing.get(request)
        super().update_state_after_alloc(request, blocks, 0 if borrower else num_external_tokens)
        loaded = 0 if borrower else num_external_tokens
        cache.record_admission(request.request_id, loaded, self.now())
        if self.borrowing:
            self.borrowing.note_donor_admitted(request)
            if borrower:
                self.borrowing.admit(request, blocks, num_external_tokens)
        self.served.admit(request.request_id)
        cache.add_scheduling_time(request.request_id, time.perf_counter() - start)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        metadata = super().build_connector_meta(scheduler_output)
        jobs, packs = self.borrowing.take_jobs() if self.borrowing else ([], [])
        if jobs or packs:
            assert isinstance(metadata, OffloadingConnectorMetadata)
            return TierMetadata(
                metadata.load_jobs, metadata.store_jobs, metadata.jobs_to_flush, jobs, packs
            )
        return metadata

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        copied = connector_output.kv_connector_worker_meta
        if isinstance(copied, OffloadingWorkerMetadata):
            loads = copied.transfer_stats.load
            if loads.bytes:
                # The sums of all workers, which copy at the same time.
                self.cache.speeds.from_host.record_copy(loads.bytes, loads.time / self._workers)
            for request in connector_output.finished_recving or ():
                self.cache.record_load(request, loads.bytes)
        super().update_connector_output(connector_output)

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        return super().get_kv_connector_stats() if self.exports_stats else None

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        delays, params = super().request_finished_all_groups(request, block_ids)
        name, cache = request.request_id, self.cache
        message = self._messages.pop(name, RequestMessage())
        told = self._told.pop(name, None)
        # vLLM's client aborts what a stop string has ended. A reader who leaves does so too.
        has_answer = request.status in (
            RequestStatus.FINISHED_STOPPED,
            RequestStatus.FINISHED_LENGTH_CAPPED,
        ) or (told and request.status is RequestStatus.FINISHED_ABORTED)
        # Upkeep counts as no use of anything, and its one token would spoil the hit ratio.
        completed = bool(has_answer) and not message.is_upkeep
        reuse = None
        if self.borrowing:
            if completed and not self.borrowing.describe_donor(request):
                self.borrowing.note_served(request, message, self._why_exact.get(name))
            reuse = self.borrowing.finish(request)
        sources = cache.sources(name)
        tokens = cache.finish_request(name, completed=completed, reuse=reuse)
        self.served.end(name, tokens, sources, completed=completed, reuse=reuse)
        why_exact = self._why_exact.pop(name, None)
        tree, held = None, self._held.pop(name, ())
        keeping = self._kept.pop(name, None)
        if not message.is_trusted:
            sources = None
        elif message.snapshot:
            tree = self._snapshot(message)
        answer = FinishMessage(
            tokens, cache.counters, reuse, why_exact, sources, tree, held, keeping
        )
        return delays, {**(params or {}), **answer.to_dict()}

    def tell_with_tokens(self, outputs: dict[int, EngineCoreOutputs]) -> None:
        """Send the FinishMessage with each token of the requests that a stop string may end.

        vLLM looks for these strings in its client's process. There the answer ends at once, and nothing
        that this process sends later reaches it. vLLM may join outputs and keep the last one's message.
        """
        if not self._told:
            return
        for of_client in outputs.values():
            for output in of_client.outputs:
                name = output.request_id
                if name in self._told and output.new_token_ids:
                    self._told[name] = self._told[name] or self._tell_begun(name)
                    output.kv_transfer_params = self._told[name]

    def _tell_begun(self, name: str) -> dict[str, Any]:
        cache, message = self.cache, self._messages[name]
        reuse = self.borrowing.report(name) if self.borrowing else None
        sources = cache.sources(name)
        if not message.is_trusted:
            sources = None
        tokens = cache.count_begun(name, reuse)
        return FinishMessage(
            tokens, cache.counters, reuse, self._why_exact.get(name), sources
        ).to_dict()

    def _snapshot(self, message: RequestMessage) -> TreeSnapshot:
        served = self.served
        return self.cache.snapshot(
            message.snapshot,
            waiting=served.waiting,
            running=served.running,
            requests=served.recent,
            with_bloom_filter=message.with_bloom_filter,
        )

    # -- in a worker's process ---------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        super().register_kv_caches(kv_caches)
        self._kv_caches = kv_caches

    def attach_model(self, model: torch.nn.Module) -> None:
        """Take the model, whose own forward recomputes borrowed tokens.

        Raises UnsupportedRotation or UnknownLayout.
        """
        # Only workers of engines that borrow need it, and it loads all of vLLM's rotary embeddings.
        from ragcache_engine.backends.vllm.borrowing.carrier import BorrowCarrier

        self._carrier = BorrowCarrier(self._vllm_config, model, self._kv_caches)
        if self.settings.packs_donors:
            self._carrier.require_packable()

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        metadata = self._connector_metadata
        # First: copies to the host that wait since the last step, some from blocks to borrow into.
        super().start_load_kv(forward_context, **kwargs)
        if isinstance(metadata, TierMetadata) and self._carrier:
            self._carrier.clear(metadata.pack_jobs)
            self._carrier.carry_out(metadata.borrow_jobs)

    def wait_for_save(self) -> None:
        # First: vLLM copies these blocks to the host from now on.
        metadata = self._connector_metadata
        if isinstance(metadata, TierMetadata) and self._carrier:
            self._carrier.pack(metadata.pack_jobs)
        super().wait_for_save()  # type: ignore[no-untyped-call]

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
            naming=self.cache.naming,
        )


def _log_defect(name: str, error: Exception) -> None:
    """Log an error of ours that costs one request what the tiers would have given it."""
    logger.error(
        "%s is answered without its segments, by a defect of ours\n%s",
        visible(name),
        describe_failure(error),
    )


def _read_message(request: Request) -> RequestMessage:
    """Read the request's message; ignore its segments, with a warning, if they are malformed."""
    try:
        message = RequestMessage.from_dict(request.kv_transfer_params)
        if len(message.segments) > max(1, request.num_prompt_tokens):
            raise MalformedRequest("it has more segments than tokens")
        return message
    except MalformedRequest as error:
        name = visible(request.request_id)
        logger.warning("%s is answered without its segments: %s", name, error)
        return RequestMessage.from_dict(request.kv_transfer_params, ignore_segments=True)
