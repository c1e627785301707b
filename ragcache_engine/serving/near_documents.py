"""Lets idle time prepare what is near the documents of prompts, before any prompt has it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from ragcache_engine.anywhere.donor_preparation import PreparingBackend
from ragcache_engine.anywhere.found_documents import Found, FoundDocuments
from ragcache_engine.corpora.registered import Corpora
from ragcache_engine.daemon_threads import DaemonThreads
from ragcache_engine.protocols import BackendRequest
from ragcache_engine.serving.known_contexts import KnownContexts
from ragcache_engine.tiers.borrowing.context import Context

MOST_LOOKED_AT = 100
"""What is near so many documents of a prompt is noted."""


class NearDocuments:
    """Registered documents near those that prompts had, by the vectors that their clients told.

    preparing: prepares them. contexts: remembers behind what they are stored. tokenizers: the threads
    for it.
    """

    def __init__(
        self,
        corpora: Corpora,
        preparing: PreparingBackend,
        contexts: KnownContexts,
        tokenizers: DaemonThreads,
    ) -> None:
        self._corpora, self._preparing = corpora, preparing
        self._contexts, self._tokenizers = contexts, tokenizers
        self._found = FoundDocuments()
        preparing.prepare_found(self._found, self._find_contexts)

    async def note(self, request: BackendRequest) -> None:
        """Prepare this prompt, and what is near its registered documents. On the server's own loop."""
        self._preparing.note_elsewhere(request)
        await self._tokenizers.run(partial(self._note_near, request))

    def _note_near(self, request: BackendRequest) -> None:
        moment = self._corpora.moment()
        near = [
            one
            for name in request.document_ids[:MOST_LOOKED_AT]
            for one in self._corpora.near(name, may_search=False)
        ]
        with self._corpora.using([one.id for one in near], moment) as is_well:
            if is_well:
                self._found.note(near, None, request.tenant, None)

    def _find_contexts(self, found: Found, tenant: str | None) -> Mapping[str, Context]:
        tokenize = self._preparing.tokenize
        return self._contexts.of_registered(tokenize, [found.document], self._corpora)
