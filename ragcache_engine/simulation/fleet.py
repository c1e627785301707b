"""Replays a trace on many replicas, to tell what a routing is worth before the machines are bought.

Each replica computes its prompts one after another, and keeps documents in a knowledge tree of its own,
in one tier, counted in blocks. The routing is the code that routes in production. Requests arrive at
random, so many that they would keep the fleet busy for a given share of the time without a cache.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from random import Random

from ragcache_engine.fleet.baselines import LeastTokens
from ragcache_engine.fleet.documents import DocumentsRouting
from ragcache_engine.fleet.path import Key, RoutingPath, path_of_parts
from ragcache_engine.fleet.routing import make_routing
from ragcache_engine.knowledge import POLICIES, CostProfile
from ragcache_engine.knowledge.document_cache import CachedPath, DocumentCache
from ragcache_engine.knowledge.node import Segment
from ragcache_engine.simulation.traces import Request, Trace

REPORT_EVERY = 50
"""After how many of its requests a replica says what it holds."""

REPORTED_PATHS = 2_000
"""How many of its latest prompts a replica reports on."""

ANSWERS_AT_ONCE, LEAST_SPEED = 64, 0.1
"""So many answers at a time fill a replica; prefills still go on, at this share of their speed."""

LOSS_BEGINS = 2 / 3
"""After this share of the requests some replicas go; what comes behind it is compared."""


@dataclass(frozen=True, slots=True)
class FleetSizes:
    """The fleet. capacity_tokens: what one replica holds. load: the share of time that it would be busy
    without a cache. lost_share: how many of the replicas go, one at least; 0 for none.
    store_tokens_per_s: how many tokens a second a store that all of them share brings to one replica; it
    holds whatever any of them computed. 0: there is none.
    answer_s: how long an answer takes behind its first token. Meanwhile it takes a replica's prefills an
    ANSWERS_AT_ONCE-th of their speed.
    """

    replicas: int
    capacity_tokens: int
    block_tokens: int = 16
    system_tokens: int = 32
    load: float = 0.7
    lost_share: float = 0.0
    store_tokens_per_s: float = 0.0
    answer_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FleetReplay:
    """The counts of one replay.

    hit_rate: cached prompt tokens over all. late_hit_rate: the same, of the requests after LOSS_BEGINS.
    fetched_rate: prompt tokens from the shared store over all; they are no hits.
    imbalance: requests of the busiest replica over the mean. work_imbalance: the same of busy seconds.
    ttft_s: mean seconds from arrival to first token; p99_ttft_s: of the slowest hundredth.
    lost_replicas: how many replicas went.
    """

    requests: int
    hit_rate: float
    late_hit_rate: float
    imbalance: float
    work_imbalance: float
    ttft_s: float
    p99_ttft_s: float
    lost_replicas: int
    fetched_rate: float = 0.0


def replay_fleet(
    trace: Trace,
    sizes: FleetSizes,
    routing: str,
    *,
    policy: str,
    profile: CostProfile,
    seed: int = 1,
    done: Callable[[], None] = lambda: None,
) -> FleetReplay:
    """Replay the requests of a trace on a fleet whose caches start empty.

    routing: a name of ROUTINGS. policy: a name of POLICIES. done: called every thousand requests.
    """
    fleet = _Fleet(trace, sizes, routing, policy, profile, seed)
    for number, request in enumerate(trace.requests):
        if sizes.lost_share and number == int(LOSS_BEGINS * len(trace)):
            fleet.lose_replicas()
        fleet.ask(request, is_late=number >= int(LOSS_BEGINS * len(trace)))
        if number % 1000 == 999:
            done()
    return fleet.replay()


class _Replica:
    """One engine: a cache, and a queue."""

    def __init__(self, cache: DocumentCache) -> None:
        self.cache = cache
        self.free_at_s = 0.0
        self.requests = 0
        self.busy_s = 0.0
        self.asked: OrderedDict[Key, tuple[Segment, ...]] = OrderedDict()
        self.answers: deque[tuple[float, float]] = deque()  # from when to when each is written

    def count_answers(self, now_s: float) -> int:
        """Count the answers that are being written, and not those that wait for their prefill."""
        while self.answers and self.answers[0][1] <= now_s:
            self.answers.popleft()
        return bisect_right(self.answers, now_s, key=itemgetter(0))

    def report(self) -> tuple[set[Key], set[Key]]:
        """Return the keys of the latest prompts, and those of them that are held to their last block."""
        held = {
            key for key, path in self.asked.items() if self.cache.match(path).whole == len(path)
        }
        return set(self.asked), held


class _Fleet:
    """Sends prompts to replicas and adds up their costs."""

    def __init__(
        self,
        trace: Trace,
        sizes: FleetSizes,
        routing: str,
        policy: str,
        profile: CostProfile,
        seed: int,
    ) -> None:
        self._sizes, self._profile = sizes, profile
        self._random = Random(seed)
        self._segments = {name: Segment(name, tokens) for name, tokens in trace.tokens.items()}
        self._system = Segment("system", max(1, sizes.system_tokens))
        names = [f"replica-{number}" for number in range(sizes.replicas)]
        blocks = max(1, sizes.capacity_tokens // sizes.block_tokens)
        self._replicas = {
            name: _Replica(DocumentCache(blocks, POLICIES[policy], block_tokens=sizes.block_tokens))
            for name in names
        }
        self._routing = make_routing(routing, names, capacity=sizes.capacity_tokens, seed=seed)
        self._in_flight = dict.fromkeys(names, 0)
        self._ends: list[tuple[float, str]] = []
        self._paths: dict[Request, RoutingPath] = {}
        self._now_s = 0.0
        work_s = self._mean_cold_s(trace) + sizes.answer_s / ANSWERS_AT_ONCE
        self._mean_gap_s = work_s / (sizes.replicas * sizes.load)
        self._counts = {False: [0, 0], True: [0, 0]}  # cached and prompt tokens; late ones apart
        self._ttfts_s: list[float] = []
        self._lost: list[_Replica] = []
        self._store: DocumentCache | None = None
        self._fetched_tokens = 0
        if sizes.store_tokens_per_s:
            most = 1 + sum(trace.tokens.values()) * len(trace)  # more than there will ever be
            self._store = DocumentCache(most, POLICIES["lru"], block_tokens=sizes.block_tokens)

    def ask(self, documents: Request, *, is_late: bool) -> None:
        """Let one request arrive."""
        self._now_s += self._random.expovariate(1 / self._mean_gap_s)
        while self._ends and self._ends[0][0] <= self._now_s:
            _, name = heapq.heappop(self._ends)
            if name in self._in_flight:
                self._in_flight[name] -= 1
        path = self._path(documents)
        name = self._routing.choose(path, self._in_flight)
        self._routing.record(path, name)
        replica = self._replicas[name]
        segments = (self._system, *(self._segments[document] for document in documents))
        match = replica.cache.match(segments)
        prefill_s = self._profile.prefill_s(match.cached_tokens, match.computed_tokens + 1)
        if self._store is not None:
            prefill_s = min(prefill_s, self._fetch(self._store, match, prefill_s))
        replica.cache.admit(replica.cache.use(match, prefill_s))
        answers = replica.count_answers(self._now_s)
        speed = max(LEAST_SPEED, 1 - answers / ANSWERS_AT_ONCE)
        first_token_s = max(self._now_s, replica.free_at_s) + prefill_s / speed
        replica.free_at_s = first_token_s
        replica.answers.append((first_token_s, first_token_s + self._sizes.answer_s))
        replica.busy_s += prefill_s + self._sizes.answer_s / ANSWERS_AT_ONCE
        replica.requests += 1
        self._in_flight[name] += 1
        heapq.heappush(self._ends, (first_token_s + self._sizes.answer_s, name))
        self._ttfts_s.append(first_token_s - self._now_s)
        counts = self._counts[is_late]
        counts[0] += match.cached_tokens
        counts[1] += match.cached_tokens + match.computed_tokens
        self._remember(name, replica, path, segments)

    def _fetch(self, store: DocumentCache, match: CachedPath, prefill_s: float) -> float:
        """Fetch what the store has of a prompt if that is quicker; return how long all of it takes.

        prefill_s: how long computing takes. What is computed gets into the store.
        """
        found = store.match(match.path)
        store.admit(store.use(found))
        more = found.cached_tokens - match.cached_tokens
        if more <= 0:
            return prefill_s
        rest_s = self._profile.prefill_s(found.cached_tokens, found.computed_tokens + 1)
        seconds = more / self._sizes.store_tokens_per_s + rest_s
        if seconds < prefill_s:
            self._fetched_tokens += more
        return seconds

    def lose_replicas(self) -> None:
        """Take replicas away, drawn at random. Their queues are computed to the end."""
        most = len(self._replicas) - 1
        count = min(most, max(1, round(self._sizes.lost_share * len(self._replicas))))
        for name in self._random.sample(sorted(self._replicas), count):
            self._lost.append(self._replicas.pop(name))
            del self._in_flight[name]
        self._routing.set_replicas(tuple(self._replicas))

    def replay(self) -> FleetReplay:
        everything = [*self._replicas.values(), *self._lost]
        slowest = sorted(self._ttfts_s)[int(0.99 * len(self._ttfts_s)) :] or [0.0]
        cached, tokens = (sum(each) for each in zip(*self._counts.values(), strict=True))
        late_cached, late_tokens = self._counts[True]
        return FleetReplay(
            len(self._ttfts_s),
            cached / tokens if tokens else 0.0,
            late_cached / late_tokens if late_tokens else 0.0,
            _imbalance([each.requests for each in everything]),
            _imbalance([each.busy_s for each in everything]),
            sum(self._ttfts_s) / max(1, len(self._ttfts_s)),
            slowest[0],
            len(self._lost),
            self._fetched_tokens / tokens if tokens else 0.0,
        )

    def _remember(
        self, name: str, replica: _Replica, path: RoutingPath, segments: tuple[Segment, ...]
    ) -> None:
        """Note a prompt for the replica's next report, and let it report if its time has come."""
        if not isinstance(self._routing, DocumentsRouting | LeastTokens):
            return
        for at, key in enumerate(path.keys, 1):
            replica.asked[key] = segments[:at]
            replica.asked.move_to_end(key)
        while len(replica.asked) > REPORTED_PATHS:
            replica.asked.popitem(last=False)
        if replica.requests % REPORT_EVERY == 0:
            self._routing.holdings.correct(name, *replica.report())

    def _path(self, documents: Request) -> RoutingPath:
        found = self._paths.get(documents)
        if found is None:
            parts = [(name, self._segments[name].tokens) for name in documents]
            found = path_of_parts(None, ("system", self._system.tokens), parts)
            self._paths[documents] = found
        return found

    def _mean_cold_s(self, trace: Trace) -> float:
        """Return the mean seconds of a prompt's prefill without a cache."""
        lengths = [
            self._system.tokens + sum(trace.tokens[name] for name in request) + 1
            for request in trace.requests
        ]
        return sum(self._profile.prefill_s(0, length) for length in lengths) / max(1, len(lengths))


def _imbalance(loads: Sequence[float]) -> float:
    """Return the largest load over the mean; 1 is even."""
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0
