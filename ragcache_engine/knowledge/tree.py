"""The knowledge tree: which runs of tokens are known, which requests need them, how often they were used.

The tree decides, and tells its owner which blocks to free; it touches no memory itself. It has no clock
and no randomness: the same calls give the same tree. It is not safe to share between threads.
Source: RAGCache, §5.1 and Algorithm 1.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from ragcache_engine.knowledge.eviction.policy import EvictionPolicy
from ragcache_engine.knowledge.freed import FreedBlocks
from ragcache_engine.knowledge.node import Node, Segment
from ragcache_engine.knowledge.residency import Residency
from ragcache_engine.knowledge.tier import RANK, TIERS, Tier

FREQUENCY_WINDOW = 65_536

REMEMBERED_PER_BLOCK = 16
"""How many blocks are remembered, cached or not, for each block that the tiers may hold. A block takes
some 500 bytes to remember, which is less than a thousandth of its tensors."""

FEWEST_REMEMBERED = 4096
"""So many blocks are always remembered."""


class KnowledgeTree:
    """A prefix tree over prompts, cut into nodes, with a budget and an eviction policy for each tier.

    The tree owns the nodes, their pins and their uses; its Residency counts which of their blocks are
    in which tier. Where exactly a block lies is known to the tree's owner.

    capacity_blocks: blocks each tier may hold; a tier left out holds none.
    policy: makes the eviction policy of one tier.
    block_tokens: tokens in a block; 1 counts in tokens.
    frequency_window: how many of the latest completed uses, over all nodes, count as a node's uses. Fewer
      count if the nodes have more than REMEMBERED_PER_BLOCK blocks for each block of the tiers.
    forgotten: called with each node that the tree no longer remembers.
    quotas: blocks that the nodes of one owner may have in a tier; no limit in a tier left out.
    Raises ValueError for sizes below what they need.

    A request pins its path, adds the blocks that it has computed, and completes a use. Blocks that no
    request pins may be evicted, from the last block of a leaf backwards:

        >>> tree = KnowledgeTree({Tier.DEVICE: 40}, POLICIES["lru"], block_tokens=16)
        >>> system = tree.child(tree.root, Segment("system", 32))
        >>> d1 = tree.child(system, Segment("d1", 320))
        >>> with tree.pinned([system, d1]):
        ...     tree.hold(system, Tier.DEVICE, 2)
        ...     tree.hold(d1, Tier.DEVICE, 20)
        ...     tree.record_use([system, d1], cached_nodes=0, cost_s_per_token=0.001)
        ...     tree.evict(Tier.DEVICE, 4)
        []
        >>> [(freed.node, freed.start, freed.end) for freed in tree.evict(Tier.DEVICE, 4)]
        [(Node(system/d1), 16, 20)]
    """

    def __init__(
        self,
        capacity_blocks: Mapping[Tier, int],
        policy: Callable[[], EvictionPolicy],
        *,
        block_tokens: int = 16,
        frequency_window: int = FREQUENCY_WINDOW,
        forgotten: Callable[[Node], None] | None = None,
        quotas: Mapping[Tier, int] | None = None,
    ) -> None:
        if block_tokens < 1 or frequency_window < 1:
            raise ValueError("block_tokens and frequency_window are at least 1")
        if any(blocks < 0 for blocks in capacity_blocks.values()):
            raise ValueError(f"a tier holds 0 blocks or more, got {dict(capacity_blocks)}")
        self.block_tokens = block_tokens
        self._window = frequency_window
        self._forgotten = forgotten
        self._residency = Residency(capacity_blocks, policy, quotas or {})
        self._root = Node(Segment("", 0), None, block_tokens)
        self._recent: deque[Node] = deque()
        self._nodes = 0
        self._known_blocks = 0
        self._kept_blocks = [0] * len(TIERS)
        self._kept_of: list[Counter[str]] = [Counter() for _ in TIERS]
        self._uses = 0

    def __len__(self) -> int:
        """How many nodes are remembered, cached or not."""
        return self._nodes

    def capacity(self, tier: Tier) -> int:
        """Blocks the tier may hold."""
        return self._residency.capacity[RANK[tier]]

    def used(self, tier: Tier) -> int:
        """Blocks in the tier now."""
        return self._residency.used[RANK[tier]]

    def kept(self, tier: Tier) -> int:
        """Blocks of the nodes that are kept in the tier, whether they are there yet or not."""
        return self._kept_blocks[RANK[tier]]

    def quota(self, tier: Tier) -> int | None:
        """Blocks that the nodes of one owner may have in the tier; None: as many as fit."""
        return self._residency.quotas[RANK[tier]]

    def used_by(self, tier: Tier) -> Mapping[str, int]:
        """Blocks in the tier now, by owner, where owners have a quota."""
        return self._residency.used_by[RANK[tier]]

    def kept_of(self, owner: str, tier: Tier) -> int:
        """Blocks of the owner's nodes that are kept in the tier."""
        return self._kept_of[RANK[tier]][owner]

    def policy(self, tier: Tier) -> EvictionPolicy:
        """The eviction policy of the tier."""
        return self._residency.policies[RANK[tier]]

    # -- nodes -------------------------------------------------------------------------------------

    @property
    def root(self) -> Node:
        """The node above all paths. It owns no block and stays."""
        return self._root

    def child(self, parent: Node, segment: Segment, owner: str | None = None) -> Node:
        """Return the node of a segment below another node; make it if it is missing.

        owner: whose quota a new node counts towards; the one of all nodes above it.
        Pin the new node to keep it: the tree may soon forget a node that was never used, holds no
        blocks and has no children.
        """
        if parent.children is None:
            parent.children = {}
        child = parent.children.get(segment)
        if child is None:
            child = parent.children[segment] = Node(segment, parent, self.block_tokens, owner)
            self._nodes += 1
            self._known_blocks += child.blocks
        return child

    def split(self, node: Node, upper: Segment, lower: Segment) -> Node:
        """Cut a node in two where its paths part; return the upper half, which is a new node.

        upper, lower: what each half stands for; upper's tokens are whole blocks, and lower's the rest.
          Blocks keep their tiers, and are kept there as before. The lower half keeps its uses, its
          children and its pins. The upper half is not pinned, and counts its uses from now on.
        Raises ValueError if the node cannot be cut there.
        """
        parent = node.parent
        if parent is None or parent.children is None:
            raise ValueError("only a node of the tree can be split")
        if upper.tokens % self.block_tokens or upper.tokens + lower.tokens != node.segment.tokens:
            raise ValueError(f"{upper.tokens} + {lower.tokens} tokens are no split of {node}")
        if not 0 < upper.tokens // self.block_tokens < node.blocks:
            raise ValueError(f"{node} has {node.blocks} blocks, and each half needs one of its own")
        resident, awaiting_use = self._residency.take_out(node)
        del parent.children[node.segment]
        half = self.child(parent, upper, node.owner)
        half.cost_s_per_token, half.prefills = node.cost_s_per_token, node.prefills
        half.last_use, half.documents, half.kept = node.last_use, node.documents, node.kept
        half.children = {lower: node}
        node.segment, node.parent = lower, half
        node.blocks -= half.blocks
        self._known_blocks -= half.blocks
        for part, shares in (
            (half, [min(blocks, half.blocks) for blocks in resident]),
            (node, [max(blocks - half.blocks, 0) for blocks in resident]),
        ):
            self._residency.put_in(part, shares, awaiting_use)
        return half

    def prune(self, node: Node) -> None:
        """Forget the node, and then those above it, if it has no blocks, uses, pins or children.

        Call it on the lower half of a split, once the upper half is pinned.
        """
        while (
            node.parent is not None
            and not node.uses
            and not node.pins
            and not any(node.kept)
            and not node.children
            and not any(node.resident)
        ):
            parent = node.parent
            self._unlink(node)
            node = parent

    def remove(self, doomed: Iterable[Node]) -> list[FreedBlocks]:
        """Forget nodes that nobody has pinned, with all nodes below them, in every tier.

        Those that are kept, too.
        """
        freed: list[FreedBlocks] = []
        for node in doomed:
            parent = node.parent
            if parent is None:
                continue  # removed together with a node above it
            for below in reversed(list(node.downwards())):
                for rank in range(len(TIERS)):
                    freed += self._residency.drop(below, rank, 0)
                below.uses = 0
                self._unlink(below)
            self.prune(parent)
        gone = {node for node in self._recent if node.parent is None}
        if gone:
            self._recent = deque(node for node in self._recent if node not in gone)
        return freed

    # -- pins and uses -----------------------------------------------------------------------------

    @contextmanager
    def pinned(self, nodes: Iterable[Node]) -> Iterator[None]:
        """Keep a path from eviction, in every tier. nodes: a path with all its parents."""
        held = list(nodes)
        self.pin(held)
        try:
            yield
        finally:
            self.unpin(held)

    def pin(self, nodes: Iterable[Node]) -> None:
        """Keep a path from eviction until `unpin`, for a request that outlives the caller's block."""
        for node in nodes:
            node.pins += 1

    def unpin(self, nodes: Iterable[Node]) -> None:
        """Undo one `pin` of each node. Raises ValueError for a node that is not pinned."""
        for node in nodes:
            if node.pins < 1:
                raise ValueError(f"{node} is not pinned")
            node.pins -= 1
            if not node.pins:
                self._residency.note_unpinned(node)
                if not node.uses:
                    self.prune(node)

    def keep(self, nodes: Iterable[Node], tier: Tier) -> None:
        """Let no eviction take the blocks of these nodes from the tier, until `let_go`.

        nodes: a path with all its parents. That holds once all their blocks are in the tier. `remove`
        and `drop` take them all the same.
        """
        rank = RANK[tier]
        for node in nodes:
            if not node.kept[rank]:
                self._count_kept(node, rank, node.blocks)
            node.add_kept(rank, 1)

    def let_go(self, nodes: Iterable[Node], tier: Tier) -> None:
        """Undo one `keep` of each node. Raises ValueError for a node that is not kept."""
        rank = RANK[tier]
        for node in nodes:
            if node.kept[rank] < 1:
                raise ValueError(f"{node} is not kept in {tier}")
            node.add_kept(rank, -1)
            if not node.kept[rank]:
                self._count_kept(node, rank, -node.blocks)
                self._residency.note_let_go(node, rank)
                if not node.uses:
                    self.prune(node)

    def record_use(self, nodes: Iterable[Node], cached_nodes: int, cost_s_per_token: float) -> None:
        """Record a completed use of a path's nodes. Do not call this for a cancelled request.

        cached_nodes: how many leading nodes were cached before; the others fold the cost into their
          mean.
        cost_s_per_token: prefill time of the request over its computed tokens (formula 4).
        """
        self._uses += 1
        path = list(nodes)
        for place, node in enumerate(path):
            node.uses += 1
            node.last_use = self._uses
            if place >= cached_nodes:
                node.fold_cost(cost_s_per_token)
        self._residency.record_use(path)
        self._recent.extend(path)
        most = max(FEWEST_REMEMBERED, REMEMBERED_PER_BLOCK * sum(self._residency.capacity))
        while len(self._recent) > self._window or (self._recent and self._known_blocks > most):
            old = self._recent.popleft()
            old.uses -= 1
            if not old.uses:
                self.prune(old)

    # -- blocks ------------------------------------------------------------------------------------

    def hold(self, node: Node, tier: Tier, blocks: int) -> None:
        """Count the node's first `blocks` blocks as present in the tier, without asking its policy.

        Use this for the device tier, which running requests fill. Their uses are recorded later.
        Nothing happens if the blocks were there already, or if the parent's blocks are not.
        """
        self._residency.hold(node, RANK[tier], blocks)

    def grow(
        self, node: Node, tier: Tier, blocks: int, *, force: bool = False, in_use: bool = False
    ) -> list[FreedBlocks]:
        """Admit the node's first `blocks` blocks to the tier, or as many as its policy makes room for.

        Returns the evicted blocks; `node.resident` tells how many blocks the node has in the tier now.
        force: do not ask the policy whether these blocks are worth more than those that make room.
        in_use: whether the request that uses the blocks still runs. The policy then counts this use,
          which is recorded later.
        """
        if blocks <= node.resident[RANK[tier]]:
            return []
        node.pins += 1  # `pinned` would take longer than all the rest
        try:
            freed = self._residency.grow(node, RANK[tier], blocks, force=force, in_use=in_use)
        finally:
            self.unpin((node,))
        return self._prune_freed(freed)

    def evict(self, tier: Tier, blocks: int) -> list[FreedBlocks]:
        """Evict this many blocks from the tier, in its policy's order; fewer if the rest is pinned."""
        rank = RANK[tier]
        return self._prune_freed(self._residency.shrink(rank, self._residency.used[rank] - blocks))

    def drop(self, node: Node, tier: Tier, keep: int = 0) -> list[FreedBlocks]:
        """Free all but the node's first `keep` blocks in the tier, and blocks that depended on them."""
        return self._prune_freed(self._residency.drop(node, RANK[tier], keep))

    def set_capacity(self, tier: Tier, blocks: int) -> list[FreedBlocks]:
        """Change a tier's budget. All or nothing: ValueError if more blocks are pinned or kept there."""
        rank = RANK[tier]
        nodes = self._root.downwards()
        if blocks < sum(node.resident[rank] for node in nodes if node.pins or node.kept[rank]):
            raise ValueError(f"{tier} cannot shrink to {blocks} blocks: more are pinned or kept")
        self._residency.set_capacity(rank, blocks)
        return self._prune_freed(self._residency.shrink(rank, blocks))

    def supports_child(self, node: Node, tier: Tier) -> bool:
        """Return whether a child of the node may have blocks there; see Residency.supports_child."""
        return self._residency.supports_child(node, RANK[tier])

    # -- inside ------------------------------------------------------------------------------------

    def _prune_freed(self, freed: list[FreedBlocks]) -> list[FreedBlocks]:
        """Forget the nodes that have just lost their last block and that nobody uses."""
        for each in freed:
            if not each.node.uses:
                self.prune(each.node)
        return freed

    def _count_kept(self, node: Node, rank: int, blocks: int) -> None:
        """Count so many more blocks (fewer, if negative) of a node as kept."""
        self._kept_blocks[rank] += blocks
        if node.owner is not None:
            kept = self._kept_of[rank]
            kept[node.owner] += blocks
            if not kept[node.owner]:
                del kept[node.owner]

    def _unlink(self, node: Node) -> None:
        parent = node.parent
        if parent is None:
            return
        assert parent.children is not None
        del parent.children[node.segment]
        if not parent.children:
            parent.children = None
        node.parent = None
        self._nodes -= 1
        self._known_blocks -= node.blocks
        for rank, orders in enumerate(node.kept):
            if orders:
                self._count_kept(node, rank, -node.blocks)
        if self._forgotten:
            self._forgotten(node)

    # -- checking ----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError unless every invariant holds. For tests: O(nodes)."""
        nodes = [node for node in self._root.downwards() if node is not self._root]
        assert len(nodes) == self._nodes
        window = list(self._recent)
        assert len(window) <= self._window
        assert self._known_blocks == sum(node.blocks for node in nodes)
        for node in nodes:
            parent = node.parent
            assert parent is not None
            assert parent.children is not None
            assert parent.children[node.segment] is node
            assert node.end == parent.end + node.segment.tokens
            assert node.blocks == node.end // self.block_tokens - parent.end // self.block_tokens
            assert node.uses == window.count(node)
            assert node.pins >= 0
            assert all(orders >= 0 for orders in node.kept)
            is_needed = node.uses or node.pins or any(node.kept)
            assert is_needed or node.children or any(node.resident), "not pruned"
        for rank, blocks in enumerate(self._kept_blocks):
            kept = [node for node in nodes if node.kept[rank]]
            assert blocks == sum(node.blocks for node in kept)
            of_owners = Counter(node.owner for node in kept for _ in range(node.blocks))
            assert self._kept_of[rank] == {
                owner: blocks for owner, blocks in of_owners.items() if owner is not None
            }
        self._residency.check(nodes)
