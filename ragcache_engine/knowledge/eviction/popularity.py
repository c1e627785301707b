"""How often each node will be asked for, and how long a memory tells that best.

A use counts 1 when it happens and half as much a half-life later, so a node's rate is its decayed count
over that of all nodes. A long half-life averages the noise away and is right while popularity stands
still; a short one is right when it moves. Which it is, the requests tell: each of a few half-lives
forecasts every next use, and the one with the highest log-likelihood of late is believed. Shares are
taken among nodes of one depth, for deeper ones are rarer whatever the half-life.

Two counts need care. A node seen once has probably not earned a count of one: most such nodes never
come back, and the deeper, the fewer, since a path has to agree in more documents. So from the latest
use a discount is taken, by depth: once / (once + 2 x twice), from how many known nodes were used once
and twice. Source: absolute discounting, Ney, Essen and Kneser, "On structuring probabilistic
dependences in stochastic language modelling" (1994), after Good and Turing.

Counts are not made to shrink, a use counts for more the later it comes, so a count changes with a use
only. Before the numbers grow too large all are scaled down, once in some ten thousands of requests.

Units: time is the tree's count of completed uses of paths, that is, requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from operator import add

from ragcache_engine.knowledge.node import Node

HALF_LIVES = (150.0, 1_500.0, 16_000.0)
"""Requests. The longest is about as far back as the tree's frequency window reaches."""

SCORE_HALF_LIFE = 300.0
"""Half-life of the forecasts' scores, in requests: how soon a change is believed."""

MARGIN_BITS = 0.02
"""By how much a forecast must have been better, in bits a request, before the half-life is changed."""

UNIFORM_SHARE = 0.2
"""Share of each forecast that goes to all known nodes alike, for what a decayed count has forgotten."""

HIGHEST_DISCOUNT = 0.95

NODES_BEFORE_CLEANING = 1_024
"""Nodes to know before looking for some that the tree has forgotten."""

HALF_LIVES_TO_SCALE = 500.0
"""Half-lives after which counts are scaled down: a float holds two to the power of a thousand."""

SMALLEST_COUNT = 1e-300
"""What has shrunk to nothing counts for, so that it can be divided by and has a logarithm."""


class _DepthCounts:
    """What is known of the nodes of one depth. weights: the sum of their counts, by half-life.

    discount: kept rather than computed when asked, for it is asked for far more often than it moves.
    """

    __slots__ = ("discount", "known", "once", "twice", "weights")

    def __init__(self, half_lives: int) -> None:
        self.known = self.once = self.twice = 0
        self.weights = [SMALLEST_COUNT] * half_lives
        self.discount = 0.0

    def update_discount(self) -> None:
        once = self.once
        share = once / (once + 2 * self.twice) if once else 0.0
        self.discount = min(HIGHEST_DISCOUNT, share)


class _NodeCounts:
    """What is known of one node. counts: by half-life."""

    __slots__ = ("counts", "level", "uses")

    def __init__(self, level: _DepthCounts, counts: tuple[float, ...]) -> None:
        self.level = level
        self.uses = 1
        self.counts = counts


class Popularity:
    """Rates of use, as of the half-life that has lately forecast best.

    Remembers the nodes the tree remembers, and no others for long.
    """

    def __init__(self, half_lives: Sequence[float] = HALF_LIVES) -> None:
        if not half_lives or min(half_lives) <= 0:
            raise ValueError(f"half-lives are one or more positive numbers, got {half_lives}")
        self._half_lives = tuple(half_lives)
        self._best = max(range(len(half_lives)), key=self._half_lives.__getitem__)
        self.half_life = self._half_lives[self._best]
        """The one believed now."""
        self._scores = [0.0] * len(half_lives)
        self._judged_requests = 0.0  # requests, decayed as the scores are
        self._now = 0
        self._unit_time = 0  # when a use counted one
        self._use_weights = (1.0,) * len(half_lives)  # what a use counts
        self._levels: list[_DepthCounts] = []
        self._records: dict[Node, _NodeCounts] = {}
        self._clean_at = NODES_BEFORE_CLEANING
        self._latest: Node | None = None
        self._latest_rate: tuple[Node, float] | None = None  # as of its latest use

    def __len__(self) -> int:
        """How many nodes are remembered."""
        return len(self._records)

    def record_use(self, node: Node) -> bool:
        """Take in a completed use. Returns whether another half-life is believed from now on.

        Told of the same use by several tiers one after the other, it counts it once.
        """
        if node is self._latest and node.last_use == self._now:
            return False
        self._latest, self._latest_rate = node, None
        changed = node.last_use != self._now and self._begin_request(node.last_use)
        record = self._records.get(node)
        if record is None:
            record = self._add_record(node)
        else:
            self._count_use(record)
        weights = record.level.weights
        for which, one in enumerate(self._use_weights):
            weights[which] += one
        return changed

    def log2_rate(self, node: Node, *, in_use: bool = False) -> float:
        """Of the node, up to a constant that is the same for all until the half-life changes.

        All counts halve in step, so it changes with a use only: now, it would be smaller by
        now / half-life for every node.
        in_use: count the use of a request that is not over. A node never used is taken to be in use.
        """
        if self._latest_rate and self._latest_rate[0] is node and not in_use:
            return self._latest_rate[1]  # each tier asks
        record, half_life = self._records.get(node), self.half_life
        one = self._use_weights[self._best]
        if record is None:
            count = one * (1.0 - self._discount_at(node))
        elif in_use and node.last_use != self._now:
            count = record.counts[self._best] + one * (1.0 - record.level.discount)
        else:
            latest = one
            if node.last_use != self._now:
                latest = 2.0 ** ((node.last_use - self._unit_time) / half_life)
            count = record.counts[self._best] - record.level.discount * latest
        rate = log2(max(count, SMALLEST_COUNT)) + self._unit_time / half_life
        if node is self._latest and not in_use:
            self._latest_rate = node, rate
        return rate

    def _begin_request(self, now: int) -> bool:
        """Judge the forecasts up to here; whether the verdict is new."""
        fade = 2.0 ** ((self._now - now) / SCORE_HALF_LIFE)
        self._now = now
        if now - self._unit_time > HALF_LIVES_TO_SCALE * min(self._half_lives):
            self._rescale(now)
        passed = now - self._unit_time
        self._use_weights = tuple([2.0 ** (passed / half_life) for half_life in self._half_lives])
        self._judged_requests = self._judged_requests * fade + 1.0
        self._scores = scores = [score * fade for score in self._scores]
        best = max(scores)
        if best <= scores[self._best] + MARGIN_BITS * self._judged_requests:
            return False
        self._best = scores.index(best)
        self.half_life = self._half_lives[self._best]
        return True

    def _add_record(self, node: Node) -> _NodeCounts:
        if len(self._records) >= self._clean_at:
            self._drop_forgotten()
        depth = _depth(node)
        while len(self._levels) <= depth:
            self._levels.append(_DepthCounts(len(self._half_lives)))
        level = self._levels[depth]
        level.known += 1
        level.once += 1
        level.update_discount()
        record = self._records[node] = _NodeCounts(level, self._use_weights)
        return record

    def _discount_at(self, node: Node) -> float:
        depth = _depth(node)
        return self._levels[depth].discount if depth < len(self._levels) else 0.0

    def _count_use(self, record: _NodeCounts) -> None:
        """One more use of a known node: score the forecasts of it, then count it."""
        level = record.level
        record.uses += 1
        if record.uses == 2:
            level.once -= 1
            level.twice += 1
            level.update_discount()
        elif record.uses == 3:
            level.twice -= 1
            level.update_discount()
        counts = record.counts
        if level.known > 1:  # the only one of its depth is no surprise to anybody
            scores, weights = self._scores, level.weights
            unexpected, expected = UNIFORM_SHARE / level.known, 1.0 - UNIFORM_SHARE
            for which, count in enumerate(counts):
                scores[which] += log2(expected * count / weights[which] + unexpected)
        record.counts = tuple(map(add, counts, self._use_weights))

    def _rescale(self, now: int) -> None:
        """Let a use count one again from now on, and all before it accordingly less."""
        scales = [2.0 ** ((self._unit_time - now) / half_life) for half_life in self._half_lives]
        self._unit_time = now
        for holder in self._levels:
            weights = zip(holder.weights, scales, strict=True)
            holder.weights = [max(weight * scale, SMALLEST_COUNT) for weight, scale in weights]
        for record in self._records.values():
            counts = zip(record.counts, scales, strict=True)
            record.counts = tuple([count * scale for count, scale in counts])

    def _drop_forgotten(self) -> None:
        """Forget the nodes that the tree has forgotten."""
        kept = {node: record for node, record in self._records.items() if node.parent is not None}
        for level in self._levels:
            level.known = level.once = level.twice = 0
        for record in kept.values():
            record.level.known += 1
            record.level.once += record.uses == 1
            record.level.twice += record.uses == 2
        for level in self._levels:
            level.update_discount()
        self._records = kept
        self._clean_at = max(NODES_BEFORE_CLEANING, 2 * len(kept))


def _depth(node: Node) -> int:
    """How many nodes are above it, the root not among them."""
    depth, above = -1, node.parent
    while above is not None:
        depth, above = depth + 1, above.parent
    return depth
