"""In which order a retriever hands over its documents, so that prompts share more of their beginning.

The tree that knows exactly what is cached lives beside the model, in another process. This one follows
it from afar: it sees the same prompts, with the same policy and about the same room. Where it is wrong,
an order is merely not the best.
Source: RAGCache, §5.1; Cache-Craft, §3 (how little of a prompt exact prefixes reuse as it comes).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from hashlib import blake2b
from threading import Lock

from ragcache_engine.knowledge import DOCUMENT_ORDERS, EvictionPolicy, KnowledgeTree, Segment, Tier
from ragcache_engine.values import Document

CHARACTERS_A_TOKEN = 4
"""About, in most languages and tokenizers. Only lengths beside each other matter here."""


class DocumentOrdering:
    """Puts documents into an order of DOCUMENT_ORDERS. Safe to share between threads.

    order: its name. capacity_tokens: what the cache holds, all tiers together.
    """

    def __init__(
        self, order: str, capacity_tokens: int, policy: Callable[[], EvictionPolicy]
    ) -> None:
        self.order = order
        self._arrange = DOCUMENT_ORDERS[order]
        self._tree = KnowledgeTree({Tier.DEVICE: capacity_tokens}, policy, block_tokens=1)
        self._lock = Lock()

    def positions(self, documents: Sequence[Document], chain: Hashable) -> list[int]:
        """The documents' places, in the order to use. Each place once."""
        if self.order == "retrieved" or len(documents) < 2:
            return list(range(len(documents)))
        path = _path(documents, chain)
        with self._lock:
            arranged = self._arrange(self._tree, path)
        places: dict[Segment, list[int]] = {}
        for place, segment in enumerate(path[1:]):
            places.setdefault(segment, []).append(place)
        return [places[segment].pop(0) for segment in arranged[1:]]

    def note_prompt(self, documents: Sequence[Document], chain: Hashable) -> None:
        """A prompt was made of the documents, in this order, and answered."""
        if self.order != "cached" or not documents:
            return
        with self._lock:
            match = self._tree.match(_path(documents, chain))
            self._tree.admit(self._tree.use(match))


def _path(documents: Sequence[Document], chain: Hashable) -> tuple[Segment, ...]:
    """The chain stands for the text before the documents, which is the same in all its prompts."""
    return (
        Segment(f"chain {hash(chain)}", 1),
        *(
            Segment(
                document.id,
                1 + len(document.text) // CHARACTERS_A_TOKEN,
                blake2b(document.text.encode(), digest_size=8).digest(),
            )
            for document in documents
        ),
    )
