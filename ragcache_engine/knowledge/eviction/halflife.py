"""HalfLife: the leaf that will be asked for least leaves first, and a newcomer worth less stays out.

The engine's default. A block held saves its computation each time it is asked for, so the blocks to
hold are those with the highest rate of use; computing a token costs nearly the same wherever it
stands, so the rate alone decides. LRU and the clock of PGDSF guess that rate from the latest use and
pay for it while popularity stands still; LFU counts for ever and pays when popularity moves. Here the
rate is a use count that decays, with the half-life that has lately forecast the requests best
(`popularity`), so it is LFU on a steady stream and near LRU on a moving one, and says which. Uses of
nodes that are not cached count as well, so a newcomer is judged by its past: it takes a victim's place
only if its own rate is higher, and one-hit wonders do not wash the cache out.

Under drift it is bounded by what it cannot know: after a change, a newly popular document has to be
asked for before it can be told from noise, and the evidence needs about a half-life to gather, while
the oracle holds it from its first use and knows when each document comes next. On squad, two documents
a request, room for 5% of all tokens, popularity dealt anew every 1,000 requests: the oracle hits 53% of
tokens, a cache told the true popularity at every moment 46%, this policy 41%, PGDSF 37%.

Fitted to a tree: only leaves are ranked; a node is never asked for more often than its parent, so a
parent is rarely the one to be missed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ragcache_engine.knowledge.eviction.by_priority import ByPriority
from ragcache_engine.knowledge.eviction.popularity import HALF_LIVES, Popularity
from ragcache_engine.knowledge.node import Node


class HalfLife(ByPriority):
    """Lowest rate of use first, counted with the half-life that forecasts best.

    half_lives: to choose among, in requests.
    popularity: to share between the tiers of one tree, instead of one of its own.
    """

    def __init__(
        self,
        half_lives: Sequence[float] = HALF_LIVES,
        *,
        popularity: Popularity | None = None,
    ) -> None:
        super().__init__()
        self._popularity = popularity or Popularity(half_lives)
        self._half_life_used = self._popularity.half_life

    @property
    def half_life(self) -> float:
        """Requests after which a use counts half, as believed now."""
        return self._popularity.half_life

    def compute_priority(self, node: Node) -> float:
        return self._popularity.log2_rate(node)

    def seen(self, node: Node) -> None:
        self._popularity.record_use(node)
        if self._popularity.half_life != self._half_life_used:
            self._half_life_used = self._popularity.half_life
            self.recompute_priorities()

    def prefers(self, newcomer: Node, victim: Node, *, in_use: bool = False) -> bool:
        rate = self._popularity.log2_rate(newcomer, in_use=in_use)
        return rate >= self.priority_of(victim)
