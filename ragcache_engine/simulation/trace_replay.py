"""Replays a retrieval trace on the simulated device, to tell how much time the cache would save.

Requests come one after the other, each after the end of the copies of the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ragcache_engine.knowledge import CostProfile, policy_of_tiers
from ragcache_engine.retrievals.document_order import CHARACTERS_PER_TOKEN, DocumentOrdering
from ragcache_engine.simulation.clock import VirtualClock
from ragcache_engine.simulation.device import SimulatedDevice
from ragcache_engine.simulation.request import SimulatedRequest
from ragcache_engine.simulation.scheduler import Scheduler
from ragcache_engine.simulation.sizes import TierSizes
from ragcache_engine.simulation.trace_borrowing import BorrowingPrompts
from ragcache_engine.simulation.trace_prompts import TracePrompt, TracePrompts
from ragcache_engine.simulation.traces import Trace
from ragcache_engine.values import CachedTokens, Document

CHAIN = "trace"
"""The key of the one chain that writes all prompts of a trace, for the document order."""


@dataclass(frozen=True, slots=True)
class TraceReplay:
    """The counts of a replay, over all requests of the trace.

    found_documents: leading documents of each request whose own blocks were all cached. Divided by
      retrieved_documents, they are the hit rate of the paper (§7.4).
    prompt_tokens: tokens of system texts and documents.
    cached: those of them that were cached.
    prefill_s: seconds from admission to first token, loading included.
    cold_s: the same without any cache.
    too_long: requests whose prompt the device cannot hold. They count as computed from scratch.
    borrowed: prompt tokens taken from another context, by the tier that had them before the request.
    recomputed_tokens: tokens of borrowed documents that were computed anew.
    """

    requests: int
    retrieved_documents: int
    found_documents: int
    prompt_tokens: int
    cached: CachedTokens
    prefill_s: float
    cold_s: float
    too_long: int
    borrowed: CachedTokens = field(default_factory=CachedTokens)
    recomputed_tokens: int = 0

    @property
    def document_hit_rate(self) -> float:
        return self.found_documents / self.retrieved_documents if self.retrieved_documents else 0.0

    @property
    def token_hit_rate(self) -> float:
        return self.cached.total / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def borrowed_rate(self) -> float:
        return self.borrowed.total / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def recomputed_rate(self) -> float:
        return self.recomputed_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def saved_s(self) -> float:
        return self.cold_s - self.prefill_s


def replay_trace(
    trace: Trace,
    prompts: TracePrompts,
    sizes: TierSizes,
    policy: str,
    *,
    profile: CostProfile,
    order: str = "retrieved",
) -> TraceReplay:
    """Replay the requests of the trace, one after the other, on a cache that starts empty.

    prompts: made from this trace, with the block size of `sizes`. policy: a name of POLICIES.
    profile: how long prefills take. order: a name of DOCUMENT_ORDERS.
    """
    player = _Player(sizes, policy, profile)
    capacity_tokens = sizes.block_tokens * (sizes.device_blocks + sizes.host_blocks)
    for prompt in _arranged(trace, prompts, order, capacity_tokens, policy):
        player.ask(prompt)
    return player.replay()


def replay_borrowing(
    trace: Trace,
    prompts: TracePrompts,
    sizes: TierSizes,
    policy: str,
    *,
    profile: CostProfile,
    ratio: float,
) -> TraceReplay:
    """Replay the requests of the trace with every document after the first borrowed, stored alone.

    ratio: the share of borrowed documents to compute anew. The other arguments are as in replay_trace.
    """
    player = _Player(sizes, policy, profile)
    borrowing = BorrowingPrompts(prompts, ratio, sizes.device_blocks)
    for number, documents in enumerate(trace.requests, 1):
        prompt = prompts.prompt(documents)
        player.ask(prompt, borrowing.request(str(number), documents))
    return player.replay()


def endless_hit_rate(trace: Trace, prompts: TracePrompts, policy: str, *, order: str) -> float:
    """Return the share of prompt tokens that would be cached if nothing was ever evicted."""
    everything = sum(
        sum(trace.tokens[document] for document in request) for request in trace.requests
    )
    known: set[bytes] = set()
    hits = total = 0
    for prompt in _arranged(trace, prompts, order, 2 * everything + 1, policy):
        total += prompt.tokens
        for key in prompt.keys:
            if key not in known:
                break
            hits += prompts.block_tokens
        known.update(prompt.keys)
    return hits / total if total else 0.0


class _Player:
    """Sends prompts to one device and adds up their costs."""

    def __init__(self, sizes: TierSizes, policy: str, profile: CostProfile) -> None:
        self._profile = profile
        self._clock = VirtualClock()
        self._device = SimulatedDevice(
            sizes, policy_of_tiers(policy), self._clock, profile=profile, protect=1
        )
        self._scheduler = Scheduler(self._device, prefill_s=profile.prefill_s, reorder_window=1)
        self._requests = self._retrieved = self._found = self._tokens = self._too_long = 0
        self._prefill_s = self._cold_s = 0.0
        self._by_tier = {"device": 0, "host": 0, "disk": 0}
        self._borrowed = dict(self._by_tier)
        self._recomputed = 0

    def ask(self, prompt: TracePrompt, request: SimulatedRequest | None = None) -> None:
        """Send a prompt; request: how, if not exactly."""
        self._requests += 1
        self._tokens += prompt.tokens
        self._retrieved += len(prompt.ends)
        cold_s = self._profile.prefill_s(0, prompt.tokens + 1)
        self._cold_s += cold_s
        if prompt.tokens + 1 > self._device.sizes.device_tokens:
            self._too_long += 1
            self._prefill_s += cold_s
            return
        request = request or prompt.request(str(self._requests))
        began_s = self._clock.now()
        self._scheduler.add(request)
        while not self._scheduler.step():
            pass  # still loading or computing
        self._prefill_s += self._clock.now() - began_s
        tokens = self._scheduler.end(request, completed=True) or {}
        for tier, count in tokens.items():
            self._by_tier[tier] += count
        self._found += prompt.found_documents(sum(tokens.values()))
        if request.reuse is not None:
            for tier, count in request.reuse.borrowed_by_tier.items():
                self._borrowed[tier] += count
            self._recomputed += request.reuse.recomputed_tokens
        self._device.finish_copies()

    def replay(self) -> TraceReplay:
        return TraceReplay(
            self._requests,
            self._retrieved,
            self._found,
            self._tokens,
            CachedTokens(**self._by_tier),
            self._prefill_s,
            self._cold_s,
            self._too_long,
            CachedTokens(**self._borrowed),
            self._recomputed,
        )


def _arranged(
    trace: Trace, prompts: TracePrompts, order: str, capacity_tokens: int, policy: str
) -> Iterator[TracePrompt]:
    """Yield the trace's prompts, with their documents in this document order."""
    if order == "retrieved":
        yield from map(prompts.prompt, trace.requests)
        return
    ordering = DocumentOrdering(order, capacity_tokens, policy_of_tiers(policy))
    document = _documents_of(trace)
    for request in trace.requests:
        documents = [document(name) for name in request]
        arranged = [documents[at] for at in ordering.positions(documents, CHAIN)]
        yield prompts.prompt(tuple(each.id for each in arranged))
        ordering.note_prompt(arranged, CHAIN)


def _documents_of(trace: Trace) -> Callable[[str], Document]:
    """Return a function that makes documents of the trace's lengths, with made-up texts."""
    texts = {
        tokens: "x" * (CHARACTERS_PER_TOKEN * (tokens - 1)) for tokens in set(trace.tokens.values())
    }
    made: dict[str, Document] = {}

    def document(name: str) -> Document:
        known = made.get(name)
        if known is None:
            known = made[name] = Document(name, texts[trace.tokens[name]])
        return known

    return document
