"""The knowledge tree: what is cached where, what is worth keeping, and what must leave.

It decides and returns moves; it performs none. It has no clock and no randomness: the same calls
give the same tree. Not safe to share between threads: its owner calls it from one.
Source: RAGCache, §5.1 and Algorithm 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

from ragcache_engine.knowledge.eviction.policy import EvictionPolicy
from ragcache_engine.knowledge.node import Node, Segment
from ragcache_engine.knowledge.tier import RANK, TIERS, Tier

FREQUENCY_WINDOW = 65_536


class MoveKind(StrEnum):
    """What is to happen to blocks."""

    LOAD = "load"  # copied from a slower tier into a faster one
    STORE = "store"  # copied from a faster tier into a slower one, before the faster one frees them
    FREE = "free"  # forgotten in `source`; nothing is copied


class Move(NamedTuple):
    """Blocks [start, end) of one node changing place: planned by the tree, carried out by a backend.

    It carries at least one block. target: None for FREE.
    """

    kind: MoveKind
    node: Node
    source: Tier
    target: Tier | None
    start: int
    end: int

    @property
    def blocks(self) -> int:
        return self.end - self.start


class Match(NamedTuple):
    """How much of a path is cached.

    path: as it was asked for.
    nodes: those the tree knows, in path order; they may hold nothing any more.
    whole: how many leading nodes are cached to their last block.
    blocks: cached blocks by tier, each counted where it is read from: the fastest tier that has it.
    cached_tokens, computed_tokens: alpha and beta of the path, without what follows it.
    """

    path: tuple[Segment, ...]
    nodes: tuple[Node, ...]
    whole: int
    blocks: tuple[int, ...]
    cached_tokens: int
    computed_tokens: int


class KnowledgeTree:
    """A prefix tree over documents, with a budget and an eviction policy for each tier.

    capacity_blocks: blocks each tier may hold; a tier left out holds none.
    policy: makes the policy of one tier.
    block_tokens: tokens in a block; 1 counts in tokens.
    frequency_window: a node's uses are those among so many latest completed ones, of all nodes.
    cache_depth: only the first so many segments of a path are kept; None keeps all.
    swap_out: whether what a tier evicts is stored in the next slower one. False is for an owner that
      stores blocks as they are computed, so that an eviction frees and copies nothing.
    forgotten: told of each node that the tree remembers no longer.
    Raises ValueError for sizes below what they need.

    A request is matched before it runs; when it has ended it was a use, and its nodes are admitted.

        >>> tree = KnowledgeTree({Tier.DEVICE: 40}, POLICIES["lru"], block_tokens=16)
        >>> path = [Segment("system", 32), Segment("d1", 320), Segment("d2", 160)]
        >>> before = tree.match(path)
        >>> moves = tree.admit(tree.use(before, prefill_s=0.4))
        >>> before.cached_tokens, tree.match(path).cached_tokens
        (0, 512)
        >>> tree.match([*path[:2], Segment("d3", 160)]).cached_tokens     # shares the beginning
        352
    """

    def __init__(
        self,
        capacity_blocks: Mapping[Tier, int],
        policy: Callable[[], EvictionPolicy],
        *,
        block_tokens: int = 16,
        frequency_window: int = FREQUENCY_WINDOW,
        cache_depth: int | None = None,
        swap_out: bool = True,
        forgotten: Callable[[Node], None] | None = None,
    ) -> None:
        if (
            block_tokens < 1
            or frequency_window < 1
            or (cache_depth is not None and cache_depth < 1)
        ):
            raise ValueError("block_tokens, frequency_window and cache_depth are at least 1")
        if any(blocks < 0 for blocks in capacity_blocks.values()):
            raise ValueError(f"a tier holds 0 blocks or more, got {dict(capacity_blocks)}")
        self.block_tokens = block_tokens
        self._window = frequency_window
        self._depth = cache_depth
        self._swap_out = swap_out
        self._forgotten = forgotten
        self._capacity = [capacity_blocks.get(tier, 0) for tier in TIERS]
        self._used = [0] * len(TIERS)
        self._policies = [policy() for _ in TIERS]
        self._ranks = self._ranks_in_use()
        self._evictable = [self._evictable_in(rank) for rank in range(len(TIERS))]
        self._root = Node(Segment("", 0), None, block_tokens)
        # In each tier, what came in for a use that is not completed yet.
        self._brought: list[set[Node]] = [set() for _ in TIERS]
        self._recent: deque[Node] = deque()
        self._nodes = 0
        self._uses = 0

    def __len__(self) -> int:
        """How many nodes are remembered, cached or not."""
        return self._nodes

    def capacity(self, tier: Tier) -> int:
        return self._capacity[RANK[tier]]

    def used(self, tier: Tier) -> int:
        """Blocks in the tier now."""
        return self._used[RANK[tier]]

    def policy(self, tier: Tier) -> EvictionPolicy:
        return self._policies[RANK[tier]]

    # -- asking --------------------------------------------------------------------------------

    def match(self, path: Sequence[Segment]) -> Match:
        """How much of the path is cached, from its start. Changes nothing; O(segments)."""
        node, nodes = self._root, []
        blocks, whole, unbroken = [0] * len(TIERS), 0, True
        for segment in path:
            child = node.children.get(segment) if node.children else None
            if child is None:
                break
            nodes.append(child)
            if unbroken:
                reached = 0
                for rank, resident in enumerate(child.resident):
                    if resident > reached:
                        blocks[rank] += resident - reached
                        reached = resident
                unbroken = reached == child.blocks
                whole += unbroken
            node = child
        total = sum(segment.tokens for segment in path)
        cached = sum(blocks) * self.block_tokens
        return Match(tuple(path), tuple(nodes), whole, tuple(blocks), cached, total - cached)

    # -- changing ------------------------------------------------------------------------------

    def use(self, match: Match, prefill_s: float = 0.0) -> tuple[Node, ...]:
        """Record a completed use of the path; returns its nodes, made where they were missing.

        match: as it was before the request ran, so that what had to be computed is known.
        prefill_s: T(alpha, beta) of the request. It is spread over the computed tokens (formula 4).
        A request that was cancelled was no use: leave this out.
        """
        computed = match.computed_tokens
        node, nodes = self._root, []
        for segment in match.path[: self._depth]:
            node = self.child(node, segment)
            nodes.append(node)
        self.used_by(nodes, match.whole, prefill_s / computed if computed > 0 else 0.0)
        return tuple(nodes)

    def used_by(self, nodes: Iterable[Node], whole: int, cost_s_per_token: float) -> None:
        """Record a completed use of a path's nodes.

        whole: how many of them were cached before; the others take the cost into their mean.
        """
        self._uses += 1
        tiers = [(rank, self._policies[rank], self._brought[rank]) for rank in self._ranks]
        for place, node in enumerate(nodes):
            node.uses += 1
            node.last_use = self._uses
            if place >= whole:
                node.fold_cost(cost_s_per_token)
            for rank, policy, brought in tiers:
                policy.seen(node)
                if node.resident[rank]:
                    if node in brought:
                        brought.discard(node)
                        policy.brought(node)
                    else:
                        policy.used(node)
            self._recent.append(node)
        while len(self._recent) > self._window:
            old = self._recent.popleft()
            old.uses -= 1
            if not old.uses:
                self._prune(old)

    def admit(self, nodes: Sequence[Node], tier: Tier = Tier.DEVICE) -> list[Move]:
        """Let a path's blocks into the tier, as many from its start as its policy makes room for.

        nodes: a path as `use` returned it. Blocks that a slower tier has are loaded; the others are
        taken to be there already, just computed. What must leave comes first in the moves.
        """
        rank = RANK[tier]
        moves: list[Move] = []
        with self.pinned(nodes):
            for node in nodes:
                if node.resident[rank] == node.blocks > 0:
                    continue
                self._admit(node, rank, moves)
                if not self._stands_on(node, rank):
                    break
        return moves

    def reserve(self, tier: Tier, blocks: int) -> list[Move]:
        """Make so many blocks free. All or nothing: ValueError if pins or capacity forbid it."""
        rank = RANK[tier]
        if blocks > self._capacity[rank] - self._pinned_blocks(rank):
            raise ValueError(f"{tier} cannot free {blocks} blocks: running requests hold the rest")
        moves: list[Move] = []
        self._shrink(rank, self._capacity[rank] - blocks, moves)
        return moves

    def set_capacity(self, tier: Tier, blocks: int) -> list[Move]:
        """Change a tier's budget. All or nothing: ValueError if running requests hold more."""
        rank = RANK[tier]
        if blocks < self._pinned_blocks(rank):
            raise ValueError(f"{tier} cannot shrink to {blocks} blocks: running requests hold more")
        self._capacity[rank] = blocks
        moves: list[Move] = []
        self._shrink(rank, blocks, moves)
        self._ranks = self._ranks_in_use()
        return moves

    def forget(self, name: str) -> list[Move]:
        """A document changed or must go: drop it everywhere, with all that was computed after it.

        All or nothing: ValueError while a running request needs it.
        """
        doomed = [
            node
            for node in self._root.downwards()
            if node.segment.name == name and node is not self._root
        ]
        if any(below.pins for node in doomed for below in node.downwards()):
            raise ValueError(f"{name!r} is needed by a running request; forget it when that ends")
        return self.remove(doomed)

    def remove(self, doomed: Iterable[Node]) -> list[Move]:
        """Forget nodes, with all below them, that nobody has pinned."""
        moves: list[Move] = []
        for node in doomed:
            parent = node.parent
            if parent is None:
                continue  # gone with another one above it
            for below in reversed(list(node.downwards())):
                for rank in range(len(TIERS)):
                    self._drop(below, rank, 0, moves)
                below.uses = 0
                self._unlink(below)
            self._prune(parent)
        gone = {node for node in self._recent if node.parent is None}
        if gone:
            self._recent = deque(node for node in self._recent if node not in gone)
        return moves

    @contextmanager
    def pinned(self, nodes: Iterable[Node]) -> Iterator[None]:
        """Keep a path from eviction, in every tier. nodes: with all their parents."""
        held = list(nodes)
        self.pin(held)
        try:
            yield
        finally:
            self.unpin(held)

    def pin(self, nodes: Iterable[Node]) -> None:
        """Like `pinned`, for a request that outlives the caller's block."""
        for node in nodes:
            node.pins += 1

    def unpin(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node.pins < 1:
                raise ValueError(f"{node} is not pinned")
            node.pins -= 1
            if not node.pins:
                for rank in self._ranks:
                    self._expose(node, rank)
                if not node.uses:
                    self._prune(node)

    # -- led by an owner that knows where each block is -------------------------------------------

    @property
    def root(self) -> Node:
        """Above all paths. It owns nothing and stays."""
        return self._root

    def child(self, parent: Node, segment: Segment) -> Node:
        """The node of a segment below another, made if it is missing.

        A node that was never used, holds nothing and carries nobody is forgotten as soon as something
        around it changes: pin it to keep it.
        """
        if parent.children is None:
            parent.children = {}
        child = parent.children.get(segment)
        if child is None:
            child = parent.children[segment] = Node(segment, parent, self.block_tokens)
            self._nodes += 1
        return child

    def split(self, node: Node, upper: Segment, lower: Segment) -> Node:
        """Cut a node in two where its paths part; returns the upper half, new, above the old node.

        upper, lower: what each half stands for; upper's tokens are whole blocks, and lower's the rest.
          Blocks keep their tiers, the lower half its uses, its children and its pins. The new half is
          not pinned, and counts its uses from now on.
        """
        parent = node.parent
        if parent is None or parent.children is None:
            raise ValueError("only a node of the tree can be split")
        if upper.tokens % self.block_tokens or upper.tokens + lower.tokens != node.segment.tokens:
            raise ValueError(f"{upper.tokens} + {lower.tokens} tokens are no split of {node}")
        if not 0 < upper.tokens // self.block_tokens < node.blocks:
            raise ValueError(f"{node} has {node.blocks} blocks, and each half needs one of its own")
        resident = list(node.resident)
        brought = [node in of_tier for of_tier in self._brought]
        for rank, blocks in enumerate(resident):
            if blocks:
                self._set(node, rank, 0)
        del parent.children[node.segment]
        half = self.child(parent, upper)
        half.cost_s_per_token, half.prefills = node.cost_s_per_token, node.prefills
        half.last_use = node.last_use
        half.children = {lower: node}
        node.segment, node.parent = lower, half
        node.blocks -= half.blocks
        for part, shares in (
            (half, [min(blocks, half.blocks) for blocks in resident]),
            (node, [max(blocks - half.blocks, 0) for blocks in resident]),
        ):
            for rank, blocks in enumerate(shares):
                if blocks:
                    if brought[rank]:
                        self._brought[rank].add(part)
                    self._set(part, rank, blocks)
        return half

    def prune(self, node: Node) -> None:
        """Forget the node, and those above it, that nothing is kept for: no block, use, pin or child.

        To be asked of the lower half of a split, once the upper one is pinned.
        """
        self._prune(node)

    def hold(self, node: Node, tier: Tier, blocks: int) -> None:
        """The node's first `blocks` blocks are in the tier now, whatever its policy thinks of them.

        For a tier that others fill, like the device by the requests that run: their uses come later.
        Nothing happens if they were there already, or if what they stand on is not.
        """
        rank, parent = RANK[tier], node.parent
        missing = node.resident[rank] < blocks <= node.blocks
        if missing and parent is not None and self._stands_on(parent, rank):
            if not node.resident[rank]:
                self._brought[rank].add(node)
            self._set(node, rank, blocks)

    def grow(
        self, node: Node, tier: Tier, blocks: int, *, force: bool = False, in_use: bool = False
    ) -> list[Move]:
        """Let the node's first `blocks` blocks into the tier, or as many as its policy gives room for.

        Only FREE moves come back; how many blocks it got, `node.resident` tells. force: do not ask
        whether they are worth more than those that make room. in_use: the request that uses them is
        not over: its use counts in that question, and is told later.
        """
        rank = RANK[tier]
        moves: list[Move] = []
        if blocks > node.resident[rank]:
            node.pins += 1  # `pinned` would take longer than all the rest
            try:
                wanted = min(blocks, node.blocks)
                upto = self._make_room(node, rank, wanted, moves, force=force, in_use=in_use)
                if upto > node.resident[rank]:
                    if in_use and not node.resident[rank]:
                        self._brought[rank].add(node)
                    self._set(node, rank, upto)
            finally:
                self.unpin((node,))
        return moves

    def evict(self, tier: Tier, blocks: int) -> list[Move]:
        """Take so many blocks from the tier, in its policy's order; fewer if the rest is pinned."""
        rank = RANK[tier]
        moves: list[Move] = []
        aim = self._used[rank] - blocks
        while (excess := self._used[rank] - aim) > 0:
            victim = self._policies[rank].victim(self._evictable[rank])
            if victim is None:
                break
            self._evict(victim, rank, min(excess, victim.resident[rank]), moves)
        return moves

    def drop(self, node: Node, tier: Tier, keep: int = 0) -> list[Move]:
        """All but the node's first `keep` blocks are gone from the tier, and what stood on them."""
        moves: list[Move] = []
        self._drop(node, RANK[tier], keep, moves)
        return moves

    # -- inside --------------------------------------------------------------------------------

    def _evictable_in(self, rank: int) -> Callable[[Node], bool]:
        def evictable(node: Node) -> bool:
            return not node.pins and node.resident[rank] > 0 and not node.below[rank]

        return evictable

    def _expose(self, node: Node, rank: int) -> None:
        if not node.pins and node.resident[rank] and not node.below[rank]:
            self._policies[rank].exposed(node)

    def _ranks_in_use(self) -> list[int]:
        """Tiers without capacity hold nothing, and cost nothing."""
        return [rank for rank, blocks in enumerate(self._capacity) if blocks]

    def _stands_on(self, node: Node, rank: int) -> bool:
        """Whether a child may have blocks in the tier: the node's are all there, or in a faster one.

        A node too short to own a block is as good as the one above it.
        """
        while not node.blocks and node.parent is not None:
            node = node.parent
        return not node.blocks or node.blocks in node.resident[: rank + 1]

    def _admit(self, node: Node, rank: int, moves: list[Move]) -> None:
        """Bring as many of the node's leading blocks into the tier as room is made for."""
        start = node.resident[rank]
        end = self._make_room(node, rank, node.blocks, moves)
        if end <= start:
            return
        at = start
        for slower in range(rank + 1, len(TIERS)):
            upto = min(end, node.resident[slower])
            if upto > at:
                moves.append(Move(MoveKind.LOAD, node, TIERS[slower], TIERS[rank], at, upto))
                at = upto
        self._set(node, rank, end)

    def _make_room(
        self,
        node: Node,
        rank: int,
        wanted: int,
        moves: list[Move],
        *,
        force: bool = False,
        in_use: bool = False,
    ) -> int:
        """Evict for a pinned node's first `wanted` blocks; how many of them the tier may then hold.

        Fewer where the policy keeps others. None beyond those it holds, if what it stands on is not
        there: it was given without its path, or making room has cost it.
        """
        start, capacity = node.resident[rank], self._capacity[rank]
        policy, evictable = self._policies[rank], self._evictable[rank]
        while (missing := wanted - start - (capacity - self._used[rank])) > 0:
            victim = policy.victim(evictable)
            if victim is None or not (force or policy.prefers(node, victim, in_use=in_use)):
                break
            self._evict(victim, rank, min(missing, victim.resident[rank]), moves)
        if node.parent is None or not self._stands_on(node.parent, rank):
            return start
        return min(wanted, start + capacity - self._used[rank])

    def _evict(self, node: Node, rank: int, blocks: int, moves: list[Move]) -> None:
        """Take the node's last blocks from the tier, the next slower one keeping a copy if it will."""
        end = node.resident[rank]
        self._policies[rank].evicted(node)
        slower = self._next_slower(rank) if self._swap_out else None
        if slower is not None and node.resident[slower] < end:
            self._store(node, rank, slower, end, moves)
        self._drop(node, rank, end - blocks, moves)

    def _next_slower(self, rank: int) -> int | None:
        return next((slower for slower in self._ranks if slower > rank), None)

    def _store(self, node: Node, rank: int, slower: int, end: int, moves: list[Move]) -> None:
        """Swap out, once: the whole of what the faster tier has, so that later evictions copy nothing."""
        with self.pinned([node]):
            start = node.resident[slower]
            upto = self._make_room(node, slower, end, moves)
            if upto > start:
                moves.append(Move(MoveKind.STORE, node, TIERS[rank], TIERS[slower], start, upto))
                self._set(node, slower, upto)

    def _shrink(self, rank: int, blocks: int, moves: list[Move]) -> None:
        while (excess := self._used[rank] - blocks) > 0:
            victim = self._policies[rank].victim(self._evictable[rank])
            assert victim is not None, "unpinned blocks were counted, and none is evictable"
            self._evict(victim, rank, min(excess, victim.resident[rank]), moves)

    def _drop(self, node: Node, rank: int, keep: int, moves: list[Move]) -> None:
        """Free all but the first `keep` blocks of a node in a tier, and what stood on them."""
        end = node.resident[rank]
        if end <= keep:
            return
        moves.append(Move(MoveKind.FREE, node, TIERS[rank], None, keep, end))
        self._set(node, rank, keep)
        for slower in self._ranks:
            if slower >= rank and node.below[slower] and not self._stands_on(node, slower):
                self._drop_below(node, slower, moves)
        if not node.uses:
            self._prune(node)

    def _drop_below(self, node: Node, rank: int, moves: list[Move]) -> None:
        for child in list((node.children or {}).values()):
            if child.blocks:
                self._drop(child, rank, 0, moves)
            else:
                self._drop_below(child, rank, moves)

    def _set(self, node: Node, rank: int, resident: int) -> None:
        """Set a node's blocks in a tier, with everything that is counted from it."""
        before, parent, policy = node.resident[rank], node.parent, self._policies[rank]
        node.resident[rank] = resident
        self._used[rank] += resident - before
        if not before:
            policy.entered(node)
            while parent is not None:
                parent.add_below(rank, 1)
                if parent.blocks or parent.below[rank] > 1:
                    break
                parent = parent.parent
        if resident:
            self._expose(node, rank)
            return
        policy.left(node)
        self._brought[rank].discard(node)
        while parent is not None:
            parent.add_below(rank, -1)
            self._expose(parent, rank)
            if parent.blocks or parent.below[rank]:
                break
            parent = parent.parent

    def _pinned_blocks(self, rank: int) -> int:
        return sum(node.resident[rank] for node in self._root.downwards() if node.pins)

    def _prune(self, node: Node) -> None:
        """Forget nodes that hold nothing, were not used within the window and carry nobody."""
        while (
            node.parent is not None
            and not node.uses
            and not node.pins
            and not node.children
            and not any(node.resident)
        ):
            parent = node.parent
            self._unlink(node)
            node = parent

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
        if self._forgotten:
            self._forgotten(node)

    # -- checking ------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError unless every invariant holds. For tests: O(nodes)."""
        nodes = [node for node in self._root.downwards() if node is not self._root]
        assert len(nodes) == self._nodes
        window = list(self._recent)
        assert len(window) <= self._window
        for node in nodes:
            parent = node.parent
            assert parent is not None
            assert parent.children is not None
            assert parent.children[node.segment] is node
            assert node.end == parent.end + node.segment.tokens
            assert node.blocks == node.end // self.block_tokens - parent.end // self.block_tokens
            assert node.uses == window.count(node)
            assert node.pins >= 0
            assert node.uses or node.pins or node.children or any(node.resident), "not pruned"
            children = (node.children or {}).values()
            for rank in range(len(TIERS)):
                assert 0 <= node.resident[rank] <= node.blocks
                assert node.below[rank] == sum(
                    child.resident[rank] > 0 or (not child.blocks and child.below[rank] > 0)
                    for child in children
                )
                if node.resident[rank]:
                    # A resident child has a wholly resident parent, in its tier or a faster one.
                    assert self._stands_on(parent, rank), (
                        f"{node} in {TIERS[rank]} hangs in the air"
                    )
        for rank, tier in enumerate(TIERS):
            assert self._used[rank] == sum(node.resident[rank] for node in nodes)
            assert all(node.resident[rank] for node in self._brought[rank])
            assert self._used[rank] <= self._capacity[rank], f"{tier} is over its budget"
            if any(map(self._evictable[rank], nodes)):
                victim = self._policies[rank].victim(self._evictable[rank])
                assert victim is not None, f"{tier} has evictable leaves its policy does not see"
                assert self._evictable[rank](victim)
