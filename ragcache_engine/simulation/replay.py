"""Replays a retrieval trace through a document cache, to tell how much an eviction policy would save.

There is one tier, counted in tokens. No model runs: a cost function says how long prefills take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ragcache_engine.knowledge.document_cache import DocumentCache
from ragcache_engine.knowledge.eviction.policy import EvictionPolicy
from ragcache_engine.knowledge.node import Segment
from ragcache_engine.knowledge.path_order import PathOrder, keep_retrieved
from ragcache_engine.knowledge.tree import FREQUENCY_WINDOW
from ragcache_engine.simulation.traces import Trace

Cost = Callable[[int, int], float]
"""Returns T(cached tokens, computed tokens) in seconds."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay counted, over all requests of the trace.

    retrieved_documents: documents the requests asked for.
    hit_documents: those of them that were cached to their last token, with all documents before them.
    total_tokens: prompt tokens, the system text among them if there is one.
    cached_tokens: those of them that were cached.
    saved_s: T(0, total) - T(cached, computed), summed over the requests.
    evicted_tokens: tokens that the cache evicted.
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
        """Hit documents over retrieved documents, the hit rate of the paper (§7.4)."""
        return self.hit_documents / self.retrieved_documents if self.retrieved_documents else 0.0

    @property
    def token_hit_rate(self) -> float:
        """Cached tokens over all tokens."""
        return self.cached_tokens / self.total_tokens if self.total_tokens else 0.0


def default_cost(cached_tokens: int, computed_tokens: int) -> float:
    """Estimate the seconds of a prefill by a formula for a model of some 8 B weights.

    The terms are a fixed start, one pass through the weights for each computed token, and attention
    from each computed token to all tokens before it. Computing no tokens costs nothing.
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
    """Replay the requests of a trace, one after the other, through a cache that starts empty.

    policy: makes the cache's eviction policy.
    cost: how long a prefill takes.
    order: puts the documents of each request into the order in which the prompt names them.
    system_tokens: tokens of a system text in front of every request; 0 for none.
    cache_depth: how many leading segments are kept, the system text among them; None keeps all.
    frequency_window: as in KnowledgeTree.
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
