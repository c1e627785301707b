"""Keeps documents from eviction in a tier, for as long as somebody asked for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple

from ragcache_engine.knowledge import Node, Tier
from ragcache_engine.knowledge.tier import RANK
from ragcache_engine.tenants import owner_of
from ragcache_engine.tiers.block_index import BlockIndex
from ragcache_engine.tiers.disk.kept_files import KeptFile
from ragcache_engine.tiers.disk_copying import DiskCopying
from ragcache_engine.tiers.kept import KeepOrder, Kept, NoRoomToKeep
from ragcache_engine.tiers.node_record import B, Key

HOST, DISK = RANK[Tier.HOST], RANK[Tier.DISK]

ENDED_AT_ONCE = 100
"""How many sets are let go in one step of the scheduler whose time is over; the next step goes on."""


class ToKeep(NamedTuple):
    """Documents to keep. paths: the nodes of the prompts that they are stored in, each with its parents.

    file: what others on the disk's folder are told of them; None without a disk tier.
    """

    documents: tuple[str, ...]
    tenant: str | None
    paths: Sequence[Sequence[Node]]
    file: KeptFile | None = None


@dataclass(frozen=True, slots=True)
class _Record:
    """What is known of kept documents. ends: the last key of each path, by which their nodes are found.

    file: the name under which others on the disk's folder know of them; None if they do not.
    """

    order: KeepOrder
    ends: tuple[Key, ...]
    file: str | None


class Retention(Generic[B]):
    """The documents that are kept, and the nodes that this keeps from eviction.

    Documents are kept by sets, most often of one, because a document is used behind the text before it:
    the nodes of a set are those of its path. One order holds for each set of a tenant, the latest.
    disk: writes the files, and tells others on its folder which of them are kept. clock: tells seconds
    since 1970.
    """

    def __init__(
        self,
        index: BlockIndex[B],
        disk: DiskCopying[B],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._index = index
        self._tree = index.tree
        self._disk = disk
        self._clock = clock
        self._records: dict[tuple[str | None, tuple[str, ...]], _Record] = {}
        # How many paths of an owner keep a block in a tier. Another owner may keep it too.
        self._owned: dict[tuple[str, Tier], Counter[Key]] = {}
        # What the disk lacks something of, as far as it is known, in the order in which it is looked at.
        self._to_write: dict[tuple[str | None, tuple[str, ...]], None] = {}
        self._next_end_s: float | None = None

    def keep(self, order: KeepOrder, wanted: Sequence[ToKeep]) -> list[Kept]:
        """Keep documents, all or none; return what is kept of each. Pin their nodes meanwhile.

        No two are the same set of one tenant. Raises NoRoomToKeep.
        """
        tier = order.tier
        replaced = [self._records.get((one.tenant, one.documents)) for one in wanted]
        let_go = [
            self._paths(record) if record is not None and record.order.is_like(order) else []
            for record in replaced
        ]
        names = [] if tier is not Tier.DISK else [one.file.name for one in wanted if one.file]
        # Pinned, so that the tree forgets no node before it is known whether it stays kept.
        with self._tree.pinned(node for paths in let_go for path in paths for node in path):
            before = self._count_kept(order)
            for one, paths in zip(wanted, let_go, strict=True):
                self._mark(one.paths, order, keep=True)
                self._mark(paths, order, keep=False)
            try:
                self._require_room(order, before, names, {one.tenant for one in wanted})
            except NoRoomToKeep:
                for one, paths in zip(wanted, let_go, strict=True):
                    self._mark(paths, order, keep=True)
                    self._mark(one.paths, order, keep=False)
                raise
        for one, record in zip(wanted, replaced, strict=True):
            if record is not None and not record.order.is_like(order):
                self._let_go(record)
            key = one.tenant, one.documents
            ends = tuple(self._index.record(path[-1]).keys[-1] for path in one.paths if path)
            if not ends:  # shorter than a block
                if self._records.pop(key, None) is not None and one.file is not None:
                    self._disk.release_files(one.file.name)
                continue
            file = one.file if tier is Tier.DISK else None
            name = None if file is None else file.name
            self._records[key] = _Record(order, ends, name)
            if file is not None:
                self._disk.keep_files(replace(file, until_s=order.until_s))
                self._to_write[key] = None
        self._note_end(order.until_s)
        return [
            self._describe((one.tenant, one.documents))
            if (one.tenant, one.documents) in self._records
            else Kept(one.documents, one.tenant, tier.value, order.until_s, 0, 0)
            for one in wanted
        ]

    def release(self, documents: tuple[str, ...], tenant: str | None) -> None:
        """Keep a set of documents no longer, nor what an earlier process kept of it on the disk."""
        record = self._records.pop((tenant, documents), None)
        if record is not None:
            self._let_go(record)
        if (record is None or record.file is None) and (
            name := self._disk.name_kept(documents, tenant)
        ) is not None:
            self._disk.release_files(name)

    def forget(self, names: frozenset[str], doomed: Set[Node]) -> None:
        """Keep nothing of these documents, nor what stands behind one of these nodes.

        Call it before the nodes are removed.
        """
        is_touched = any(any(node.kept) for node in doomed)
        for (tenant, documents), record in list(self._records.items()):
            if not names.isdisjoint(documents) or (
                is_touched and any(node in doomed for path in self._paths(record) for node in path)
            ):
                self.release(documents, tenant)

    def kept(self) -> list[Kept]:
        """Return what is kept, in the order in which it was asked for."""
        self.end_those_due()
        now = self._clock()
        return [
            self._describe(key)
            for key, record in self._records.items()
            if record.order.until_s is None or record.order.until_s > now
        ]

    def step(self) -> None:
        """End what is due, and offer the disk what it lacks of one set. Takes no longer for many sets."""
        self.end_those_due()
        if self._to_write and self._disk.has_room_to_write:
            key = next(iter(self._to_write))
            del self._to_write[key]
            record = self._records.get(key)
            if record is None or record.order.tier is not Tier.DISK:
                return
            nodes = [node for path in self._paths(record) for node in path]
            if any(node.resident[HOST] > node.resident[DISK] for node in nodes):
                self._disk.offer(nodes)
            if any(node.resident[DISK] < node.blocks for node in nodes):
                self._to_write[key] = None

    def end_those_due(self) -> None:
        """Keep no longer what was to be kept until now. Costs nothing where nothing is due."""
        now = self._clock()
        if self._next_end_s is None or now < self._next_end_s:
            return
        self._next_end_s, ended = None, 0
        for (tenant, documents), record in list(self._records.items()):
            until_s = record.order.until_s
            if until_s is not None and until_s <= now and ended < ENDED_AT_ONCE:
                self.release(documents, tenant)
                ended += 1
            else:
                self._note_end(until_s)

    # -- inside ------------------------------------------------------------------------------------

    def _count_kept(self, order: KeepOrder) -> tuple[int, int]:
        """Count the blocks that are kept in the order's tier: in all, and by the order's owner."""
        own = self._owned.get((order.owner, order.tier), ()) if order.owner is not None else ()
        return self._tree.kept(order.tier), len(own)

    def _require_room(
        self,
        order: KeepOrder,
        before: tuple[int, int],
        names: Sequence[str],
        tenants: Iterable[str | None],
    ) -> None:
        """Raise NoRoomToKeep if too much is kept for the tier, the order's owner, or a tenant's quota.

        before: what `_count_kept` told before the order was followed. names: of the sets that are to
        be kept, on the disk. tenants: whose they are.
        """
        in_all, own = before
        in_all_now, own_now = self._count_kept(order)
        added = in_all_now - in_all
        most = int(self._tree.capacity(order.tier) * order.most)
        others = self._disk.count_kept_elsewhere(names) if order.tier is Tier.DISK else 0
        free = most - others - in_all
        if (quota := self._tree.quota(order.tier)) is not None:
            owners = {owner_of(tenant) for tenant in tenants if tenant is not None}
            kept = [self._tree.kept_of(owner, order.tier) - added for owner in owners]
            free = min([free, *(int(quota * order.most) - of_owner for of_owner in kept)])
        bounds = [(added, free), (own_now - own, int(most * order.share) - own)]
        for needed, left in bounds if order.owner is not None else bounds[:1]:
            if needed > max(0, left):
                tokens = self._tree.block_tokens
                raise NoRoomToKeep(order.tier, needed * tokens, max(0, left) * tokens)

    def _mark(self, paths: Iterable[Sequence[Node]], order: KeepOrder, *, keep: bool) -> None:
        """Keep paths in the order's tier for its owner, or let them go."""
        for path in paths:
            if order.owner is not None:  # first: the tree may forget nodes that are let go
                self._count_owned(path, (order.owner, order.tier), 1 if keep else -1)
            (self._tree.keep if keep else self._tree.let_go)(path, order.tier)

    def _count_owned(self, path: Sequence[Node], whose: tuple[str, Tier], paths: int) -> None:
        """Count that so many paths more (fewer, if negative) of an owner keep the path's blocks."""
        owned = self._owned.setdefault(whose, Counter())
        for node in path:
            for key in self._index.record(node).keys:
                owned[key] += paths
                if not owned[key]:
                    del owned[key]
        if not owned:
            del self._owned[whose]

    def _paths(self, record: _Record) -> list[list[Node]]:
        """Return the nodes of a kept document, as they are cut now."""
        return [
            list(reversed(list(owned[0].upwards())))
            for end in record.ends
            if (owned := self._index.owner(end))
        ]

    def _let_go(self, record: _Record) -> None:
        order = record.order
        self._mark(self._paths(record), order, keep=False)
        if record.file is not None:
            self._disk.release_files(record.file)

    def _note_end(self, until_s: float | None) -> None:
        if until_s is not None and (self._next_end_s is None or until_s < self._next_end_s):
            self._next_end_s = until_s

    def _describe(self, key: tuple[str | None, tuple[str, ...]]) -> Kept:
        record, tokens = self._records[key], self._tree.block_tokens
        order = record.order
        nodes = dict.fromkeys(node for path in self._paths(record) for node in path)
        blocks = sum(node.blocks for node in nodes)
        held = sum(self._count_held(node, order.tier) for node in nodes)
        tenant, documents = key
        return Kept(
            documents, tenant, order.tier.value, order.until_s, blocks * tokens, held * tokens
        )

    def _count_held(self, node: Node, tier: Tier) -> int:
        """Count the node's blocks that have reached the tier."""
        here, record = node.resident[RANK[tier]], self._index.record(node)
        if tier is Tier.DISK:
            return self._disk.count_written(record.files[:here])
        return here - self._index.host.count_filling(record.keys[:here])

    # -- checking ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError unless the tree keeps what the records say, and no more. For tests."""
        owned: dict[tuple[str, Tier], Counter[Key]] = {}
        for record in self._records.values():
            if (owner := record.order.owner) is not None:
                keys = owned.setdefault((owner, record.order.tier), Counter())
                for path in self._paths(record):
                    keys.update(key for node in path for key in self._index.record(node).keys)
        assert self._owned == owned, "an owner's share is not that of its records"
        for tier in Tier:
            kept: Counter[Node] = Counter()
            for record in self._records.values():
                if record.order.tier is tier:
                    paths = self._paths(record)
                    assert len(paths) == len(record.ends), "what is kept is forgotten"
                    nodes = [node for path in paths for node in path]
                    kept.update(nodes)
            for node in self._index.nodes():
                assert node.kept[RANK[tier]] == kept[node]
