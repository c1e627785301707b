"""The scheduler's part of borrowing: it makes donors available, and tells workers what to copy.

A request that borrows waits until all its donors are on the device. Donors that are missing become
requests of their own, of one token, in front of the queue: vLLM computes them, or loads them from the
slower tiers, as it does for all requests. So whatever was cached, the same tensors are copied. A donor
that was loaded whole ends there: a step for its one token would make all wait that borrow from it.

Where donors are packed, the missing donor is the packed one. It is loaded if the tiers have all of it.
Else its request borrows itself: it waits for the donor that it is made from, and the workers pack that
into its blocks. Only packed donors, and the contexts of the others, go to the slower tiers.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import count

from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import BlockHash, KVCacheBlock, get_request_block_hasher
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus

from ragcache_engine.backends.vllm.borrowing.job import BlockCopy, BorrowJob, PackJob
from ragcache_engine.backends.vllm.borrowing.packing import number_bytes
from ragcache_engine.latest_items import LatestItems
from ragcache_engine.tiers.borrowing.borrowers import Borrower, Borrowers, MissingDonor
from ragcache_engine.tiers.borrowing.donor import Donor, Packing
from ragcache_engine.tiers.borrowing.exact_or_borrow import plan_what_is_held
from ragcache_engine.tiers.borrowing.plan import (
    MADE_DONORS,
    BorrowPlan,
    Lenders,
    Room,
    WhyExact,
    count_system_tokens,
    find_spans,
    plan_borrowing,
    plan_making,
)
from ragcache_engine.tiers.borrowing.served import ServedDocuments
from ragcache_engine.tiers.manager import CacheManager
from ragcache_engine.tiers.prompts import Prompt, SegmentEnd, describe_prompt
from ragcache_engine.tiers.provenance import ReuseReport, report_borrowing
from ragcache_engine.tiers.wire import RequestMessage

LEAST_BORROWED_TOKENS = 64
"""Fewer than these are computed within a step, which costs about as much as borrowing them."""

MOST_DESCRIBED_BYTES = 32 << 20
"""How much memory the descriptions of donors may take: some 2 KB each for documents of a few hundred
tokens."""

DonorName = tuple[str | None, bytes, tuple[SegmentEnd, ...]]
"""What a donor's description depends on: the tenant, a digest of its tokens, its segments."""

WAITING = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


@dataclass(slots=True)
class SchedulerAccess:
    """The parts of vLLM's scheduler that borrowing needs.

    requests: all requests by name. waiting: returns those that wait, in their order. running: returns
    those that are computed, of at most `most_running`.
    pool: its blocks. add_first: puts a request in front of the queue.
    end_loaded: ends those of these requests whose whole blocks were loaded. abort: ends requests. Both
    are for the time between two steps. failed: the names of requests whose load has failed.
    """

    requests: dict[str, Request]
    waiting: Callable[[], Iterable[Request]]
    running: Callable[[], Sequence[Request]]
    most_running: int
    pool: BlockPool
    add_first: Callable[[Request], None]
    end_loaded: Callable[[Iterable[str]], None]
    abort: Callable[[Iterable[str]], None]
    failed: Callable[[], Iterable[str]]


def make_block_hasher(config: VllmConfig) -> Callable[[Request], list[BlockHash]]:
    """Return the function by which vLLM's engine hashes the blocks of its requests."""
    cache = config.cache_config
    return get_request_block_hasher(
        cache.block_size, get_hash_fn_by_name(cache.prefix_caching_hash_algo)
    )


class BorrowScheduling:
    """Decides, step by step, which requests get their borrowed tensors.

    ratio: the share of a borrowed document's tokens to recompute. any_donors: whether served prompts
      lend as well. donors_later: whether documents whose donors are missing are computed where they
      stand. packs_donors: whether donors are packed.
    held_back: the names of waiting requests that must not be admitted in this step.
    """

    def __init__(
        self,
        config: VllmConfig,
        cache: CacheManager[KVCacheBlock],
        scheduler: SchedulerAccess,
        *,
        ratio: float,
        any_donors: bool,
        donors_later: bool,
        packs_donors: bool = False,
    ) -> None:
        self._cache = cache
        self._scheduler = scheduler
        self._ratio = ratio
        self._served = ServedDocuments(cache.block_tokens) if any_donors else None
        self._donors_later = donors_later
        self._packing: Packing | None = None
        if packs_donors:
            self._packing = Packing(cache.block_tokens, number_bytes(config))
        self._block_tokens = cache.block_tokens
        self._step_tokens = config.scheduler_config.max_num_batched_tokens
        self._hasher = make_block_hasher(config)
        device_blocks = scheduler.pool.num_gpu_blocks - 1  # vLLM keeps one for itself
        self._room = Room(self._block_tokens, config.model_config.max_model_len, device_blocks)
        self._borrowers: Borrowers[KVCacheBlock] = Borrowers(
            self._cached_block, lambda block: block.ref_cnt > 0
        )
        self._donors: dict[str, Prompt] = {}
        self._lenders: dict[str, Donor] = {}  # by the name of its request
        self._asked_by: dict[str, str] = {}  # for each of these, the request that waits for it
        self._described: LatestItems[DonorName, Prompt] = LatestItems(
            MOST_DESCRIBED_BYTES, lambda _, prompt: prompt.size_bytes
        )
        self._numbers = count()
        self._asked: dict[str, list[str]] = {}  # for each request, the donors that it asked for
        self._orphans: list[str] = []
        self._ready: dict[str, Borrower[KVCacheBlock]] = {}
        self.held_back: AbstractSet[str] = frozenset()
        self._jobs: list[BorrowJob] = []
        self._pack_jobs: list[PackJob] = []
        self._lent: dict[int, list[KVCacheBlock]] = {}  # by scheduler output

    # -- a request comes ---------------------------------------------------------------------------

    def plan(self, request: Request, message: RequestMessage) -> BorrowPlan | WhyExact:
        """Plan what a new request borrows, or say why it borrows nothing."""
        if message.is_exact:
            return WhyExact.ASKED
        params = request.sampling_params
        if params is None or params.prompt_logprobs is not None:
            return WhyExact.PROMPT_LOGPROBS
        if request.lora_request or request.mm_features or request.prompt_embeds is not None:
            return WhyExact.OTHER_INPUT
        assert request.prompt_token_ids is not None
        plan_with = partial(
            plan_borrowing,
            request.prompt_token_ids,
            message.segments,
            self._room,
            contexts=message.contexts,
            ratio=self._ratio if message.recompute_ratio is None else message.recompute_ratio,
            # A prompt of several short documents will borrow them.
            least_tokens=0 if message.makes_donors else LEAST_BORROWED_TOKENS,
            starts=message.starts,
            answer_tokens=request.max_tokens,
            packing=self._packing,
        )
        if message.makes_donors or not self._donors_later:
            return plan_with(lenders=self._choose_served(request, message))
        return plan_what_is_held(
            plan_with,
            partial(self._keys_to_have, request),
            request.block_hashes,
            request.num_prompt_tokens,
            block_tokens=self._block_tokens,
            holds=self._cache.holds,
        )

    def _choose_served(self, request: Request, message: RequestMessage) -> Lenders:
        """Return which documents are exact, and the donors that served prompts left for others."""
        if self._served is None:
            return MADE_DONORS
        tokens = request.prompt_token_ids
        assert tokens is not None
        spans = find_spans(message.segments, len(tokens), message.starts)
        if not spans:
            return MADE_DONORS
        keys = request.block_hashes
        return self._served.choose(
            request.cache_salt,
            tokens,
            spans,
            count_system_tokens(message.segments),
            is_exact=lambda end: self._holds(keys[: end // self._block_tokens]),
            is_held=lambda donor: self._holds(self._describe(request, donor).keys),
        )

    def _holds(self, keys: Iterable[bytes]) -> bool:
        return all(map(self._cache.holds, keys))

    def note_served(
        self, request: Request, message: RequestMessage, why_exact: WhyExact | None
    ) -> None:
        """Note that a request was answered, so that later ones can borrow its documents.

        why_exact: why it borrowed nothing; None if it borrowed. Call it before `finish`.
        """
        if self._served is None or why_exact is WhyExact.OTHER_INPUT:
            return
        if self._cache.is_withdrawn(request.request_id):
            return  # nothing of a forgotten document is kept
        tokens, borrower = request.prompt_token_ids, self.get(request)
        if tokens is None:
            return  # a prompt of embeddings
        if borrower is None:
            spans = find_spans(message.segments, len(tokens), message.starts)
            system_tokens = count_system_tokens(message.segments)
            self._served.add(request.cache_salt, tokens, spans, system_tokens)
        else:
            self._served.add_plan(request.cache_salt, borrower.plan)

    def forget(self, documents: Sequence[str]) -> None:
        """Lend nothing more of what these documents stood in."""
        if self._served is not None:
            self._served.forget(documents)

    def describe_donors(self, request: Request, plan: BorrowPlan) -> list[Prompt]:
        """Return the donors of a plan as the cache manager sees them."""
        return [self._describe(request, donor) for donor in plan.donors]

    def add(self, request: Request, plan: BorrowPlan) -> list[Prompt]:
        """Let a request wait for its donors; return them as the cache manager sees them.

        If it ends before them, they end as well, unless another one waits for them.
        """
        donors = self.describe_donors(request, plan)
        exact = list(request.block_hashes[: plan.exact_blocks])
        self._split_hashes(request, plan)
        keys = [list(donor.keys) for donor in donors]
        self._borrowers.add(Borrower(request.request_id, plan, keys, exact))
        return donors

    def get(self, request: Request) -> Borrower[KVCacheBlock] | None:
        """Return what is known of a request that borrows; None if it borrows nothing."""
        return self._borrowers.get(request.request_id)

    def describe_donor(self, request: Request) -> Prompt | None:
        """Return a donor's request as the cache manager sees it; None for any other request."""
        return self._donors.get(request.request_id)

    def is_packed(self, request: Request) -> bool:
        """Return whether a donor's request is for a packed one."""
        return self._lenders[request.request_id].packs is not None

    def count_stored_blocks(self, request: Request) -> int | None:
        """Count the blocks of a donor's request that slower tiers may keep; None: all.

        Of a donor that is to be packed, they keep what stands before its document.
        """
        name = request.request_id
        if self._asked_by.get(name) in self._donors:
            return self._lenders[name].start // self._block_tokens
        return None

    def _keys_to_have(self, request: Request, donor: Donor) -> Sequence[bytes]:
        """Return the keys of the blocks that a donor takes, to be loaded or computed."""
        keys = self._describe(request, donor).keys
        if donor.packs is None or self._holds(keys):
            return keys
        return self._describe(request, donor.packs).keys

    def _describe(self, request: Request, donor: Donor) -> Prompt:
        """Describe a donor to the cache manager. Hashing takes longest, so descriptions are kept."""
        digest = sha256(
            array("q", donor.token_ids).tobytes()
        ).digest()  # keeps no text of documents
        name = request.cache_salt, digest, donor.segments
        if (described := self._described.get(name)) is None:
            described = self._described[name] = self._make_description(request, donor)
        self._described.touch(name)
        return described

    def _make_description(self, request: Request, donor: Donor) -> Prompt:
        keys = self._donor_request("", request, donor).block_hashes
        described = describe_prompt(
            keys=keys,
            token_ids=donor.token_ids,
            prompt_tokens=len(donor.token_ids),
            segments=donor.segments,
            tenant=request.cache_salt,
            block_tokens=self._block_tokens,
            depth=None,
            naming=self._cache.naming,
        )
        if donor.packs is not None:
            described.lent_blocks = donor.packed_tokens // self._block_tokens
        return described

    def _donor_request(self, name: str, request: Request, donor: Donor) -> Request:
        made = Request(
            request_id=name,
            prompt_token_ids=list(donor.token_ids),
            sampling_params=SamplingParams(
                max_tokens=1,
                temperature=0.0,
                detokenize=False,
                ignore_eos=True,
            ),
            pooling_params=None,
            client_index=request.client_index,
            arrival_time=request.arrival_time,
            cache_salt=request.cache_salt,
            priority=request.priority,
            block_hasher=self._hasher,
        )
        if donor.packs is not None:
            # Its blocks have their names now. Where a request of a step has a penalty, vLLM counts the
            # tokens of all of them in a table of the vocabulary. The second list is private to vLLM.
            for tokens in (made.prompt_token_ids, made._all_token_ids):
                assert tokens is not None
                tokens[:] = [0] * len(tokens)
        return made

    def _split_hashes(self, request: Request, plan: BorrowPlan) -> None:
        """Give the request's blocks other hashes from the first one that is not exact.

        No other request finds these blocks, unless it borrows the same in the same way.
        """
        hashes, at = request.block_hashes, plan.exact_blocks
        hashes[at] = BlockHash(sha256(hashes[at] + plan.digest).digest())
        del hashes[at + 1 :]
        request.update_block_hashes()

    # -- each step ---------------------------------------------------------------------------------

    def end_orphans(self) -> None:
        """End donors whose requests have ended before them. For the time between two steps."""
        while self._orphans:  # what they have asked for is one as well
            orphans, self._orphans = self._orphans, []
            self._scheduler.abort(orphans)

    def begin_step(self) -> int:
        """Ask for missing donors, and hold those of requests that may be admitted now.

        Returns how many tokens may have to be recomputed in this step.
        """
        self.end_orphans()
        if self._donors:
            self._scheduler.end_loaded(self._donors)
            self._end_failed()
        self.held_back = frozenset()
        if not len(self._borrowers):
            return 0
        running = self._scheduler.running()
        if len(running) >= self._scheduler.most_running:
            return 0  # nobody is admitted, so that no borrower needs its donors yet
        ready, missing, self.held_back = self._borrowers.plan_step(
            [each.request_id for each in self._scheduler.waiting() if self._needs_memory(each)],
            blocks_of=self._blocks_of,
            free_blocks=self._scheduler.pool.get_num_free_blocks() + self._count_loading(),
            running=sum(each.request_id not in self._donors for each in running),
            most_recomputed=self._step_tokens,
            keep=self._cache.keep,
        )
        for borrower in ready:
            # Held, so that nothing in this step overwrites them.
            for blocks in borrower.lent:
                self._scheduler.pool.touch(blocks)
            self._ready[borrower.name] = borrower
            if borrower.name in self._donors:
                # The token behind a packed donor attends to its blocks, which are cleared before, and so
                # cannot be another one's.
                self._cache.hide_on_device(borrower.name)
        for donor in reversed(missing):
            self._ask_for(donor)
        return sum(len(borrower.plan.recomputed) for borrower in ready)

    def _end_failed(self) -> None:
        """End packed donors whose load has failed: vLLM would compute the rest of their tokens."""
        failed = [name for name in self._scheduler.failed() if name in self._lenders]
        self._scheduler.abort([name for name in failed if self._lenders[name].packs is not None])

    def may_admit(self, request: Request) -> bool:
        """Return whether a request may be admitted in this step: it takes nothing from borrowers, or has
        all its donors."""
        name = request.request_id
        if name in self._ready:
            return True
        return name not in self.held_back and self._borrowers.get(name) is None

    def borrowed_tokens(self, request: Request, local_tokens: int) -> int | None:
        """Return how many tokens behind those in its own blocks a request gets by borrowing.

        None if the request borrows nothing.
        """
        borrower = self._borrowers.get(request.request_id)
        if borrower is None:
            return None
        if borrower.shared_tokens is None:
            borrower.found_tokens = local_tokens
        return max(0, borrower.plan.end - local_tokens)

    def defer_packed(self, request: Request, tokens: int) -> bool:
        """Return whether a packed donor cannot be admitted as it is: its blocks can only be loaded.

        If the tiers do not have all of it, let it wait for the donor that it is made from. If the device
        has it by now, end it. tokens: how many of its leading tokens the tiers have.
        """
        name = request.request_id
        lender = self._lenders.get(name)
        if lender is None or lender.packs is None:
            return False
        borrower = self._borrowers.get(name)
        if all(map(self._cached_block, self._donors[name].keys)):
            self._orphans.append(name)  # another request has brought it
            return True
        if borrower is not None or tokens >= len(lender.token_ids) - 1:
            return False
        donor = self._describe(request, lender.packs)
        self._borrowers.add(Borrower(name, plan_making(lender), [list(donor.keys)], ()))
        self._cache.make_packed(name, donor)
        return True

    def admit(self, request: Request, blocks: KVCacheBlocks, borrowed_tokens: int) -> None:
        """Tell the workers what to copy for a request that has its memory now."""
        borrower = self._ready.get(request.request_id)
        if borrower is None:
            return
        if request.request_id in self._donors:
            self._pack(borrower, blocks)
            return
        if borrower.shared_tokens is None:
            # At most to the plan's end, whatever more an earlier answer has left.
            borrower.shared_tokens = borrower.plan.end - borrowed_tokens
            # Only those exact tokens count as cached that were there before the request came.
            exact = borrower.exact_tokens(self._block_tokens)
            self._cache.set_cached_tokens(borrower.name, exact, borrower.reasons)
            # vLLM tells this number in its answers, and took the borrowed tokens for cached ones. That it
            # stands here is documented nowhere; tests/backends/server/test_any_client.py would notice.
            if request.prefill_stats is not None:
                request.prefill_stats.num_cached_tokens = sum(exact.values())
        if borrowed_tokens:
            plan = borrower.plan
            copies, recomputed = plan.after(plan.end - borrowed_tokens)
            self._jobs.append(
                BorrowJob(
                    borrower.name,
                    blocks.get_block_ids()[0],
                    [
                        BlockCopy(
                            [block.block_id for block in borrower.lent[copy.donor]],
                            copy.source,
                            copy.target,
                            copy.tokens,
                            plan.donors[copy.donor].first
                            if plan.donors[copy.donor].packs
                            else None,
                        )
                        for copy in copies
                    ],
                    recomputed,
                    [request.all_token_ids[at] for at in recomputed],
                )
            )

    def _pack(self, borrower: Borrower[KVCacheBlock], blocks: KVCacheBlocks) -> None:
        """Tell the workers to pack a donor into the blocks of its packed one."""
        lender = self._lenders[borrower.name]
        self._pack_jobs.append(
            PackJob(
                blocks.get_block_ids()[0][: borrower.plan.end // self._block_tokens],
                [block.block_id for block in borrower.lent[0]],
                lender.first,
                lender.packed_tokens,
            )
        )

    def take_jobs(self) -> tuple[list[BorrowJob], list[PackJob]]:
        """Return what the workers have to copy and to pack in this step."""
        jobs, self._jobs = self._jobs, []
        pack_jobs, self._pack_jobs = self._pack_jobs, []
        return jobs, pack_jobs

    def end_step(self, output: SchedulerOutput) -> None:
        """Keep the donors of admitted requests until the step has been computed; release the others."""
        ready, self._ready = self._ready, {}
        self._borrowers.end_step(
            has_held=bool(ready), is_empty=not output.total_num_scheduled_tokens
        )
        lent: list[KVCacheBlock] = []
        for name, borrower in ready.items():
            blocks = [block for of_donor in borrower.lent for block in of_donor]
            borrower.lent = []
            if name in output.num_scheduled_tokens:
                lent += blocks
            else:
                self._scheduler.pool.free_blocks(reversed(blocks))
        if lent:
            self._lent[id(output)] = lent

    def finish_step(self, output: SchedulerOutput) -> None:
        """Release the donors that a computed step has copied from."""
        if blocks := self._lent.pop(id(output), None):
            self._scheduler.pool.free_blocks(reversed(blocks))

    # -- requests end ------------------------------------------------------------------------------

    def note_donor_admitted(self, request: Request) -> None:
        """Note where the blocks of a donor came from, once it has its memory."""
        if self._borrowers.is_donor(request.request_id):
            name, cache = request.request_id, self._cache
            self._borrowers.note_found(name, cache.cached_tokens(name), cache.sources(name))

    def finish(self, request: Request) -> ReuseReport | None:
        """Note that a request has ended; return what it reused, if it borrowed."""
        name = request.request_id
        reuse = self.report(name)
        self._borrowers.end_donor(name)
        self._donors.pop(name, None)
        self._lenders.pop(name, None)
        self._asked_by.pop(name, None)
        self._borrowers.remove(name)
        self._orphans += [
            donor
            for donor in self._asked.pop(name, ())
            if donor in self._donors and not self._borrowers.is_wanted(donor)
        ]
        return reuse

    def report(self, name: str) -> ReuseReport | None:
        """Return what a request that was admitted has reused, if it borrows."""
        borrower = self._borrowers.get(name)
        if borrower is None or name in self._donors:
            return None
        return report_borrowing(
            borrower.plan,
            borrower.found,
            borrower.shared_tokens or 0,
            borrower.prefix,
            borrower.found_tokens,
        )

    # -- inside ------------------------------------------------------------------------------------

    def _cached_block(self, key: bytes) -> KVCacheBlock | None:
        blocks = self._scheduler.pool.get_cached_block(BlockHash(key), [0])
        return blocks[0] if blocks else None

    def _needs_memory(self, request: Request) -> bool:
        name = request.request_id
        return request.status in WAITING and (
            name not in self._donors or self._borrowers.get(name) is not None
        )

    def _count_loading(self) -> int:
        """Count the blocks into which donors are being loaded."""
        donors = (self._scheduler.requests[name] for name in self._donors)
        loading = (each for each in donors if each.status is RequestStatus.WAITING_FOR_REMOTE_KVS)
        return sum(self._blocks_of(each.request_id) for each in loading)

    def _blocks_of(self, name: str) -> int:
        return -(-(self._scheduler.requests[name].num_tokens + 1) // self._block_tokens)

    def _ask_for(self, donor: MissingDonor[KVCacheBlock]) -> None:
        borrower = donor.borrower
        request = self._scheduler.requests[borrower.name]
        first = self._asked_by.get(borrower.name, borrower.name)
        name = f"{first}-donor-{next(self._numbers)}"
        lender = borrower.plan.donors[donor.place]
        self._donors[name] = self._cache.donors(borrower.name)[donor.place]
        self._lenders[name], self._asked_by[name] = lender, borrower.name
        self._borrowers.expect(donor, name)
        self._asked.setdefault(borrower.name, []).append(name)
        self._scheduler.add_first(self._donor_request(name, request, lender))
        self._cache.note_donor(name, first)
