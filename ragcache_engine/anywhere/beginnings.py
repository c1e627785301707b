"""Remembers how each tenant's prompts begin, to prepare documents behind that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from sys import getsizeof
from typing import NamedTuple, Self, TypeVar

from ragcache_engine.latest_items import LatestItems
from ragcache_engine.prompt import Span, token_segments
from ragcache_engine.protocols import Backend, BackendRequest
from ragcache_engine.tenants import forget_ids_of
from ragcache_engine.values import ONE_TOKEN, Document, TokenizedPrompt

MOST_BEGINNINGS, MOST_BYTES = 64, 32 << 20
"""Of so many tenants the beginning of the last prompt is kept, and so much memory they take together."""

SEPARATOR = "\n\n"
"""Stands between two documents where nothing else is known to."""

LONGEST_SEPARATOR = 40
"""What stands between two documents has at most so many characters."""

T = TypeVar("T")


class Beginning(NamedTuple):
    """A prompt up to the end of its first document.

    span: where that stands, at the end. separator: what stands between it and the second one, as a
    document's first token may depend on the characters before it.
    """

    text: str
    span: Span
    separator: str
    add_special_tokens: bool

    @classmethod
    def of(cls, request: BackendRequest) -> Self | None:
        """Return the beginning of a prompt; None if it has no known document."""
        prompt, spans = request.prompt, request.spans
        if not spans or not isinstance(prompt, TokenizedPrompt):
            return None
        first, text = spans[0], prompt.text
        separator = text[first.end : spans[1].start] if len(spans) > 1 else SEPARATOR
        if len(separator) > LONGEST_SEPARATOR:  # another document stands there, which nobody knows
            separator = SEPARATOR
        return cls(text[: first.end], first, separator, request.options.add_special_tokens)

    @property
    def first(self) -> Document:
        """The prompt's first document."""
        return Document(self.span.document_id, self.text[self.span.start :])

    def write(
        self, backend: Backend, documents: Sequence[Document], tenant: str | None, name: str
    ) -> BackendRequest:
        """Return a request whose prompt has these documents in the place of the first one.

        name: of the request.
        """
        text, spans = self.text[: self.span.start], []
        for number, document in enumerate(documents):
            text += self.separator if number else ""
            spans.append(Span(len(text), len(text) + len(document.text), document.id))
            text += document.text
        tokens = backend.tokenize(text, self.add_special_tokens)
        return BackendRequest(
            name,
            tokens,
            token_segments(tokens, spans),
            replace(ONE_TOKEN, add_special_tokens=self.add_special_tokens),
            tenant,
            spans=spans,
        )


def sets_of_each(documents: Sequence[T], *, borrows: bool) -> list[list[T]]:
    """Return the sets to prefill, so that every document is cached.

    documents: each once; ids or Documents. borrows: whether the engine borrows documents from other
      contexts. Then each document comes first in one set, which stores it for prompts that begin with
      it, and second in another one, which stores it as it is borrowed. Otherwise only prompts that
      begin with it can use it.
    """
    if not borrows or len(documents) < 2:
        return [[one] for one in documents]
    return [[one, documents[at - 1]] for at, one in enumerate(documents)]


class Beginnings:
    """The beginnings of the latest prompts, by tenant. Not safe to share between threads.

    forgets: how often documents were forgotten. A prompt that began before is noted no more.
    """

    def __init__(self) -> None:
        self.forgets = 0
        self._latest: LatestItems[str | None, Beginning] = LatestItems(
            MOST_BYTES, lambda _, one: getsizeof(one.text), most=MOST_BEGINNINGS
        )

    def note(self, request: BackendRequest) -> None:
        """Remember how this prompt begins, if it has a known document."""
        if beginning := Beginning.of(request):
            self._latest[request.tenant] = beginning
            self._latest.touch(request.tenant)

    def get(self, tenant: str | None) -> Beginning | None:
        """Return how the tenant's latest prompt began; None if none is known."""
        return self._latest.get(tenant)

    def tenants(self) -> list[str | None]:
        """Return whose beginnings are known, the latest first."""
        return [*reversed([*self._latest])]

    def forget(self, document_ids: Iterable[str]) -> None:
        """Remember no prompt that begins with one of these documents, nor a tenant's."""
        self.forgets += 1
        doomed = set(document_ids)
        for tenant, beginning in list(self._latest.items()):
            ids = beginning.span.document_id, *forget_ids_of(tenant)
            if not doomed.isdisjoint(ids):
                del self._latest[tenant]
