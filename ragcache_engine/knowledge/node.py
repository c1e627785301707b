"""A document in the context of the documents before it: the unit of the knowledge tree.

Source: RAGCache, §5.1 (cache structure).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ragcache_engine.knowledge.tier import TIERS


class Segment(NamedTuple):
    """One step of a path: a run of tokens with one identity.

    name: the document's id; for a system prompt, what tells it from others (with its tenant).
    tokens: how many there are.
    digest: of the token ids, so that two spellings of one document never share tensors.
    """

    name: str
    tokens: int
    digest: bytes = b""


NOTHING_BELOW = (0,) * len(TIERS)


class Node:
    """One segment below its parents. The tree alone changes it; policies read it.

    end: tokens of the path up to and with this segment.
    blocks: blocks it owns: those whose last token lies in it. None, if it is short.
    uses: completed uses within the window; they survive eviction.
    cost_s_per_token: mean over the prefills that had to compute it (formula 4).
    last_use: number of the completed use that was its latest, counted over the whole tree.
    resident: in each tier, how many of its leading blocks are there.
    below: in each tier, how many of its children have blocks there, themselves or, if they own none,
      further down.
    pins: running requests that need it.
    """

    __slots__ = (
        "below",
        "blocks",
        "children",
        "cost_s_per_token",
        "end",
        "last_use",
        "parent",
        "pins",
        "prefills",
        "resident",
        "segment",
        "uses",
    )

    def __init__(self, segment: Segment, parent: Node | None, block_tokens: int) -> None:
        above: int = parent.end if parent else 0
        self.segment = segment
        self.parent: Node | None = parent
        self.end: int = above + segment.tokens
        self.blocks = self.end // block_tokens - above // block_tokens
        self.children: dict[Segment, Node] | None = None
        self.uses = 0
        self.prefills = 0
        self.cost_s_per_token = 0.0
        self.last_use = 0
        self.resident = [0] * len(TIERS)
        self.below: Sequence[int] = NOTHING_BELOW  # most nodes are leaves: one for all of them
        self.pins = 0

    def __repr__(self) -> str:
        return f"Node({'/'.join(step.segment.name for step in reversed(list(self.upwards())))})"

    def upwards(self) -> Iterator[Node]:
        """This node and its parents, the root's child last."""
        node: Node | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def downwards(self) -> Iterator[Node]:
        """This node and all below it, parents before their children."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            if node.children:
                waiting.extend(node.children.values())

    def is_whole_in(self, rank: int) -> bool:
        """Whether all its blocks are in the tier of this rank."""
        return self.resident[rank] == self.blocks

    def add_below(self, rank: int, children: int) -> None:
        below = list(self.below)
        below[rank] += children
        self.below = below if any(below) else NOTHING_BELOW

    def fold_cost(self, cost_s_per_token: float) -> None:
        """Take one more prefill into the running mean. Source: formula 4."""
        self.prefills += 1
        self.cost_s_per_token += (cost_s_per_token - self.cost_s_per_token) / self.prefills
