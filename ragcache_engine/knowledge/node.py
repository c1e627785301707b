"""A run of prompt tokens behind the tokens before it: the unit of the knowledge tree.

In the paper and in a DocumentCache a node is one document behind the documents before it. The engine's
nodes are runs of whole blocks: a document, a part of one, several short ones, or unnamed text.

Source: RAGCache, §5.1 (cache structure).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ragcache_engine.knowledge.tier import TIERS


class Segment(NamedTuple):
    """One step of a path: a run of tokens with one identity.

    name: the document's id; for a system prompt, a name that no other has (of any tenant). Empty where
      the digest alone identifies the tokens.
    tokens: how many tokens the segment has.
    digest: a digest of the token ids, so that two spellings of one document never share tensors.
    """

    name: str
    tokens: int
    digest: bytes = b""


NOTHING_BELOW = NOT_KEPT = (0,) * len(TIERS)


class Node:
    """One segment below its parents. Only the tree changes a node; policies read nodes.

    end: how many tokens the path has, up to and including this segment.
    blocks: blocks the node owns: those whose last token lies in its segment. 0 if it is short.
    documents: ids of the documents with tokens in these blocks; empty if no prompt named them.
    uses: completed uses within the frequency window; eviction does not reset them.
    cost_s_per_token: mean over the prefills that had to compute the node (formula 4).
    last_use: number of the node's latest completed use, counted over the whole tree.
    resident: for each tier, how many of the node's leading blocks are there.
    below: for each tier, how many of the node's children have blocks there, themselves or, if they own
      none, further down.
    pins: running requests that need the node.
    kept: for each tier, by how many orders the node is kept from eviction there.
    owner: whose quota its blocks count towards; None: nobody's.
    """

    __slots__ = (
        "below",
        "blocks",
        "children",
        "cost_s_per_token",
        "documents",
        "end",
        "kept",
        "last_use",
        "owner",
        "parent",
        "pins",
        "prefills",
        "resident",
        "segment",
        "uses",
    )

    def __init__(
        self,
        segment: Segment,
        parent: Node | None,
        block_tokens: int,
        owner: str | None = None,
    ) -> None:
        above: int = parent.end if parent else 0
        self.segment = segment
        self.parent: Node | None = parent
        self.owner = owner
        self.end: int = above + segment.tokens
        self.blocks = self.end // block_tokens - above // block_tokens
        self.documents: tuple[str, ...] = (segment.name,) if segment.name else ()
        self.children: dict[Segment, Node] | None = None
        self.uses = 0
        self.prefills = 0
        self.cost_s_per_token = 0.0
        self.last_use = 0
        self.resident = [0] * len(TIERS)
        self.below: Sequence[int] = NOTHING_BELOW  # most nodes are leaves, and share this
        self.pins = 0
        self.kept: Sequence[int] = NOT_KEPT  # nearly all nodes share this

    def __repr__(self) -> str:
        return f"Node({'/'.join(reversed([step.label for step in self.upwards()]))})"

    @property
    def label(self) -> str:
        """The documents in the node, or how many tokens it has if no prompt named them."""
        return "+".join(self.documents) or f"[{self.segment.tokens} tokens]"

    def upwards(self) -> Iterator[Node]:
        """Yield this node and its parents; the root's child comes last."""
        node: Node | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def downwards(self) -> Iterator[Node]:
        """Yield this node and all nodes below it, parents before their children."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            if node.children:
                waiting.extend(node.children.values())

    def add_documents(self, names: Sequence[str]) -> None:
        """Add the ids of documents with tokens in the node. Known ids keep their places."""
        self.documents = tuple(dict.fromkeys((*self.documents, *names)))

    def add_below(self, rank: int, children: int) -> None:
        """Count that many more children (fewer, if negative) with blocks in the tier of this rank."""
        below = list(self.below)
        below[rank] += children
        self.below = below if any(below) else NOTHING_BELOW

    def add_kept(self, rank: int, orders: int) -> None:
        """Count that many more orders (fewer, if negative) to keep the node in the tier of this rank."""
        kept = list(self.kept)
        kept[rank] += orders
        self.kept = tuple(kept) if any(kept) else NOT_KEPT

    def fold_cost(self, cost_s_per_token: float) -> None:
        """Update the running mean of the cost with one more prefill. Source: formula 4."""
        self.prefills += 1
        self.cost_s_per_token += (cost_s_per_token - self.cost_s_per_token) / self.prefills
