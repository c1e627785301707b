"""Prepares registered documents before anybody asks about them, on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

from ragcache_engine.anywhere.beginnings import sets_of_each
from ragcache_engine.checks import shown
from ragcache_engine.corpora.registered import Corpora, name_of
from ragcache_engine.errors import (
    GenerationFailed,
    KeepLimitReached,
    PromptTooLong,
    ServerBusy,
    UnknownDocument,
    UnknownTemplate,
)
from ragcache_engine.protocols import BackendRequest
from ragcache_engine.serving.routes import Served, with_signs_of_life
from ragcache_engine.tiers.kept import KeepOrder, NoRoomToKeep
from ragcache_engine.values import Document

MOST_TOLD = 100
"""So many sets of documents that were left out are named."""

ATTEMPTS = 3
"""How often a prompt is written whose documents others change meanwhile."""

OF_ONE_SET = (PromptTooLong, GenerationFailed, UnknownDocument, KeepLimitReached)
"""Errors after which all other documents can still be prepared."""


class _Done(NamedTuple):
    """What became of a set of documents. why: why it was left out, if it was."""

    documents: Sequence[str]
    was_cached: bool = False
    why: str | None = None


class CorpusWarming:
    """Prefills the documents of a corpus behind the beginning of its tenant's latest prompt.

    owner: whose the corpus is. tenant: whose prompts are to find its tensors. document_ids: which
    documents; None: all. order: how to keep them from eviction; None: not at all.
    Raises UnknownDocument for one that the corpus has not, or a corpus that is empty; UnknownTemplate
    before any prompt of the tenant had a registered document; ServerBusy while others of the tenant are
    being warmed.
    """

    def __init__(
        self,
        owner: str | None,
        tenant: str | None,
        corpus: str,
        document_ids: Sequence[str] | None,
        served: Served,
        order: KeepOrder | None = None,
    ) -> None:
        self._order = order
        self._owner, self._tenant = owner, tenant
        self._corpus, self._served = corpus, served
        corpora = served.corpora
        known = [one.id for one in corpora.documents(owner, corpus)]
        wanted = known if document_ids is None else [*dict.fromkeys(document_ids)]
        if not known:
            raise UnknownDocument(f"you have no corpus {shown(corpus)}: push its documents first")
        if missing := sorted({*wanted} - {*known}):
            corpora.document(owner, corpus, missing[0])
        beginning = served.beginnings.get(tenant)
        if beginning is None:
            raise UnknownTemplate(
                "it is not known how prompts begin: ask one question with a registered document, and "
                "warm then; documents are prepared behind the beginning of the latest prompt"
            )
        self._beginning = beginning
        self._require_alone()
        self._borrows = bool(served.reuse) and not served.is_switched_off()
        self._sets = sets_of_each(wanted, borrows=self._borrows)

    async def lines(self) -> AsyncGenerator[dict[str, Any], None]:
        """Prefill; yield {"done": ..., "of": ...} after each document, and at the end what was done.

        Closing it ends the prefills that run. Raises the errors that concern more than one document.
        """
        counts = Counter({"prepared": 0, "cached": 0, "left_out": 0})
        left_out: list[dict[str, Any]] = []
        async with self._alone(), aclosing(with_signs_of_life(self._run())) as results:
            async for done in results:
                if done is not None and done.why is not None:
                    counts["left_out"] += 1
                    if len(left_out) < MOST_TOLD:
                        left_out.append({"documents": done.documents, "why": done.why})
                elif done is not None:
                    counts["cached" if done.was_cached else "prepared"] += 1
                yield {"done": counts.total(), "of": len(self._sets)}
        yield {**counts, "why": left_out}

    def _require_alone(self) -> None:
        if self._tenant in self._served.warming:
            raise ServerBusy("documents are being warmed for you already: wait until they are")

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        self._require_alone()  # once more: another's may have begun since this one was asked for
        self._served.warming.add(self._tenant)
        try:
            yield
        finally:
            self._served.warming.discard(self._tenant)

    async def _run(self) -> AsyncGenerator[_Done, None]:
        for some in self._sets:
            yield await self._warm(some)

    async def _warm(self, document_ids: Sequence[str]) -> _Done:
        """Prefill a set of documents, unless it is in the cache."""
        served = self._served
        if served.beginnings.get(self._tenant) is None:
            return _Done(
                document_ids, why="what they stand behind was forgotten: ask a question first"
            )
        for _ in range(ATTEMPTS):
            moment = served.corpora.moment()
            try:
                request = await served.tokenizers.run(partial(self._write, document_ids))
                with served.corpora.using(request.named_documents, moment) as is_well:
                    if is_well:
                        return _Done(document_ids, was_cached=await self._prefill(request))
            except OF_ONE_SET as error:
                return _Done(document_ids, why=str(error))
            finally:
                served.begin_to_forget_owed()
        return _Done(document_ids, why="documents were removed meanwhile: warm once more")

    def _write(self, document_ids: Sequence[str]) -> BackendRequest:
        served = self._served
        documents = [*self._read(served.corpora, document_ids)]
        name = f"warm-{uuid4().hex}"
        request = self._beginning.write(served.backend, documents, self._tenant, name)
        # In short steps, as others wait.
        request = replace(request, is_provisional=True)
        room = served.limits.context_tokens
        if len(request.tokens) >= room:
            raise PromptTooLong(
                f"with the prompt's beginning it has {len(request.tokens):,} tokens, and the model's "
                f"context has {room:,}"
            )
        if not self._borrows:
            return request
        tokenize = served.backend.tokenize
        contexts = served.contexts.of_registered(tokenize, documents, served.corpora)
        return replace(request, contexts=contexts, makes_donors=True, recompute_ratio=0.0)

    def _read(self, corpora: Corpora, document_ids: Sequence[str]) -> Iterator[Document]:
        for one in document_ids:
            known = corpora.document(self._owner, self._corpus, one)
            # Without white space around it, as it is found in prompts.
            yield Document(name_of(self._owner, self._corpus, one), known.text.strip())

    async def _prefill(self, request: BackendRequest) -> bool:
        """Compute a prompt; return whether that was not needed, as all of it is in the cache.

        If it is to be kept, in the tier where that is to be. Raises KeepLimitReached.
        """
        if self._order is None:
            [is_cached] = await self._served.backend.touch_if_cached([request])
        else:
            is_cached = await self._keep(request, self._order)
        if not is_cached:
            async with aclosing(self._served.backend.generate(request)) as deltas:
                async for _ in deltas:
                    pass
        return is_cached

    async def _keep(self, request: BackendRequest, order: KeepOrder) -> bool:
        """Keep what a prompt leaves in the cache; return whether all of it is in the tier already."""
        try:
            [kept] = await self._served.backend.keep([request], order)
        except NoRoomToKeep as error:
            raise KeepLimitReached(
                f"it takes {error.needed_tokens:,} tokens more, and you may keep {error.free_tokens:,} "
                f"more in the {order.tier.value} tier: release others first"
            ) from None
        return kept.held_tokens == kept.tokens
