"""Registers texts by itself that recur in the prompts of one tenant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock

from ragcache_engine.corpora.document import Change, Registered, digest_of
from ragcache_engine.corpora.recurring import RecurringTexts
from ragcache_engine.corpora.registered import Corpora, Owner, name_of, split_name
from ragcache_engine.errors import CorpusTooLarge
from ragcache_engine.latest_items import LatestItems
from ragcache_engine.prompt import Span

CORPUS = "learned"
"""The corpus that a tenant's recurring texts stand in, where it can look at them and remove them."""

MOST_BYTES = 64 << 20
"""How much the texts of all tenants take; the longest unused are registered no more."""


class LearnedDocuments:
    """Texts that were seen to recur. Any thread may call its methods.

    corpora: where they are registered. Those that go because others came are owed there, to be forgotten.
    """

    def __init__(self, corpora: Corpora) -> None:
        self._corpora = corpora
        self._recurring = RecurringTexts()
        self._known: LatestItems[tuple[Owner, str], int] = LatestItems(
            MOST_BYTES, lambda _, size_bytes: size_bytes, on_drop=self._drop
        )
        self._dropped: set[str] = set()  # and not yet forgotten
        self._lock = Lock()

    def learn(self, owner: Owner, prompt: str, spans: Sequence[Span]) -> bool:
        """Remember a prompt; return whether texts were registered that recur in it.

        spans: the documents in it that are registered already, in order.
        """
        with self._lock:
            self._touch(owner, spans)
            taken = [(span.start, span.end) for span in spans]
            new = [
                self._register(owner, text) for text in self._recurring.add(owner, prompt, taken)
            ]
        return any(new)

    def forget(self, names: Iterable[str]) -> None:
        """Remember no prompt of those whose documents these are, by their names in the knowledge tree.

        Otherwise a text that somebody removed would be learned again from what was remembered before.
        """
        with self._lock:
            asked = set(names) - self._dropped
            self._dropped.difference_update(names)
            for owner in {split_name(name)[0] for name in asked}:
                self._recurring.forget(owner)

    def _touch(self, owner: Owner, spans: Iterable[Span]) -> None:
        for span in spans:
            whose, corpus, document_id = split_name(span.document_id)
            if whose == owner and corpus == CORPUS and (owner, document_id) in self._known:
                self._known.touch((owner, document_id))

    def _register(self, owner: Owner, text: str) -> bool:
        document_id = digest_of(text).hex()
        try:
            change = self._corpora.put(owner, CORPUS, Registered(document_id, text))
        except CorpusTooLarge:  # what clients registered goes first
            return False
        self._known[owner, document_id] = len(text.encode("utf-8", "surrogatepass"))
        self._known.touch((owner, document_id))
        return change is Change.ADDED

    def _drop(self, key: tuple[Owner, str], size_bytes: int) -> None:
        owner, document_id = key
        if self._corpora.remove(owner, CORPUS, [document_id]):
            self._dropped.add(name_of(owner, CORPUS, document_id))
