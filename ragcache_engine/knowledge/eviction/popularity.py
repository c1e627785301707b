"""How often each node will be used, estimated from decaying use counts.

A use counts 1 when it happens, and half as much one half-life later. A node's rate is its decayed count
over the counts of all nodes. A long half-life averages noise out, and is right while popularity is
steady; a short one is right when popularity changes. The requests themselves decide between a few
half-lives: each half-life forecasts every next use, and the one with the highest recent log-likelihood
is chosen. Forecasts compare nodes of the same depth, because deeper nodes are used less often whatever
the half-life.

A single use says little: most nodes used once are never used again. Deeper nodes return even less
often, since more documents of a path have to agree. So a discount is taken from the latest use. For
each depth it is once / (once + 2 x twice), where `once` and `twice` are the numbers of known nodes used
once and twice. Source: absolute discounting, Ney, Essen and Kneser, "On structuring probabilistic
dependences in stochastic language modelling" (1994), after Good and Turing.

Counts do not shrink with time. Instead a later use counts for more, so that a count changes only with a
use. Before the numbers grow too large, the unit of all is changed, once in some ten thousands of
requests; a node's counts follow when they are needed next.

Units: time is the tree's count of completed uses of paths, that is, requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import log2
from operator import add

from ragcache_engine.knowledge.node import Node

HALF_LIVES = (150.0, 1_500.0, 16_000.0)
"""Half-lives to choose among, in requests. The longest reaches about as far back as the tree's frequency
window."""

SCORE_HALF_LIFE = 150.0
"""Half-life of the forecasts' scores, in requests: how soon a change of popularity is noticed."""

MARGIN_BITS = 0.05
"""By how many bits per request a forecast must be better before its half-life is chosen. Below 0.03 noise
alone changes the choice on steady streams, and each change evicts."""

UNIFORM_SHARE = 0.2
"""Share of each forecast that goes to all known nodes alike, because decayed counts forget nodes."""

HIGHEST_DISCOUNT = 0.95
"""The largest share of the latest use that is discounted."""

CLEANED_AT_ONCE = 2
"""For each new node, so many known ones are looked at, and dropped if the tree has forgotten them."""

DEEPEST = 32
"""Nodes deeper than this count as this deep."""

HALF_LIVES_TO_SCALE = 900.0
"""After how many half-lives to scale counts down: a float can hold two to the power of a thousand."""

SMALLEST_COUNT = 1e-300
"""The least value of a count, so that one can divide by it and take its logarithm."""


class _DepthCounts:
    """Counts over the known nodes of one depth.

    known, once, twice: how many nodes there are, and how many of them were used once and twice.
    weights: for each half-life, the sum of the nodes' counts.
    discount: stored, because it is read far more often than it changes.
    """

    __slots__ = ("discount", "known", "once", "twice", "weights")

    def __init__(self, half_lives: int) -> None:
        self.known = self.once = self.twice = 0
        self.weights = [SMALLEST_COUNT] * half_lives
        self.discount = 0.0

    def update_discount(self) -> None:
        """Compute the discount from the numbers of nodes used once and twice."""
        once = self.once
        share = once / (once + 2 * self.twice) if once else 0.0
        self.discount = min(HIGHEST_DISCOUNT, share)


class _NodeCounts:
    """Counts of one node. counts: its decayed uses, for each half-life, in the unit of `unit_time`.
    uses: all its uses."""

    __slots__ = ("counts", "level", "unit_time", "uses")

    def __init__(self, level: _DepthCounts, counts: tuple[float, ...], unit_time: int) -> None:
        self.level = level
        self.uses = 1
        self.counts = counts
        self.unit_time = unit_time


class Popularity:
    """Estimates rates of use, with the half-life that has lately forecast best.

    half_lives: half-lives to choose among, in requests. half_life: the one chosen now. Rates are to be
    compared only while it is the same.
    The object remembers the nodes that the tree remembers, and in time drops those that the tree
    forgets.
    Raises ValueError unless the half-lives are one or more positive numbers.
    """

    def __init__(self, half_lives: Sequence[float] = HALF_LIVES) -> None:
        if not half_lives or min(half_lives) <= 0:
            raise ValueError(f"half-lives are one or more positive numbers, got {half_lives}")
        self._half_lives = tuple(half_lives)
        self._best = self._half_lives.index(max(half_lives))
        self.half_life = self._half_lives[self._best]
        self._scores = [0.0] * len(self._half_lives)
        self._judged_requests = 0.0  # how many, with decay as in the scores
        self._now = 0
        self._unit_time = 0  # the time whose uses count 1
        # What a use counts now, for each half-life.
        self._use_weights = (1.0,) * len(self._half_lives)
        self._levels: list[_DepthCounts] = []
        self._records: dict[Node, _NodeCounts] = {}
        self._to_clean: deque[Node] = deque()
        self._latest: Node | None = None
        self._latest_rate: tuple[Node, float] | None = None  # of the latest use

    def __len__(self) -> int:
        """How many nodes are remembered."""
        return len(self._records)

    def record_use(self, node: Node) -> None:
        """Count a completed use. With it `half_life` may change, and all rates.

        Several tiers may report the same use one after the other: it counts once.
        """
        if node is self._latest and node.last_use == self._now:
            return
        self._latest, self._latest_rate = node, None
        if node.last_use != self._now:
            self._begin_request(node.last_use)
        record = self._find(node)
        if record is None:
            record = self._add_record(node)
        else:
            self._count_use(record)
        weights = record.level.weights
        for which, one in enumerate(self._use_weights):
            weights[which] += one

    def log2_rate(self, node: Node, *, in_use: bool = False) -> float:
        """Return the logarithm of the node's rate, up to a constant.

        The constant is the same for all nodes until the half-life changes. The result ignores the decay
        since a fixed time: all counts decay alike, so the result changes only with a use of the node.
        in_use: count a use that is not completed yet. A node never used always counts as in use.
        """
        if self._latest_rate and self._latest_rate[0] is node and not in_use:
            return self._latest_rate[1]  # every tier asks for this
        record, half_life = self._find(node), self.half_life
        one = self._use_weights[self._best]
        if record is None:
            count = one * (1.0 - self._discount_at(node))
        elif in_use and node.last_use != self._now:
            count = record.counts[self._best] + one * (1.0 - record.level.discount)
        else:
            latest = one
            if node.last_use != self._now:
                latest = self._weight_then(node.last_use)
            count = record.counts[self._best] - record.level.discount * latest
        rate = log2(max(count, SMALLEST_COUNT)) + self._unit_time / half_life
        if node is self._latest and not in_use:
            self._latest_rate = node, rate
        return rate

    def _weight_then(self, time: int) -> float:
        """Return what a use at this time counts now, for the chosen half-life."""
        weight: float = 2.0 ** ((time - self._unit_time) / self.half_life)
        return weight

    def _begin_request(self, now: int) -> None:
        """Move the time on, and choose the half-life whose forecasts are best."""
        fade = 2.0 ** ((self._now - now) / SCORE_HALF_LIFE)
        self._now = now
        if now - self._unit_time > HALF_LIVES_TO_SCALE * min(self._half_lives):
            self._rescale(now)
        passed = now - self._unit_time
        self._use_weights = tuple([2.0 ** (passed / half_life) for half_life in self._half_lives])
        self._judged_requests = self._judged_requests * fade + 1.0
        self._scores = scores = [score * fade for score in self._scores]
        best = max(scores)
        if best > scores[self._best] + MARGIN_BITS * self._judged_requests:
            self._best = scores.index(best)
            self.half_life = self._half_lives[self._best]

    def _add_record(self, node: Node) -> _NodeCounts:
        self._drop_some_forgotten()
        depth = _depth(node)
        while len(self._levels) <= depth:
            self._levels.append(_DepthCounts(len(self._half_lives)))
        level = self._levels[depth]
        level.known += 1
        level.once += 1
        level.update_discount()
        record = self._records[node] = _NodeCounts(level, self._use_weights, self._unit_time)
        self._to_clean.append(node)
        return record

    def _discount_at(self, node: Node) -> float:
        depth = _depth(node)
        return self._levels[depth].discount if depth < len(self._levels) else 0.0

    def _count_use(self, record: _NodeCounts) -> None:
        """Score the forecasts of one more use of a known node, then count the use."""
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
        if level.known > 1:  # every forecast expects the only node of its depth
            scores, weights = self._scores, level.weights
            unexpected, expected = UNIFORM_SHARE / level.known, 1.0 - UNIFORM_SHARE
            for which, count in enumerate(counts):
                scores[which] += log2(expected * count / weights[which] + unexpected)
        record.counts = tuple(map(add, counts, self._use_weights))

    def _rescale(self, now: int) -> None:
        """Scale all counts down, so that a use at time `now` counts 1."""
        scales = [2.0 ** ((self._unit_time - now) / half_life) for half_life in self._half_lives]
        self._unit_time = now
        for holder in self._levels:
            weights = zip(holder.weights, scales, strict=True)
            holder.weights = [max(weight * scale, SMALLEST_COUNT) for weight, scale in weights]

    def _find(self, node: Node) -> _NodeCounts | None:
        """Return what is known of a node, in today's unit."""
        record = self._records.get(node)
        if record is not None and record.unit_time != self._unit_time:
            passed = record.unit_time - self._unit_time
            record.unit_time = self._unit_time
            scales = [2.0 ** (passed / half_life) for half_life in self._half_lives]
            counts = zip(record.counts, scales, strict=True)
            record.counts = tuple([count * scale for count, scale in counts])
        return record

    def _drop_some_forgotten(self) -> None:
        """Look at a few known nodes in turn, and drop those that the tree has forgotten."""
        to_clean = self._to_clean
        for _ in range(min(CLEANED_AT_ONCE, len(to_clean))):
            node = to_clean[0]
            to_clean.rotate(-1)
            if node.parent is not None:
                continue
            to_clean.pop()
            record = self._records.pop(node)
            level = record.level
            level.known -= 1
            level.once -= record.uses == 1
            level.twice -= record.uses == 2
            level.update_discount()


def _depth(node: Node) -> int:
    """Count the nodes above this one, the root not among them; at most DEEPEST."""
    depth, above = -1, node.parent
    while above is not None and depth < DEEPEST:
        depth, above = depth + 1, above.parent
    return depth
