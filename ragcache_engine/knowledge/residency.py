"""Count which blocks of each node are in which tier, and choose those that leave a full tier.

Each tier has a budget of blocks and an eviction policy of its own. A node's blocks in a tier are always
its leading ones, so their number says which they are. One invariant holds for each tier: if a node has
blocks there, all blocks of its parent are there or in one faster tier.
Source: RAGCache, §5.1 and Algorithm 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from ragcache_engine.knowledge.eviction.by_owner import ByOwner
from ragcache_engine.knowledge.eviction.policy import EvictionPolicy
from ragcache_engine.knowledge.freed import FreedBlocks
from ragcache_engine.knowledge.node import Node
from ragcache_engine.knowledge.tier import TIERS, Tier


class Residency:
    """The budgets, the counts and the policies of the three tiers. rank: a tier's place in TIERS.

    capacity_blocks: blocks each tier may hold; a tier left out holds none.
    policy: makes the eviction policy of one tier.
    quotas: blocks that the nodes of one owner may have in a tier; no limit in a tier left out.
    """

    def __init__(
        self,
        capacity_blocks: Mapping[Tier, int],
        policy: Callable[[], EvictionPolicy],
        quotas: Mapping[Tier, int],
    ) -> None:
        self.capacity = [capacity_blocks.get(tier, 0) for tier in TIERS]
        self.used = [0] * len(TIERS)
        self.quotas = [quotas.get(tier) for tier in TIERS]
        self.used_by: list[Counter[str]] = [
            Counter() for _ in TIERS
        ]  # by owner, where there is a quota
        self._by_owner = [None if quota is None else ByOwner(policy) for quota in self.quotas]
        self.policies: list[EvictionPolicy] = [one or policy() for one in self._by_owner]
        self._ranks = self._ranks_in_use()
        self._is_evictable = [self._evictable_in(rank) for rank in range(len(TIERS))]
        # For each tier, nodes that came in for a use that is not completed yet.
        self._awaiting_use: list[set[Node]] = [set() for _ in TIERS]

    # -- blocks come -------------------------------------------------------------------------------

    def hold(self, node: Node, rank: int, blocks: int) -> None:
        """Count the node's first `blocks` blocks as present; see KnowledgeTree.hold."""
        missing = node.resident[rank] < blocks <= node.blocks
        if missing and node.parent is not None and self.supports_child(node.parent, rank):
            if not node.resident[rank]:
                self._awaiting_use[rank].add(node)
            self._set(node, rank, blocks)

    def grow(
        self, node: Node, rank: int, blocks: int, *, force: bool, in_use: bool
    ) -> list[FreedBlocks]:
        """Admit a pinned node's first `blocks` blocks; see KnowledgeTree.grow."""
        freed: list[FreedBlocks] = []
        wanted = min(blocks, node.blocks)
        upto = self._make_room(node, rank, wanted, freed, force=force, in_use=in_use)
        if upto > node.resident[rank]:
            if in_use and not node.resident[rank]:
                self._awaiting_use[rank].add(node)
            self._set(node, rank, upto)
        return freed

    # -- blocks leave ------------------------------------------------------------------------------

    def shrink(self, rank: int, blocks: int) -> list[FreedBlocks]:
        """Evict until the tier holds `blocks` blocks, or until the rest is pinned."""
        freed: list[FreedBlocks] = []
        while (excess := self.used[rank] - blocks) > 0:
            victim = self.policies[rank].victim(self._is_evictable[rank])
            if victim is None:
                break
            self._evict(victim, rank, min(excess, victim.resident[rank]), freed)
        return freed

    def drop(self, node: Node, rank: int, keep: int) -> list[FreedBlocks]:
        """Free all but the node's first `keep` blocks in the tier, and blocks that depended on them."""
        freed: list[FreedBlocks] = []
        self._drop(node, rank, keep, freed)
        return freed

    def set_capacity(self, rank: int, blocks: int) -> None:
        """Change the budget of a tier. The caller shrinks the tier to it."""
        self.capacity[rank] = blocks
        self._ranks = self._ranks_in_use()

    # -- nodes change ------------------------------------------------------------------------------

    def record_use(self, nodes: Iterable[Node]) -> None:
        """Tell every policy that a use of these nodes was completed."""
        tiers = [(rank, self.policies[rank], self._awaiting_use[rank]) for rank in self._ranks]
        for node in nodes:
            for rank, policy, awaiting in tiers:
                policy.seen(node)
                if node.resident[rank]:
                    if node in awaiting:
                        awaiting.discard(node)
                        policy.first_use_completed(node)
                    else:
                        policy.used(node)

    def note_let_go(self, node: Node, rank: int) -> None:
        """Tell the tier's policy of a node that no order keeps any more, if it can be evicted again."""
        self._tell_evictable(node, rank)

    def note_unpinned(self, node: Node) -> None:
        """Tell the policies of the node if it can be evicted again."""
        for rank in self._ranks:
            self._tell_evictable(node, rank)

    def take_out(self, node: Node) -> tuple[list[int], list[bool]]:
        """Take the node's blocks out of the counts before the node is split.

        Returns, for each tier, how many blocks were there, and whether they came in for a use that is
        not completed yet. `put_in` takes both.
        """
        resident = list(node.resident)
        awaiting = [node in of_tier for of_tier in self._awaiting_use]
        for rank, blocks in enumerate(resident):
            if blocks:
                self._set(node, rank, 0)
        return resident, awaiting

    def put_in(self, node: Node, resident: Iterable[int], awaiting: list[bool]) -> None:
        """Count this many of the node's blocks as present in each tier; after `take_out`."""
        for rank, blocks in enumerate(resident):
            if blocks:
                if awaiting[rank]:
                    self._awaiting_use[rank].add(node)
                self._set(node, rank, blocks)

    # -- asking ------------------------------------------------------------------------------------

    def supports_child(self, node: Node, rank: int) -> bool:
        """Whether a child of the node may have blocks in the tier.

        It may if all the node's blocks are there or in one faster tier. A node too short to own a
        block answers for the node above it.
        """
        while not node.blocks and node.parent is not None:
            node = node.parent
        return not node.blocks or node.blocks in node.resident[: rank + 1]

    def check(self, nodes: list[Node]) -> None:
        """Raise AssertionError unless the counts fit these nodes, all of the tree. For tests."""
        for node in nodes:
            assert node.parent is not None
            children = (node.children or {}).values()
            for rank in range(len(TIERS)):
                assert 0 <= node.resident[rank] <= node.blocks
                assert node.below[rank] == sum(
                    child.resident[rank] > 0 or (not child.blocks and child.below[rank] > 0)
                    for child in children
                )
                if node.resident[rank]:
                    assert self.supports_child(node.parent, rank), (
                        f"{node} has blocks in {TIERS[rank]}, and its parent's are incomplete there"
                    )
        for rank, tier in enumerate(TIERS):
            assert self.used[rank] == sum(node.resident[rank] for node in nodes)
            assert all(node.resident[rank] for node in self._awaiting_use[rank])
            assert self.used[rank] <= self.capacity[rank], f"{tier} is over its budget"
            self._check_owners(nodes, rank)
            if any(map(self._is_evictable[rank], nodes)):
                victim = self.policies[rank].victim(self._is_evictable[rank])
                assert victim is not None, f"{tier} has evictable leaves its policy does not see"
                assert self._is_evictable[rank](victim)

    def _check_owners(self, nodes: list[Node], rank: int) -> None:
        quota, by_owner = self.quotas[rank], self._by_owner[rank]
        if quota is None or by_owner is None:
            return
        used: Counter[str] = Counter()
        for node in nodes:
            if node.owner is not None and node.resident[rank]:
                used[node.owner] += node.resident[rank]
        assert used == self.used_by[rank]
        assert all(blocks <= quota for blocks in used.values()), "an owner is over its quota"
        for owner in used:
            own = [node for node in nodes if node.owner == owner]
            if any(map(self._is_evictable[rank], own)):
                victim = by_owner.victim_of(owner, self._is_evictable[rank])
                assert victim is not None, f"{owner} has evictable leaves its policy does not see"
                assert victim.owner == owner

    # -- inside ------------------------------------------------------------------------------------

    def _ranks_in_use(self) -> list[int]:
        """Return the ranks of the tiers with capacity, so that no loop visits the empty ones."""
        return [rank for rank, blocks in enumerate(self.capacity) if blocks]

    def _evictable_in(self, rank: int) -> Callable[[Node], bool]:
        def is_evictable(node: Node) -> bool:
            may_leave = not node.pins and not node.kept[rank]
            return may_leave and node.resident[rank] > 0 and not node.below[rank]

        return is_evictable

    def _tell_evictable(self, node: Node, rank: int) -> None:
        if self._is_evictable[rank](node):
            self.policies[rank].became_evictable(node)

    def _make_room(
        self,
        node: Node,
        rank: int,
        wanted: int,
        freed: list[FreedBlocks],
        *,
        force: bool,
        in_use: bool,
    ) -> int:
        """Evict for a pinned node's first `wanted` blocks; return how many the tier may then hold.

        The tier may hold fewer where the policy prefers other blocks, or the node's owner has reached its
        quota. It may hold no more than now if
        the parent's blocks are not there, because they never were, or because making room evicted them.
        """
        start, capacity = node.resident[rank], self.capacity[rank]
        wanted = self._fit_into_quota(node, rank, wanted, freed, force=force, in_use=in_use)
        policy, is_evictable = self.policies[rank], self._is_evictable[rank]
        while (missing := wanted - start - (capacity - self.used[rank])) > 0:
            victim = policy.victim(is_evictable)
            if victim is None or not (force or policy.prefers(node, victim, in_use=in_use)):
                break
            self._evict(victim, rank, min(missing, victim.resident[rank]), freed)
        if node.parent is None or not self.supports_child(node.parent, rank):
            return start
        return min(wanted, start + capacity - self.used[rank])

    def _fit_into_quota(
        self,
        node: Node,
        rank: int,
        wanted: int,
        freed: list[FreedBlocks],
        *,
        force: bool,
        in_use: bool,
    ) -> int:
        """Evict what the node's owner has, as its quota wants it; return how many blocks that allows."""
        quota, by_owner, owner = self.quotas[rank], self._by_owner[rank], node.owner
        if quota is None or by_owner is None or owner is None:
            return wanted
        start, used = node.resident[rank], self.used_by[rank]
        while (excess := used[owner] + wanted - start - quota) > 0:
            victim = by_owner.victim_of(owner, self._is_evictable[rank])
            if victim is None or not (force or by_owner.prefers_own(node, victim, in_use=in_use)):
                break
            by_owner.evicted_for_own(victim)
            self._drop(
                victim, rank, victim.resident[rank] - min(excess, victim.resident[rank]), freed
            )
        return max(start, min(wanted, start + quota - used[owner]))

    def _evict(self, node: Node, rank: int, blocks: int, freed: list[FreedBlocks]) -> None:
        """Take the node's last blocks from the tier, for others."""
        self.policies[rank].evicted(node)
        self._drop(node, rank, node.resident[rank] - blocks, freed)

    def _drop(self, node: Node, rank: int, keep: int, freed: list[FreedBlocks]) -> None:
        # A list instead of recursion: a path is as long as a prompt has documents.
        waiting = [(node, rank, keep)] if node.blocks else []
        while waiting:
            node, rank, keep = waiting.pop()
            if not node.blocks:  # it owns none; those below it depend on the same blocks
                waiting += [(child, rank, 0) for child in (node.children or {}).values()]
            elif (end := node.resident[rank]) > keep:
                freed.append(FreedBlocks(node, TIERS[rank], keep, end))
                self._set(node, rank, keep)
                for slower in self._ranks:
                    is_below = slower >= rank and node.below[slower]
                    if is_below and not self.supports_child(node, slower):
                        waiting += [(child, slower, 0) for child in (node.children or {}).values()]

    def _set(self, node: Node, rank: int, resident: int) -> None:
        """Set how many blocks a node has in a tier, and update all counts that depend on it."""
        before, parent, policy = node.resident[rank], node.parent, self.policies[rank]
        node.resident[rank] = resident
        self.used[rank] += resident - before
        if node.owner is not None and self.quotas[rank] is not None:
            used = self.used_by[rank]
            used[node.owner] += resident - before
            if not used[node.owner]:
                del used[node.owner]
        if not before:
            policy.entered(node)
            while parent is not None:
                parent.add_below(rank, 1)
                if parent.blocks or parent.below[rank] > 1:
                    break
                parent = parent.parent
        if resident:
            self._tell_evictable(node, rank)
            return
        policy.left(node)
        self._awaiting_use[rank].discard(node)
        while parent is not None:
            parent.add_below(rank, -1)
            self._tell_evictable(parent, rank)
            if parent.blocks or parent.below[rank]:
                break
            parent = parent.parent
