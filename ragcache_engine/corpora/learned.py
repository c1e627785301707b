"""Registers texts by itself that recur in the prompts of one tenant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock

from ragcache_engine.corpora.document import Change, Registered, digest_of
from ragcache_engine.corpora.recurring import RecurringTexts
from ragcache_engine.corpora.registered import DOCUMENT_BYTES, Corpora, Owner, split_name
from ragcache_engine.errors import CorpusTooLarge
from ragcache_engine.latest_items import LatestItems
from ragcache_engine.prompt import Span
from ragcache_engine.tenants import forget_id, forget_ids_of, owner_of

CORPUS = "learned"
"""The corpus that a tenant's recurring texts stand in, where it can look at them and remove them."""

MOST_BYTES, LEFT_TO_CLIENTS = 256 << 20, 4
"""How much the texts of all tenants take, and at most the share of one in so many of the room for all
registered documents; the longest unused are registered no more."""


class LearnedDocuments:
    """Texts that were seen to recur. Any thread may call its methods.

    corpora: where they are registered.
    """

    def __init__(self, corpora: Corpora) -> None:
        self._corpora = corpora
        self._recurring = RecurringTexts()
        self._known: LatestItems[tuple[Owner, str], int] = LatestItems(
            min(MOST_BYTES, corpora.most_bytes // LEFT_TO_CLIENTS),
            lambda _, size_bytes: size_bytes,
            on_drop=self._drop,
        )
        self._lock = Lock()

    def learn(self, owner: Owner, tenant: str | None, prompt: str, spans: Sequence[Span]) -> bool:
        """Remember a prompt; return whether texts were registered that recur in it.

        owner: whose documents they become. tenant: of the prompt; it is compared with others of this one
        alone, as an owner may keep its users apart. spans: the documents in it that are registered
        already, in order.
        """
        with self._lock:
            self._touch(owner, spans)
            taken = [(span.start, span.end) for span in spans]
            found = self._recurring.add((owner, tenant), prompt, taken)
            new = [self._register(owner, text) for text in found]
        return any(new)

    def forget_prompts(self, owner: Owner) -> None:
        """Remember no prompt of this owner; of nobody, if it is everybody's.

        Otherwise a text that it removed would be learned again from what was remembered before.
        """
        with self._lock:
            self._recurring.forget(lambda key: owner is None or key[0] == owner)

    def forget_tenant(self, tenant: str) -> None:
        """Remember no prompt of a tenant and its users, nor what was learned from them.

        Nobody knows from whose prompts of an owner a text was learned, so all that was goes; and what was
        from prompts of callers whose keys stand for no tenants.
        """
        doomed = forget_id(tenant)
        with self._lock:
            self._recurring.forget(
                lambda key: doomed in (*forget_ids_of(key[0]), *forget_ids_of(key[1]))
            )
        for owner in (None, owner_of(tenant)):
            self._corpora.drop(owner, CORPUS)

    def _touch(self, owner: Owner, spans: Iterable[Span]) -> None:
        for span in spans:
            whose, corpus, document_id = split_name(span.document_id)
            if whose == owner and corpus == CORPUS and (owner, document_id) in self._known:
                self._known.touch((owner, document_id))

    def _register(self, owner: Owner, text: str) -> bool:
        document_id = digest_of(text).hex()
        try:
            change = self._corpora.put(owner, CORPUS, Registered(document_id, text))
        except CorpusTooLarge:
            return False
        size_bytes = DOCUMENT_BYTES + len(text.encode("utf-8", "surrogatepass"))
        self._known[owner, document_id] = size_bytes
        self._known.touch((owner, document_id))
        return change is Change.ADDED

    def _drop(self, key: tuple[Owner, str], size_bytes: int) -> None:
        # Its name is its text's digest, so what is stored of it is never another text's.
        owner, document_id = key
        self._corpora.remove(owner, CORPUS, [document_id], owes=False)
