"""The free blocks of device memory, in the order in which they are to be overwritten.

First those that hold nothing, then those nobody will ask for again (answers, and copies of
what is there already), oldest first, then what the knowledge tree gives up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from ragcache_engine.knowledge import FreedBlocks, KnowledgeTree, Node, Tier
from ragcache_engine.knowledge.tier import RANK
from ragcache_engine.tiers.ledger import BlockLedger, Key, PerBlock

DEVICE = RANK[Tier.DEVICE]


class Block(Protocol):
    """A block of device memory, as vLLM numbers them."""

    @property
    def block_id(self) -> int: ...


B = TypeVar("B", bound=Block)


class DeviceBlocks(Generic[B]):
    """Blocks nobody computes with. Those that do come back here when they end.

    key_of: what a block holds, None for nothing.
    carry_out: frees what the tree moves out of any tier; for the device, it calls `freed`.
    relent: gives up what is kept for requests that only wait; False if there was nothing of it.
    drop_cached: makes the device forget what blocks hold.
    """

    def __init__(
        self,
        tree: KnowledgeTree,
        ledger: BlockLedger,
        key_of: Callable[[B], Key | None],
        carry_out: Callable[[Iterable[FreedBlocks]], None],
        relent: Callable[[], bool],
        drop_cached: Callable[[Iterable[B]], None],
    ) -> None:
        self._tree = tree
        self._ledger = ledger
        self._key_of = key_of
        self._carry_out = carry_out
        self._relent = relent
        self._drop_cached = drop_cached
        self._numbers: frozenset[int] = frozenset()  # of all blocks
        self._suspect: set[int] = set()  # in use since before something was forgotten
        self._empty: OrderedDict[int, B] = OrderedDict()
        self._loose: OrderedDict[int, B] = OrderedDict()
        self._owned: dict[int, B] = {}  # in the tree, and free
        self._blocks: PerBlock[B] = PerBlock()

    def __len__(self) -> int:
        return len(self._empty) + len(self._loose) + len(self._owned)

    def begin(self, blocks: Iterable[B]) -> None:
        """These are all the blocks there are, and they are free."""
        self._empty = OrderedDict((block.block_id, block) for block in blocks)
        self._numbers = frozenset(self._empty)

    def all(self) -> list[B]:
        """In no order that matters but for the first ones."""
        return [*self._empty.values(), *self._loose.values(), *self._owned.values()]

    def put_back(self, blocks: Iterable[B]) -> None:
        """Blocks that no request computes with any more."""
        returned: dict[Node, list[int]] = {}
        key_of, owner, owned = self._key_of, self._ledger.owner, self._owned
        latest: Node | None = None  # blocks of a node come together
        line: list[B | None] = []
        places: list[int] = []
        for block in blocks:
            number = block.block_id
            key = key_of(block)
            if key is None:
                self._empty[number] = block
                self._suspect.discard(number)
                continue
            found = owner(key)
            if number in self._suspect:
                self._suspect.discard(number)
                if found is None:
                    self._drop_cached([block])
                    self._empty[number] = block
                    continue
            if found is None:
                self._loose[number] = block
                continue
            node, at = found
            if node is not latest:
                latest, line = node, self._blocks.line(node)
                places = returned.setdefault(node, [])
            other = line[at]
            if other is not None and other is not block and other.block_id in owned:
                self._loose[number] = block  # a copy of what is here already
                continue
            line[at] = block
            owned[number] = block
            places.append(at)
        for node in sorted(returned, key=lambda node: node.end):
            self._settle(node, returned[node])

    def take(self, count: int) -> list[B]:
        """So many blocks, to be overwritten. The caller has made sure that there are as many."""
        taken: list[B] = []
        while len(taken) < count:
            if self._empty:
                taken.append(self._empty.popitem()[1])
            elif self._loose:
                taken.append(self._loose.popitem(last=False)[1])
            else:
                self._make_room(count - len(taken))
        return taken

    def remove(self, block: B) -> None:
        """A request computes with the block from now on. KeyError if it was not free."""
        for free in (self._owned, self._loose, self._empty):
            if free.pop(block.block_id, None) is not None:
                return
        raise KeyError(f"block {block.block_id} is not free")

    def freed(self, node: Node, start: int, end: int) -> None:
        """The tree has given up the node's blocks [start, end)."""
        owned, empty = self._owned, self._empty
        for block in self._blocks.take_all(node, start, end):
            # A block somebody still computes with comes back by itself.
            if owned.pop(block.block_id, None) is not None:
                empty[block.block_id] = block

    def sweep(self) -> None:
        """No free block holds what the tree has given up, or what nobody owns, any more.

        Blocks in use that nobody owns when they come back hold nothing from then on either.
        """
        self._empty.update(self._loose)
        self._loose.clear()
        self._suspect = set(self._numbers - self._empty.keys() - self._owned.keys())
        held = [block for block in self._empty.values() if self._key_of(block) is not None]
        self._drop_cached(held)

    def clear(self) -> None:
        """No block holds anything any more."""
        self._empty.update(self._loose)
        self._empty.update(self._owned)
        self._loose.clear()
        self._owned.clear()
        self._blocks.clear()

    def split(self, upper: Node, lower: Node) -> None:
        self._blocks.split(upper, lower)

    def forget(self, node: Node) -> None:
        """The tree has forgotten the node."""
        for block in self._blocks.forget(node):
            if self._owned.pop(block.block_id, None) is not None:
                self._empty[block.block_id] = block

    def _settle(self, node: Node, places: Iterable[int]) -> None:
        """Tell the tree of blocks it did not know to be here; those it cannot take are loose."""
        known = self._blocks.of(node)
        upto = node.resident[DEVICE]
        while upto < node.blocks and known[upto] is not None:
            upto += 1
        self._tree.hold(node, Tier.DEVICE, upto)
        for at in places:
            if at >= node.resident[DEVICE]:
                block = self._blocks.take(node, at)
                assert block is not None
                self._loose[block.block_id] = self._owned.pop(block.block_id)

    def _make_room(self, count: int) -> None:
        """Let the tree give up blocks until at least one is empty."""
        while not self._empty:
            moves = self._tree.evict(Tier.DEVICE, count)
            if moves:
                self._carry_out(moves)
            elif not self._relent():
                self._give_up_any()

    def _give_up_any(self) -> None:
        """Free blocks whose requests were preempted: their nodes are pinned, and the tree keeps them."""
        _, block = self._owned.popitem()
        self._empty[block.block_id] = block
        key = self._key_of(block)
        found = self._ledger.owner(key) if key else None
        if found:
            node, at = found
            self._carry_out(self._tree.drop(node, Tier.DEVICE, at))
