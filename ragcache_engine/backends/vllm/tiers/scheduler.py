"""vLLM's scheduler, in which the knowledge tree decides who is served and which block is overwritten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_block_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from ragcache_engine.backends.vllm.borrowing.job import TierMetadata
from ragcache_engine.backends.vllm.borrowing.scheduling import BorrowScheduling, SchedulerAccess
from ragcache_engine.backends.vllm.tiers.connector import TierConnector
from ragcache_engine.backends.vllm.tiers.free_blocks import FreeBlocks
from ragcache_engine.backends.vllm.tiers.support import require_known_parts
from ragcache_engine.backends.vllm.tiers.waiting import WaitingQueue
from ragcache_engine.processes import end_with_parent, ignore_interrupts
from ragcache_engine.tiers.node_record import Key

if TYPE_CHECKING:
    from ragcache_engine.tiers.served_requests import ServedRequests

LEAST_STEP_SHARE = 4
"""A step computes at least one in so many of its tokens, however many are recomputed before it."""


class TierScheduler(Scheduler):
    """Replaces two queues of vLLM's scheduler: the free blocks, and the waiting requests.

    It keeps steps short while it prefills provisional requests, and measures how long steps take.
    bounds_steps: whether it keeps them short, too, while it answers several requests.
    Its process ends with the process that started it, and leaves Ctrl-C to that process. Where the
    connector found that the knowledge tree cannot serve the engine, it is vLLM's scheduler and nothing
    more.
    Raises UnknownVLLM.
    """

    def __new__(cls, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> Self:
        """Make the scheduler for the kind of steps that vLLM chose: asynchronous ones, or one by one."""
        asynchronous = vllm_config.scheduler_config.async_scheduling
        made: Self = object.__new__(AsyncTierScheduler if asynchronous else cls)  # type: ignore[assignment]
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        end_with_parent()
        # vLLM has set its own handlers by now. It makes the scheduler last, so that Ctrl-C still ends a
        # start, which nobody else could end.
        ignore_interrupts()
        self._step_tokens = self.max_num_scheduled_tokens
        self._provisional_step_tokens = self._step_tokens
        # By scheduler output: when the step began, and the prompt tokens that it computes.
        self._steps: dict[int, tuple[float, int]] = {}
        self._latest_step_end_s = 0.0
        self._tiers: TierConnector | None = None
        self._provisional: set[str] = set()
        self._borrowing: BorrowScheduling | None = None
        # A full bench on a CPU lost comparisons with it; whether by it is not known.
        self.bounds_steps = not current_platform.is_cpu()
        if isinstance(self.connector, TierConnector):
            self._use_tiers(self.connector)

    def _use_tiers(self, connector: TierConnector) -> None:
        require_known_parts(self, FreeBlocks)
        settings = connector.settings
        self._tiers = connector
        cache = connector.cache
        self._provisional = connector.provisional
        connector.exports_stats = self.log_stats
        pool = self.kv_cache_manager.block_pool
        cache.attach_device(
            pool.free_block_queue.get_all_free_blocks(),
            key_of=_key_of,
            cached_block=lambda key: _first(pool.get_cached_block(key, [0])),  # type: ignore[arg-type]
            drop_cached=lambda blocks: pool.evict_blocks({b.block_id for b in blocks}),
        )
        pool.free_block_queue = FreeBlocks(cache.device)
        if self.policy is SchedulingPolicy.FCFS and settings.reorder_window > 1:
            self.waiting = WaitingQueue(
                lambda request: cache.cached_ratio(request.request_id),
                settings.reorder_window,
                self._fits,
                lambda request: cache.estimate_cached_ratio(request.request_id),
            )
        if settings.recompute_ratio is not None:
            self._borrowing = connector.borrowing = BorrowScheduling(
                self.vllm_config,
                cache,
                SchedulerAccess(
                    self.requests,
                    lambda: self.waiting,
                    lambda: self.running,
                    self.max_num_running_reqs,
                    pool,
                    self._add_first,
                    self._end_loaded,
                    self._abort,
                    lambda: self.failed_recving_kv_req_ids,
                ),
                ratio=settings.recompute_ratio,
                any_donors=settings.any_donors,
                donors_later=settings.donors_later,
                packs_donors=settings.packs_donors,
            )
        if settings.provisional_step_tokens:
            self._provisional_step_tokens = min(settings.provisional_step_tokens, self._step_tokens)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        # A cancellation takes effect only after the running step.
        most = self._step_tokens
        if self._provisional and self._is_prefilling_provisional():
            most = self._provisional_step_tokens
        if self.bounds_steps and self._tiers and len(self._tiers.served.answering) > 1:
            most = self._tiers.cache.speeds.computing.bound_step(most)
        if self._borrowing:
            # What is recomputed before the step takes as long as if the step computed it.
            recomputed = self._borrowing.begin_step()
            most = max(most - recomputed, most // LEAST_STEP_SHARE)
        if most < self._step_tokens:
            # The bounds are for prompts. Each answer needs its next token besides: without, vLLM would
            # always leave out the same ones, and no prompt would come far enough to be measured.
            most += sum(one.num_computed_tokens >= one.num_prompt_tokens for one in self.running)
        self.max_num_scheduled_tokens = min(self._step_tokens, most)
        with self._without_held_back():
            output = super().schedule(throttle_prefills)
        if self._borrowing:
            self._borrowing.end_step(output)
        prompts = 0
        if output.total_num_scheduled_tokens > len(output.num_scheduled_tokens):
            prompts = sum(n for n in output.num_scheduled_tokens.values() if n > 1)
            prompts += _count_recomputed(output)
        if output.num_scheduled_tokens and self._tiers:
            self._steps[id(output)] = (self._tiers.now(), prompts)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        if self._tiers:
            now_s = self._tiers.now()
            began_s, tokens = self._steps.pop(id(scheduler_output), (now_s, 0))
            # Steps overlap, but the model begins this one only after the end of the one before.
            seconds = now_s - max(began_s, self._latest_step_end_s)
            self._latest_step_end_s = now_s
            if tokens:
                self._tiers.cache.speeds.computing.record_step(0, tokens, seconds)
            elif began_s < now_s:
                self._tiers.cache.speeds.computing.record_short_step(seconds)
        if self._borrowing:
            self._borrowing.finish_step(scheduler_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self._tiers:
            self._tiers.tell_with_tokens(outputs)
            if self._tiers.served.unanswered:
                self._note_first_tokens(outputs, self._tiers.served)
        return outputs

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        if self._borrowing:
            self._borrowing.end_orphans()  # nobody waits for the blocks that they hold
        # All or nothing: while requests hold blocks, the slower tiers keep theirs as well.
        done = super().reset_prefix_cache(reset_running_requests, False)
        if done:
            if self._tiers:
                self._tiers.cache.clear_device()
            if reset_connector:
                done = self.reset_connector_cache()
        return done

    def _fits(self, request: Request) -> bool:
        """Return whether there are free blocks for the whole request."""
        pool = self.kv_cache_manager.block_pool
        free = pool.get_num_free_blocks()
        missing = -(-request.num_tokens // self.block_size)
        if missing <= free:
            return True
        for key in request.block_hashes:
            found = pool.get_cached_block(key, [0])
            if not found:
                break
            # What others compute with takes none of the free ones.
            missing -= found[0].ref_cnt > 0
        return missing <= free

    @contextmanager
    def _without_held_back(self) -> Iterator[None]:
        """Take those out of the queue that must not be admitted, which vLLM would ask for one by one."""
        names = self._borrowing.held_back if self._borrowing else ()
        if not names or not isinstance(self.waiting, WaitingQueue):
            yield
            return
        self.waiting.set_aside(lambda request: request.request_id in names)
        try:
            yield
        finally:
            self.waiting.bring_back()

    def _add_first(self, request: Request) -> None:
        """Add a request in front of all that wait."""
        self.add_request(request)
        self.waiting.remove_request(request)
        self.waiting.prepend_request(request)

    def _end_loaded(self, names: Iterable[str]) -> None:
        """End those of these requests whose whole blocks were loaded, and keep the blocks cached."""
        tiers = self._tiers
        assert tiers is not None
        loaded = self.finished_recving_kv_req_ids - self.failed_recving_kv_req_ids
        ended = []
        for name in loaded.intersection(names):
            request = self.requests[name]
            if request.num_prompt_tokens - request.num_computed_tokens < self.block_size:
                # As a request that goes on is admitted again: how long it waited is measured.
                tiers.cache.record_admission(name, 0, tiers.now())
                self.kv_cache_manager.cache_blocks(request, request.num_computed_tokens)
                ended.append(name)
        self.finish_requests(ended, RequestStatus.FINISHED_LENGTH_CAPPED)

    def _abort(self, names: Iterable[str]) -> None:
        self.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    def _note_first_tokens(
        self, outputs: dict[int, EngineCoreOutputs], served: ServedRequests
    ) -> None:
        for of_client in outputs.values():
            for output in of_client.outputs:
                if output.new_token_ids and output.request_id in served.unanswered:
                    served.answer(output.request_id)

    def _is_prefilling_provisional(self) -> bool:
        """Return whether a provisional request still needs prefill; stop tracking those that do not."""
        provisional = self._provisional
        known = map(self.requests.get, provisional)
        provisional &= {
            request.request_id
            for request in known
            if request and request.num_computed_tokens < request.num_prompt_tokens
        }
        return bool(provisional)


class AsyncTierScheduler(TierScheduler, AsyncScheduler):
    """The same for engines that schedule a step while the one before still runs."""


def _count_recomputed(output: SchedulerOutput) -> int:
    """Count the tokens that the workers recompute before the step itself."""
    told = output.kv_connector_metadata
    jobs = told.borrow_jobs if isinstance(told, TierMetadata) else ()
    return sum(len(job.recomputed) for job in jobs)


def _key_of(block: KVCacheBlock) -> Key | None:
    held = block.block_hash
    return None if held is None else get_block_hash(held)


def _first(blocks: Sequence[KVCacheBlock] | None) -> KVCacheBlock | None:
    return blocks[0] if blocks else None
