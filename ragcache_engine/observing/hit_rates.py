"""Counts, for each chain and each document, how many prompt tokens came from the cache."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ragcache_engine.protocols import BackendRequest
from ragcache_engine.tenants import forget_ids_of
from ragcache_engine.values import Document, HitRate, Usage

MOST_CHAINS = 64
MOST_DOCUMENTS = 1024
"""How many to remember; those that were used least recently are forgotten."""
MOST_TENANTS = 64
"""Of one document. What more of them ask about is everybody's, and stays when one is forgotten."""


@dataclass(slots=True)
class _Count:
    name: str
    prompts: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    borrowed_tokens: int = 0
    label: str | None = None
    tenants: set[str | None] = field(default_factory=set)  # whose prompts had it

    def add(self, tokens: int, cached_tokens: int, borrowed_tokens: int) -> None:
        self.prompts += 1
        self.tokens += tokens
        self.cached_tokens += cached_tokens
        self.borrowed_tokens += borrowed_tokens


class HitRates:
    """Counts of answered prompts. Any thread may call any method."""

    def __init__(
        self, most_chains: int = MOST_CHAINS, most_documents: int = MOST_DOCUMENTS
    ) -> None:
        self._most_chains, self._most_documents = most_chains, most_documents
        self._chains: OrderedDict[Hashable, _Count] = OrderedDict()
        self._documents: OrderedDict[str, _Count] = OrderedDict()
        self._unnamed_chains = 0
        self._lock = threading.Lock()

    def count_chain(self, chain: Hashable, usage: Usage) -> None:
        """Count a prompt of a chain. A chain that is a text goes by it, others are numbered.

        A prompt of which nobody knows what was cached counts for no chain and no document.
        """
        if not usage.has_account:
            return
        with self._lock:
            if chain not in self._chains:
                self._chains[chain] = _Count(self._name_of(chain))
            self._chains[chain].add(usage.prompt_tokens, usage.cached.total, usage.borrowed.total)
            _keep_latest(self._chains, chain, self._most_chains)

    def count_documents(
        self, request: BackendRequest, usage: Usage, retrieved: Iterable[Document] = ()
    ) -> None:
        """Count the documents of a prompt. Its exact tokens were cached from its start.

        retrieved: documents of the prompt, for their labels.
        """
        if not usage.has_account:
            return
        cached_tokens = usage.cached.total
        reused: dict[str, int] = defaultdict(int)
        for one in usage.reused:
            reused[one.document] += one.borrowed + one.joined if one.tier is not None else 0
        labels = {document.id: document.label for document in retrieved}
        tokens: dict[str, int] = defaultdict(int)
        cached: dict[str, int] = defaultdict(int)
        for segment in request.segments:  # a document may stand in a prompt several times
            if (name := segment.document_id) is not None:
                tokens[name] += len(segment)
                cached[name] += max(0, min(segment.end, cached_tokens) - segment.start)
        with self._lock:
            for name in tokens:
                count = self._documents.setdefault(name, _Count(name))
                count.add(tokens[name], cached[name], reused[name])
                if len(count.tenants) < MOST_TENANTS:
                    count.tenants.add(request.tenant)
                count.label = labels.get(name) or count.label
                _keep_latest(self._documents, name, self._most_documents)

    def forget(self, document_ids: Iterable[str]) -> None:
        """Forget the counts of these documents, and of those that only forgotten tenants asked about."""
        doomed = set(document_ids)
        with self._lock:
            for name, count in list(self._documents.items()):
                is_full = len(count.tenants) == MOST_TENANTS
                left = {one for one in count.tenants if doomed.isdisjoint(forget_ids_of(one))}
                if name in doomed or not (left or is_full):
                    del self._documents[name]
                elif not is_full:
                    count.tenants = left

    def by_chain(self) -> tuple[HitRate, ...]:
        """Return the chains' rates, those with the most tokens first."""
        with self._lock:
            return _largest_first(self._chains.values())

    def by_document(self) -> tuple[HitRate, ...]:
        """Return the documents' rates, those with the most tokens first; of all tenants together."""
        with self._lock:
            return _largest_first(self._documents.values())

    def _name_of(self, chain: Hashable) -> str:
        if chain is None:
            return "default"
        if isinstance(chain, str):
            return chain
        self._unnamed_chains += 1
        return f"chain {self._unnamed_chains}"


def _keep_latest(counts: OrderedDict[Any, _Count], latest: Hashable, most: int) -> None:
    counts.move_to_end(latest)
    if len(counts) > most:
        counts.popitem(last=False)


def _largest_first(counts: Iterable[_Count]) -> tuple[HitRate, ...]:
    ordered = sorted(counts, key=lambda one: one.tokens, reverse=True)
    return tuple(
        HitRate(
            one.name, one.prompts, one.tokens, one.cached_tokens, one.borrowed_tokens, one.label
        )
        for one in ordered
    )
