"""What no policy can beat: a cache that knows the future, and reuse that does not mind the position.

The oracle is Belady's on the tree, token by token. Tell the tokens of a request apart by their place
in the tree: between two uses of a token lies a gap, the token hits if it is held for all of it, and
across every moment at most `capacity` of the held gaps may run. To choose as many gaps as possible
is interval packing on `capacity` machines with unit weights, and greedy is optimal: whenever too many
run, give up the one that ends last. A newcomer's gap may be the one: that is refusing to admit.
Nothing in this bound asks for whole prefixes; but a child is never used before its parent, so if of
equal ends the deeper (and in a document the later) token is given up first, what is held is always
made of whole prefixes: the tree's rule costs the oracle nothing. Source: Belady (1966) for unit pages;
Carlisle and Lloyd, "On the k-coloring of intervals" (1995) for the packing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from heapq import heappop, heappush

from ragcache_engine.knowledge.traces import Trace


@dataclass(frozen=True, slots=True)
class OracleHits:
    """cached: of each request, how many leading tokens the oracle held."""

    cached: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return sum(self.cached)


def oracle(trace: Trace, capacity_tokens: int, *, system_tokens: int = 0) -> OracleHits:
    """The most token hits any policy can reach on a knowledge tree of one tier."""
    paths, sizes, depths = _number_places(trace, system_tokens)
    following = _find_next_uses(paths)
    held = [0] * len(sizes)
    due = [len(paths)] * len(sizes)
    latest: list[tuple[int, int, int]] = []  # a heap: by next use and depth, the latest first
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
    """Token hits if a document once computed could be used again at any position of any prompt.

    The ceiling of position-independent reuse. capacity_tokens: of an LRU over whole documents; None
    for a cache without bounds. Documents asked for twice in one request count from the second time.
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
    """Each request as numbers of places in the tree, and the size and depth of each place."""
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
    """For each request and place in it, the request that uses the place next; the count if none."""
    coming: dict[int, int] = {}
    after: list[list[int]] = []
    for number in range(len(paths) - 1, -1, -1):
        after.append([coming.get(place, len(paths)) for place in paths[number]])
        coming.update(dict.fromkeys(paths[number], number))
    after.reverse()
    return after
