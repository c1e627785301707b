"""Which node each block of key-value memory belongs to.

vLLM names a block by a hash over all tokens up to its end, so equal keys mean equal prefixes, and the
keys of a prompt lead from the root of the knowledge tree to where it parts from all others. A node
begins where a document begins, or where two prompts part: the first that comes along another way cuts
the node in two. So prompts nobody has labelled share what they have in common like all others.

The block with a document's last token is the document's own last block; a document too short to own
one shares the block of the one after it, and both names stand on that node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from ragcache_engine.knowledge import KnowledgeTree, Node, Segment

Key = bytes
T = TypeVar("T")


class Cut(NamedTuple):
    """Blocks up to `end` of a prompt, from the cut before, belong together.

    names: of the documents with tokens in them that no earlier cut ends with; empty if unknown.
    """

    end: int
    names: tuple[str, ...] = ()


class PerBlock(Generic[T]):
    """Something about each block of a node, such as its place in a tier. What is not known is None."""

    def __init__(self) -> None:
        self._of: dict[Node, list[T | None]] = {}

    def of(self, node: Node) -> Sequence[T | None]:
        return self._of.get(node, ())

    def line(self, node: Node) -> list[T | None]:
        """What is known of each of the node's blocks; to be written to."""
        values = self._of.get(node)
        if values is None:
            values = self._of[node] = [None] * node.blocks
        return values

    def put(self, node: Node, at: int, value: T) -> None:
        self.line(node)[at] = value

    def take(self, node: Node, at: int) -> T | None:
        """What was known of the block, which is forgotten."""
        values = self._of.get(node)
        if values is None:
            return None
        value, values[at] = values[at], None
        return value

    def take_all(self, node: Node, start: int, end: int) -> list[T]:
        """What was known of the node's blocks [start, end), which is forgotten."""
        values = self._of.get(node)
        if values is None:
            return []
        taken = [value for value in values[start:end] if value is not None]
        values[start:end] = [None] * (end - start)
        return taken

    def split(self, upper: Node, lower: Node) -> None:
        values = self._of.get(lower)
        if values is not None:
            self._of[upper] = values[: upper.blocks]
            self._of[lower] = values[upper.blocks :]

    def forget(self, node: Node) -> list[T]:
        """All that was known of the node's blocks."""
        return [value for value in self._of.pop(node, ()) if value is not None]

    def clear(self) -> None:
        self._of.clear()


class BlockLedger:
    """The nodes of a tree by the keys of their blocks. It makes the tree's nodes, and cuts them.

    split: told of the two halves, upper first, whenever a node is cut.
    """

    def __init__(self, tree: KnowledgeTree, split: Callable[[Node, Node], None]) -> None:
        self._tree = tree
        self._split = split
        self._owner: dict[Key, tuple[Node, int]] = {}
        self.owner = self._owner.get
        """The node that owns a block, and its place in it; None if nobody does. Asked for every block."""
        self._keys: dict[Node, list[Key]] = {}
        self._named: dict[str, dict[Node, None]] = {}  # in order of appearance
        self._names: dict[Node, set[str]] = {}

    def __len__(self) -> int:
        """How many blocks are known."""
        return len(self._owner)

    def keys(self, node: Node) -> Sequence[Key]:
        return self._keys.get(node, ())

    def named(self, name: str) -> Sequence[Node]:
        """The nodes a document has tokens in."""
        return tuple(self._named.get(name, ()))

    def path(self, keys: Sequence[Key], cuts: Iterable[Cut]) -> list[Node]:
        """The nodes of a prompt, made or cut where they are missing.

        keys: of the prompt's full blocks, in order. cuts: rising; what lies behind the last one is not
          kept. The caller pins what it wants to last.
        """
        nodes: list[Node] = []
        node, at = self._tree.root, 0
        for cut in cuts:
            while at < cut.end:
                found = self._owner.get(keys[at])
                if found is None:
                    node = self._make(node, keys[at : cut.end])
                else:
                    node = self._shared(found[0], keys, at, cut.end)
                at += node.blocks
                nodes.append(node)
                if cut.names:
                    self._name(node, cut.names)
        return nodes

    def forget(self, node: Node) -> None:
        """The tree has forgotten the node."""
        for key in self._keys.pop(node, ()):
            del self._owner[key]
        for name in self._names.pop(node, ()):
            nodes = self._named[name]
            nodes.pop(node, None)
            if not nodes:
                del self._named[name]

    def _make(self, parent: Node, keys: Sequence[Key]) -> Node:
        node = self._tree.child(parent, self._segment(keys))
        self._keys[node] = list(keys)
        for at, key in enumerate(keys):
            self._owner[key] = (node, at)
        return node

    def _segment(self, keys: Sequence[Key]) -> Segment:
        # The last key stands for all tokens up to here; documents' names are kept beside the tree.
        return Segment("", len(keys) * self._tree.block_tokens, keys[-1])

    def _shared(self, node: Node, keys: Sequence[Key], at: int, end: int) -> Node:
        """The part of a known node that the prompt goes along, up to `end` at most."""
        own = self._keys[node]
        length = min(len(own), end - at)
        if own[length - 1] != keys[at + length - 1]:  # a key tells of all before it
            length = next(step for step in range(length) if own[step] != keys[at + step])
        if length == len(own):
            return node
        upper = self._tree.split(node, self._segment(own[:length]), self._segment(own[length:]))
        self._keys[upper], self._keys[node] = own[:length], own[length:]
        for half in (upper, node):
            for place, key in enumerate(self._keys[half]):
                self._owner[key] = (half, place)
        if names := self._names.get(node):
            self._name(upper, names)
        self._split(upper, node)
        return upper

    def _name(self, node: Node, names: Iterable[str]) -> None:
        known = self._names.get(node)
        if known is None:
            known = self._names[node] = set()
        for name in names:
            if name not in known:
                known.add(name)
                self._named.setdefault(name, {})[node] = None
