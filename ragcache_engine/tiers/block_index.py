"""Which node of the knowledge tree each block belongs to, and where that block lies.

vLLM names a block by a hash over all tokens up to its end. So equal keys mean equal prefixes, and the
keys of a prompt lead from the root of the tree to where the prompt parts from all others. A node begins
where a document begins, or where two prompts part: the first prompt that comes along another way cuts the
node in two. So prompts without segments share their common beginnings like all others.

The block with a document's last token is the document's own last block. A document too short to own a
block shares the block of the next one, and both ids stand on that node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Generic, NamedTuple

from ragcache_engine.knowledge import (
    EvictionPolicy,
    FreedBlocks,
    KnowledgeTree,
    Node,
    Segment,
    Tier,
)
from ragcache_engine.knowledge.tier import RANK
from ragcache_engine.tenants import forget_ids_of, owner_of
from ragcache_engine.tiers.counters import Counters
from ragcache_engine.tiers.disk_files import DiskFiles
from ragcache_engine.tiers.free_device_blocks import FreeDeviceBlocks
from ragcache_engine.tiers.host_slots import HostSlots
from ragcache_engine.tiers.node_record import B, Key, NodeRecord, clear_places

HOST, DISK = RANK[Tier.HOST], RANK[Tier.DISK]


class Cut(NamedTuple):
    """One cut of a prompt: the blocks from the cut before up to block `end` belong together.

    documents: ids of the documents with tokens in these blocks that no earlier cut has named; empty if
      unknown.
    """

    end: int
    documents: tuple[str, ...] = ()


class IndexedPath(NamedTuple):
    """The nodes of a prompt.

    splits: for each node that was cut for this prompt, its new upper half, and the old node, now the
      lower half.
    """

    nodes: list[Node]
    splits: list[tuple[Node, Node]]


class BlockIndex(Generic[B]):
    """The knowledge tree with one record a node, found by block or by document.

    The index makes the tree's nodes, cuts them, and frees what the tree gives up: blocks of device
    memory, host slots and files. Nothing else writes where a block lies.

    policy: makes each tier's eviction policy. block_tokens: tokens in a block.
    host, device, files: the host's slots, the device's free blocks, the disk's files. disk_blocks: how
      many blocks the disk tier may hold. quotas: how many an owner's nodes may have in a tier.
    """

    def __init__(
        self,
        policy: Callable[[], EvictionPolicy],
        block_tokens: int,
        *,
        counters: Counters | None = None,
        device: FreeDeviceBlocks[B] | None = None,
        host: HostSlots | None = None,
        files: DiskFiles | None = None,
        disk_blocks: int = 0,
        quotas: Mapping[Tier, int] | None = None,
    ) -> None:
        self.counters = counters or Counters()
        self.device = FreeDeviceBlocks() if device is None else device
        self.host = host or HostSlots(0)
        self.files = files or DiskFiles()
        self.tree = KnowledgeTree(
            {Tier.HOST: self.host.count, Tier.DISK: disk_blocks},
            policy,
            block_tokens=block_tokens,
            forgotten=self._forget,
            quotas=quotas,
        )
        self._records: dict[Node, NodeRecord[B]] = {}
        self._owner: dict[Key, tuple[Node, int]] = {}
        self.owner = self._owner.get
        """Returns the node that owns a block, and the block's place in it; None without an owner."""
        self._nodes_of: dict[str, dict[Node, None]] = {}  # by document, in order of appearance
        # By the ids with which tenants are forgotten: their nodes right below the root.
        self._nodes_of_tenant: dict[str, dict[Node, None]] = {}

    def __len__(self) -> int:
        """How many blocks are known."""
        return len(self._owner)

    def record(self, node: Node) -> NodeRecord[B]:
        """Return where the node's blocks are. Raises KeyError for a node the tree has forgotten."""
        return self._records[node]

    def nodes_of(self, document: str) -> Sequence[Node]:
        """Return the nodes in which a document has tokens."""
        return tuple(self._nodes_of.get(document, ()))

    def nodes_of_tenant(self, forget_id: str) -> Sequence[Node]:
        """Return the nodes above all others of a tenant. forget_id: with which it is forgotten."""
        return tuple(self._nodes_of_tenant.get(forget_id, ()))

    def forget_ids(self) -> Sequence[str]:
        """Return the ids with which tenants are forgotten that have nodes."""
        return tuple(self._nodes_of_tenant)

    def has_elsewhere(self, document: str, nodes: Set[Node]) -> bool:
        """Return whether a document has tokens in a node that is none of these."""
        return any(node not in nodes for node in self._nodes_of.get(document, ()))

    def documents(self) -> Sequence[str]:
        """Return the ids of all documents that a node is named after."""
        return tuple(self._nodes_of)

    def list_nodes(self) -> list[Node]:
        """Return all nodes in no particular order, quickly."""
        return list(self._records)

    def nodes(self) -> list[Node]:
        """Return all nodes, parents before their children."""
        return [node for node in self.tree.root.downwards() if node is not self.tree.root]

    # -- nodes come and are cut --------------------------------------------------------------------

    def path(
        self, keys: Sequence[Key], cuts: Iterable[Cut], tenant: str | None = None
    ) -> IndexedPath:
        """Find the nodes of a prompt; make or cut them where they are missing.

        keys: the keys of the prompt's full blocks, in order, which no two tenants share. cuts: rising;
          blocks after the last cut are not kept. Pin the returned nodes to keep them.
        """
        found = IndexedPath([], [])
        node, at = self.tree.root, 0
        for cut in cuts:
            while at < cut.end:
                owned = self._owner.get(keys[at])
                if owned is None:
                    node = self._make(node, keys[at : cut.end], tenant)
                else:
                    node = self._shared(owned[0], keys, at, cut.end, found.splits)
                at += node.blocks
                found.nodes.append(node)
                if cut.documents:
                    self._name(node, cut.documents)
        return found

    def _make(self, parent: Node, keys: Sequence[Key], tenant: str | None) -> Node:
        node = self.tree.child(
            parent, self._segment(keys), None if tenant is None else owner_of(tenant)
        )
        self._records[node] = NodeRecord(list(keys))
        if parent is self.tree.root:
            self._own(node, forget_ids_of(tenant))
        for at, key in enumerate(keys):
            self._owner[key] = (node, at)
        return node

    def _segment(self, keys: Sequence[Key]) -> Segment:
        # The last key identifies all tokens up to here. Documents' ids stand on the node: prompts
        # name one node differently, or not at all.
        return Segment("", len(keys) * self.tree.block_tokens, keys[-1])

    def _shared(
        self,
        node: Node,
        keys: Sequence[Key],
        at: int,
        end: int,
        splits: list[tuple[Node, Node]],
    ) -> Node:
        """Return the part of a known node that the prompt goes along, up to `end` at most."""
        own = self._records[node].keys
        length = min(len(own), end - at)
        if own[length - 1] != keys[at + length - 1]:  # a key identifies all tokens before it
            length = next(step for step in range(length) if own[step] != keys[at + step])
        if length == len(own):
            return node
        upper = self.tree.split(node, self._segment(own[:length]), self._segment(own[length:]))
        self._records[upper] = self._records[node].split(length)
        self._own(upper, self._disown(node))
        for half in (upper, node):
            for place, key in enumerate(self._records[half].keys):
                self._owner[key] = (half, place)
        for document in upper.documents:
            self._nodes_of[document][upper] = None
        splits.append((upper, node))
        return upper

    def _own(self, node: Node, forget_ids: tuple[str, ...]) -> None:
        self._records[node].forget_ids = forget_ids
        for name in forget_ids:
            self._nodes_of_tenant.setdefault(name, {})[node] = None

    def _disown(self, node: Node) -> tuple[str, ...]:
        record = self._records[node]
        forget_ids, record.forget_ids = record.forget_ids, ()
        for name in forget_ids:
            nodes = self._nodes_of_tenant[name]
            del nodes[node]
            if not nodes:
                del self._nodes_of_tenant[name]
        return forget_ids

    def _name(self, node: Node, documents: Sequence[str]) -> None:
        # A node may have thousands of names, so they are not searched.
        new = [name for name in documents if node not in self._nodes_of.get(name, ())]
        if new:
            node.add_documents(new)
            for document in new:
                self._nodes_of.setdefault(document, {})[node] = None

    # -- blocks and nodes go -----------------------------------------------------------------------

    def release(self, freed: Iterable[FreedBlocks], *, are_evictions: bool = True) -> None:
        """Free the memory, the slots and the files of blocks that the tree has given up.

        are_evictions: whether to count them as evicted; not when they were lost or forgotten.
        """
        for node, tier, start, end in freed:
            if are_evictions:
                self.counters.evicted[tier.value] += end - start
            record = self._records.get(node)
            if record is None:
                continue  # the tree forgot the node with its last block, so all is free
            if tier is Tier.DEVICE:
                self.device.empty_owned(clear_places(record.device, start, end))
            elif tier is Tier.HOST:
                self.host.give_back(clear_places(record.slots, start, end))
            else:
                self.files.remove(name for name in record.files[start:end] if name is not None)

    def drop_all(self, tier: Tier) -> None:
        """Free every block of a tier."""
        for node in list(self.tree.root.downwards()):
            self.release(self.tree.drop(node, tier), are_evictions=False)

    def forget_device_blocks(self) -> None:
        """Note that all blocks of device memory are empty now."""
        for record in self._records.values():
            record.device = ()

    def _forget(self, node: Node) -> None:
        """Free everything that a node still has, after the tree has forgotten the node."""
        self._disown(node)
        record = self._records.pop(node)
        for key in record.keys:
            del self._owner[key]
        for document in node.documents:
            nodes = self._nodes_of[document]
            nodes.pop(node, None)
            if not nodes:
                del self._nodes_of[document]
        blocks = len(record.keys)
        self.device.empty_owned(clear_places(record.device, 0, blocks))
        self.host.give_back(clear_places(record.slots, 0, blocks))
        self.files.remove(name for name in record.files if name is not None)

    # -- checking ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError unless tree, records, slots and files agree. For tests: O(blocks)."""
        self.tree.check()
        nodes = self.nodes()
        assert len(self._records) == len(nodes)
        assert len(self) == sum(node.blocks for node in nodes)
        slots: list[int] = []
        files: set[str] = set()
        for node in nodes:
            record = self._records[node]
            assert len(record.keys) == node.blocks
            for at, key in enumerate(record.keys):
                assert self._owner[key] == (node, at)
            for places in (record.device, record.slots, record.files):
                assert len(places) in (0, node.blocks)
            in_host = [slot for slot in record.slots[: node.resident[HOST]] if slot is not None]
            assert len(in_host) == node.resident[HOST], f"{node} has a block in no slot"
            slots += in_host
            on_disk = [name for name in record.files[: node.resident[DISK]] if name is not None]
            assert len(on_disk) == node.resident[DISK], f"{node} has a block in no file"
            files.update(on_disk)
            for document in node.documents:
                assert node in self._nodes_of[document]
            for name in record.forget_ids:
                assert node in self._nodes_of_tenant[name]
                assert node.parent is self.tree.root
        owned = sum(len(self._records[node].forget_ids) for node in nodes)
        assert owned == sum(map(len, self._nodes_of_tenant.values()))
        self.host.check(slots)
        self.files.check(files)
