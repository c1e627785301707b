"""Follows each retrieval: through its search, into the prompt that is made from its documents."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from ragcache_engine.anywhere.corpus import Corpus
from ragcache_engine.anywhere.neighbours import NeighbourBook
from ragcache_engine.checks import require_hashable, require_items, require_tenant, require_text
from ragcache_engine.observing.hit_rates import HitRates
from ragcache_engine.prompt import (
    PromptMatch,
    Render,
    Retrieval,
    RetrievalLog,
    TemplateBook,
    as_render,
)
from ragcache_engine.protocols import BackendRequest
from ragcache_engine.requests.runtime import Runtime
from ragcache_engine.retrievals.document_order import DocumentOrdering
from ragcache_engine.retrievals.unused import UnusedRetrievals
from ragcache_engine.speculation import TrackedSearch
from ragcache_engine.tenants import tenant_of
from ragcache_engine.values import (
    DOCUMENTS_HINT,
    ChatPrompt,
    Document,
    SamplingOptions,
    Usage,
    require_options,
)

logger = logging.getLogger(__name__)


def _ignore_stage(documents: Sequence[Document], final: bool) -> None:
    """Ignore provisional results: speculation is off."""


def _keep_order(documents: Sequence[Document]) -> list[int]:
    return list(range(len(documents)))


def _learn_nothing(documents: Sequence[Document], corpus: Corpus, is_usual: bool) -> None:
    """Ignore neighbours: the engine does not borrow from behind them."""


def _prepare_nothing(documents: Sequence[Document], corpus: Corpus | None) -> None:
    """Ignore candidates: speculation is off."""


@dataclass(slots=True)
class RetrievalInProgress:
    """A search that the engine was told of; `RAGCacheEngine.retrieval` makes it.

    question: what is searched for. started_s: when the search began, on the backend's clock.
    documents: the final result; empty until `found` was called.
    corpus: the name of the corpus that is searched; None until `look_up_neighbours` was called.
    """

    question: str
    started_s: float
    documents: tuple[Document, ...] = ()
    corpus: Hashable | None = None
    _stage: Callable[[Sequence[Document], bool], None] = field(default=_ignore_stage, repr=False)
    _order: Callable[[Sequence[Document]], list[int]] = field(default=_keep_order, repr=False)
    _learn: Callable[[Sequence[Document], Corpus, bool], None] = field(
        default=_learn_nothing, repr=False
    )
    _prepare: Callable[[Sequence[Document], Corpus | None], None] = field(
        default=_prepare_nothing, repr=False
    )

    def order(self, documents: Sequence[Document]) -> list[int]:
        """Return the positions of these documents in the order that the prompt should have them.

        documents: nearest first. EngineConfig.document_order chooses the order; "retrieved" leaves the
        documents as they are. If you use the returned order, pass the documents to `found` in that
        order, and put them into the prompt in that order.
        """
        return self._order(documents)

    def look_up_neighbours(
        self, documents: Sequence[Document], corpus: Corpus, *, only_here: bool = False
    ) -> None:
        """Let the engine find the neighbours of these documents, if it borrows from behind neighbours.

        Call it before `found`. Only documents that are new to the engine are looked up. Called before the
        first stage as well, with no documents, it lets the engine begin early with the right ones.
        only_here: only for prompts that are made from this search. Otherwise also for prompts that name
          these documents themselves, until another corpus is told for them.
        """
        self.corpus = corpus.name
        self._learn(documents, corpus, not only_here)

    def provisional(self, documents: Sequence[Document]) -> None:
        """Tell the engine what the search would return if it ended now, nearest first.

        Returns at once. Any thread may call it.
        """
        try:
            checked = require_items(documents, Document, "documents", DOCUMENTS_HINT)
            self._stage(checked, False)
        except Exception as error:  # a failed early start must not fail the search
            logger.warning("provisional documents were ignored: %r", error)

    def candidates(self, documents: Sequence[Document], corpus: Corpus | None = None) -> None:
        """Tell the engine documents of which some will be in the prompt, likeliest first.

        For searches whose result something else still chooses from, such as a reranker, or several
        searches of which each tells its own. The model prepares the documents meanwhile, if it is idle.
        corpus: where to look up their neighbours, if the engine borrows from behind them; that is done
        later, in a thread of the engine. Returns at once. Any thread may call it, as often as more
        documents are found.
        """
        try:
            checked = require_items(documents, Document, "documents", DOCUMENTS_HINT)
            self._prepare(checked, corpus)
        except Exception as error:  # a failed early start must not fail the search
            logger.warning("candidates were ignored: %r", error)

    def found(self, documents: Sequence[Document]) -> None:
        """Tell the engine the final result, nearest first, each text as the prompt will contain it.

        Raises InvalidArgument, before the engine is told, for anything but Documents.
        """
        self.documents = require_items(documents, Document, "documents", DOCUMENTS_HINT)
        self._stage(self.documents, True)


class RetrievalTracker:
    """Remembers what was retrieved, recognises it in prompts, and learns from those prompts.

    Any thread may call any of its methods.
    ordering: chooses the order in which retrievers hand over their documents; None: as they found them.
    templates: what the engine knows of the chains' prompts. is_speculating: whether to pass the
      searches' results on to speculation. neighbours: learns the neighbours of retrieved documents; None
      if nothing is borrowed from behind them.
    hit_rates: what the cache gave to each chain and each document.
    """

    def __init__(
        self,
        runtime: Runtime,
        ordering: DocumentOrdering | None,
        templates: TemplateBook,
        *,
        is_speculating: bool,
        neighbours: NeighbourBook | None = None,
    ) -> None:
        self._runtime = runtime
        self._ordering = ordering
        self._templates = templates
        self._is_speculating = is_speculating
        self._neighbours = neighbours
        self.hit_rates = HitRates()
        self._log = RetrievalLog()
        self._unused = UnusedRetrievals()

    @contextmanager
    def track(
        self,
        question: str,
        chain: Hashable,
        template: str | Render | None,
        options: SamplingOptions | None,
        tenant: str | None,
    ) -> Iterator[RetrievalInProgress]:
        """Follow one search and remember its documents; see RAGCacheEngine.retrieval."""
        self._runtime.require_this_process()
        require_text(question, "a question")
        require_hashable(chain, "chain")
        tenant = require_tenant(tenant)
        if options is not None:
            options = require_options(options)
        render = None if template is None else as_render(template)
        pipeline, planned = self._runtime.pipeline, self._runtime.forgotten.moment
        search = (
            pipeline.track_search(question, chain, render, options, tenant)
            if self._is_speculating
            else None
        )
        if search:
            search.planned = planned
        ordering = self._ordering
        in_progress = RetrievalInProgress(
            question,
            search.started_s if search else self._runtime.backend.now(),
            _stage=partial(self._tell_stage, search) if search else _ignore_stage,
            _order=partial(ordering.positions, chain=(tenant, chain)) if ordering else _keep_order,
            _learn=partial(self._learn_for_search, search, tenant, planned),
            _prepare=partial(self._tell_candidates, search) if search else _prepare_nothing,
        )
        try:
            yield in_progress
        except BaseException:
            in_progress.documents = ()
            raise
        finally:
            if search and not in_progress.documents:
                self._runtime.call_soon(partial(pipeline.abandon, search))
        if in_progress.documents:
            self._runtime.require_this_process()  # a fork may have come in the middle of the search
            self._unused.note_search(self._runtime.backend.now())
            self._log.add(
                Retrieval(
                    question,
                    in_progress.documents,
                    in_progress.started_s,
                    chain,
                    render,
                    search.number if search else None,
                    tenant,
                    in_progress.corpus,
                    planned,
                )
            )

    def _learn_for_search(
        self,
        search: TrackedSearch | None,
        tenant: str | None,
        planned: int,
        documents: Sequence[Document],
        corpus: Corpus,
        is_usual: bool,
    ) -> None:
        if self._neighbours:
            self._neighbours.learn(documents, corpus, tenant, is_usual=is_usual, planned=planned)
            if search:
                # On the engine's loop, where the search's next stage will find it.
                self._runtime.call_soon(partial(setattr, search, "corpus", corpus.name))

    def learn_usual_neighbours(
        self, documents: Sequence[Document], corpus: Corpus, tenant: str | None
    ) -> None:
        """Find the neighbours of documents, also for prompts that name these documents themselves."""
        if self._neighbours:
            self._neighbours.learn(documents, corpus, tenant, is_usual=True)

    def _tell_stage(
        self, search: TrackedSearch, documents: Sequence[Document], final: bool
    ) -> None:
        self._runtime.require_this_process()
        stage = self._runtime.pipeline.stage
        self._runtime.call_soon(partial(stage, search, documents, final))

    def _tell_candidates(
        self, search: TrackedSearch, documents: Sequence[Document], corpus: Corpus | None
    ) -> None:
        self._runtime.require_this_process()
        learn = None
        if self._neighbours and corpus is not None:
            learn = partial(
                self._neighbours.learn, corpus=corpus, tenant=search.tenant, planned=search.planned
            )
        name = corpus.name if corpus is not None else None
        tell = self._runtime.pipeline.candidates
        self._runtime.call_soon(partial(tell, search, documents, name, learn))

    def match(self, prompt: str, tenant: str | None, *, claims: bool = True) -> PromptMatch:
        """Recognise remembered documents in the prompt, and the retrieval that led to it if it claims."""
        now_s = self._runtime.backend.now()
        match = self._log.match(prompt, tenant, claims=claims, now_s=now_s)
        if match.spans and claims:
            self._unused.note_use()
        return match

    def note_named(self) -> None:
        """Note that the caller of a prompt names its documents, which need no recognising."""
        self._unused.note_use()

    def count_hits(
        self, retrieval: Retrieval | None, request: BackendRequest, usage: Usage
    ) -> None:
        """Count what a finished request took from the cache. retrieval: the one that led to it."""
        if retrieval:
            self.hit_rates.count_chain(retrieval.chain, usage)
        self.hit_rates.count_documents(request, usage, retrieval.documents if retrieval else ())

    def forget(self, document_ids: Sequence[str]) -> None:
        """Remember these documents no longer: warming by id must not bring them back."""
        self._log.forget(document_ids)
        self._templates.forget(document_ids)
        self.hit_rates.forget(document_ids)
        if self._ordering and any(map(tenant_of, document_ids)):
            self._ordering.clear()
        if self._neighbours:
            self._neighbours.forget(document_ids)

    def known_documents(
        self, corpus: Iterable[Document], tenant: str | None
    ) -> dict[str, Document]:
        """Return documents by id: those of the corpus, and lately retrieved ones that it lacks.

        tenant: whose retrievals to look at.
        """
        given = require_items(corpus, Document, "corpus", DOCUMENTS_HINT)
        return {document.id: document for document in (*self._log.documents(tenant), *given)}

    def remembered_template(self, chain: Hashable, tenant: str | None) -> Render | None:
        """Return a function that writes prompts like the chain's last one; None without one."""

        def render(question: str, documents: Sequence[Document]) -> str:
            guess = self._templates.guess(
                chain, question, documents, tenant=tenant, are_chosen=True
            )
            if guess is None:
                return ""
            is_plain = guess.options is None or guess.options.add_special_tokens
            return guess.text if is_plain else ChatPrompt(guess.text)

        may_guess = self._templates.may_guess(chain, tenant=tenant, are_chosen=True)
        return render if may_guess else None

    def learn(self, retrieval: Retrieval, request: BackendRequest, written: str) -> None:
        """Learn from a prompt in which order documents come, and how its chain writes prompts.

        written: the prompt as the chain wrote it.
        """
        if self._ordering:
            found = {document.id: document for document in retrieval.documents}
            self._ordering.note_prompt(
                [found[name] for name in request.document_ids if name in found],
                (retrieval.tenant, retrieval.chain),
            )
        if not self._is_speculating:
            return
        documents = retrieval.documents
        places = {name: place for place, name in enumerate(request.document_ids)}
        chosen = [one for one in documents if one.id in places or one.text.strip() in written]
        is_choice = len(chosen) < len(documents)
        if is_choice:  # what chose the documents orders them as well
            last = len(places)
            documents = tuple(sorted(chosen, key=lambda one: places.get(one.id, last)))
        try:
            self._templates.remember(
                retrieval.chain,
                retrieval.question,
                documents,
                written,
                request.options,
                retrieval.template,
                tenant=request.tenant,
                is_choice=is_choice,
                others=places.keys() - {one.id for one in documents},
            )
        except Exception:  # no answer depends on it
            logger.exception("could not learn from a prompt; please report this")
