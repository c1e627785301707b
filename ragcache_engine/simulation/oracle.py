"""Upper bounds on cache hits: a cache that knows the future, and reuse at any position of a prompt.

The oracle is Belady's optimal cache, applied to the tree token by token. A token is identified by its
place in the tree. Between two uses of a token lies an interval of time, and the second use hits if the
cache holds the token through all of it. At every moment the cache holds at most `capacity` tokens. So
the most hits are the most intervals of which no more than `capacity` overlap: interval packing on
`capacity` machines with unit weights. The greedy rule is optimal: whenever too many intervals overlap,
drop the one that ends last. If that interval is the newest token's own, the cache refuses to admit the
token.

The bound holds even for caches that, unlike the tree, need not hold whole prefixes. Yet the oracle
reaches the bound with whole prefixes: a child is never used before its parent, and of intervals that
end together the oracle drops that of the deeper token first (in a document, the later one).
Source: Belady (1966) for unit pages; Carlisle and Lloyd, "On the k-coloring of intervals" (1995) for
the packing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from heapq import heappop, heappush

from ragcache_engine.simulation.traces import Trace


@dataclass(frozen=True, slots=True)
class OracleHits:
    """What the oracle reached. cached: for each request, how many leading tokens the oracle held."""

    cached: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Token hits over all requests."""
        return sum(self.cached)


def oracle(trace: Trace, capacity_tokens: int, *, system_tokens: int = 0) -> OracleHits:
    """Find the most token hits that any policy can reach on a knowledge tree with one tier.

    system_tokens: tokens of a system text in front of every request; 0 for none.
    """
    paths, sizes, depths = _number_places(trace, system_tokens)
    following = _find_next_uses(paths)
    held = [0] * len(sizes)
    due = [len(paths)] * len(sizes)
    # A heap of held places: the one used latest comes first, and of equals the deepest.
    latest: list[tuple[int, int, int]] = []
    used, cached = 0, []
    for path, after in zip(paths, following, strict=True):
        cached.append(sum(held[place] for place in path))
        for place, again in zip(path, after, strict=True):
            keep = sizes[place] if again < len(paths) else 0
            used += keep - held[place]
            held[place], due[place] = keep, again
            if keep:
                heappush(latest, (-again, -depths[place], place))
        while used > capacity_tokens:
            ends, _, place = latest[0]
            if -ends != due[place] or not held[place]:
                heappop(latest)
                continue
            gone = min(held[place], used - capacity_tokens)
            held[place] -= gone
            used -= gone
    return OracleHits(tuple(cached))


def reuse_anywhere(trace: Trace, capacity_tokens: int | None = None) -> int:
    """Count the token hits if a computed document could be used again at any position of any prompt.

    This is the upper bound of position-independent reuse.
    capacity_tokens: room of an LRU cache of whole documents; None for a cache without bounds.
    A document that one request names twice hits the second time.
    """
    held: OrderedDict[str, None] = OrderedDict()
    used = hits = 0
    for request in trace.requests:
        for document in request:
            tokens = trace.tokens[document]
            if document in held:
                hits += tokens
                held.move_to_end(document)
                continue
            held[document] = None
            used += tokens
            while capacity_tokens is not None and used > capacity_tokens:
                oldest, _ = held.popitem(last=False)
                used -= trace.tokens[oldest]
    return hits


def _number_places(
    trace: Trace, system_tokens: int
) -> tuple[list[list[int]], list[int], list[int]]:
    """Return each request as numbers of places in the tree, and the tokens and depth of each place."""
    numbers: dict[tuple[int, str], int] = {}
    sizes: list[int] = []
    depths: list[int] = []
    paths: list[list[int]] = []
    if system_tokens:
        sizes, depths = [system_tokens], [0]
    for request in trace.requests:
        above = 0 if system_tokens else -1
        path = [0] if system_tokens else []
        for depth, document in enumerate(request, start=1):
            place = numbers.get((above, document))
            if place is None:
                place = numbers[above, document] = len(sizes)
                sizes.append(trace.tokens[document])
                depths.append(depth)
            path.append(place)
            above = place
        paths.append(path)
    return paths, sizes, depths


def _find_next_uses(paths: list[list[int]]) -> list[list[int]]:
    """Return, for each place in each request, the number of the next request that uses the place.

    Where no request does, it is the number of all requests.
    """
    coming: dict[int, int] = {}
    after: list[list[int]] = []
    for number in range(len(paths) - 1, -1, -1):
        after.append([coming.get(place, len(paths)) for place in paths[number]])
        coming.update(dict.fromkeys(paths[number], number))
    after.reverse()
    return after
