"""Orders the documents that a retriever hands over, so that prompts share more of their beginning.

The tree that knows exactly what is cached lives beside the model, in another process. The tree here only
estimates that: it sees the same prompts, with the same eviction policy and about the same capacity. Where
the estimate is wrong, the order is merely not the best one.
Source: RAGCache, §5.1; Cache-Craft, §3 (how few tokens exact prefixes reuse while documents stay in the
  retriever's order).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from hashlib import blake2b
from threading import Lock

from ragcache_engine.knowledge import DOCUMENT_ORDERS, DocumentCache, EvictionPolicy, Segment
from ragcache_engine.values import Document

CHARACTERS_PER_TOKEN = 4
"""A rough mean over languages and tokenizers. Only the ratio of documents' lengths matters here."""


class DocumentOrdering:
    """Orders documents by one of DOCUMENT_ORDERS. Safe to share between threads.

    order: its name. capacity_tokens: what the cache holds, all tiers together. policy: makes the
      eviction policy.
    """

    def __init__(
        self, order: str, capacity_tokens: int, policy: Callable[[], EvictionPolicy]
    ) -> None:
        self.order = order
        self._arrange = DOCUMENT_ORDERS[order]
        self._make = partial(DocumentCache, capacity_tokens, policy, block_tokens=1)
        self._cache = self._make()
        self._lock = Lock()

    def clear(self) -> None:
        """Estimate anew, as after a tenant was forgotten."""
        with self._lock:
            self._cache = self._make()

    def positions(self, documents: Sequence[Document], chain: Hashable) -> list[int]:
        """Return the positions of the documents in the order that the prompt should have, each once."""
        if len(documents) < 2:
            return list(range(len(documents)))
        path = _path(documents, chain)
        with self._lock:
            arranged = self._arrange(self._cache, path)
        places: dict[Segment, list[int]] = {}
        for place, segment in enumerate(path[1:]):
            places.setdefault(segment, []).append(place)
        return [places[segment].pop(0) for segment in arranged[1:]]

    def note_prompt(self, documents: Sequence[Document], chain: Hashable) -> None:
        """Note that the engine got a prompt with these documents, in this order."""
        if self.order != "cached" or not documents:
            return
        with self._lock:
            match = self._cache.match(_path(documents, chain))
            self._cache.admit(self._cache.use(match))


def _path(documents: Sequence[Document], chain: Hashable) -> tuple[Segment, ...]:
    """Return the tree's path of a prompt. The chain stands for the text before the documents.

    That text is the same in all prompts of a chain.
    """
    return (
        Segment(f"chain {hash(chain)}", 1),
        *(
            Segment(
                document.id,
                1 + len(document.text) // CHARACTERS_PER_TOKEN,
                blake2b(document.text.encode("utf-8", "surrogatepass"), digest_size=8).digest(),
            )
            for document in documents
        ),
    )
