"""The cache manager under everything vLLM may do to it, in any order.

vLLM is played here: a block pool, a scheduler that admits, preempts and ends requests, copies between
device and host that take place some time after they were asked for, and a disk that answers late and
not always well. Every block, slot and file has content: the key of what lies in it. So a block handed
out before its time, a slot overwritten while it is read, or a file under another's name all show as
wrong content.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import pytest
from every_policy import policy_for_tree
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from thoroughness import examples

from ragcache_engine.knowledge import Node, Tier
from ragcache_engine.knowledge.tier import RANK
from ragcache_engine.tiers.disk.kept_files import KeptFile
from ragcache_engine.tiers.disk.naming import PLAIN
from ragcache_engine.tiers.disk.transfers import BlockCopy, FinishedCopy
from ragcache_engine.tiers.host_copying import STEPS_TO_FLUSH
from ragcache_engine.tiers.host_slots import HostSlots
from ragcache_engine.tiers.kept import KeepOrder, NoRoomToKeep
from ragcache_engine.tiers.manager import CacheManager, Presence
from ragcache_engine.tiers.prompts import Prompt, describe_prompt
from ragcache_engine.tiers.speed import PASSED_OVER_TO_TRY

BLOCK_TOKENS = 4
DEVICE, HOST, DISK = (RANK[tier] for tier in Tier)

TEXTS = {
    # Tokens of each document: some end with a block, some within one, and one may own none.
    "S": [1] * 5,
    "A": [2] * 8,
    "B": [3] * 7,
    "C": [4] * 2,
    "D": [5] * 13,
}
HALF_OVER = b"half over"
"""What lies in a slot while it is copied to."""


def keys_of(token_ids: Sequence[int]) -> list[bytes]:
    """As vLLM names blocks: by all tokens up to their end."""
    keys, reached = [], b""
    for block in range(len(token_ids) // BLOCK_TOKENS):
        tokens = token_ids[block * BLOCK_TOKENS : (block + 1) * BLOCK_TOKENS]
        reached = blake2b(reached + bytes(tokens), digest_size=8).digest()
        keys.append(reached)
    return keys


# -- vLLM's block pool -----------------------------------------------------------------------------


@dataclass(eq=False)
class Block:
    """A block of device memory. key: what vLLM's prefix cache finds it by. holds: what is in it."""

    block_id: int
    key: bytes | None = None
    holds: bytes | None = None
    users: int = 0


class Pool:
    """vLLM's block pool over the manager's order: what FreeBlocks and BlockPool do together."""

    def __init__(self, cache: CacheManager[Block], count: int) -> None:
        self.blocks = [Block(number) for number in range(count)]
        self.free_count = count
        self._by_key: dict[bytes, dict[int, Block]] = {}
        cache.attach_device(
            self.blocks,
            key_of=lambda block: block.key,
            cached_block=self.find,
            drop_cached=lambda blocks: [self._uncache(block) for block in blocks],
        )
        self._free = cache.device

    def find(self, key: bytes) -> Block | None:
        return next(iter(self._by_key.get(key, {}).values()), None)

    def has(self, key: bytes) -> bool:
        return self.find(key) is not None

    def longest(self, keys: Sequence[bytes]) -> list[Block]:
        """The blocks of the longest cached chain."""
        chain = []
        for key in keys:
            if not self.has(key):
                break
            chain.append(next(iter(self._by_key[key].values())))
        return chain

    def touch(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if not block.users:
                self._free.claim(block)
                self.free_count -= 1
            block.users += 1

    def new(self, count: int) -> list[Block]:
        assert count <= self.free_count
        self.free_count -= count
        taken = self._free.take(count)
        assert len(taken) == count
        assert len({block.block_id for block in taken}) == count, "one block for two"
        for block in taken:
            assert not block.users, "a block somebody computes with was given away"
            self._uncache(block)
            block.users, block.holds = 1, None
        return taken

    def free(self, blocks: Sequence[Block]) -> None:
        """From the last to the first; those that hold nothing to find come first of all."""
        unused = []
        for block in reversed(blocks):
            block.users -= 1
            if not block.users:
                unused.append(block)
        for group in (
            [block for block in unused if block.key is None],
            [block for block in unused if block.key is not None],
        ):
            self._free.return_blocks(group)
            self.free_count += len(group)

    def cache(self, block: Block, key: bytes) -> None:
        if block.key is None:
            block.key = key
            self._by_key.setdefault(key, {})[block.block_id] = block

    def reset(self) -> None:
        self._by_key.clear()
        for block in self.blocks:
            block.key = None

    def check(self) -> None:
        free = [block.block_id for block in self._free.free_blocks()]
        assert len(free) == len(set(free)) == len(self._free) == self.free_count
        assert set(free) == {block.block_id for block in self.blocks if not block.users}

    def _uncache(self, block: Block) -> None:
        if block.key is not None:
            found = self._by_key[block.key]
            del found[block.block_id]
            if not found:
                del self._by_key[block.key]
            block.key = None


# -- a disk that answers late ----------------------------------------------------------------------


class LateDisk:
    """The face of DiskTransfers. Copies take place, in order, when `read_next` or `write_next` says."""

    def __init__(self, slots: list[bytes | None]) -> None:
        self.slots = slots
        self.files: dict[str, bytes] = {}
        self.marks: dict[str, set[str]] = {}  # of each file
        self.stolen: set[str] = set()  # files that another engine has removed
        self.named: dict[str, bytes] = {}  # which block each name is for
        self.is_writable = True
        self.is_stalled = False
        self.has_begun_all = False  # then no read can be taken back
        self.hastened: list[str] = []
        self.forgotten: dict[str, int] = {}
        self.noted: dict[str, int] = {}
        self.kept: dict[str, KeptFile] = {}
        self.pending_reads = self.pending_writes = 0
        self.reads: deque[BlockCopy] = deque()
        self.writes: deque[BlockCopy | str | tuple[Sequence[str], Sequence[str]]] = deque()
        self._finished: list[FinishedCopy] = []

    def holds(self, name: str) -> bool:
        latest = [each for each in self.writes if name in (each, getattr(each, "name", None))]
        return name in self.files and not (latest and latest[-1] == name)

    @property
    def queued_reads(self) -> int:
        return len(self.reads)

    def read(self, copy: BlockCopy, *, is_urgent: bool = False) -> None:
        self.pending_reads += 1
        self.slots[copy.slot] = HALF_OVER
        self.reads.append(copy)

    def hasten(self, name: str) -> None:
        self.hastened.append(name)

    def cancel_read(self, name: str) -> bool:
        for copy in self.reads:
            if copy.name == name and not self.has_begun_all:
                self.reads.remove(copy)
                self.pending_reads -= 1
                return True
        return False

    def take_forgotten(self) -> dict[str, int]:
        forgotten, self.forgotten = self.forgotten, {}
        return forgotten

    def forget_files(self, documents: Sequence[str]) -> None:
        pass

    def note_forgotten(self, times: Mapping[str, int]) -> None:
        self.noted.update(times)

    def keep_files(self, kept: KeptFile) -> None:
        self.kept[kept.name] = kept

    def release_files(self, name: str) -> None:
        self.kept.pop(name, None)

    def count_kept_elsewhere(self, but: Iterable[str]) -> int:
        return 0

    def write(self, copy: BlockCopy) -> None:
        self.pending_writes += 1
        self.writes.append(copy)

    def add_marks(self, names: Sequence[str], marks: Sequence[str]) -> None:
        self.writes.append((names, marks))

    def remove(self, name: str) -> None:
        self.writes.append(name)

    def take_finished(self) -> list[FinishedCopy]:
        done, self._finished = self._finished, []
        for each in done:
            if each.is_read:
                self.pending_reads -= 1
            else:
                self.pending_writes -= 1
        return done

    def read_next(self, failure: str | None = None) -> None:
        copy = self.reads.popleft()
        if copy.name not in self.files:
            failure = "missing"
        elif failure == "damaged":
            self.stolen.add(copy.name)
            del self.files[copy.name]
        if failure is None:
            self.slots[copy.slot] = self.files[copy.name]
        self._finished.append(FinishedCopy(copy, True, 0 if failure else 100, 1e-4, failure))

    def write_next(self, failure: str | None = None) -> None:
        copy = self.writes.popleft()
        if isinstance(copy, str):
            self.files.pop(copy, None)
            self.marks.pop(copy, None)
            return
        if isinstance(copy, tuple):
            for name in self.files.keys() & set(copy[0]):
                self.marks.setdefault(name, set()).update(copy[1])
            return
        assert self.slots[copy.slot] == self.named[copy.name], "a file got another block"
        if failure is None:
            self.files.setdefault(copy.name, self.named[copy.name])
            self.marks.setdefault(copy.name, set()).update(copy.marks)
        self._finished.append(FinishedCopy(copy, False, 0 if failure else 100, 1e-4, failure))


# -- a store of several hosts that answers late ----------------------------------------------------


class LateStore:
    """The face of SharedTransfers. Answers and copies come, in order, when a test says so."""

    blocks_at_once = 2

    def __init__(self, disk: LateDisk) -> None:
        self.slots, self.named = disk.slots, disk.named
        self.blocks: dict[str, bytes] = {}
        self.is_usable = True
        self.pending_reads = self.pending_writes = 0
        self.questions: deque[str] = deque()
        self.reads: deque[BlockCopy] = deque()
        self.writes: deque[BlockCopy] = deque()
        self.doomed: set[str] = set()  # on their way, and forgotten meanwhile
        self._known: dict[str, bool] = {}
        self._asked: set[str] = set()
        self._stored: set[str] = set()
        self._lost: set[str] = set()
        self._finished: list[FinishedCopy] = []

    def ask(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._asked and name not in self._known:
                self._asked.add(name)
                self.questions.append(name)

    def has(self, name: str) -> bool | None:
        if name in self._asked:
            return None if self.is_usable else False
        return self._known.get(name, False)

    @property
    def is_asking(self) -> bool:
        return bool(self._asked) and self.is_usable

    def find_lost(self, names: Sequence[str]) -> int | None:
        return next((at for at, name in enumerate(names) if name in self._lost), None)

    def answer(self) -> None:
        name = self.questions.popleft()
        self._asked.discard(name)
        self._known[name] = name in self.blocks

    def take_answers(self) -> bool:
        return False

    @property
    def queued_reads(self) -> int | None:
        return len(self.reads) if self.is_usable else None

    def read(self, copy: BlockCopy, *, is_urgent: bool = False) -> None:
        self.pending_reads += 1
        self.slots[copy.slot] = HALF_OVER
        self.reads.append(copy)

    def hasten(self, name: str) -> None:
        pass

    def cancel_read(self, name: str) -> bool:
        for copy in self.reads:
            if copy.name == name:
                self.reads.remove(copy)
                self.pending_reads -= 1
                return True
        return False

    def is_stored(self, name: str) -> bool:
        return name in self._stored

    def note_marks(self, names: Iterable[str]) -> None:
        self._stored.difference_update(names)

    @property
    def room(self) -> int:
        return 100 if self.is_usable else 0

    def write(self, copy: BlockCopy) -> None:
        self.pending_writes += 1
        self._stored.add(copy.name)
        self.writes.append(copy)

    def take_finished(self) -> list[FinishedCopy]:
        done, self._finished = self._finished, []
        for each in done:
            if each.is_read:
                self.pending_reads -= 1
                self._known[each.copy.name] = each.failure is None
                if each.failure is not None:
                    self._lost.add(each.copy.name)
            else:
                self.pending_writes -= 1
                if each.failure is not None:
                    self._stored.discard(each.copy.name)
        return done

    def read_next(self, failure: str | None = None) -> None:
        copy = self.reads.popleft()
        if copy.name not in self.blocks:
            failure = "missing"
        if failure is None:
            self.slots[copy.slot] = self.blocks[copy.name]
        self._finished.append(FinishedCopy(copy, True, 0 if failure else 100, 1e-4, failure))

    def write_next(self, failure: str | None = None) -> None:
        copy = self.writes.popleft()
        assert self.slots[copy.slot] == self.named[copy.name], "the store got another block"
        if copy.name in self.doomed:
            failure = "forgotten"
            self.doomed.discard(copy.name)
        if failure is None:
            self.blocks[copy.name] = self.named[copy.name]
            self._lost.discard(copy.name)
        self._finished.append(FinishedCopy(copy, False, 0 if failure else 100, 1e-4, failure))

    def forget(self, keys: Set[bytes]) -> None:
        """As the door of the store does."""
        for name in [name for name, key in self.blocks.items() if key in keys]:
            del self.blocks[name]

    def withdraw(self, marks: Iterable[str]) -> None:
        gone = set(marks)
        self.doomed |= {copy.name for copy in self.writes if gone & set(copy.marks)}


# -- vLLM's scheduler and offloading connector -----------------------------------------------------

WAITING, LOADING, RUNNING, ENDED = "waiting", "loading", "running", "ended"


@dataclass(eq=False)
class Request:
    """computed: tokens. stored: blocks offered to the host. jobs: copies under way."""

    name: str
    token_ids: list[int]
    prompt_tokens: int
    documents: tuple[str, ...]
    labelled: bool
    state: str = WAITING
    blocks: list[Block] = field(default_factory=list)
    computed: int = 0
    stored: int = 0
    jobs: list[Job] = field(default_factory=list)
    has_arrived: bool = False
    left_behind: list[bytes | None] = field(default_factory=list)  # its blocks' content at its end

    @property
    def keys(self) -> list[bytes]:
        return keys_of(self.token_ids)

    @property
    def is_prefilled(self) -> bool:
        return self.computed >= self.prompt_tokens


@dataclass(eq=False)
class Job:
    """A copy between device and host, asked for and not reported yet."""

    request: Request
    is_store: bool
    keys: list[bytes]
    slots: list[int]
    blocks: list[Block]
    is_copied: bool = False


class VLLM:
    """One engine: it asks the manager what vLLM asks it, in vLLM's order."""

    def __init__(
        self,
        policy: str = "lru",
        *,
        device: int = 100,
        host: int = 100,
        disk: int = 0,
        protect: int = 32,
        block_bytes: int = 100,
        chunk_blocks: int = 100,
        is_sharing: bool = False,
    ) -> None:
        self.host = HostSlots(host)
        self.cache: CacheManager[Block] = CacheManager(
            policy=policy_for_tree(policy),
            block_tokens=BLOCK_TOKENS,
            block_bytes=block_bytes,
            host=self.host,
            disk_blocks=disk,
            protect=protect,
        )
        self.pool = Pool(self.cache, device)
        self.slots: list[bytes | None] = [None] * host
        self.disk = LateDisk(self.slots)
        self.has_disk = bool(disk)
        self.store = LateStore(self.disk)
        if disk:
            store = self.store if is_sharing else None
            self.cache.attach_disk(self.disk, shared=store)  # type: ignore[arg-type]
        self.chunk_blocks = chunk_blocks
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.just_ended: list[Request] = []
        self.preempted: set[Request] = set()  # ever
        self.jobs: list[Job] = []
        self.later: list[list[Block]] = []  # blocks that come back some steps after their request
        self.now_s = 0.0
        self.count = 0

    # -- what happens from outside

    def arrive(
        self,
        *documents: str,
        question: Sequence[int] = (9,),
        labelled: bool = True,
        guess: str | None = None,
        is_donor: bool = False,
    ) -> Request:
        self.count += 1
        request, prompt = self.describe(*documents, question=question, labelled=labelled)
        self.cache.add_request(request.name, prompt, guess=guess, is_donor=is_donor)
        self.waiting.append(request)
        return request

    def describe(
        self, *documents: str, question: Sequence[int] = (9,), labelled: bool = True
    ) -> tuple[Request, Prompt]:
        token_ids, segments = [], []
        for document in documents:
            token_ids += TEXTS[document]
            segments.append((len(token_ids), None if document == "S" else document))
        token_ids += question
        request = Request(
            f"request {self.count}", token_ids, len(token_ids), tuple(documents), labelled
        )
        prompt = self.prompt(request, segments if labelled else [])
        for name, key in zip(prompt.file_names, prompt.keys, strict=False):
            self.disk.named[name] = key
        return request, prompt

    def prompt(self, request: Request, segments: Sequence[tuple[int, str | None]]) -> Prompt:
        return describe_prompt(
            keys=request.keys,
            token_ids=request.token_ids,
            prompt_tokens=request.prompt_tokens,
            segments=segments,
            tenant=None,
            block_tokens=BLOCK_TOKENS,
            depth=None,
            naming=PLAIN if self.has_disk else None,
        )

    def schedule(self, *, budget_blocks: int = 100) -> None:
        """One step of the scheduler: running requests go on, waiting ones begin, copies are asked for."""
        scheduled: list[Request] = []
        preempted: list[Request] = []
        for request in list(self.running):
            if request in preempted:
                continue
            while not self._compute(request):
                victim = self.running.pop()
                self._preempt(victim)
                preempted.append(victim)
                if victim is request:
                    break
            else:
                scheduled.append(request)
        scheduled = [request for request in scheduled if request not in preempted]
        if not preempted:
            holding = [request for request in self.waiting if request.state is LOADING]
            for request in holding + [each for each in self.waiting if each not in holding]:
                if budget_blocks <= 0:
                    break
                if request.state is LOADING:
                    if not request.has_arrived:
                        continue
                    self._loaded(request)
                admitted = self._admit(request)
                if admitted is None:
                    continue
                if not admitted:
                    break
                if request.state is RUNNING:
                    self.waiting.remove(request)
                    self.running.append(request)
                    scheduled.append(request)
                budget_blocks -= self.chunk_blocks
        for request in preempted:
            self.cache.requeue(request.name)
        self.cache.step()
        for request in [*scheduled, *self.just_ended]:
            self._offer(request)
        self.just_ended.clear()

    def end(
        self, request: Request, *, completed: bool, late: bool = False
    ) -> dict[str, int] | None:
        """late: its blocks come back some time after."""
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        tokens = self.cache.finish_request(request.name, completed=completed)
        if tokens is not None:
            assert all(count >= 0 for count in tokens.values())
            assert sum(tokens.values()) < request.prompt_tokens
        is_loading = request.state is LOADING and not request.has_arrived
        if request.state is not RUNNING:
            request.stored = len(request.keys)  # nothing of it is offered any more
        request.state = ENDED
        request.left_behind = [block.holds for block in request.blocks]
        self.just_ended.append(request)
        if is_loading:
            return tokens  # its blocks are still copied to
        blocks, request.blocks = request.blocks, []
        if late:
            self.later.append(blocks)
        else:
            self.pool.free(blocks)
        return tokens

    def free_late(self) -> None:
        self.pool.free(self.later.pop(0))

    def reset(self, *, host: bool) -> bool:
        """Empty the prefix cache; the host with it, if so asked. False while blocks are in use."""
        if self.pool.free_count < len(self.pool.blocks):
            return False
        self.pool.reset()
        if host:
            for job in self.jobs:
                if not job.is_copied:
                    self.copy(job)
                job.request.jobs.remove(job)
            self.jobs.clear()
            for request in self.waiting:
                request.stored = 0
            self.just_ended.clear()
            self.cache.clear_host()
        self.cache.clear_device()
        return True

    # -- copies

    def copy(self, job: Job) -> None:
        assert not job.is_copied
        job.is_copied = True
        if job.is_store:
            for slot, key in zip(job.slots, job.keys, strict=True):
                assert self.slots[slot] == HALF_OVER, "two copies to one slot"
                self.slots[slot] = key
        else:
            for slot, key, block in zip(job.slots, job.keys, job.blocks, strict=True):
                assert self.slots[slot] == key, "a slot was overwritten before it was read"
                assert block.users
                block.holds = key

    def report(self, job: Job) -> None:
        if not job.is_copied:
            self.copy(job)
        self.jobs.remove(job)
        request = job.request
        request.jobs.remove(job)
        self.now_s += 0.001
        if job.is_store:
            self.cache.finish_store(job.keys)
            return
        size_bytes = 100 * len(job.keys)
        self.cache.speeds.from_host.record_copy(size_bytes, 1e-7)
        self.cache.record_load(request.name, size_bytes)
        self.cache.finish_load(job.keys)
        request.has_arrived = True
        if request.state is ENDED:
            blocks, request.blocks = request.blocks, []
            self.pool.free(blocks)

    # -- inside

    def _compute(self, request: Request) -> bool:
        """Go on by a chunk of the prompt or a token of the answer; False if there is no room."""
        total = len(request.token_ids)
        if request.computed >= total:
            request.token_ids.append(7)
            total += 1
        upto = min(total, request.computed + self.chunk_blocks * BLOCK_TOKENS)
        return self._compute_to(request, upto)

    def _compute_to(self, request: Request, upto: int) -> bool:
        missing = -(-upto // BLOCK_TOKENS) - len(request.blocks)
        if missing > self.pool.free_count:
            return False
        if missing > 0:
            request.blocks += self.pool.new(missing)
        keys = request.keys
        for at in range(request.computed // BLOCK_TOKENS, upto // BLOCK_TOKENS):
            block = request.blocks[at]
            block.holds = keys[at]
            self.pool.cache(block, keys[at])
        request.computed = upto
        return True

    def _preempt(self, request: Request) -> None:
        blocks, request.blocks = request.blocks, []
        self.pool.free(blocks)
        request.computed = 0
        request.state = WAITING
        self.preempted.add(request)
        for job in request.jobs:
            if not job.is_copied:
                self.copy(job)  # vLLM flushes them
        self.waiting.insert(0, request)

    def _loaded(self, request: Request) -> None:
        keys = request.keys
        for at in range(request.computed // BLOCK_TOKENS):
            assert request.blocks[at].holds == keys[at], "a request computes with another's block"
            self.pool.cache(request.blocks[at], keys[at])
        # Of a prompt that is all there, the last token is computed again: its output is needed.
        request.computed = min(request.computed, len(request.token_ids) - 1)

    def _admit(self, request: Request) -> bool | None:
        """None if it is to be asked again later, False if there is no room for it."""
        if request.state is LOADING:
            upto = min(len(request.token_ids), request.computed + self.chunk_blocks * BLOCK_TOKENS)
            if not self._compute_to(request, upto):
                return False
            self.cache.record_admission(request.name, 0, self.now_s)
            request.state = RUNNING
            return True
        keys, total = request.keys, len(request.token_ids)
        found = self.pool.longest(keys[: (total - 1) // BLOCK_TOKENS])
        for block, key in zip(found, keys, strict=False):
            assert block.holds == key, "the prefix cache finds another block"
        self.cache.collect_disk_results()
        self.now_s += 0.001
        self.cache.plan_admission(request.name, len(found) * BLOCK_TOKENS, self.now_s)
        if request.jobs:
            return None
        loadable = self._look_up(request, keys[len(found) :])
        if loadable is None:
            return None
        reached = len(found) + loadable
        if loadable:
            missing = loadable
        else:
            upto = min(total, (reached + self.chunk_blocks) * BLOCK_TOKENS)
            missing = -(-upto // BLOCK_TOKENS) - reached
        if missing + sum(not block.users for block in found) > self.pool.free_count:
            return False
        self.pool.touch(found)
        request.blocks = list(found)
        request.computed = len(found) * BLOCK_TOKENS
        if loadable:
            request.blocks += self.pool.new(loadable)
            request.computed = reached * BLOCK_TOKENS
            request.state, request.has_arrived = LOADING, False
            wanted = keys[len(found) : reached]
            slots = self.cache.begin_load(wanted)
            self._ask(Job(request, False, wanted, slots, request.blocks[len(found) :]))
        else:
            assert self._compute_to(request, upto)
            request.state = RUNNING
        self.cache.record_admission(request.name, loadable * BLOCK_TOKENS, self.now_s)
        return True

    def _look_up(self, request: Request, keys: Sequence[bytes]) -> int | None:
        hits, is_pending = 0, False
        for key in keys:
            presence = self.cache.lookup(request.name, key)
            if presence is Presence.MISS:
                break
            hits += 1
            is_pending |= presence is Presence.HIT_PENDING
        being_loaded = {key for job in self.jobs if not job.is_store for key in job.keys}
        if is_pending or not being_loaded.isdisjoint(keys[:hits]):
            return None
        assert len(request.blocks) + hits <= len(request.token_ids) // BLOCK_TOKENS
        return hits

    def _offer(self, request: Request) -> None:
        """Offer blocks to the host that were not offered before, in order."""
        upto = request.computed // BLOCK_TOKENS
        keys = request.keys[request.stored : upto]
        if not keys:
            return
        ended = request.state is ENDED
        holds = request.left_behind if ended else [block.holds for block in request.blocks]
        assert holds[request.stored : upto] == keys
        request.stored = upto
        stored = self.cache.begin_store(request.name, keys)
        kept = [key for key, _ in stored]
        assert kept == [key for key in keys if key in set(kept)], "not in the prompt's order"
        assert len(kept) == len(set(kept))
        if stored:
            slots = [slot for _, slot in stored]
            for slot in slots:
                self.slots[slot] = HALF_OVER
            self._ask(Job(request, True, kept, slots, []))

    def _ask(self, job: Job) -> None:
        self.jobs.append(job)
        job.request.jobs.append(job)

    # -- for tests

    @property
    def requests(self) -> list[Request]:
        return self.waiting + self.running

    def nodes(self) -> list[Node]:
        root = self.cache.tree.root
        return [node for node in root.downwards() if node is not root]

    def in_host(self) -> dict[bytes, int]:
        return {
            key: slot
            for node in self.nodes()
            for key, slot in zip(
                self.cache.index.record(node).keys,
                self.cache.index.record(node).slots,
                strict=False,
            )
            if slot is not None
        }

    def settle(self) -> None:
        """Let every copy end."""
        self.cache.step()
        while (
            *self.jobs,
            *self.disk.reads,
            *self.disk.writes,
            *self.store.questions,
            *self.store.reads,
            *self.store.writes,
            *self.later,
            *self.just_ended,
        ):
            for job in list(self.jobs):
                self.report(job)
            while self.store.questions:
                self.store.answer()
            while self.store.reads:
                self.store.read_next()
            while self.store.writes:
                self.store.write_next()
            while self.disk.reads:
                self.disk.read_next()
            while self.disk.writes:
                self.disk.write_next()
            while self.later:
                self.free_late()
            if self.just_ended:
                self.schedule(budget_blocks=0)
            self.cache.step()

    def run(self, *requests: Request, answer_tokens: int = 1) -> list[dict[str, int]]:
        """From their arrival to their end, one after the other."""
        told = []
        for request in requests:
            steps = 0
            while not (
                request.state is RUNNING
                and len(request.token_ids) >= request.prompt_tokens + answer_tokens
            ):
                self.schedule()
                self.settle()
                steps += 1
                assert steps < 100, "it does not get on"
            tokens = self.end(request, completed=True)
            assert tokens is not None
            told.append(tokens)
            self.settle()
        return told

    def check(self) -> None:
        """What must hold at all times."""
        self.pool.check()
        cache = self.cache
        # See test_the_rest_of_a_prompt_nobody_finished_is_forgotten_when_another_cuts_it.
        rest = [
            node for node in self.nodes() if not (node.uses or node.children or any(node.resident))
        ]
        for node in rest:
            node.pins += 1
        cache.check()
        for node in rest:
            node.pins -= 1
        for key, slot in self.in_host().items():
            if not self.host.is_filling(key):
                assert self.slots[slot] == key, "a slot holds another block"
        for name, content in (*self.disk.files.items(), *self.store.blocks.items()):
            assert content == self.disk.named[name]

    def check_at_rest(self) -> None:
        """What must hold when all requests have ended and all copies are done."""
        self.check()
        cache, host = self.cache, self.host
        for _ in range(STEPS_TO_FLUSH):  # copies that a reset cut off are given so long to end
            cache.step()
        assert self.pool.free_count == len(self.pool.blocks)
        cache.check_idle()
        assert host.free + cache.tree.used(Tier.HOST) == host.count
        assert not cache.is_reading_disk
        for node in self.nodes():
            record = cache.index.record(node)
            for name in {*record.files[: node.resident[DISK]]} - self.disk.stolen:
                assert name in self.disk.files
                assert self.disk.marks.get(name, set()) >= set(record.marks)


# -- examples --------------------------------------------------------------------------------------


def sources(tokens: dict[str, int]) -> tuple[int, int, int]:
    return tokens["device"], tokens["host"], tokens["disk"]


def test_a_prompt_asked_for_again_is_read_from_the_device():
    vllm = VLLM()
    (first,) = vllm.run(vllm.arrive("S", "A", "D"))
    (again,) = vllm.run(vllm.arrive("S", "A", "D"))
    assert (sources(first), sources(again)) == ((0, 0, 0), (24, 0, 0))
    counters = vllm.cache.counters
    assert counters.device_tokens == 24
    assert counters.computed_tokens == 27 + 3
    vllm.check_at_rest()


def test_what_the_device_has_lost_is_loaded_from_the_host():
    vllm = VLLM()
    vllm.run(vllm.arrive("S", "A", "D"))
    vllm.reset(host=False)
    assert [sources(told) for told in vllm.run(vllm.arrive("S", "A", "D"))] == [(0, 24, 0)]
    assert vllm.cache.counters.loaded_bytes == 6 * 100
    vllm.check_at_rest()


def test_what_the_host_has_lost_too_is_read_from_the_disk():
    vllm = VLLM(disk=100)
    vllm.run(vllm.arrive("S", "A", "D"))
    assert len(vllm.disk.files) == 6
    vllm.reset(host=True)
    assert [sources(told) for told in vllm.run(vllm.arrive("S", "A", "D"))] == [(0, 0, 24)]
    assert vllm.cache.counters.read_bytes == 6 * 100
    vllm.check_at_rest()


def test_files_of_an_earlier_life_are_found():
    earlier = VLLM(disk=100)
    earlier.run(earlier.arrive("S", "A", "D"))
    vllm = VLLM(disk=100)
    vllm.disk.files.update(earlier.disk.files)
    assert [sources(told) for told in vllm.run(vllm.arrive("S", "A", "D"))] == [(0, 0, 24)]
    vllm.check_at_rest()


def test_what_some_tier_holds_whole_is_found_and_counts_as_used():
    vllm = VLLM(disk=100)
    vllm.run(vllm.arrive("S", "A", "D"))
    other = vllm.describe("S", "B", "D")[1]
    prompt = vllm.describe("S", "A", "D")[1]
    for host in (None, False, True):  # on the device; in the host; on disk alone
        if host is not None:
            vllm.reset(host=host)
        assert vllm.cache.touch_if_cached([prompt])
        assert not vllm.cache.touch_if_cached([prompt, other])
    assert {node.uses for node in vllm.nodes() if max(node.resident)} == {4}
    vllm.check_at_rest()
    assert [sources(told) for told in vllm.run(vllm.arrive("S", "A", "D"))] == [(0, 0, 24)]


def test_a_guess_is_looked_up_without_being_a_use():
    vllm = VLLM()
    vllm.run(vllm.arrive("S", "A"))
    uses = {node: node.uses for node in vllm.nodes()}
    assert vllm.cache.touch_if_cached([vllm.describe("S", "A")[1]], is_guess=True)
    assert {node: node.uses for node in vllm.nodes()} == uses
    vllm.check_at_rest()


def test_what_lacks_a_block_is_not_held():
    vllm = VLLM()
    vllm.run(vllm.arrive("S", "A"))
    uses = {node: node.uses for node in vllm.nodes()}
    assert not vllm.cache.touch_if_cached([vllm.describe("S", "A", "D")[1]])
    assert {node: node.uses for node in vllm.nodes()} == uses
    vllm.check_at_rest()


def test_files_of_an_earlier_life_that_were_looked_up_belong_to_the_tree():
    earlier = VLLM(disk=100)
    earlier.run(earlier.arrive("S", "A", "D"))
    vllm = VLLM(disk=100)
    vllm.disk.files.update(earlier.disk.files)
    prompt = vllm.describe("S", "A", "D")[1]
    assert vllm.cache.touch_if_cached([prompt])
    assert all(map(vllm.cache.knows_file, prompt.file_names))
    vllm.settle()
    vllm.check_at_rest()


@pytest.mark.parametrize("failure", ["missing", "damaged", "unreadable"])
def test_a_block_that_cannot_be_read_is_computed_with_all_behind_it(failure: str):
    vllm = VLLM(disk=100)
    vllm.run(vllm.arrive("S", "A", "D"))
    vllm.reset(host=True)
    request = vllm.arrive("S", "A", "D")
    vllm.disk.read_next()
    vllm.disk.read_next(failure)
    (told,) = vllm.run(request)
    assert told["device"] == 0
    assert told["host"] + told["disk"] == 4
    assert vllm.cache.counters.missing + vllm.cache.counters.damaged == 1
    vllm.check_at_rest()


def test_copies_slower_than_computing_are_not_made():
    vllm = VLLM(block_bytes=10**9)
    vllm.run(vllm.arrive("S", "A", "D"))
    vllm.reset(host=False)
    assert [sources(told) for told in vllm.run(vllm.arrive("S", "A", "D"))] == [(0, 0, 0)]
    assert vllm.cache.counters.recomputed_blocks == 6


def test_the_step_of_others_that_a_load_waits_for_does_not_speak_against_the_next():
    """Measured as a latency it would: under load copies would soon look slower than computing, and since
    nothing was loaded any more, nothing would ever show that they are not."""
    vllm = VLLM()
    vllm.run(vllm.arrive("S", "A", "D"))
    vllm.reset(host=False)
    other = vllm.arrive("B")
    vllm.schedule()
    request = vllm.arrive("S", "A", "D")
    vllm.schedule()
    assert other in vllm.running
    assert vllm.jobs
    vllm.now_s += 60.0
    told = vllm.run(other, request)
    assert sources(told[1]) == (0, 24, 0)
    assert vllm.cache.speeds.from_host.latency_s == 0.0
    vllm.check_at_rest()


def test_neither_does_the_step_of_one_that_came_and_went_while_it_loaded():
    vllm = VLLM()
    vllm.run(vllm.arrive("S", "A", "D"))
    vllm.reset(host=False)
    request = vllm.arrive("S", "A", "D")
    vllm.schedule()
    (load,) = (job for job in vllm.jobs if not job.is_store)
    other = vllm.arrive("B")
    vllm.schedule()
    vllm.now_s += 60.0
    vllm.end(other, completed=True)
    vllm.report(load)
    assert sources(vllm.run(request)[0]) == (0, 24, 0)
    assert vllm.cache.speeds.from_host.latency_s == 0.0
    vllm.check_at_rest()


def test_a_long_latency_speaks_against_loading_only_while_the_model_has_nothing_else_to_do():
    for is_busy, expected in ((False, (0, 0, 0)), (True, (0, 24, 0))):
        vllm = VLLM()
        vllm.run(vllm.arrive("S", "A", "D"))
        vllm.reset(host=False)
        vllm.cache.speeds.from_host.latency_s = 60.0
        others = [vllm.arrive("B")] if is_busy else []
        vllm.schedule()
        told = vllm.run(*others, vllm.arrive("S", "A", "D"))
        assert sources(told[-1]) == expected
        vllm.check_at_rest()


def test_beside_others_a_short_step_speaks_against_loading_what_takes_less_to_compute():
    """They share the wait: the more there are, the less does the step count. A donor needs no step."""
    cases = ((1, False, (0, 0, 0)), (9, False, (0, 24, 0)), (1, True, (0, 24, 0)))
    for others, is_donor, expected in cases:
        vllm = VLLM(device=100)
        vllm.run(vllm.arrive("S", "A", "D"))
        vllm.reset(host=False)
        computing = vllm.cache.speeds.computing
        saved_s = computing.prefill_s(0, 26) - computing.prefill_s(24, 2)
        computing.short_step_s = 5 * saved_s
        busy = [vllm.arrive("B") for _ in range(others)]
        vllm.schedule()
        told = vllm.run(vllm.arrive("S", "A", "D", is_donor=is_donor), *busy)
        assert sources(told[0]) == expected
        vllm.check_at_rest()


def test_the_wait_for_a_load_ends_when_the_request_computes():
    vllm = VLLM()
    vllm.run(vllm.arrive("S", "A", "D"))
    vllm.reset(host=False)
    for _ in range(3):  # the median of five waits, two of them assumed
        vllm.reset(host=False)
        request = vllm.arrive("S", "A", "D")
        vllm.schedule()
        (load,) = (job for job in vllm.jobs if not job.is_store)
        vllm.report(load)
        vllm.now_s += 0.25  # until vLLM's next step
        vllm.run(request)
    assert vllm.cache.speeds.from_host.latency_s == pytest.approx(0.25, abs=0.02)


def test_before_the_first_copy_a_quick_bus_is_assumed():
    """What looks slower than computing is never copied, so nothing would show how quick it is."""
    vllm = VLLM(block_bytes=10**7)
    vllm.run(vllm.arrive("S", "A", "D"))
    vllm.reset(host=False)
    assert [sources(told) for told in vllm.run(vllm.arrive("S", "A", "D"))] == [(0, 24, 0)]


def test_a_trial_loads_no_more_than_takes_as_long_as_computing():
    vllm = VLLM()
    vllm.run(vllm.arrive("S", "A", "D"))
    copying, computing = vllm.cache.speeds.from_host, vllm.cache.speeds.computing
    three_blocks = 3.5 * 100 / computing.prefill_s(0, 26)
    loaded = set()
    for _ in range(PASSED_OVER_TO_TRY):
        copying.bandwidth_bytes_per_s, copying.latency_s = three_blocks, 60.0
        vllm.reset(host=False)
        (told,) = vllm.run(vllm.arrive("S", "A", "D"))
        loaded.add(told["host"] // BLOCK_TOKENS)
    assert loaded == {0, 3}


def test_a_document_forgotten_while_it_was_computed_is_not_held_whole():
    vllm = VLLM(device=12, host=8, chunk_blocks=1)
    _, prompt = vllm.describe("D")
    running = vllm.arrive("D")
    vllm.schedule()
    vllm.cache.forget(["D"])
    for _ in range(3):
        vllm.schedule()
        assert not vllm.cache.touch_if_cached([prompt]), "it has the last blocks at most"
    vllm.run(running)
    assert not vllm.cache.touch_if_cached([prompt])
    vllm.check_at_rest()


def test_a_waiting_request_fetches_its_blocks_from_the_disk_before_it_runs():
    vllm = VLLM(disk=100)
    vllm.run(vllm.arrive("S", "A"))
    vllm.reset(host=True)
    assert not vllm.disk.reads
    vllm.arrive("S", "A")
    assert len(vllm.disk.reads) == 3
    assert vllm.cache.is_reading_disk


def test_a_read_that_nobody_wants_any_more_is_taken_back():
    vllm = VLLM(disk=100)
    vllm.run(vllm.arrive("S", "A"))
    vllm.reset(host=True)
    one, other = vllm.arrive("S", "A"), vllm.arrive("S", "A")
    vllm.end(one, completed=False)
    assert len(vllm.disk.reads) == 3, "the other wants them still"
    vllm.end(other, completed=False)
    assert not vllm.disk.reads
    assert not vllm.in_host()
    vllm.check_at_rest()


def test_a_read_that_has_begun_is_left_to_its_end():
    vllm = VLLM(disk=100)
    vllm.run(vllm.arrive("S", "A"))
    vllm.reset(host=True)
    vllm.disk.has_begun_all = True
    vllm.end(vllm.arrive("S", "A"), completed=False)
    assert len(vllm.disk.reads) == 3
    vllm.settle()
    vllm.check_at_rest()


def test_the_reads_of_the_request_to_be_admitted_go_first():
    vllm = VLLM(disk=100)
    vllm.run(vllm.arrive("S", "A"))
    vllm.reset(host=True)
    vllm.arrive("S", "A")
    assert not vllm.disk.hastened
    vllm.schedule()
    assert len(vllm.disk.hastened) == 3


def test_a_request_does_not_wait_for_a_disk_that_hangs():
    vllm = VLLM(disk=100)
    vllm.run(vllm.arrive("S", "A"))
    vllm.reset(host=True)
    vllm.disk.has_begun_all = True
    request = vllm.arrive("S", "A")
    vllm.schedule()
    assert request in vllm.waiting
    vllm.now_s += 10.0
    vllm.schedule()
    assert request in vllm.running, "it computes what has not come"
    told = vllm.end(request, completed=True)
    assert sources(told or {}) == (0, 0, 0)
    vllm.settle()
    vllm.check_at_rest()


def test_a_stalled_disk_is_asked_for_nothing():
    vllm = VLLM(disk=100)
    vllm.run(vllm.arrive("S", "A"))
    vllm.reset(host=True)
    vllm.disk.is_stalled = True
    assert [sources(told) for told in vllm.run(vllm.arrive("S", "A"))] == [(0, 0, 0)]
    vllm.disk.is_stalled = False
    vllm.reset(host=True)
    assert [sources(told) for told in vllm.run(vllm.arrive("S", "A"))] == [(0, 0, 12)]


def test_reads_that_wait_count_against_asking_for_more():
    vllm = VLLM(disk=100)
    vllm.run(vllm.arrive("S", "A"), vllm.arrive("D"))
    vllm.reset(host=True)
    vllm.arrive("S", "A")
    vllm.cache.speeds.from_disk.bandwidth_bytes_per_s = 1e5
    before = len(vllm.disk.reads)
    vllm.disk.reads.extend(vllm.disk.reads[0] for _ in range(1_000))
    vllm.arrive("D")
    assert len(vllm.disk.reads) == before + 1_000


def test_what_another_host_computed_is_fetched_from_the_store():
    other = VLLM(disk=100, is_sharing=True)
    other.run(other.arrive("S", "A", "D"))
    # Of the last block, half a document and the question, nobody else has a use.
    assert len(other.store.blocks) == 6
    vllm = VLLM(disk=100, is_sharing=True)
    vllm.store.blocks.update(other.store.blocks)
    assert [sources(told) for told in vllm.run(vllm.arrive("S", "A", "D"))] == [(0, 0, 24)]
    assert vllm.cache.counters.shared_tokens == 24
    assert vllm.cache.counters.shared_read_bytes == 600
    assert vllm.cache.counters.read_bytes == 0
    vllm.check_at_rest()


def test_what_the_disk_has_is_not_fetched_again():
    vllm = VLLM(disk=100, is_sharing=True)
    vllm.run(vllm.arrive("S", "A"))
    other = VLLM(disk=100, is_sharing=True)
    other.run(other.arrive("S", "A", "D"))
    vllm.store.blocks.update(other.store.blocks)
    vllm.reset(host=True)
    assert [sources(told) for told in vllm.run(vllm.arrive("S", "A", "D"))] == [(0, 0, 24)]
    assert vllm.cache.counters.read_bytes == 300
    assert vllm.cache.counters.shared_read_bytes == 300
    vllm.check_at_rest()


def test_questions_are_not_shared_nor_asked_for():
    vllm = VLLM(disk=100, is_sharing=True)
    vllm.run(vllm.arrive("S", "A", question=[9] * 20))
    assert len(vllm.disk.files) == 8
    assert len(vllm.store.blocks) == 3
    vllm.run(vllm.arrive(question=[8] * 20), vllm.arrive("B", labelled=False))
    assert len(vllm.store.blocks) == 3


def test_a_request_waits_for_the_stores_answer_and_not_for_long():
    vllm = VLLM(disk=100, is_sharing=True)
    request = vllm.arrive("S", "A")
    assert vllm.store.questions
    vllm.schedule()
    assert request in vllm.waiting
    assert vllm.cache.is_reading_disk, "vLLM has to ask again"
    vllm.now_s += 1.0
    vllm.schedule()
    assert request in vllm.running
    vllm.end(request, completed=True)
    vllm.settle()
    vllm.check_at_rest()


def test_a_store_that_does_not_answer_is_asked_for_nothing():
    vllm = VLLM(disk=100, is_sharing=True)
    vllm.store.is_usable = False
    request = vllm.arrive("S", "A")
    assert not vllm.store.questions
    vllm.schedule()
    assert request in vllm.running
    vllm.end(request, completed=True)
    vllm.settle()
    assert not vllm.store.blocks
    vllm.check_at_rest()


def test_a_store_that_stops_answering_holds_nobody_up():
    vllm = VLLM(disk=100, is_sharing=True)
    request = vllm.arrive("S", "A")
    vllm.schedule()
    vllm.store.is_usable = False
    vllm.schedule()
    assert request in vllm.running
    vllm.end(request, completed=True)
    vllm.settle()
    vllm.check_at_rest()


@pytest.mark.parametrize("failure", ["missing", "damaged"])
def test_a_block_that_the_store_has_lost_is_computed_and_not_asked_for_again(failure: str):
    other = VLLM(disk=100, is_sharing=True)
    other.run(other.arrive("S", "A", "D"))
    vllm = VLLM(disk=100, is_sharing=True)
    vllm.store.blocks.update(other.store.blocks)
    request = vllm.arrive("S", "A", "D")
    while vllm.store.questions:
        vllm.store.answer()
    vllm.schedule()
    vllm.store.read_next()
    vllm.store.read_next()
    vllm.store.read_next(failure)
    (told,) = vllm.run(request)
    assert told["disk"] == 8
    assert vllm.cache.counters.missing + vllm.cache.counters.damaged == 1
    vllm.check_at_rest()


def test_fetching_that_is_slower_than_computing_is_not_begun():
    other = VLLM(disk=100, is_sharing=True)
    other.run(other.arrive("S", "A"))
    vllm = VLLM(disk=100, is_sharing=True)
    vllm.store.blocks.update(other.store.blocks)
    vllm.cache.speeds.computing.record_step(0, 1000, 0.1)
    vllm.cache.speeds.from_shared.bandwidth_bytes_per_s = 1.0
    assert [sources(told) for told in vllm.run(vllm.arrive("S", "A"))] == [(0, 0, 0)]
    assert not vllm.cache.counters.shared_read_bytes


def test_a_host_that_has_computed_nothing_yet_fetches_however_slow_that_looks():
    """Else it would compare with the speed of another model on another machine."""
    other = VLLM(disk=100, is_sharing=True)
    other.run(other.arrive("S", "A"))
    vllm = VLLM(disk=100, is_sharing=True)
    vllm.store.blocks.update(other.store.blocks)
    vllm.cache.speeds.from_shared.bandwidth_bytes_per_s = 1.0
    assert [sources(told) for told in vllm.run(vllm.arrive("S", "A"))] == [(0, 0, 12)]


def test_loading_that_looks_slow_is_tried_again_now_and_then():
    vllm = VLLM()
    vllm.run(vllm.arrive("S", "A"))
    vllm.cache.speeds.from_host.latency_s = 60.0
    loaded = 0
    for _ in range(PASSED_OVER_TO_TRY):
        vllm.reset(host=False)
        (told,) = vllm.run(vllm.arrive("S", "A"))
        loaded += told["host"] > 0
        vllm.cache.speeds.from_host.latency_s = 60.0
    assert loaded == 1


def test_what_the_disk_has_gets_the_names_that_come_later():
    """By a file's marks, a later process finds it when a document is forgotten."""
    earlier = VLLM(disk=100)
    earlier.run(earlier.arrive("S", "A", labelled=False))
    earlier.run(earlier.arrive("S", "B"))
    earlier.run(earlier.arrive("S", "A"))
    a, b = PLAIN.mark("A"), PLAIN.mark("B")
    marks = list(earlier.disk.marks.values())
    assert marks.count({a}) == 2
    assert marks.count({b}) == 2
    later = VLLM(disk=100)
    later.disk.files.update(earlier.disk.files)
    later.disk.named.update(earlier.disk.named)
    later.run(later.arrive("S", "A"))
    assert list(later.disk.marks.values()).count({a}) == 2, "whatever they carried before"
    later.check_at_rest()


def test_what_the_store_has_gets_the_names_that_come_later():
    vllm = VLLM(disk=100, is_sharing=True)
    vllm.run(vllm.arrive("S", "A"))
    vllm.store.blocks.clear()
    vllm.run(vllm.arrive("S", "A"))
    assert not vllm.store.blocks, "it is taken to have them"
    _, prompt = vllm.describe("S", "A")
    vllm.cache.add_request("renamed", replace(prompt, marks=[[*prompt.marks[0], "more"]] * 3))
    vllm.cache.finish_request("renamed", completed=False)
    vllm.run(vllm.arrive("S", "A"))
    assert len(vllm.store.blocks) == 3


def test_what_another_engine_forgot_on_the_shared_disk_is_forgotten_here():
    vllm = VLLM(disk=100)
    vllm.run(vllm.arrive("S", "A"), vllm.arrive("B"))
    times = {PLAIN.mark("A"): 7, PLAIN.mark("unheard of"): 8}
    vllm.disk.forgotten = dict(times)
    vllm.schedule()
    assert not vllm.cache.index.nodes_of("A")
    assert vllm.cache.index.nodes_of("B")
    assert vllm.disk.noted == times
    vllm.settle()
    vllm.check_at_rest()


def test_the_first_request_after_a_pause_finds_nothing_that_another_engine_forgot():
    vllm = VLLM(disk=100)
    vllm.run(vllm.arrive("S", "A"))
    vllm.disk.forgotten = {PLAIN.mark("A"): 7}  # while no step is made
    (told,) = vllm.run(vllm.arrive("S", "A"))
    assert sum(sources(told)) <= 4, "the system text, in whole blocks"
    vllm.check_at_rest()


def test_waiting_for_device_memory_does_not_speak_against_the_disk():
    vllm = VLLM(disk=100)
    vllm.run(vllm.arrive("S", "A"))
    vllm.reset(host=False)
    for _ in range(5):
        request = vllm.arrive("S", "A")
        for now_s in (0.0, 100.0):  # the scheduler tried, and had no blocks to give
            vllm.cache.plan_admission(request.name, 0, now_s)
        tracked = vllm.cache._requests[request.name]
        assert (tracked.load_blocks, tracked.has_given_up) == (3, False)
        vllm.end(request, completed=False)
    assert vllm.cache.speeds.from_disk.latency_s == 0.0


def test_only_so_many_waiting_requests_keep_their_nodes():
    vllm = VLLM(protect=1)
    vllm.run(vllm.arrive("A"), vllm.arrive("D"))
    vllm.arrive("A")
    vllm.arrive("D")
    assert sorted(node.pins for node in vllm.nodes()) == [0, 1]


def test_an_aborted_request_was_no_use():
    vllm = VLLM()
    request = vllm.arrive("S", "A")
    vllm.schedule()
    assert vllm.end(request, completed=False) == {"device": 0, "host": 0, "disk": 0}
    vllm.settle()
    assert {node.uses for node in vllm.nodes()} == {0}
    assert vllm.cache.counters.computed_tokens == 0
    vllm.check_at_rest()


def test_a_guess_is_a_use_when_it_is_adopted_be_it_before_or_after_its_end():
    for adopt_first in (True, False):
        vllm = VLLM()
        request = vllm.arrive("S", "A", guess="guess")
        if adopt_first:
            vllm.cache.adopt_guesses(["guess"])
        vllm.run(request)
        assert {node.uses for node in vllm.nodes()} == {int(adopt_first)}
        vllm.cache.adopt_guesses(["guess", "unheard of"])
        vllm.cache.adopt_guesses(["guess"])
        assert {node.uses for node in vllm.nodes()} == {1}
        vllm.check_at_rest()


def test_a_request_that_never_ran_tells_nothing():
    vllm = VLLM()
    assert vllm.end(vllm.arrive("S", "A"), completed=False) is None
    assert vllm.cache.finish_request("unheard of", completed=True) is None
    assert vllm.cache.cached_ratio("unheard of") is None
    assert len(vllm.cache.tree) == 0


def test_the_ratio_grows_with_what_is_cached():
    vllm = VLLM()
    cold = vllm.arrive("S", "A")
    assert vllm.cache.cached_ratio(cold.name) == 0
    vllm.run(cold)
    half, quarter = vllm.arrive("S", "A", *"DDDDD"), vllm.arrive("S", "A", *"DDDDDDDDDD")
    ratios = [vllm.cache.cached_ratio(request.name) for request in (half, quarter)]
    assert ratios == [pytest.approx(12 / (2 + 5 * 13)), pytest.approx(12 / (2 + 10 * 13))]


def test_requests_that_a_short_step_completes_go_by_arrival_however_little_they_compute():
    vllm = VLLM()
    vllm.run(vllm.arrive("S", "A"))
    few, fewer = vllm.arrive("S", "A", "D", "D", "D"), vllm.arrive("S", "A")
    assert vllm.cache.cached_ratio(few.name) == vllm.cache.cached_ratio(fewer.name) == math.inf
    assert vllm.cache.cached_ratio(vllm.arrive("B").name) == 0, "nothing of it is cached"


def test_a_forgotten_document_leaves_every_tier_with_all_computed_after_it():
    vllm = VLLM(disk=100)
    vllm.run(vllm.arrive("A", "D"), vllm.arrive("D", "A"), vllm.arrive("B"))
    vllm.cache.forget(["A"])
    vllm.settle()
    for documents, blocks in ((("A", "D"), 0), (("D", "A"), 3), (("B",), 1)):
        keys = keys_of([token for each in documents for token in TEXTS[each]])
        # What nobody owns leaves the device with it: it may have been computed from it.
        assert len(vllm.pool.longest(keys)) == blocks
        assert [key in vllm.in_host() for key in keys].count(True) == blocks
        assert [key in vllm.disk.files.values() for key in keys].count(True) == blocks
    assert vllm.cache.counters.forgotten == 1
    vllm.check_at_rest()


def test_a_document_that_a_request_computes_with_is_forgotten_at_once():
    vllm = VLLM(disk=100)
    request = vllm.arrive("S", "A")
    vllm.schedule()
    vllm.cache.forget(["A"])
    assert not vllm.cache.index.nodes_of("A")
    assert len(vllm.pool.longest(request.keys)) <= 1
    vllm.run(request)
    assert not vllm.cache.index.nodes_of("A")
    assert set(vllm.in_host()) == set(vllm.disk.files.values()) == set(request.keys[:1])
    vllm.check_at_rest()


def test_overlapping_requests_do_not_keep_a_forgotten_document():
    vllm = VLLM(device=200, disk=100)
    running = vllm.arrive("S", "A")
    vllm.schedule()
    vllm.cache.forget(["A"])
    assert vllm.cache.counters.forgotten == 1
    for _ in range(20):
        following = vllm.arrive("S", "B")
        vllm.schedule()
        vllm.end(running, completed=True)
        running = following
    assert not vllm.cache.index.nodes_of("A")
    vllm.end(running, completed=True)
    vllm.settle()
    vllm.check_at_rest()


def test_a_request_that_asks_again_after_forgetting_is_cached_as_always():
    vllm = VLLM(device=200)
    before = vllm.arrive("S", "A")
    vllm.schedule()
    vllm.cache.forget(["A"])
    after = vllm.arrive("S", "A")
    vllm.run(before, after)
    assert len(vllm.pool.longest(after.keys)) == len(after.keys)
    assert vllm.cache.index.nodes_of("A")
    vllm.check_at_rest()


def test_a_prompt_that_holds_a_forgotten_document_without_naming_it_is_dropped_too():
    vllm = VLLM(disk=100)
    vllm.run(vllm.arrive("S", "A"))
    unnamed = vllm.arrive("S", "A", "B", labelled=False)
    vllm.schedule()
    vllm.cache.forget(["A"])
    vllm.run(unnamed)
    assert len(vllm.pool.longest(unnamed.keys)) <= 1
    vllm.check_at_rest()


def test_many_documents_are_forgotten_in_one_pass():
    vllm = VLLM()
    vllm.run(vllm.arrive("A"), vllm.arrive("B"))
    sweeps = []
    sweep = vllm.cache._pool.sweep
    vllm.cache._pool.sweep = lambda: sweeps.append(sweep())  # type: ignore[method-assign, func-returns-value]
    vllm.cache.forget([f"document {number}" for number in range(10_000)] + ["A", "B"])
    assert len(sweeps) == 1
    assert vllm.cache.counters.forgotten == 10_002


def test_a_document_forgotten_while_a_request_runs_is_not_found():
    vllm = VLLM()
    request = vllm.arrive("S", "A")
    vllm.schedule()
    vllm.cache.forget(["A"])
    vllm.end(request, completed=True)
    vllm.settle()
    assert len(vllm.pool.longest(request.keys)) <= 1


def test_a_document_forgotten_while_no_block_is_free_is_not_found():
    vllm = VLLM(device=3)
    request = vllm.arrive("A")
    vllm.schedule()
    assert not vllm.pool.free_count
    vllm.cache.forget(["A"])
    vllm.end(request, completed=True)
    vllm.settle()
    assert not vllm.pool.longest(request.keys)


def test_a_document_forgotten_while_a_request_waits_does_not_come_back_with_it():
    vllm = VLLM()
    request = vllm.arrive("S", "A")
    vllm.cache.forget(["A"])
    vllm.run(request)
    assert len(vllm.in_host()) <= 1


def test_a_file_about_to_be_removed_is_not_taken_for_one_that_stays():
    vllm = VLLM(disk=100)
    vllm.run(vllm.arrive("A"))
    vllm.cache.forget(["A"])
    request = vllm.arrive("A")
    vllm.settle()
    vllm.end(request, completed=False)
    assert not any(node.resident[DISK] for node in vllm.nodes())


def test_the_rest_of_a_prompt_nobody_finished_is_forgotten_when_another_cuts_it():
    vllm = VLLM(chunk_blocks=1)
    request = vllm.arrive("S", "A", "B", labelled=False)
    vllm.schedule()
    vllm.end(request, completed=False)
    vllm.run(vllm.arrive("S", "A", labelled=False))
    vllm.cache.tree.check()


def test_blocks_whose_load_was_aborted_are_not_on_the_device():
    vllm = VLLM(device=12)
    vllm.run(vllm.arrive("A"))
    vllm.reset(host=False)
    request = vllm.arrive("A")
    vllm.schedule()
    assert request.state is LOADING
    vllm.end(request, completed=False)
    vllm.settle()
    assert not vllm.pool.longest(request.keys)
    vllm.run(vllm.arrive("D", question=(8,) * 34, labelled=False))
    vllm.cache.tree.check()
    assert vllm.cache.tree.used(Tier.DEVICE) <= 12


def test_a_node_that_was_loaded_was_not_computed():
    vllm = VLLM()
    vllm.run(vllm.arrive("A"))
    vllm.reset(host=False)
    vllm.run(vllm.arrive("A"))
    (node,) = vllm.nodes()
    assert (node.uses, node.prefills) == (2, 1)


def test_a_node_that_is_cut_while_a_request_runs_counts_as_cached_in_both_halves():
    vllm = VLLM()
    vllm.run(vllm.arrive("S", "A", "D", labelled=False))
    request = vllm.arrive("S", "A", "D", labelled=False)
    vllm.schedule()
    vllm.arrive("S", "A", labelled=False)
    vllm.run(request)
    halves = [node for node in vllm.nodes() if node.uses]
    assert len(halves) == 2
    assert [node.prefills for node in halves] == [1, 1]


def test_a_file_tells_of_a_document_though_a_later_prompt_does_not():
    vllm = VLLM(disk=100)
    vllm.arrive("A")
    vllm.arrive("A", labelled=False)
    vllm.schedule()
    for job in list(vllm.jobs):
        vllm.report(job)
    written = [copy for copy in vllm.disk.writes if isinstance(copy, BlockCopy)]
    assert written
    assert all(PLAIN.mark("A") in copy.marks for copy in written)


# -- any calls in any order ------------------------------------------------------------------------

prompts = st.sampled_from(["SA", "SAB", "SAD", "SDC", "SDCA", "SCB", "AB", "BD", "D", "C"]).map(
    tuple
)
questions = st.sampled_from([(8,), (9,), (9, 9, 9), (8, 9, 9, 9, 9, 9)])
whichever = st.integers(0, 99)
seldom = st.sampled_from([False, False, False, True])
"""Whether a rule applies that undoes much: it comes up as often as the others."""


class AnythingVLLMDoes(RuleBasedStateMachine):
    policy = "lru"

    @initialize(
        device=st.integers(12, 16),
        host=st.sampled_from([8, 5, 12, 2, 0]),
        disk=st.sampled_from([0, 3, 9]),
        protect=st.integers(0, 4),
        chunk_blocks=st.integers(1, 3),
        earlier=st.lists(prompts, max_size=2),
        elsewhere=st.lists(prompts, max_size=2),
        is_sharing=st.booleans(),
    )
    def begin(
        self,
        device: int,
        host: int,
        disk: int,
        protect: int,
        chunk_blocks: int,
        earlier: list[tuple[str, ...]],
        elsewhere: list[tuple[str, ...]],
        is_sharing: bool,
    ) -> None:
        self.vllm = VLLM(
            self.policy,
            device=device,
            host=host,
            disk=disk if host else 0,
            protect=protect,
            chunk_blocks=chunk_blocks,
            is_sharing=is_sharing,
        )
        self.clock = 0
        self.asked_at: dict[bytes, int] = {}
        self.forgotten_at: dict[str, int] = {}
        self.keys_of_document: dict[str, set[bytes]] = {}
        self.unlabelled: set[bytes] = set()
        self.from_earlier: set[str] = set()
        for documents in earlier if self.vllm.has_disk else []:
            token_ids = [token for document in documents for token in TEXTS[document]]
            request = Request("earlier", token_ids, len(token_ids), documents, True)
            prompt = self.vllm.prompt(request, [(len(token_ids), None)])
            for name, key in zip(prompt.file_names, prompt.keys, strict=False):
                self.vllm.disk.named[name] = self.vllm.disk.files[name] = key
                self.from_earlier.add(name)
        for documents in elsewhere if self.vllm.has_disk and is_sharing else []:
            _, prompt = self.vllm.describe(*documents)
            for name, key in zip(prompt.file_names, prompt.keys, strict=False):
                self.vllm.store.blocks[name] = key

    def one_of(self, things: Sequence[Any], which: int) -> Any:
        return things[which % len(things)]

    @rule(
        several=st.lists(
            st.tuples(prompts, questions, st.booleans(), seldom), min_size=1, max_size=3
        )
    )
    def arrive(self, several: list[tuple[tuple[str, ...], tuple[int, ...], bool, bool]]) -> None:
        for documents, question, labelled, is_guess in several:
            self.arrives(documents, question, labelled, is_guess)

    def arrives(
        self,
        documents: tuple[str, ...],
        question: tuple[int, ...],
        labelled: bool,
        is_guess: bool,
    ) -> None:
        if len(self.vllm.requests) >= 5:
            return
        guess = f"guess {self.vllm.count}" if is_guess else None
        request = self.vllm.arrive(*documents, question=question, labelled=labelled, guess=guess)
        self.clock += 1
        for key in request.keys:
            self.asked_at[key] = self.clock
        if not labelled:
            self.unlabelled.update(request.keys)  # nobody has said whose they are
        end = 0
        for document in documents:
            if labelled and document != "S":
                keys = request.keys[end // BLOCK_TOKENS :]
                self.keys_of_document.setdefault(document, set()).update(keys)
            end += len(TEXTS[document])

    @rule(documents=prompts, question=questions)
    def look_up(self, documents: tuple[str, ...], question: tuple[int, ...]) -> None:
        vllm = self.vllm
        request, prompt = vllm.describe(*documents, question=question)
        if not vllm.cache.touch_if_cached([prompt]):
            return
        self.clock += 1
        for key in request.keys:
            self.asked_at[key] = self.clock
        kept, in_host = prompt.keys[: prompt.cuts[-1].end if prompt.cuts else 0], vllm.in_host()
        on_disk = {*vllm.disk.files.values(), *map(vllm.disk.named.get, vllm.disk.stolen)}
        assert all(vllm.pool.has(key) or key in in_host or key in on_disk for key in kept)

    @rule(
        documents=prompts,
        tier=st.sampled_from([Tier.HOST, Tier.DISK]),
        most=st.sampled_from([0.5, 1.0]),
    )
    def keep(self, documents: tuple[str, ...], tier: Tier, most: float) -> None:
        vllm = self.vllm
        _, prompt = vllm.describe(*documents, question=())
        before, kept = vllm.cache.tree.kept(tier), vllm.cache.kept_documents()
        if vllm.disk.forgotten:
            return  # it would be forgotten first
        try:
            vllm.cache.keep_documents(KeepOrder(tier, most=most), [(documents, None, [prompt])])
        except NoRoomToKeep:
            assert vllm.cache.tree.kept(tier) == before
            after = vllm.cache.kept_documents()
            assert [one.documents for one in after] == [one.documents for one in kept]
        else:
            within = most * vllm.cache.tree.capacity(tier)
            assert vllm.cache.tree.kept(tier) <= max(before, within)

    @rule(which=whichever)
    def release(self, which: int) -> None:
        if kept := self.vllm.cache.kept_documents():
            self.vllm.cache.release_documents(self.one_of(kept, which).documents, None)

    @contextlib.contextmanager
    def nothing_kept_is_evicted(self) -> Iterator[None]:
        """What a tier has whole of a kept document stays there. Files that went by themselves do not, nor
        what another engine has forgotten, whose documents may stand before others."""
        whole = set() if self.vllm.disk.forgotten else self.kept_whole()
        yield
        assert self.vllm.disk.stolen or not whole - self.kept_whole()

    def kept_whole(self) -> set[tuple[tuple[str, ...], str]]:
        kept = self.vllm.cache.kept_documents()
        return {(one.documents, one.tier) for one in kept if one.held_tokens == one.tokens}

    @rule(budget_blocks=st.sampled_from([0, 2, 100]))
    def schedule(self, budget_blocks: int) -> None:
        with self.nothing_kept_is_evicted():
            self.vllm.schedule(budget_blocks=budget_blocks)

    @rule(rounds=st.integers(1, 4))
    def a_while_passes(self, rounds: int) -> None:
        with self.nothing_kept_is_evicted():
            self.passes(rounds)

    def passes(self, rounds: int) -> None:
        vllm = self.vllm
        for _ in range(rounds):
            vllm.schedule()
            for job in list(vllm.jobs):
                vllm.report(job)
            while vllm.disk.reads:
                vllm.disk.read_next()
            while vllm.disk.writes:
                vllm.disk.write_next()
            while vllm.store.questions:
                vllm.store.answer()
            while vllm.store.reads:
                vllm.store.read_next()
            while vllm.store.writes:
                vllm.store.write_next()
            for request in [each for each in vllm.running if each.is_prefilled]:
                vllm.end(request, completed=True)

    @precondition(lambda self: self.vllm.waiting)
    @rule(which=whichever)
    def ask_for_the_ratio(self, which: int) -> None:
        request = self.one_of(self.vllm.waiting, which)
        ratio = self.vllm.cache.cached_ratio(request.name)
        assert ratio is not None
        assert ratio >= 0

    @precondition(lambda self: any(request.is_prefilled for request in self.vllm.running))
    @rule(which=whichever, late=st.booleans())
    def complete(self, which: int, late: bool) -> None:
        done = [request for request in self.vllm.running if request.is_prefilled]
        self.vllm.end(self.one_of(done, which), completed=True, late=late)

    @precondition(lambda self: self.vllm.requests)
    @rule(which=whichever, late=st.booleans(), applies=seldom)
    def abort(self, which: int, late: bool, applies: bool) -> None:
        if not applies:
            return
        self.vllm.end(self.one_of(self.vllm.requests, which), completed=False, late=late)

    @rule(numbers=st.lists(whichever, max_size=3))
    def guesses_are_adopted(self, numbers: list[int]) -> None:
        self.vllm.cache.adopt_guesses(
            f"guess {number % (self.vllm.count + 1)}" for number in numbers
        )

    @precondition(lambda self: self.vllm.later)
    @rule()
    def blocks_come_back_late(self) -> None:
        self.vllm.free_late()

    @precondition(lambda self: self.vllm.jobs)
    @rule(which=whichever)
    def a_copy_takes_place(self, which: int) -> None:
        job = self.one_of(self.vllm.jobs, which)
        if not job.is_copied:
            self.vllm.copy(job)

    @precondition(lambda self: self.vllm.jobs)
    @rule(which=whichever)
    def a_copy_is_reported(self, which: int) -> None:
        self.vllm.report(self.one_of(self.vllm.jobs, which))

    @precondition(lambda self: self.vllm.disk.reads)
    @rule(failure=st.sampled_from([None, None, None, "damaged", "missing", "unreadable"]))
    def the_disk_reads(self, failure: str | None) -> None:
        self.vllm.disk.read_next(failure)

    @precondition(lambda self: self.vllm.disk.writes)
    @rule(failure=st.sampled_from([None, None, None, "full", "unwritable"]))
    def the_disk_writes(self, failure: str | None) -> None:
        self.vllm.disk.write_next(failure)

    @precondition(lambda self: self.vllm.disk.files)
    @rule(which=whichever)
    def another_engine_removes_a_file(self, which: int) -> None:
        name = self.one_of(list(self.vllm.disk.files), which)
        self.vllm.disk.stolen.add(name)
        del self.vllm.disk.files[name]

    @precondition(lambda self: self.vllm.store.questions)
    @rule()
    def the_store_answers(self) -> None:
        self.vllm.store.answer()

    @precondition(lambda self: self.vllm.store.reads)
    @rule(failure=st.sampled_from([None, None, None, "damaged", "missing"]))
    def a_block_is_fetched(self, failure: str | None) -> None:
        self.vllm.store.read_next(failure)

    @precondition(lambda self: self.vllm.store.writes)
    @rule(failure=st.sampled_from([None, None, None, "full", "unwritable"]))
    def a_block_is_shared(self, failure: str | None) -> None:
        self.vllm.store.write_next(failure)

    @precondition(lambda self: self.vllm.store.blocks)
    @rule(which=whichever)
    def the_store_loses_a_block(self, which: int) -> None:
        blocks = self.vllm.store.blocks
        del blocks[self.one_of(list(blocks), which)]

    @rule(usable=st.booleans())
    def the_store_goes_or_comes_back(self, usable: bool) -> None:
        self.vllm.store.is_usable = usable

    @rule(stalled=st.booleans(), begun=st.booleans())
    def the_disk_hangs_or_recovers(self, stalled: bool, begun: bool) -> None:
        self.vllm.disk.is_stalled, self.vllm.disk.has_begun_all = stalled, begun

    @rule(seconds=st.sampled_from([0.01, 2.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.vllm.now_s += seconds

    @rule(document=st.sampled_from("ABCD"), applies=seldom)
    def another_engine_forgets(self, document: str, applies: bool) -> None:
        if applies:
            self.vllm.disk.forgotten = {PLAIN.mark(document): self.clock}

    @rule(document=st.sampled_from("ABCD"), applies=seldom)
    def forget(self, document: str, applies: bool) -> None:
        if not applies:
            return
        self.clock += 1
        self.forgotten_at[document] = self.clock
        self.vllm.cache.forget([document])
        self.vllm.store.forget(self.keys_of_document.get(document, set()))
        kept = self.vllm.cache.kept_documents()
        assert document not in [name for one in kept for name in one.documents]

    @precondition(lambda self: self.vllm.pool.free_count == len(self.vllm.pool.blocks))
    @rule(host=seldom, applies=seldom)
    def reset(self, host: bool, applies: bool) -> None:
        if not applies:
            return
        assert self.vllm.reset(host=host)

    @invariant()
    def nothing_is_lost_or_mixed_up(self) -> None:
        if hasattr(self, "vllm"):
            self.vllm.check()

    def teardown(self) -> None:
        if not hasattr(self, "vllm") or sys.exc_info()[0]:
            return  # what has failed already need not end well
        vllm = self.vllm
        for request in list(vllm.requests):
            vllm.end(request, completed=request in vllm.running and request.is_prefilled)
        vllm.settle()
        vllm.check_at_rest()
        in_host = vllm.in_host()
        for request in vllm.preempted:
            self.unlabelled.update(request.keys)  # they waited again; see above
        for document, forgotten_at in self.forgotten_at.items():
            for key in self.keys_of_document.get(document, set()) - self.unlabelled:
                if self.asked_at[key] < forgotten_at:
                    assert not vllm.pool.has(key), f"{document} is still on the device"
                    assert key not in in_host, f"{document} is still in the host"
                    kept = [name for name, held in vllm.disk.files.items() if held == key]
                    assert set(kept) <= self.from_earlier, f"{document} is still on disk"
                    assert key not in vllm.store.blocks.values(), f"{document} is still shared"


@pytest.mark.parametrize("policy", ["lru", "pgdsf", "halflife", "s3fifo", "arc"])
@pytest.mark.slow
def test_whatever_vllm_does_nothing_is_lost_or_mixed_up(policy: str):
    machine = type("Machine", (AnythingVLLMDoes,), {"policy": policy})
    machine.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=50)
    machine.TestCase().runTest()
