"""A retrieval trace replayed through a document cache: what a policy would have saved.

One tier, counted in tokens. Nothing is computed: the seconds are those of a cost function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ragcache_engine.knowledge.document_cache import DocumentCache
from ragcache_engine.knowledge.eviction.policy import EvictionPolicy
from ragcache_engine.knowledge.node import Segment
from ragcache_engine.knowledge.path_order import PathOrder, keep_retrieved
from ragcache_engine.knowledge.traces import Trace
from ragcache_engine.knowledge.tree import FREQUENCY_WINDOW

Cost = Callable[[int, int], float]
"""T(cached tokens, computed tokens) in seconds."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What became of a trace.

    hit_documents: leading documents of each request that were cached to their last token, over all
      requests; of retrieved_documents they are the hit rate of the paper (§7.4).
    cached_tokens: of total_tokens, both with the system text if there is one.
    saved_s: T(0, total) - T(cached, computed), summed over the requests.
    """

    requests: int
    retrieved_documents: int
    hit_documents: int
    total_tokens: int
    cached_tokens: int
    saved_s: float
    evicted_tokens: int

    @property
    def document_hit_rate(self) -> float:
        return self.hit_documents / self.retrieved_documents if self.retrieved_documents else 0.0

    @property
    def token_hit_rate(self) -> float:
        return self.cached_tokens / self.total_tokens if self.total_tokens else 0.0


def default_cost(cached_tokens: int, computed_tokens: int) -> float:
    """Seconds of a prefill where none was measured: a plain formula for a model of some 8 B weights.

    A start, the weights once for each computed token, and attention from each computed token to all
    tokens before it.
    """
    attended = computed_tokens * (cached_tokens + computed_tokens / 2)
    return 0.01 + 1e-4 * computed_tokens + 1e-9 * attended if computed_tokens else 0.0


def replay(
    trace: Trace,
    capacity_tokens: int,
    policy: Callable[[], EvictionPolicy],
    *,
    cost: Cost = default_cost,
    order: PathOrder = keep_retrieved,
    system_tokens: int = 0,
    cache_depth: int | None = None,
    frequency_window: int = FREQUENCY_WINDOW,
) -> Replay:
    """Ask every request of the trace, one after the other, of an empty cache.

    system_tokens: of a text in front of every request; with 0 it takes no room.
    cache_depth: how many leading segments are kept, the system text among them; None keeps all.
    """
    cache = DocumentCache(
        capacity_tokens,
        policy,
        block_tokens=1,
        frequency_window=frequency_window,
        cache_depth=cache_depth,
    )
    system = Segment("system", system_tokens)
    segments = {name: Segment(name, tokens) for name, tokens in trace.tokens.items()}
    retrieved = hits = total = cached = evicted = 0
    saved_s = 0.0
    for request in trace.requests:
        match = cache.match(order(cache, [system, *(segments[name] for name in request)]))
        prefill_s = cost(match.cached_tokens, match.computed_tokens)
        retrieved += len(request)
        hits += max(0, match.whole - 1)
        tokens = match.cached_tokens + match.computed_tokens
        total += tokens
        cached += match.cached_tokens
        saved_s += cost(0, tokens) - prefill_s
        evicted += sum(freed.blocks for freed in cache.admit(cache.use(match, prefill_s)))
    return Replay(len(trace), retrieved, hits, total, cached, saved_s, evicted)
