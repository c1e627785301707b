"""The simulated device: calls the production cache manager as vLLM and its connector would.

Only this file of the simulation calls the cache manager, in the same order as `backends/vllm/tiers`.
"""

from __future__ import annotations

from collections import Counter as Multiset
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import cast

from ragcache_engine.knowledge import CostProfile, EvictionPolicy
from ragcache_engine.simulation.block_pool import Block, BlockPool
from ragcache_engine.simulation.clock import VirtualClock
from ragcache_engine.simulation.copy_lane import (
    DISK_BYTES_PER_S,
    HOST_BYTES_PER_S,
    CopyLane,
    has_passed,
)
from ragcache_engine.simulation.disk import SimulatedDisk
from ragcache_engine.simulation.loans import Loan
from ragcache_engine.simulation.request import SimulatedRequest, State
from ragcache_engine.simulation.sizes import TierSizes
from ragcache_engine.tiers.counters import Counters
from ragcache_engine.tiers.disk.transfers import DiskTransfers
from ragcache_engine.tiers.host_slots import HostSlots
from ragcache_engine.tiers.manager import CacheManager, Presence
from ragcache_engine.tiers.node_record import Key
from ragcache_engine.tiers.provenance import PromptSources


class Admission(Enum):
    """The result of an attempt to give a request its device memory."""

    COMPUTES = auto()  # it has its blocks, and computes the missing tokens
    LOADS = auto()  # it has its blocks, and waits for copies from slower tiers into them
    WAITS = auto()  # it waits for copies that are under way
    NO_ROOM = auto()  # too few blocks are free


@dataclass(slots=True, eq=False)
class _Copy:
    """Blocks on their way between device and host. content: for each, the key of its tensors."""

    request: SimulatedRequest
    keys: list[Key]
    slots: list[int]
    content: list[Key | None]
    ends_s: float


class SimulatedDevice:
    """Holds requests' blocks as vLLM would, and asks the cache manager what to evict, load and store.

    policy: makes each tier's eviction policy, as policy_of_tiers gives it.
    protect: how many of the waiting requests keep their documents from eviction; with vLLM this is the
      reorder window.
    profile: how long computing takes, for the decision between loading and computing.
    Use it from one thread. Copies take size / bandwidth on the clock, one after another in each
    direction.
    """

    def __init__(
        self,
        sizes: TierSizes,
        policy: Callable[[], EvictionPolicy],
        clock: VirtualClock,
        *,
        protect: int = 32,
        profile: CostProfile | None = None,
        host_bytes_per_s: float = HOST_BYTES_PER_S,
        disk_bytes_per_s: float = DISK_BYTES_PER_S,
    ) -> None:
        self.sizes = sizes
        self.clock = clock
        self.manager: CacheManager[Block] = CacheManager(
            policy=policy,
            block_tokens=sizes.block_tokens,
            block_bytes=sizes.block_bytes,
            host=HostSlots(sizes.host_blocks),
            disk_blocks=sizes.disk_blocks,
            profile=profile,
            protect=protect,
            quotas=sizes.quotas,
        )
        self.pool = BlockPool(sizes.device_blocks, self.manager.device)
        self.manager.attach_device(
            self.pool.blocks,
            key_of=lambda block: block.key,
            cached_block=self.pool.find,
            drop_cached=self.pool.uncache,
        )
        self._slots: list[Key | None] = [None] * sizes.host_blocks
        self.disk: SimulatedDisk | None = None
        if sizes.disk_blocks:
            self.disk = SimulatedDisk(self._slots, sizes.block_bytes, disk_bytes_per_s, clock)
            self.manager.attach_disk(cast("DiskTransfers", self.disk))
        self._load_lane, self._store_lane = CopyLane(host_bytes_per_s), CopyLane(host_bytes_per_s)
        self._loads: deque[_Copy] = deque()
        self._stores: deque[_Copy] = deque()
        self._being_loaded: Multiset[Key] = Multiset()
        self._preempted: list[SimulatedRequest] = []

    @property
    def counters(self) -> Counters:
        """A copy of the counts of what the tiers have done so far."""
        return Counters.from_dict(self.manager.counters.as_dict())

    # -- a request's life ------------------------------------------------------------------------

    def add(self, request: SimulatedRequest) -> None:
        """Let a request begin to wait."""
        loan = request.loan
        self.manager.add_request(
            request.name,
            request.prompt,
            guess=request.guess,
            donors=[donor.prompt for donor in loan.donors] if loan else (),
            in_place=loan.plan.computed_in_place if loan else (),
            is_donor=request.is_donor,
            withdrawn=request.withdrawn,
        )

    def sources(self, request: SimulatedRequest) -> PromptSources | None:
        """Return where the request's prompt came from; see CacheManager.sources."""
        return self.manager.sources(request.name)

    def cached_ratio(self, request: SimulatedRequest) -> float | None:
        """Return a request's cached tokens over those to compute, as of now; see ReorderQueue."""
        return self.manager.cached_ratio(request.name)

    def estimate_cached_ratio(self, request: SimulatedRequest) -> float | None:
        """Return about what `cached_ratio` does, and keep nothing for it."""
        return self.manager.estimate_cached_ratio(request.name)

    def admit(self, request: SimulatedRequest, most_tokens: int) -> Admission:
        """Try to give a waiting request its device memory.

        most_tokens: how many tokens it may compute in this step. Unless the result is COMPUTES or
          LOADS, the request gets no memory.
        """
        if request.state is State.LOADING:
            return Admission.WAITS
        if request.state is State.LOADED:
            upto = min(request.tokens, request.computed_tokens + most_tokens)
            if self._missing_blocks(request, upto) > self.pool.free_count:
                return Admission.NO_ROOM
            self.manager.record_admission(request.name, 0, self.clock.now())
            request.state = State.RUNNING
            return Admission.COMPUTES
        return self._admit_anew(request, most_tokens)

    def compute(self, request: SimulatedRequest, upto: int) -> bool:
        """Compute a running request's tokens up to number `upto`; from now on its full blocks can be
        found.

        Return False, with nothing changed, if too few blocks are free.
        """
        missing = self._missing_blocks(request, upto)
        if missing > self.pool.free_count:
            return False
        if missing > 0:
            request.blocks += self.pool.take(missing)
        block_tokens, keys, cache = self.sizes.block_tokens, request.keys, self.pool.cache
        first, end = request.computed_tokens // block_tokens, upto // block_tokens
        for block, key in zip(request.blocks[first:end], keys[first:end], strict=False):
            if block.key is None:
                block.holds = key
                cache(block, key)
        request.computed_tokens = upto
        return True

    def preempt(self, request: SimulatedRequest) -> None:
        """Take a request's device memory away. It waits again, and computes all its tokens anew."""
        self._release(request)
        request.computed_tokens, request.is_decoding = 0, False
        request.state = State.WAITING
        self._preempted.append(request)

    def end(self, request: SimulatedRequest, *, completed: bool) -> dict[str, int] | None:
        """End a request; return its cached prompt tokens by tier, None if it never ran.

        completed: whether it has its answer. An aborted request does not count as a use of its
          documents.
        """
        tokens = self.manager.finish_request(request.name, completed=completed, reuse=request.reuse)
        if request.state is not State.LOADING:
            self._release(request)  # otherwise free them when the copy into them ends
        request.state = State.ENDED
        return tokens

    def adopt(self, guess: str) -> None:
        """Count a guess as a use of its documents, because somebody has asked for its answer."""
        self.manager.adopt_guesses([guess])

    # -- steps -----------------------------------------------------------------------------------

    def end_step(
        self, computed: Iterable[SimulatedRequest], prompt_tokens: int, seconds: float
    ) -> None:
        """Finish a step: offer the computed blocks to the host, and collect the disk's results.

        prompt_tokens, seconds: how many prompt tokens the step computed, and how long it took.
        """
        computing = self.manager.speeds.computing
        if prompt_tokens:
            computing.record_step(0, prompt_tokens, seconds)
        else:
            computing.record_short_step(seconds)
        for request in self._preempted:
            self.manager.requeue(request.name)
        self._preempted.clear()
        self.manager.step()
        for request in computed:
            self._offer_to_host(request)

    def collect_copies(self) -> None:
        """Account for the copies that have ended by now."""
        now_s = self.clock.now()
        while self._stores and has_passed(self._stores[0].ends_s, now_s):
            self._end_store(self._stores.popleft())
        while self._loads and has_passed(self._loads[0].ends_s, now_s):
            self._end_load(self._loads.popleft())
        if self.disk is not None:
            self.manager.collect_disk_results()

    def next_copy_end_s(self) -> float | None:
        """The time at which the next copy ends; None if none is under way."""
        ends = [copies[0].ends_s for copies in (self._loads, self._stores) if copies]
        if self.disk is not None and (disk_end_s := self.disk.next_end_s()) is not None:
            ends.append(disk_end_s)
        return min(ends, default=None)

    def finish_copies(self) -> None:
        """Let time pass until no copy is under way."""
        while (end_s := self.next_copy_end_s()) is not None:
            self.clock.wait_until(end_s)
            self.collect_copies()

    # -- the whole cache ---------------------------------------------------------------------------

    def forget(self, documents: Iterable[str]) -> None:
        """Drop documents from every tier, with all computed after them."""
        self.manager.forget(documents)

    def clear(self) -> bool:
        """Empty device and host. The disk keeps its files, as in production.

        Return False, with nothing changed, while requests hold blocks.
        """
        # Requests that ended while they were loaded hold their blocks until the copy ends.
        ended = (copy.request for copy in self._loads if copy.request.state is State.ENDED)
        due = sum(len(request.blocks) for request in ended)
        if self.pool.free_count + due < len(self.pool.blocks):
            return False
        self.finish_copies()
        self.pool.clear()
        self.manager.clear_device()
        self.manager.clear_host()
        return True

    def check(self, requests: Iterable[SimulatedRequest] = ()) -> None:
        """Raise AssertionError unless blocks, slots and requests hold what their books say. For tests.

        requests: all requests that have not ended.
        """
        self.pool.check()
        block_tokens = self.sizes.block_tokens
        for request in requests:
            assert len(request.blocks) * block_tokens >= request.computed_tokens
            assert all(block.users for block in request.blocks)
            if request.state is not State.LOADING:
                computed = request.keys[: request.computed_tokens // block_tokens]
                holds = [block.holds for block in request.blocks[: len(computed)]]
                assert holds == list(computed), f"{request.name} computes with another's block"

    # -- inside ------------------------------------------------------------------------------------

    def _admit_anew(self, request: SimulatedRequest, most_tokens: int) -> Admission:
        manager, pool, block_tokens = self.manager, self.pool, self.sizes.block_tokens
        keys, tokens = request.keys, request.tokens
        # The last token is always computed: its output is needed.
        found = pool.longest_prefix(keys[: (tokens - 1) // block_tokens])
        here = len(found) * block_tokens
        manager.plan_admission(request.name, here, self.clock.now())
        if request.copies:
            return Admission.WAITS  # copies of its last run are still under way
        request.found_tokens = here
        if request.loan is not None:
            return self._admit_borrower(request, found, request.loan, most_tokens)
        loadable = self._loadable_blocks(request, len(found))
        if loadable is None:
            return Admission.WAITS
        reached = here + loadable * block_tokens
        upto = reached if loadable else min(tokens, here + most_tokens)
        missing = -(-upto // block_tokens) - len(found)
        if missing + sum(not block.users for block in found) > pool.free_count:
            return Admission.NO_ROOM
        pool.use(found)
        request.blocks, request.computed_tokens = found, here
        if request.cached_tokens is None:
            request.cached_tokens = min(here + loadable * block_tokens, tokens - 1)
        if loadable:
            self._begin_load(request, keys[len(found) : len(found) + loadable])
        request.state = State.LOADING if loadable else State.RUNNING
        manager.record_admission(request.name, loadable * block_tokens, self.clock.now())
        return Admission.LOADS if loadable else Admission.COMPUTES

    def _admit_borrower(
        self, request: SimulatedRequest, found: list[Block], loan: Loan, most_tokens: int
    ) -> Admission:
        """Give a request whose donors are on the device its memory, and copy from them at once."""
        block_tokens, pool = self.sizes.block_tokens, self.pool
        reached = max(loan.plan.end, len(found) * block_tokens)
        upto = min(request.tokens, reached + most_tokens)
        missing = -(-upto // block_tokens) - len(found)
        if missing + sum(not block.users for block in found) > pool.free_count:
            return Admission.NO_ROOM
        pool.use(found)
        request.blocks = found
        request.computed_tokens = len(found) * block_tokens
        self.compute(request, reached)
        if request.cached_tokens is None:
            request.cached_tokens = min(request.found_tokens, request.tokens - 1)
        request.state = State.RUNNING
        self.manager.record_admission(request.name, 0, self.clock.now())
        return Admission.COMPUTES

    def _loadable_blocks(self, request: SimulatedRequest, first: int) -> int | None:
        """Return how many blocks from `first` on to load from the host; None if some still come."""
        if not self.sizes.host_blocks:
            return 0
        lookup, is_coming, hits = self.manager.lookup, False, 0
        for at in range(first, len(request.keys)):
            key = request.keys[at]
            found = lookup(request.name, key)
            if found is Presence.MISS:
                break
            hits += 1
            # Another request loads the block already: it will be on the device soon.
            is_coming |= found is Presence.HIT_PENDING or key in self._being_loaded
        return None if is_coming else hits

    def _missing_blocks(self, request: SimulatedRequest, upto: int) -> int:
        return -(-upto // self.sizes.block_tokens) - len(request.blocks)

    def _release(self, request: SimulatedRequest) -> None:
        blocks, request.blocks = request.blocks, []
        self.pool.release(blocks)

    def _begin_load(self, request: SimulatedRequest, keys: Sequence[Key]) -> None:
        request.blocks += self.pool.take(len(keys))
        slots = self.manager.begin_load(keys)
        ends_s = self._load_lane.begin(self._bytes_of(keys), self.clock.now())
        content = [self._slots[slot] for slot in slots]
        self._loads.append(_Copy(request, list(keys), slots, content, ends_s))
        self._being_loaded.update(keys)
        request.copies += 1

    def _end_load(self, copy: _Copy) -> None:
        request, manager = copy.request, self.manager
        size_bytes = self._bytes_of(copy.keys)
        request.copies -= 1
        self._being_loaded -= Multiset(copy.keys)
        manager.speeds.from_host.record_copy(size_bytes, self._load_lane.copy_s(size_bytes))
        manager.record_load(request.name, size_bytes)
        manager.finish_load(copy.keys)
        if request.state is State.ENDED:
            self._release(request)
            return
        first = request.computed_tokens // self.sizes.block_tokens
        loaded = request.blocks[first : first + len(copy.keys)]
        for block, key, content, slot in zip(
            loaded, copy.keys, copy.content, copy.slots, strict=True
        ):
            # If the slot was overwritten while it was read, the copy is worthless.
            block.holds = content if self._slots[slot] == content else None
            self.pool.cache(block, key)
        reached = request.computed_tokens + len(copy.keys) * self.sizes.block_tokens
        request.computed_tokens = min(reached, request.tokens - 1)
        request.state = State.LOADED

    def _offer_to_host(self, request: SimulatedRequest) -> None:
        """Offer blocks of the request that were not offered before, in prompt order."""
        first, end = request.offered_blocks, request.computed_tokens // self.sizes.block_tokens
        keys = request.keys[first:end]
        if not keys:
            return
        request.offered_blocks = end
        stored = self.manager.begin_store(request.name, keys)
        if not stored:
            return
        held = dict(zip(keys, (block.holds for block in request.blocks[first:end]), strict=False))
        self._stores.append(
            _Copy(
                request,
                [key for key, _ in stored],
                [slot for _, slot in stored],
                [held[key] for key, _ in stored],
                self._store_lane.begin(self._bytes_of(stored), self.clock.now()),
            )
        )
        for _, slot in stored:
            self._slots[slot] = None  # incomplete until the copy ends
        request.copies += 1

    def _end_store(self, copy: _Copy) -> None:
        copy.request.copies -= 1
        for slot, content in zip(copy.slots, copy.content, strict=True):
            self._slots[slot] = content
        self.manager.finish_store(copy.keys)

    def _bytes_of(self, blocks: Sequence[object]) -> int:
        return len(blocks) * self.sizes.block_bytes
