"""HalfLife: evicts the leaf with the lowest rate of use, and admits no newcomer with a lower one.

The engine's default. A cached block saves its computation at each use, and computing a token costs
nearly the same wherever it stands. So the blocks worth holding are those with the highest rate of use.
LRU and the clock of PGDSF guess that rate from the latest use, which costs hits while popularity is
steady. LFU counts all uses alike, which costs hits when popularity changes. HalfLife counts uses that
decay, with the half-life that has lately forecast the requests best (popularity.py). So the policy
behaves like LFU on a steady stream of requests, and nearly like LRU on a changing one. `half_life` shows
which of the two it is. Uses of nodes that are not cached count as well, so a newcomer is judged by its
past: it takes a victim's place only if its own rate is at least as high. Documents used once do not
flush the cache.

When popularity drifts, no policy without knowledge of the future can be perfect. A newly popular
document must be used several times before its uses differ from noise. The oracle holds the document from
its first use, and knows when each document comes next. docs/eviction.md has what that costs.

Adapted to a tree: only leaves are evicted. A parent is used at least as often as each of its children,
so this rule rarely costs a hit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ragcache_engine.knowledge.eviction.by_priority import ByPriority
from ragcache_engine.knowledge.eviction.popularity import HALF_LIVES, Popularity
from ragcache_engine.knowledge.node import Node


class HalfLife(ByPriority):
    """Evicts the lowest rate of use, counted with the half-life that forecasts best.

    half_lives: half-lives to choose among, in requests.
    popularity: the rates of use, shared by the tiers of one tree. None: this policy counts its own
      rates, with `half_lives`.
    """

    def __init__(
        self,
        half_lives: Sequence[float] = HALF_LIVES,
        *,
        popularity: Popularity | None = None,
    ) -> None:
        super().__init__()
        # Not `or`: one that has counted nothing yet is empty, and so false.
        self._popularity = Popularity(half_lives) if popularity is None else popularity
        self._half_life_used = self._popularity.half_life

    @property
    def half_life(self) -> float:
        """The number of requests after which a use counts half, as chosen now."""
        return self._popularity.half_life

    def compute_priority(self, node: Node) -> float:
        return self._popularity.log2_rate(node)

    def seen(self, node: Node) -> None:
        self._popularity.record_use(node)
        self._follow_scale()
        if self._outdated:
            self._renew_some(from_lowest=False)

    def victim(self, evictable: Callable[[Node], bool]) -> Node | None:
        self._follow_scale()
        return super().victim(evictable)

    def _follow_scale(self) -> None:
        """Compute priorities again if another policy of the tree has seen the half-life change."""
        if self._popularity.half_life != self._half_life_used:
            self._half_life_used = self._popularity.half_life
            self.change_scale()

    def prefers(self, newcomer: Node, victim: Node, *, in_use: bool = False) -> bool:
        rate = self._popularity.log2_rate(newcomer, in_use=in_use)
        return rate >= self.priority_of(victim)
