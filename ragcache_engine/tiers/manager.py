"""The cache manager: one knowledge tree over the blocks of device, host and disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from itertools import accumulate
from typing import Generic

from ragcache_engine.knowledge import CostProfile, EvictionPolicy, KnowledgeTree, Node, Tier
from ragcache_engine.knowledge.request_queue import cached_ratio
from ragcache_engine.knowledge.tier import RANK, TIERS
from ragcache_engine.tiers.block_index import BlockIndex
from ragcache_engine.tiers.counters import BlocksByTier, Counters
from ragcache_engine.tiers.device_tier import DeviceTier
from ragcache_engine.tiers.disk.kept_files import KeptFile
from ragcache_engine.tiers.disk.naming import PLAIN, Naming
from ragcache_engine.tiers.disk.transfers import DiskTransfers
from ragcache_engine.tiers.disk_copying import DiskCopying
from ragcache_engine.tiers.disk_files import DiskFiles
from ragcache_engine.tiers.forgetting import Forgetting
from ragcache_engine.tiers.free_device_blocks import FreeDeviceBlocks
from ragcache_engine.tiers.host_copying import HostCopying
from ragcache_engine.tiers.host_slots import HostSlots
from ragcache_engine.tiers.kept import KeepOrder, Kept
from ragcache_engine.tiers.load_planning import (
    LoadPlanner,
    blocks_on_device,
    loadable_blocks,
)
from ragcache_engine.tiers.node_record import B, Key
from ragcache_engine.tiers.prompts import Prompt
from ragcache_engine.tiers.provenance import PromptSources, Reason, ReuseReport
from ragcache_engine.tiers.requests import RequestTable, TrackedRequest
from ragcache_engine.tiers.retention import Retention, ToKeep
from ragcache_engine.tiers.shared.transfers import SharedTransfers
from ragcache_engine.tiers.shared_copying import PATIENCE_S
from ragcache_engine.tiers.source_tracing import trace_sources
from ragcache_engine.tiers.speed import SHORTEST_STEP_TOKENS, ComputingSpeed, Speeds
from ragcache_engine.tiers.tree_snapshot import ServedRequest, TreeSnapshot
from ragcache_engine.tiers.tree_watch import IDLE_SLICES, TreeWatch, add_up

HOST = RANK[Tier.HOST]

Keepable = tuple[tuple[str, ...], str | None, Sequence[Prompt]]
"""Documents to keep together: their ids, their tenant, and the prompts that they are stored in."""

LEAST_PATIENCE_S = 1.0
"""A request waits so long for blocks from the disk, or as long as computing them would take if that is
longer. Then it computes what has not come."""


class Presence(Enum):
    """Whether the host tier can give a block."""

    HIT = auto()
    HIT_PENDING = auto()  # it is being copied into the host
    MISS = auto()


class CacheManager(Generic[B]):
    """Decides what to cache, load, store and overwrite for one vLLM engine; it holds no tensors itself.

    vLLM's scheduler tells the manager what happens to each request. The manager answers what is cached,
    what to load, what to store, and which block of device memory to overwrite next. One thread calls it;
    times come from the caller. The manager keeps no block itself: it asks its parts, and combines their
    answers where a question concerns several of them. Who owns which fact:

    | fact | owner |
    |---|---|
    | which block of device memory holds what, and who computes with it | vLLM's block pool |
    | which device blocks are free, in which order | FreeDeviceBlocks, led by DeviceTier |
    | which nodes there are, who pins them, how many of their blocks are in which tier | KnowledgeTree |
    | where each of those blocks lies: device block, host slot, file | BlockIndex, one record a node |
    | which requests wait and run, and what they pin | RequestTable |
    | which host slots are free or being copied | HostSlots |
    | which files the tree decides over | DiskFiles |
    | which copies are under way | HostCopying, DiskCopying |
    | how fast this machine computes and copies | Speeds |
    | which requests still compute with forgotten documents | Forgetting |
    | which documents are kept, where, and until when | Retention |

    policy: makes each tier's eviction policy. block_tokens: tokens in a block.
    block_bytes: bytes of one block in a slower tier. host: the host tier's slots.
    disk_blocks: blocks the disk tier may hold. profile: what prefills cost; None for a default.
    protect: how many of the waiting requests keep their nodes from eviction.
    quotas: how many blocks of a tier one tenant may take with its users; no limit in a tier left out.
    naming: names the files of the disk tier; None without one.
    Source: RAGCache, §5.1, §5.2, Algorithm 1.
    """

    def __init__(
        self,
        *,
        policy: Callable[[], EvictionPolicy],
        block_tokens: int,
        block_bytes: int,
        host: HostSlots,
        disk_blocks: int = 0,
        profile: CostProfile | None = None,
        protect: int = 32,
        quotas: Mapping[Tier, int] | None = None,
    ) -> None:
        self.block_tokens = block_tokens
        self.counters = Counters()
        self.speeds = Speeds(ComputingSpeed(profile))
        self._protect = protect
        self._pool: FreeDeviceBlocks[B] = FreeDeviceBlocks()
        self._files = DiskFiles()
        self.naming: Naming | None = None
        self._marks: dict[str, str] = {}  # of known documents and tenants, by id
        self.index: BlockIndex[B] = BlockIndex(
            policy,
            block_tokens,
            counters=self.counters,
            device=self._pool,
            host=host,
            files=self._files,
            disk_blocks=disk_blocks,
            quotas=quotas,
        )
        self.tree: KnowledgeTree = self.index.tree
        self._requests: RequestTable[B] = RequestTable(self.index)
        self.device: DeviceTier[B] = DeviceTier(self.index, self._requests)
        self._disk: DiskCopying[B] = DiskCopying(self.index, self.speeds)
        self._host: HostCopying[B] = HostCopying(self.index, self._disk, block_bytes)
        self._planner = LoadPlanner(block_tokens, block_bytes, self.speeds)
        self._retention: Retention[B] = Retention(self.index, self._disk)
        self._forgetting: Forgetting[B] = Forgetting(self.index, self._requests, self._retention)
        self._watch = TreeWatch(self.index.list_nodes)

    def attach_device(
        self,
        free: Iterable[B],
        *,
        key_of: Callable[[B], Key | None],
        cached_block: Callable[[Key], B | None],
        drop_cached: Callable[[Iterable[B]], None],
    ) -> None:
        """Decide over these blocks of device memory, all of them free; `device` gives them out.

        key_of: returns the key of what a block holds; None for an empty block. cached_block: returns a
          block that holds this now, in use or free; None if there is none. drop_cached: makes vLLM
          forget what blocks hold.
        """
        blocks = list(free)
        self.tree.set_capacity(Tier.DEVICE, len(blocks))
        self._pool.attach(blocks, key_of, cached_block, drop_cached)

    def attach_disk(
        self,
        transfers: DiskTransfers,
        naming: Naming = PLAIN,
        shared: SharedTransfers | None = None,
    ) -> None:
        """Keep blocks on disk as well.

        naming: marks documents there. shared: what several hosts share, below their disks.
        """
        self._files.transfers = transfers
        self.naming = self._disk.naming = naming
        self._disk.shared.transfers = shared

    def knows_file(self, name: str) -> bool:
        """Return whether the tree decides over this file. Any thread."""
        return self._files.knows(name)

    # -- requests ----------------------------------------------------------------------------------

    def add_request(
        self,
        name: str,
        prompt: Prompt,
        *,
        guess: str | None = None,
        donors: Sequence[Prompt] = (),
        in_place: Sequence[str] = (),
        is_donor: bool = False,
        is_packed: bool = False,
        stored_blocks: int | None = None,
        withdrawn: Sequence[str] = (),
    ) -> None:
        """Track a request that begins to wait.

        guess: the id that adopts it; None if it is no guess. donors: the prompts from which it borrows;
          its own prompt then ends where borrowing begins. in_place: its documents behind that which it
          computes itself. is_donor: whether it only fetches a donor. is_packed: whether that is packed.
        stored_blocks: how many of its leading blocks may go to slower tiers; None: all.
        withdrawn: documents that were forgotten since the request was planned.
        """
        self._apply_tombstones()  # after a pause, vLLM looks up before it takes a step
        request = TrackedRequest(
            name,
            prompt,
            guess,
            donors=donors,
            in_place=in_place,
            is_donor=is_donor,
            is_packed=is_packed,
            stored_blocks=stored_blocks,
        )
        self._requests.add(request)
        if withdrawn:
            self._forgetting.withdraw(request, frozenset(withdrawn))
        if self._requests.pinned < self._protect:
            self._protect_path(request)

    def keep(self, name: str) -> None:
        """Keep what a waiting request needs, its donors among it, from eviction as far as possible."""
        self._protect_path(self._requests[name])

    def sources(self, name: str) -> PromptSources | None:
        """Return where the request's prompt came from; None if it never ran."""
        request = self._requests.get(name)
        return request.sources if request else None

    def cached_ratio(self, name: str) -> float | None:
        """Return the request's cached tokens over those to compute, as of now; None if it is not
        tracked.

        The ratio is infinite for a request with cached tokens and less left to compute than a short
        step. Such requests go by arrival: for them the quotient says nothing, and it would let all
        newcomers overtake a request that has a few more tokens to compute.
        """
        request = self._requests.get(name)
        if request is None:
            return None
        self._protect_path(request)
        return self._weigh(request, self._count_leading(request.nodes))

    def estimate_cached_ratio(self, name: str) -> float | None:
        """Return about what `cached_ratio` does, but pin nothing and read nothing from disk for it.

        Of documents that are partly cached only those that are pinned count.
        """
        request = self._requests.get(name)
        if request is None:
            return None
        if request.nodes:
            return self._weigh(request, self._count_leading(request.nodes))
        cached = 0
        for cut in request.prompt.cuts:
            if not self.holds(request.prompt.keys[cut.end - 1]):
                break
            cached = cut.end
        return self._weigh(request, cached)

    def _weigh(self, request: TrackedRequest, cached: int) -> float:
        """Return a request's cached ratio. cached: its leading blocks that are cached."""
        cached += sum(map(self._count_lent, request.donors[1:]))
        tokens = min(cached * self.block_tokens, request.prompt.tokens - 1)
        left = request.prompt.tokens - tokens
        return cached_ratio(tokens, 0 if tokens and left < SHORTEST_STEP_TOKENS else left)

    def donors(self, name: str) -> Sequence[Prompt]:
        """Return the prompts from which a request borrows; one that is to be forgotten has no cuts."""
        return self._requests[name].donors

    def make_packed(self, name: str, donor: Prompt) -> None:
        """Note that a packed donor is made from another one, as the tiers do not have all of it."""
        request = self._requests[name]
        self._requests.unpin(request)
        request.donors = [donor if request.prompt.cuts else donor.before(0)]  # or it is forgotten
        request.load_blocks = 0
        self._pin(request)

    def hide_on_device(self, name: str) -> None:
        """Make vLLM find nothing on the device of the request's own prompt."""
        request = self._requests[name]
        for node in request.nodes:
            self.index.release(self.tree.drop(node, Tier.DEVICE), are_evictions=False)
        self._pool.hide(request.prompt.keys)

    def note_donor(self, donor: str, borrower: str) -> None:
        """Note that a request, just added, computes a donor for another one."""
        self._forgetting.note_donor(donor, borrower)

    def plan_admission(self, name: str, device_tokens: int, now_s: float) -> None:
        """Decide what to load for a request that the scheduler tries to admit; `lookup` follows this
        plan.

        device_tokens: how many of the request's leading tokens are in device memory.
        """
        request = self._requests[name]
        self._pin(request)
        self._requests.admitting = name
        if not request.awaits_copies:
            # Since the last try it has waited for something else, such as device memory.
            request.load_asked_s = None
        request.device_blocks = device_tokens // self.block_tokens
        self._plan_loads(request, is_urgent=True)
        if not request.is_planned and not request.awaits_answers:
            request.is_planned = True
            self._planner.note_passed_over(request)
            if request.is_trial:
                self._plan_loads(request, is_urgent=True)
        if request.load_blocks and request.load_asked_s is None:
            request.load_asked_s = now_s
            request.loads_alone = not self._requests.is_any_other_running(request)
        coming = self._find_coming(request)
        request.awaits_copies = coming is not None
        if request.awaits_answers:
            request.asked_s = now_s if request.asked_s is None else request.asked_s
            request.awaits_answers = now_s - request.asked_s < PATIENCE_S
        if coming is not None:
            self._limit_wait(request, now_s, coming)

    def holds(self, key: Key) -> bool:
        """Return whether any tier has the block of this key."""
        found = self.index.owner(key)
        if found is not None and found[1] < max(found[0].resident):
            return True
        return self._pool.cached_block(key) is not None

    def touch_if_cached(self, prompts: Sequence[Prompt], *, is_guess: bool = False) -> bool:
        """Count a use of these prompts' documents if every block to be kept of them is in some tier.

        is_guess: whether nobody asks for them yet; then no use is counted.
        Files that earlier processes left count as held, and the tree decides over them from now on.
        Returns False, and counts nothing, if a block is missing.
        """
        self._apply_tombstones()
        asked = [
            TrackedRequest(f"looked up {place}", prompt) for place, prompt in enumerate(prompts)
        ]
        for request in asked:
            self._pin(request)
        used = dict.fromkeys(node for request in asked for node in request.nodes)
        # Each block: of a document forgotten while it was computed, the device may have the last ones.
        held = all(self.holds(key) for node in used for key in self.index.record(node).keys)
        if held and not is_guess:
            self.tree.record_use(used, len(used), 0.0)
        for request in asked:
            if held:
                self._disk.offer(request.nodes)
            self._requests.unpin(request)
        return held

    def lookup(self, name: str, key: Key) -> Presence:
        """Tell whether the host can give the request a block that the device lacks."""
        request = self._requests.get(name)
        found = self.index.owner(key)
        if request is None or found is None:
            return Presence.MISS
        if request.awaits_answers:
            return Presence.HIT_PENDING
        node, at = found
        if at >= node.resident[HOST]:
            return Presence.MISS
        place = node.end // self.block_tokens - node.blocks + at
        if place >= request.device_blocks + request.load_blocks:
            return Presence.MISS  # computing it is quicker
        return Presence.HIT_PENDING if self.index.host.is_filling(key) else Presence.HIT

    def record_admission(self, name: str, loaded_tokens: int, now_s: float) -> None:
        """Note that the request has its device memory, and how many tokens are being loaded into it.

        A request that loads is admitted again when they have come; then it computes.
        """
        request = self._requests[name]
        request.is_running = True
        for other in self._requests:
            if other is not request:  # this one's step may end after its copies
                other.loads_alone = False
        self._hold_on_device(request)
        if request.donors:
            loaded_tokens = 0  # what it borrows is copied on the device
        if request.cached_tokens is None:
            request.cached_tokens = self._cached_tokens(request, loaded_tokens)
            request.sources = trace_sources(request, loaded_tokens, self.index)
        if not loaded_tokens:
            self._end_load_wait(request, now_s)

    def cached_tokens(self, name: str) -> dict[Tier, int]:
        """Return a request's cached tokens by tier, as of its first admission; empty before."""
        request = self._requests.get(name)
        return (request.cached_tokens if request else None) or {}

    def set_cached_tokens(
        self, name: str, tokens: dict[Tier, int], reasons: Mapping[str, Reason]
    ) -> None:
        """Correct what a request that borrows had cached: its donors came before it.

        tokens: exact ones from the prompt's beginning, by tier. reasons: why documents were
          computed for the request, in its donors.
        """
        request = self._requests[name]
        request.cached_tokens = tokens
        ends = accumulate(tokens[tier] for tier in TIERS)
        runs = [(end, tier.value) for end, tier in zip(ends, TIERS, strict=True) if tokens[tier]]
        request.sources = PromptSources(tuple(runs), reasons)

    def requeue(self, name: str) -> None:
        """Note that the request was preempted: from now on its nodes may be unpinned to make room."""
        if request := self._requests.get(name):
            request.is_running = False
            request.load_asked_s, request.loaded_bytes = None, 0  # it may have waited for blocks

    def finish_request(
        self, name: str, *, completed: bool, reuse: ReuseReport | None = None
    ) -> dict[str, int] | None:
        """Track a request no longer; return its cached tokens by tier, None if it never ran.

        completed: whether it has its answer. An aborted request does not count as a use of its
          documents. reuse: what it borrowed.
        """
        request = self._requests.pop(name)
        if request is None:
            return None
        self.counters.ended += 1
        self._note_fill()
        if completed and request.cached_tokens is not None:
            self._pin(request)
            self._count_tokens(request, request.cached_tokens, reuse)
            if request.is_donor:
                pass  # those who borrow count as uses of its documents
            elif request.guess is None:
                self._record_use(request)
            else:
                self._requests.keep_guess(request.guess, request)
            self._disk.offer(request.nodes)
        self._requests.unpin(request)
        self._disk.cancel_reads(request)
        self._forgetting.end_request(name)
        return _by_name(request.cached_tokens)

    def count_begun(self, name: str, reuse: ReuseReport | None) -> dict[str, int] | None:
        """Count the tokens of a request whose answer has begun; return as `finish_request` does.

        For an answer whose end may come too late to tell. `finish_request` counts them no more.
        """
        request = self._requests.get(name)
        if request is None or request.cached_tokens is None:
            return None
        self._note_fill()
        self._count_tokens(request, request.cached_tokens, reuse)
        return _by_name(request.cached_tokens)

    def adopt_guesses(self, guesses: Iterable[str]) -> None:
        """Count guesses that somebody asked for as uses of their documents, now or when they end."""
        for guess in guesses:
            if request := self._requests.adopt_guess(guess):
                self._pin(request)
                self._record_use(request)
                self._requests.unpin(request)

    def is_withdrawn(self, name: str) -> bool:
        """Return whether the request computes with documents that were forgotten meanwhile."""
        return self._forgetting.is_withdrawn(name)

    def add_scheduling_time(self, name: str, seconds: float) -> None:
        """Count scheduling time that RAGCache added to the request."""
        if request := self._requests.get(name):
            request.scheduling_s += seconds

    # -- between device and host -------------------------------------------------------------------

    def begin_load(self, keys: Iterable[Key]) -> list[int]:
        """Return the slots to copy blocks from; the slots keep their content until `finish_load`."""
        return self._host.begin_load(keys)

    def finish_load(self, keys: Iterable[Key]) -> None:
        """Note that blocks have been copied to the device."""
        self._host.finish_load(keys)

    def record_load(self, name: str, loaded_bytes: int) -> None:
        """Note that a request's load has ended."""
        if request := self._requests.get(name):
            request.loaded_bytes = loaded_bytes

    def begin_store(self, name: str, keys: Sequence[Key]) -> list[tuple[Key, int]]:
        """Choose which blocks of the request, just computed, to copy into which slots.

        keys: in prompt order. Blocks that the host has are not copied again.
        """
        request = self._requests.get(name)
        if request is not None and request.stored_blocks is not None:
            kept = {*request.prompt.keys[: request.stored_blocks]}
            keys = [key for key in keys if key in kept]
        return self._host.begin_store(request, keys)

    def finish_store(self, keys: Iterable[Key]) -> None:
        """Note that blocks have been copied to the host."""
        self._host.finish_store(keys)

    # -- between host and disk ---------------------------------------------------------------------

    def step(self) -> None:
        """Take in what the disk has done. Call this once in each step of the scheduler."""
        self._host.step()
        self._retention.step()
        if self._disk.is_attached:
            self._disk.collect()
            self._apply_tombstones()
        if self._watch.is_looking:
            self._watch.advance()

    def collect_disk_results(self) -> None:
        """Take in the disk's reads and writes that have ended since the last call."""
        self._disk.collect()

    @property
    def is_reading_disk(self) -> bool:
        """Whether blocks that requests may wait for are on their way from the disk."""
        return self._disk.is_reading

    @property
    def is_writing_disk(self) -> bool:
        """Whether blocks are on their way to the disk."""
        return self._disk.is_writing

    def flush_to_disk(self) -> None:
        """Offer the disk, before the end, the blocks that only the host has, the most used first."""
        self._disk.offer_all()

    # -- forgetting and clearing -------------------------------------------------------------------

    def forget(self, documents: Iterable[str], tombstones: Mapping[str, int] | None = None) -> None:
        """Drop documents from every tier, with all blocks computed after them.

        No later request finds any of them. Requests that compute with them now compute to their end.
        tombstones: the times of the documents' tombstones in the disk's folder, by mark, if the caller
          removes the files. Else the disk tier does, those of earlier lives and other engines too.
        """
        names = list(documents)
        self._forgetting.forget(names)
        if tombstones is None:
            self._disk.forget_files(names)
        else:
            self._disk.note_forgotten(tombstones)

    def clear_device(self) -> None:
        """Note that all blocks of device memory are empty."""
        self.device.clear()

    def clear_host(self) -> None:
        """Empty the host. Copies to and from the device that still run will not be reported."""
        self._host.clear()

    def _apply_tombstones(self) -> None:
        """Forget what other engines on the disk's folder have forgotten lately."""
        if self.naming and (times := self._disk.take_forgotten()):
            ids = {*self.index.documents(), *self.index.forget_ids()}
            for gone in self._marks.keys() - ids:
                del self._marks[gone]
            for new in ids - self._marks.keys():  # marks are digests, and there may be many
                self._marks[new] = self.naming.mark(new)
            self.forget([one for one, mark in self._marks.items() if mark in times], times)

    # -- keeping -----------------------------------------------------------------------------------

    def keep_documents(self, order: KeepOrder, wanted: Sequence[Keepable]) -> list[Kept]:
        """Keep sets of documents from eviction, all or none, and offer the disk what it lacks of them.

        Returns what is kept of each, and how much of it the tier has now. The caller computes the rest.
        Raises NoRoomToKeep.
        """
        self._apply_tombstones()
        self._retention.end_those_due()
        asked = [
            [TrackedRequest(f"kept {at} {place}", one) for place, one in enumerate(prompts)]
            for at, (_, _, prompts) in enumerate(wanted)
        ]
        pinned = [request for each in asked for request in each]
        try:
            for request in pinned:  # all, before their paths are read: each may cut those before it
                self._pin(request)
            kept = self._retention.keep(
                order,
                [
                    ToKeep(documents, tenant, [one.nodes for one in each], file)
                    for (documents, tenant, prompts), each in zip(wanted, asked, strict=True)
                    for file in [self._describe_kept(documents, tenant, prompts)]
                ],
            )
            for request in pinned:
                self._disk.offer(request.nodes)
            return kept
        finally:
            for request in pinned:
                self._requests.unpin(request)

    def release_documents(self, documents: tuple[str, ...], tenant: str | None) -> None:
        """Keep a set of documents no longer. Nothing happens if it is not kept."""
        self._retention.release(documents, tenant)

    def kept_documents(self) -> list[Kept]:
        """Return what is kept, in the order in which that was asked for."""
        self.collect_disk_results()
        return self._retention.kept()

    def _describe_kept(
        self, documents: tuple[str, ...], tenant: str | None, prompts: Sequence[Prompt]
    ) -> KeptFile | None:
        """Return what others on the disk's folder are told of kept documents."""
        name = self._disk.name_kept(documents, tenant)
        if name is None:
            return None
        marks = dict.fromkeys(mark for one in prompts for each in one.marks for mark in each)
        files = [
            file
            for one in prompts
            for file in one.file_names[: one.cuts[-1].end if one.cuts else 0]
        ]
        return KeptFile(name, None, tuple(marks), tuple(dict.fromkeys(files)))

    # -- observing ---------------------------------------------------------------------------------

    def snapshot(
        self,
        documents: int,
        *,
        waiting: int = 0,
        running: int = 0,
        requests: Iterable[ServedRequest] = (),
        with_bloom_filter: bool = False,
    ) -> TreeSnapshot:
        """Return what an observer is told, with at most this many documents.

        waiting, running, requests: as in TreeSnapshot; the caller knows them. with_bloom_filter: whether
        it has a Bloom filter, if it needs one.
        """
        watch, tree = self._watch, self.tree
        watch.look(1 if waiting or running else IDLE_SLICES)
        listed, cut = watch.documents[:documents], watch.documents[documents:]
        return TreeSnapshot(
            documents=listed,
            other_documents=watch.others + len(cut),
            other_blocks=add_up([watch.other_blocks, *(each.blocks for each in cut)]),
            unnamed_blocks=watch.unnamed_blocks,
            nodes=len(tree),
            waiting=waiting,
            running=running,
            disk=self._disk.state,
            disk_reads=self._disk.pending_reads,
            disk_writes=self._disk.pending_writes,
            held=BlocksByTier(*map(tree.used, TIERS)),
            capacity=BlocksByTier(*map(tree.capacity, TIERS)),
            block_tokens=self.block_tokens,
            requests=tuple(requests),
            bloom_filter=watch.bloom_filter if with_bloom_filter else None,
            age_s=watch.age_s,
        )

    # -- inside ------------------------------------------------------------------------------------

    def _count_held(self, node: Node) -> int:
        """Count the node's leading blocks that some tier holds."""
        here = max(node.resident)
        if here < node.blocks and self._pool.cached_block(self.index.record(node).keys[-1]):
            return node.blocks
        return here

    def _count_leading(self, nodes: Iterable[Node]) -> int:
        """Count the blocks that some tier holds, from the first node on without a gap."""
        cached = 0
        for node in nodes:
            here = self._count_held(node)
            cached += here
            if here < node.blocks:
                break
        return cached

    def _count_lent(self, donor: Prompt) -> int:
        """Count the blocks of a donor's document, if the device has them."""
        if not donor.cuts or not self._pool.cached_block(donor.keys[-1]):
            return 0
        if donor.lent_blocks is not None:
            return donor.lent_blocks
        before = donor.cuts[-2].end if len(donor.cuts) > 1 else 0
        return donor.cuts[-1].end - before

    def _pin(self, request: TrackedRequest) -> None:
        if self._requests.pin(request):
            self._disk.name_files(request)

    def _protect_path(self, request: TrackedRequest) -> None:
        """Keep a waiting request's nodes from eviction, and fetch them from the disk."""
        if not request.nodes:
            self._pin(request)
            if self._disk.is_attached:
                request.device_blocks = blocks_on_device(request)
                self._plan_loads(request)

    def _plan_loads(self, request: TrackedRequest, *, is_urgent: bool = False) -> None:
        if request.donors:
            return  # its donors are loaded for it, its own first document among them
        is_busy = self._requests.is_any_other_running(request)
        others = len(self._requests) - 1 if is_busy else 0
        disk_queue, shared_queue = None, None
        if not request.has_given_up:
            disk_queue = self._disk.queued_reads
            shared_queue = self._ask_store(request, others)
        self._planner.plan(request, others=others, disk_queue=disk_queue, shared_queue=shared_queue)
        if disk_queue is not None or shared_queue is not None:
            self._disk.fetch(request, is_urgent=is_urgent)

    def _ask_store(self, request: TrackedRequest, others: int) -> int | None:
        """Find out what the shared store has of the request, once; return how many reads wait there.

        Returns None if nothing is to be read from there now.
        """
        shared = self._disk.shared
        if shared.queued_reads is None:
            request.awaits_answers = False
            return None
        if not request.has_asked:
            request.has_asked = True
            ends = shared.list_ends(request)
            if ends and self._planner.is_worth_asking(request, ends[-1], others=others):
                shared.ask(request, ends)
        held = request.device_blocks + loadable_blocks(request, with_disk=True)
        shared.look(request, held)
        return shared.queued_reads

    def _end_load_wait(self, request: TrackedRequest, now_s: float) -> None:
        """Measure how long the request waited for what it computes with from now on.

        That is longer than the copying: vLLM looks for ended copies between steps, and lets the request
        compute in a step after that.
        """
        if request.loaded_bytes and request.load_asked_s is not None and request.loads_alone:
            copying = self.speeds.from_disk if request.from_disk else self.speeds.from_host
            if request.from_shared:
                copying = self.speeds.from_shared
            copying.record_wait(request.loaded_bytes, now_s - request.load_asked_s)
        request.load_asked_s, request.loaded_bytes = None, 0

    def _find_coming(self, request: TrackedRequest) -> int | None:
        """Return which of the blocks to load is the first on its way to the host; None if none is."""
        if not request.load_blocks:
            return None
        first, upto = request.device_blocks, request.device_blocks + request.load_blocks
        wanted = enumerate(request.prompt.keys[first:upto])
        return next((at for at, key in wanted if self.index.host.is_filling(key)), None)

    def _limit_wait(self, request: TrackedRequest, now_s: float, coming: int) -> None:
        """Let a request that has waited too long for its blocks compute those that have not come.

        coming: the first of the blocks to load that has not come.
        """
        if request.load_asked_s is None:
            return
        waited_s = now_s - request.load_asked_s
        cached = request.device_blocks * self.block_tokens
        computing_s = self.speeds.computing.prefill_s(cached, request.prompt.tokens - cached)
        if waited_s <= max(LEAST_PATIENCE_S, computing_s):
            return
        request.load_blocks = coming
        if not request.has_given_up:
            request.has_given_up = True
            if request.loads_alone:
                speeds = self.speeds
                copying = speeds.from_shared if request.from_shared else speeds.from_disk
                copying.record_wait(0, waited_s)

    def _hold_on_device(self, request: TrackedRequest) -> None:
        """Tell the tree which blocks of the request's prompt the device has.

        Blocks on their way to the device count later, once they are offered to the host: until then the
        request may be aborted.
        """
        blocks = request.device_blocks
        for node in request.nodes:
            here = min(node.blocks, blocks)
            self.tree.hold(node, Tier.DEVICE, here)
            blocks -= here
            if here < node.blocks:
                break

    def _cached_tokens(self, request: TrackedRequest, loaded_tokens: int) -> dict[Tier, int]:
        """Count cached tokens by tier, without the prompt's last token, which is always computed."""
        first, here = request.device_blocks, request.device_blocks * self.block_tokens
        keys = request.prompt.keys[first : first + -(-loaded_tokens // self.block_tokens)]
        disk_blocks = sum(key in request.from_disk for key in keys)
        request.shared_tokens = self.block_tokens * sum(key in request.from_shared for key in keys)
        loaded = min(loaded_tokens, request.prompt.tokens - 1 - here)
        disk_tokens = min(disk_blocks * self.block_tokens, loaded)
        return {Tier.DEVICE: here, Tier.HOST: loaded - disk_tokens, Tier.DISK: disk_tokens}

    def _record_use(self, request: TrackedRequest) -> None:
        cached = sum((request.cached_tokens or {}).values())
        computed = request.prompt.tokens - cached
        seconds = self.speeds.computing.prefill_s(cached, computed) if computed > 0 else 0.0
        blocks, cached_nodes = cached // self.block_tokens, 0
        for node in request.nodes:
            blocks -= node.blocks
            if blocks < 0:
                break
            cached_nodes += 1
        used = dict.fromkeys(node for path in request.paths() for node in path)
        self.tree.record_use(used, cached_nodes, seconds / computed if computed > 0 else 0.0)

    def _note_fill(self) -> None:
        """Note in the counters how full the tiers are, and what the disk can do."""
        counters, tree = self.counters, self.tree
        for tier in TIERS:
            counters.held[tier.value] = tree.used(tier)
            counters.capacity[tier.value] = tree.capacity(tier)
            counters.kept[tier.value] = tree.kept(tier)
        counters.disk = self._disk.state

    def _count_tokens(
        self, request: TrackedRequest, tokens: dict[Tier, int], reuse: ReuseReport | None
    ) -> None:
        if request.is_counted:
            return
        request.is_counted = True
        counters = self.counters
        if request.is_packed:
            return  # whoever asks for it computes nothing
        if request.is_donor:
            missing = request.prompt.tokens - sum(tokens.values())
            # One that lacks no whole block ends once it is loaded.
            counters.donor_tokens += missing if missing >= self.block_tokens else 0
            return
        counters.device_tokens += tokens[Tier.DEVICE]
        counters.host_tokens += tokens[Tier.HOST]
        counters.disk_tokens += tokens[Tier.DISK]
        counters.shared_tokens += min(tokens[Tier.DISK], request.shared_tokens)
        counters.computed_tokens += request.prompt.tokens - sum(tokens.values())
        if reuse is not None:
            borrowed = sum(reuse.borrowed_by_tier.values())
            counters.borrowed_tokens += borrowed
            counters.computed_tokens -= borrowed
            counters.recomputed_tokens += reuse.recomputed_tokens
        counters.recomputed_blocks += request.passed_over_blocks
        counters.add_scheduling(request.scheduling_s)

    # -- checking ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError unless tree, records, slots and files agree. For tests: O(blocks)."""
        self.index.check()
        self._retention.check()

    def check_idle(self) -> None:
        """Raise AssertionError unless all requests and copies have ended and left nothing. For tests."""
        self.check()
        self._requests.check_idle()
        self._host.check_idle()
        self._disk.check_idle()
        self.index.host.check_idle()
        assert not len(self._forgetting)


def _by_name(tokens: dict[Tier, int] | None) -> dict[str, int] | None:
    return None if tokens is None else {tier.value: count for tier, count in tokens.items()}
