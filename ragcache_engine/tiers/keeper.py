"""Keeper: one knowledge tree over the blocks of device, host and disk.

It is told what happens to each request, and answers what is cached, what to load, what to store, and
which block of device memory to overwrite next. Called by one thread. Times come from the caller.
Source: RAGCache, §5.1, §5.2, Algorithm 1.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic

from ragcache_engine.knowledge import (
    CostProfile,
    EvictionPolicy,
    FreedBlocks,
    KnowledgeTree,
    Node,
    Tier,
)
from ragcache_engine.knowledge.request_queue import cached_ratio
from ragcache_engine.knowledge.tier import RANK
from ragcache_engine.tiers.counters import Counters
from ragcache_engine.tiers.device import B, DeviceBlocks
from ragcache_engine.tiers.disk.transfers import DiskTransfers, Done, Wanted
from ragcache_engine.tiers.host import HostSlots
from ragcache_engine.tiers.ledger import BlockLedger, Cut, Key, PerBlock
from ragcache_engine.tiers.speed import SHORTEST_STEP_TOKENS, Computing, Copying

STEPS_TO_FLUSH = 8
"""After the cache was cleared, copies under way end within the next steps, and nobody tells when."""

MOST_UNADOPTED = 64
"""Guesses that have ended and may still be adopted; the engine has far fewer of them."""

MOST_WRITES = 256
"""Blocks that may wait to be written. A disk slower than the model computes gets what it can take."""

DEVICE, HOST, DISK = (RANK[tier] for tier in (Tier.DEVICE, Tier.HOST, Tier.DISK))


class Presence(Enum):
    """Whether the host tier can give a block."""

    HERE = auto()
    COMING = auto()  # it is being copied there
    AWAY = auto()


@dataclass(slots=True)
class Prompt:
    """A request's prompt, as its blocks are known.

    keys: of its full blocks. cuts: where documents end; what lies behind the last is not kept.
    tokens: of the whole prompt. names: of its blocks' files, if there is a disk tier.
    documents: for each cut, the marks of all documents up to it.
    """

    keys: Sequence[Key]
    cuts: Sequence[Cut]
    tokens: int
    names: Sequence[str] = ()
    documents: Sequence[Sequence[str]] = ()


@dataclass(slots=True)
class _Asked:
    """A request that waits or runs. nodes: pinned as long as they are listed here."""

    prompt: Prompt
    nodes: list[Node] = field(default_factory=list)
    runs: bool = False
    device_blocks: int = 0
    load_blocks: int = 0
    passed_over: int = 0  # blocks that could be loaded, and are computed since that is quicker
    from_disk: set[Key] = field(default_factory=set)
    tokens: dict[Tier, int] | None = None  # cached ones, as first admitted
    asked_to_load_s: float | None = None
    loads_alone: bool = False  # nothing else has been computed since it asked
    scheduling_s: float = 0.0
    guess: str | None = None  # its name, while nobody has asked for it


class Keeper(Generic[B]):
    """Decides for the blocks of one vLLM engine.

    policy: makes each tier's policy. device_blocks: of the pool. host: the host tier's slots.
    block_bytes: of one block in a slower tier. protect: how many of the waiting requests keep their
      nodes from eviction.
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
    ) -> None:
        self.counters = Counters()
        self.block_tokens = block_tokens
        self.block_bytes = block_bytes
        self.host = host
        self.tree = KnowledgeTree(
            {Tier.HOST: host.count, Tier.DISK: disk_blocks},
            policy,
            block_tokens=block_tokens,
            forgotten=self._forgotten,
        )
        self.ledger = BlockLedger(self.tree, self._split)
        self.device: DeviceBlocks[B] | None = None
        self.computing = Computing(profile or CostProfile.default())
        self.from_host = Copying(4e9)
        self.from_disk = Copying()
        self._protect = protect
        self._disk: DiskTransfers | None = None
        self._names: PerBlock[str] = PerBlock()  # of files
        self._marks: dict[Node, Sequence[str]] = {}  # of documents, for files
        self._known_files: set[str] = set()
        self._asked: dict[str, _Asked] = {}
        self._holding: dict[str, _Asked] = {}  # those with nodes
        self._filling: dict[Key, int] = {}  # slots being copied to
        self._loading: dict[Key, list[int]] = {}  # slots being copied from, to the device
        self._writing: dict[str, Key] = {}  # from slots to files
        self._reading: dict[str, Key] = {}  # from files to slots
        self._unadopted: OrderedDict[str, _Asked] = OrderedDict()
        # Documents to forget, with the requests that were there before and may compute them again.
        self._doomed: dict[str, set[str]] = {}
        self._tried: str | None = None  # the request the scheduler is trying to admit
        # Steps to wait, and slots of copies that nobody will report.
        self._stale: list[tuple[int, int]] = []
        self._parted: list[Node] = []  # lower halves of nodes just cut
        self._is_cached: Callable[[Key], bool] = lambda key: False

    def attach_device(
        self,
        free: Iterable[B],
        *,
        key_of: Callable[[B], Key | None],
        is_cached: Callable[[Key], bool],
        drop_cached: Callable[[Iterable[B]], None],
    ) -> DeviceBlocks[B]:
        """Decide over these blocks of device memory, all of them free.

        key_of: what a block holds, None for nothing. is_cached: whether the device holds this now,
          whoever computes with it. drop_cached: makes vLLM forget what blocks hold.
        """
        blocks = list(free)
        self.tree.set_capacity(Tier.DEVICE, len(blocks))
        self.device = DeviceBlocks(
            self.tree, self.ledger, key_of, self._carry_out, self._relent, drop_cached
        )
        self.device.begin(blocks)
        self._is_cached = is_cached
        return self.device

    def attach_disk(self, disk: DiskTransfers) -> None:
        """Keep blocks on disk as well."""
        self._disk = disk

    def knows_file(self, name: str) -> bool:
        """Whether the tree decides over this file. Any thread."""
        return name in self._known_files

    # -- requests ------------------------------------------------------------------------------

    def arrived(self, request: str, prompt: Prompt, *, guess: str | None = None) -> None:
        """A request begins to wait. guess: its own name, if nobody has asked for it yet."""
        self._asked[request] = _Asked(prompt, guess=guess)
        if len(self._holding) < self._protect:
            self._protect_path(request)

    def ratio(self, request: str) -> float | None:
        """Cached to computed tokens, as of now; None if the request is unknown.

        Infinite for every request that has something cached and so little left that a step costs
        what it costs anyway. Among those the quotient says nothing, and those with a few tokens more to
        compute would be passed over by all that come: they go by arrival.
        """
        asked = self._asked.get(request)
        if asked is None:
            return None
        self._protect_path(request)
        cached = 0
        for node in asked.nodes:
            keys = self.ledger.keys(node)
            here = max(node.resident)
            if here < node.blocks and self._is_cached(keys[-1]):
                here = node.blocks
            cached += here
            if here < node.blocks:
                break
        tokens = min(cached * self.block_tokens, asked.prompt.tokens - 1)
        left = asked.prompt.tokens - tokens
        return cached_ratio(tokens, 0 if tokens and left < SHORTEST_STEP_TOKENS else left)

    def looks(self, request: str, device_tokens: int, now_s: float) -> None:
        """The scheduler tries to admit a request, of which the device has so many tokens.

        Decides what to load; `presence` then answers by it.
        """
        asked = self._asked[request]
        self._hold(request, asked)
        self._tried = request
        asked.device_blocks = device_tokens // self.block_tokens
        self._plan(asked)
        if asked.load_blocks and asked.asked_to_load_s is None:
            asked.asked_to_load_s, asked.loads_alone = now_s, not self._is_busy_beside(asked)

    def presence(self, request: str, key: Key) -> Presence:
        """Whether the host can give the request a block that the device lacks."""
        asked = self._asked.get(request)
        found = self.ledger.owner(key)
        if asked is None or found is None:
            return Presence.AWAY
        node, at = found
        if at >= node.resident[HOST]:
            return Presence.AWAY
        place = node.end // self.block_tokens - node.blocks + at
        if place >= asked.device_blocks + asked.load_blocks:
            return Presence.AWAY  # computing it is quicker
        return Presence.COMING if key in self._filling else Presence.HERE

    def admitted(self, request: str, loaded_tokens: int) -> None:
        """The request has its device memory; so many tokens are on their way from the host."""
        asked = self._asked[request]
        asked.runs = True
        for other in self._asked.values():
            if other is not asked:  # its copies may be there long before this one's step is over
                other.loads_alone = False
        # What is on its way counts as there when it is offered to the host: the request may be aborted.
        self._know_on_device(asked, asked.device_blocks)
        if asked.tokens is None:
            first, here = asked.device_blocks, asked.device_blocks * self.block_tokens
            keys = asked.prompt.keys[first : first + -(-loaded_tokens // self.block_tokens)]
            disk_blocks = sum(key in asked.from_disk for key in keys)
            # Each token is counted where it came from; the last one, computed again, as computed.
            loaded = min(loaded_tokens, asked.prompt.tokens - 1 - here)
            disk_tokens = min(disk_blocks * self.block_tokens, loaded)
            asked.tokens = {
                Tier.DEVICE: here,
                Tier.HOST: loaded - disk_tokens,
                Tier.DISK: disk_tokens,
            }
        if not loaded_tokens:
            asked.asked_to_load_s = None

    def waits_again(self, request: str) -> None:
        """The request was preempted: what it holds is kept only as long as nobody needs the room."""
        if asked := self._asked.get(request):
            asked.runs = False

    def ended(self, request: str, *, completed: bool) -> dict[str, int] | None:
        """The request is over; where its tokens came from, None if it never ran.

        completed: it has its answer. One that was aborted was no use of its documents.
        """
        asked = self._asked.pop(request, None)
        if asked is None:
            return None
        self.counters.ended += 1
        if completed and asked.tokens is not None:
            self._hold(request, asked)
            self._count_tokens(asked, asked.tokens)
            if asked.guess is None:
                self._count_use(asked)
            else:
                self._unadopted[asked.guess] = asked
                if len(self._unadopted) > MOST_UNADOPTED:
                    self._unadopted.popitem(last=False)
            self._offer_to_disk(asked.nodes)
        self._let_go(request, asked)
        if self._doomed:
            self._try_doomed()
        if asked.tokens is None:
            return None
        return {tier.value: tokens for tier, tokens in asked.tokens.items()}

    def adopted(self, guesses: Iterable[str]) -> None:
        """Guesses turned out to be what was asked: they are, or will be, uses of their documents."""
        for guess in guesses:
            asked = self._unadopted.pop(guess, None)
            if asked is None:
                for running in self._asked.values():
                    if running.guess == guess:
                        running.guess = None
            else:
                asked.guess = None
                self._hold(guess, asked)
                self._count_use(asked)
                self._let_go(guess, asked)

    def spent(self, request: str, seconds: float) -> None:
        """So much of the scheduler's time went into our part of the request."""
        if asked := self._asked.get(request):
            asked.scheduling_s += seconds

    # -- between device and host -----------------------------------------------------------------

    def load(self, keys: Iterable[Key]) -> list[int]:
        """The slots to copy blocks from; they stay as they are until `loaded`."""
        slots = []
        for key in keys:
            node, at = self._owner(key)
            slot = self.host.of(node)[at]
            assert slot is not None, "a block that is here has a slot"
            self.host.hold(slot)
            self._loading.setdefault(key, []).append(slot)
            slots.append(slot)
        self.counters.loaded_bytes += len(slots) * self.block_bytes
        return slots

    def loaded(self, keys: Iterable[Key]) -> None:
        for key in keys:
            slots = self._loading.get(key)
            if slots:
                self.host.release(slots.pop())
                if not slots:
                    del self._loading[key]

    def arrived_on_device(self, request: str, loaded_bytes: int, now_s: float) -> None:
        """What a request waited for has been loaded."""
        asked = self._asked.get(request)
        if asked and asked.asked_to_load_s is not None:
            if asked.loads_alone:
                copying = self.from_disk if asked.from_disk else self.from_host
                copying.waited(loaded_bytes, now_s - asked.asked_to_load_s)
            asked.asked_to_load_s = None

    def store(self, request: str, keys: Sequence[Key]) -> list[tuple[Key, int]]:
        """Which of these blocks of the request, just computed, to copy into which slots.

        keys: in prompt order. The host keeps what it has: a block is copied once.
        """
        offered = set(keys)
        asked = self._asked.get(request)
        wanted: dict[Node, int] = {}
        rest: Iterable[Key] = keys
        if asked is not None and asked.nodes:
            wanted, rest = self._offered_of(asked.nodes, keys, offered)
        for key in rest:
            if found := self.ledger.owner(key):
                wanted[found[0]] = found[1] + 1
        if asked is not None:
            for node, blocks in wanted.items():
                self.tree.hold(node, Tier.DEVICE, blocks)
        stored: list[tuple[Key, int]] = []
        for node, blocks in wanted.items():
            stored += self._store(node, blocks, offered)
        self.counters.stored_bytes += len(stored) * self.block_bytes
        return stored

    def stored(self, keys: Iterable[Key]) -> None:
        """Blocks have reached their slots."""
        filled = [key for key in keys if key in self._filling]
        for key in filled:
            self.host.release(self._filling.pop(key))
        if self._disk is not None:
            found = map(self.ledger.owner, filled)
            self._offer_to_disk(dict.fromkeys(owned[0] for owned in found if owned))

    # -- between host and disk -------------------------------------------------------------------

    def step(self) -> None:
        """Once in each step of the scheduler: take in what was read from and written to the disk."""
        if self._stale:
            stale, self._stale = self._stale, []
            for steps, slot in stale:
                if steps > 1:
                    self._stale.append((steps - 1, slot))
                else:
                    self.host.release(slot)
        self.take_in()

    def take_in(self) -> None:
        """What has been read from and written to the disk since the last time."""
        if self._disk is not None:
            for done in self._disk.finished():
                if done.is_read:
                    self._was_read(done)
                else:
                    self._was_written(done)

    @property
    def waits_for_disk(self) -> bool:
        """Whether blocks that requests may wait for are on their way from the disk."""
        return bool(self._reading)

    @property
    def writes_to_disk(self) -> bool:
        return bool(self._writing)

    def flush(self) -> None:
        """The end is near: offer the disk what only the host has, the most used first."""
        if self._disk is not None:
            nodes = [node for node in self.tree.root.downwards() if node.resident[HOST]]
            self._offer_to_disk(sorted(nodes, key=lambda node: (-node.uses, node.end)))

    # -- forgetting ------------------------------------------------------------------------------

    def forget(self, documents: Iterable[str]) -> int:
        """Drop documents from every tier, with all computed after them; how many must still wait.

        Those that running requests need are dropped when the last of these ends.
        """
        for name in documents:
            self._doomed.setdefault(name, set()).update(
                request
                for request, asked in self._asked.items()
                if any(name in cut.names for cut in asked.prompt.cuts)
            )
        self._try_doomed()
        return len(self._doomed)

    def device_cleared(self) -> None:
        """The device holds nothing any more."""
        self._drop_all(Tier.DEVICE)
        if self.device:
            self.device.clear()

    def host_cleared(self) -> None:
        """The host is to hold nothing any more; copies to and from the device will not be reported."""
        being_read = set(self._reading.values())
        for key, slot in list(self._filling.items()):
            if key not in being_read:
                del self._filling[key]
                self._stale.append((STEPS_TO_FLUSH, slot))
        for slots in self._loading.values():
            self._stale += [(STEPS_TO_FLUSH, slot) for slot in slots]
        self._loading.clear()
        self._drop_all(Tier.HOST)

    # -- inside: requests ------------------------------------------------------------------------

    def _owner(self, key: Key) -> tuple[Node, int]:
        found = self.ledger.owner(key)
        assert found is not None, "a block that was found has an owner"
        return found

    def _hold(self, request: str, asked: _Asked) -> None:
        """Pin the request's nodes."""
        if asked.nodes or not asked.prompt.cuts:
            return
        prompt = asked.prompt
        nodes = self.ledger.path(prompt.keys, prompt.cuts)
        self.tree.pin(nodes)
        asked.nodes = nodes
        self._holding[request] = asked
        while self._parted:
            self.tree.prune(self._parted.pop())
        if prompt.names and self._disk is not None:
            self._know_files(asked)

    def _protect_path(self, request: str) -> None:
        """Keep a waiting request's nodes, and fetch them upwards from the disk."""
        asked = self._asked[request]
        if not asked.nodes:
            self._hold(request, asked)
            if self._disk is not None:
                asked.device_blocks = self._blocks_on_device(asked)
                self._plan(asked)

    def _let_go(self, request: str, asked: _Asked) -> None:
        if self._holding.pop(request, None):
            nodes, asked.nodes = asked.nodes, []
            self.tree.unpin(nodes)

    def _relent(self) -> bool:
        """Let go of what only waits; it may be evicted now. False if there was nothing."""
        waiting = [
            (request, asked)
            for request, asked in self._holding.items()
            if not asked.runs and request != self._tried
        ]
        for request, asked in waiting:
            self._let_go(request, asked)
        return bool(waiting)

    def _count_use(self, asked: _Asked) -> None:
        cached = sum((asked.tokens or {}).values())
        computed = asked.prompt.tokens - cached
        seconds = self.computing.prefill_s(cached, computed) if computed > 0 else 0.0
        whole = _whole(asked.nodes, cached // self.block_tokens)
        self.tree.record_use(asked.nodes, whole, seconds / computed if computed > 0 else 0.0)

    def _count_tokens(self, asked: _Asked, tokens: dict[Tier, int]) -> None:
        computed = asked.prompt.tokens - sum(tokens.values())
        counters = self.counters
        counters.device_tokens += tokens[Tier.DEVICE]
        counters.host_tokens += tokens[Tier.HOST]
        counters.disk_tokens += tokens[Tier.DISK]
        counters.computed_tokens += computed
        counters.recomputed += asked.passed_over
        counters.scheduled(asked.scheduling_s)

    def _know_on_device(self, asked: _Asked, blocks: int) -> None:
        """The device has the prompt's first `blocks` blocks."""
        for node in asked.nodes:
            here = min(node.blocks, blocks)
            self.tree.hold(node, Tier.DEVICE, here)
            blocks -= here
            if here < node.blocks:
                break

    def _blocks_on_device(self, asked: _Asked) -> int:
        blocks = 0
        for node in asked.nodes:
            blocks += node.resident[DEVICE]
            if node.resident[DEVICE] < node.blocks:
                break
        return blocks

    # -- inside: loading -------------------------------------------------------------------------

    def _reach(self, asked: _Asked, *, disk: bool = True) -> int:
        """How many blocks behind those on the device the slower tiers have, without a gap."""
        skip, reach = asked.device_blocks, 0
        for node in asked.nodes:
            here = max(node.resident[HOST], node.resident[DISK] if disk else 0)
            if skip >= node.blocks:
                skip -= node.blocks
                continue
            reach += max(0, here - skip)
            skip = 0
            if here < node.blocks:
                break
        return reach

    def _plan(self, asked: _Asked) -> None:
        """Decide how many blocks behind those on the device to load, and begin with the disk's."""
        asked.load_blocks = self._worth_loading(asked)
        if self._disk is not None and asked.load_blocks:
            self._fetch(asked, asked.device_blocks + asked.load_blocks)

    def _is_busy_beside(self, asked: _Asked) -> bool:
        """Whether the model computes other requests."""
        return any(other.runs and other is not asked for other in self._asked.values())

    def _worth_loading(self, asked: _Asked) -> int:
        # Beside others a request waits for their step, loading or not, and what it does not compute makes
        # room for them: then only the copying itself counts.
        with_latency = not self._is_busy_beside(asked)
        prompt, block_tokens = asked.prompt, self.block_tokens
        cached = asked.device_blocks * block_tokens
        left = prompt.tokens - cached
        # vLLM computes the last token again even if all of them are there, as its output is needed.
        most = left // block_tokens
        in_host = min(most, self._reach(asked, disk=False))
        blocks = self.computing.blocks_worth_loading(
            self.from_host,
            cached_tokens=cached,
            computed_tokens=left,
            loadable_blocks=in_host,
            block_tokens=block_tokens,
            block_bytes=self.block_bytes,
            with_latency=with_latency,
        )
        anywhere = min(most, self._reach(asked))
        if blocks == in_host and anywhere > in_host:
            blocks += self.computing.blocks_worth_loading(
                self.from_disk,
                cached_tokens=cached + blocks * block_tokens,
                computed_tokens=left - blocks * block_tokens,
                loadable_blocks=anywhere - in_host,
                block_tokens=block_tokens,
                block_bytes=self.block_bytes,
                with_latency=with_latency,
            )
        asked.passed_over = anywhere - blocks
        return blocks

    def _fetch(self, asked: _Asked, upto: int) -> None:
        """Read the prompt's blocks up to this one into host slots, where only the disk has them."""
        at = 0
        for node in list(asked.nodes):
            wanted = min(node.resident[DISK], upto - at)
            at += node.blocks
            if at <= asked.device_blocks:
                continue  # the device has all of it
            if node.resident[HOST] < wanted and not self._read(node, wanted, asked):
                return
            if at >= upto:
                return

    def _read(self, node: Node, upto: int, asked: _Asked) -> bool:
        """Ask for the node's next blocks from the disk. False if the host has no room for them all."""
        assert self._disk is not None
        start = node.resident[HOST]
        self._carry_out(self.tree.grow(node, Tier.HOST, upto, force=True))
        keys, names = self.ledger.keys(node), self._names.of(node)
        for at in range(start, node.resident[HOST]):
            key, name = keys[at], names[at]
            slots = [] if key in self._filling or name is None else self.host.fill(node, at, at + 1)
            if not slots or name is None:
                self._carry_out(self.tree.drop(node, Tier.HOST, at), counted=False)
                return False
            (slot,) = slots
            self._filling[key] = slot
            self._reading[name] = key
            asked.from_disk.add(key)
            self._disk.read(Wanted(name, slot))
        return node.resident[HOST] >= upto

    def _was_read(self, done: Done) -> None:
        key = self._reading.pop(done.wanted.name, None)
        if done.failure is None:
            self.counters.read_bytes += done.size_bytes
            self.from_disk.copied(done.size_bytes, done.seconds)
        elif done.failure == "missing":
            self.counters.missing += 1
        else:
            self.counters.damaged += 1
        if key is None or self._filling.get(key) != done.wanted.slot:
            self.host.release(done.wanted.slot)
            return
        del self._filling[key]
        self.host.release(done.wanted.slot)
        if done.failure is not None and (found := self.ledger.owner(key)):
            node, at = found
            # What stands on it may be sound; but it cannot be reached without it.
            for tier in (Tier.DISK, Tier.HOST):
                self._carry_out(self.tree.drop(node, tier, at), counted=False)

    # -- inside: storing -------------------------------------------------------------------------

    def _offered_of(
        self, nodes: Iterable[Node], keys: Sequence[Key], offered: set[Key]
    ) -> tuple[dict[Node, int], Sequence[Key]]:
        """How many of the path's blocks are among the keys, by node, and the keys behind the path.

        Asks once a node rather than once a block: with many nodes, each look at one is slow.
        """
        found: dict[Node, int] = {}
        last: Key | None = None
        for node in nodes:
            own, upto = self.ledger.keys(node), node.blocks
            if own[-1] not in offered:
                if own[0] not in offered:
                    continue  # or all of the keys lie within it: then they are all left over
                while own[upto - 1] not in offered:
                    upto -= 1
            found[node], last = upto, own[upto - 1]
        behind = 0 if last is None else len(keys)
        while behind and keys[behind - 1] != last:
            behind -= 1
        return found, keys[behind:]

    def _store(self, node: Node, blocks: int, offered: set[Key]) -> list[tuple[Key, int]]:
        start = node.resident[HOST]
        keys = self.ledger.keys(node)
        if start >= blocks or not self.host.count:
            return []
        if keys[start] not in offered:
            return []  # the host lost the blocks before those that were computed now
        # What the disk would take travels through the host, even past better blocks: those are on the
        # disk already, or come back from it sooner than this one could be computed again.
        through = self._disk_takes(node, blocks - node.resident[DISK], uses=node.uses + 1)
        moves = self.tree.grow(node, Tier.HOST, blocks, force=through, in_use=True)
        self._carry_out(moves)
        self.counters.refused += blocks - node.resident[HOST]
        end = start
        while end < node.resident[HOST] and keys[end] not in self._filling:
            end += 1
        slots = self.host.fill(node, start, end)
        stored = list(zip(keys[start:end], slots, strict=False))  # as far as there are slots
        self._filling.update(stored)
        if start + len(stored) < node.resident[HOST]:
            moves = self.tree.drop(node, Tier.HOST, start + len(stored))
            self._carry_out(moves, counted=False)
        return stored

    def _offer_to_disk(self, nodes: Iterable[Node]) -> None:
        """Write what the host has and the disk has not, if it is worth a place there."""
        if self._disk is None or not self._disk.is_writable:
            return
        for node in nodes:
            names, keys = self._names.of(node), self.ledger.keys(node)
            slots = self.host.of(node)
            at = node.resident[DISK]
            while at < node.resident[HOST] and keys[at] not in self._filling:
                name, slot = names[at] if names else None, slots[at]
                if name is None or slot is None or name in self._writing:
                    break
                if (
                    self._disk.writing >= MOST_WRITES
                    or not self._disk_takes(node, 1, uses=node.uses)
                    or not self._keep_file(node, at, at + 1)
                ):
                    self.counters.unwritten += 1
                    break
                self.host.hold(slot)
                self._writing[name] = keys[at]
                self._disk.write(Wanted(name, slot, self._marks.get(node, ())))
                at += 1

    def _disk_takes(self, node: Node, blocks: int, *, uses: int) -> bool:
        """Whether the disk is to have the node's blocks: there is room, or they were asked for again.

        A disk wears out, and most documents are never asked for twice.
        """
        if self._disk is None or not self._disk.is_writable:
            return False
        free = self.tree.capacity(Tier.DISK) - self.tree.used(Tier.DISK)
        return free >= blocks or uses > 1

    def _was_written(self, done: Done) -> None:
        key = self._writing.pop(done.wanted.name, None)
        self.host.release(done.wanted.slot)
        if done.failure is None:
            self.counters.written_bytes += done.size_bytes
            return
        self.counters.unwritten += 1
        if key is not None and (found := self.ledger.owner(key)):
            node, at = found
            self._carry_out(self.tree.drop(node, Tier.DISK, at), counted=False)

    def _know_files(self, asked: _Asked) -> None:
        """Name the files of the prompt's blocks, and find those that are there already."""
        assert self._disk is not None
        prompt, at, cut = asked.prompt, 0, 0
        for node in asked.nodes:
            while prompt.cuts[cut].end < at + node.blocks:
                cut += 1
            self._marks[node] = tuple(
                {**dict.fromkeys(self._marks.get(node, ())), **dict.fromkeys(prompt.documents[cut])}
            )
            for place in range(node.blocks):
                self._names.put(node, place, prompt.names[at + place])
            known = upto = node.resident[DISK]
            while upto < node.blocks and self._disk.holds(prompt.names[at + upto]):
                upto += 1
            if upto > known:
                self._keep_file(node, known, upto, force=True)
            at += node.blocks

    def _keep_file(self, node: Node, start: int, upto: int, *, force: bool = False) -> bool:
        """Whether the disk tier has room for the node's blocks up to this one; they are known then."""
        self._carry_out(self.tree.grow(node, Tier.DISK, upto, force=force))
        names = self._names.of(node)
        self._known_files.update(name for name in names[start : node.resident[DISK]] if name)
        return node.resident[DISK] >= upto

    # -- inside: the tree ------------------------------------------------------------------------

    def _carry_out(self, moves: Iterable[FreedBlocks], *, counted: bool = True) -> None:
        """Free what the tree has given up. Nothing is copied: slower tiers have it, or do not want it."""
        for move in moves:
            node, start, end = move.node, move.start, move.end
            if counted:
                self.counters.evicted[move.tier.value] += end - start
            if move.tier is Tier.DEVICE:
                if self.device:
                    self.device.freed(node, start, end)
            elif move.tier is Tier.HOST:
                self.host.freed(node, start, end)
            else:
                self._remove_files(self._names.of(node)[start:end])

    def _drop_all(self, tier: Tier) -> None:
        for node in list(self.tree.root.downwards()):
            self._carry_out(self.tree.drop(node, tier), counted=False)

    def _try_doomed(self) -> None:
        self._relent()
        for name, needing in list(self._doomed.items()):
            nodes = self.ledger.named(name)
            if any(below.pins for node in nodes for below in node.downwards()):
                continue
            self._carry_out(self.tree.remove(nodes), counted=False)
            needing &= self._asked.keys()
            if not needing:
                del self._doomed[name]
                self.counters.forgotten += 1
        if self.device:
            # What nobody owns may have been computed from them, and is worth little in any case.
            self.device.sweep()

    def _split(self, upper: Node, lower: Node) -> None:
        self.host.split(upper, lower)
        self._names.split(upper, lower)
        if self.device:
            self.device.split(upper, lower)
        self._parted.append(lower)
        if marks := self._marks.get(lower):
            self._marks[upper] = marks
        for asked in self._holding.values():
            if lower in asked.nodes:
                asked.nodes.insert(asked.nodes.index(lower), upper)
                self.tree.pin([upper])

    def _forgotten(self, node: Node) -> None:
        # The tree may forget a node as it gives up its last block, before its moves are carried out.
        self.ledger.forget(node)
        self.host.forget(node)
        self._marks.pop(node, None)
        self._remove_files(self._names.forget(node))
        if self.device:
            self.device.forget(node)

    def _remove_files(self, names: Iterable[str | None]) -> None:
        for name in names:
            if name in self._known_files and name is not None and self._disk is not None:
                self._known_files.discard(name)
                self._disk.remove(name)


def _whole(nodes: Iterable[Node], blocks: int) -> int:
    """How many of a path's nodes its first `blocks` blocks cover to their last."""
    whole = 0
    for node in nodes:
        blocks -= node.blocks
        if blocks < 0:
            break
        whole += 1
    return whole
