"""Write the request that a chain will probably send, from what is known of its prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ragcache_engine.anywhere.neighbours import ContextsOf, without_contexts
from ragcache_engine.checks import CHARACTERS_PER_TOKEN
from ragcache_engine.prompt import (
    Guess,
    TemplateBook,
    find_documents,
    leave_out_repeats,
    token_segments,
)
from ragcache_engine.protocols import Backend, BackendRequest, PromptText
from ragcache_engine.speculation.generation import Speculation
from ragcache_engine.speculation.tracked_search import TrackedSearch
from ragcache_engine.values import ONE_TOKEN, ChatPrompt, Document, SamplingOptions


class RequestPlanner:
    """Write, tokenise and segment expected prompts.

    templates: what the prompts of each chain look like. next_request_id: names requests to the backend.
    contexts_of: returns the contexts of a prompt's documents, as in BackendRequest. dedupe: as in
      EngineConfig.
    context_tokens: the size of the model's context. The planner plans no prompt that leaves no room for
      an answer. Before the model has started the size is 0, so it plans nothing.
    """

    def __init__(
        self,
        backend: Backend,
        templates: TemplateBook,
        next_request_id: Callable[[], str],
        contexts_of: ContextsOf = without_contexts,
        dedupe: bool = False,
    ) -> None:
        self._dedupe = dedupe
        self._backend = backend
        self._templates = templates
        self._next_request_id = next_request_id
        self._contexts_of = contexts_of
        self.context_tokens = 0

    def may_plan(self, search: TrackedSearch, *, are_chosen: bool = False) -> bool:
        """Return True if the prompt of this search may be foreseen.

        are_chosen: as in TemplateBook.guess.
        """
        return self._templates.may_guess(
            search.chain, search.template, tenant=search.tenant, are_chosen=are_chosen
        )

    def plan(self, speculation: Speculation, search: TrackedSearch) -> BackendRequest | None:
        """Write the expected request into the speculation and return it. Any thread.

        Return None, and leave the speculation without a request, if the prompt cannot be foreseen or
        does not fit into the context.
        """
        documents = speculation.documents
        guess = self._templates.guess(
            search.chain, search.question, documents, search.template, tenant=search.tenant
        )
        if guess is None:
            return None
        options = self._expected_options(guess, search)
        if not guess.is_whole:
            options = replace(ONE_TOKEN, add_special_tokens=options.add_special_tokens)
        request = self._write(str(guess.text), documents, options, search)
        if request is None:
            return None
        request = replace(request, is_provisional=not speculation.is_final)
        speculation.is_whole = guess.is_whole
        speculation.request = request
        return request

    def plan_beginning(
        self, search: TrackedSearch, documents: Sequence[Document], *, makes_donors: bool
    ) -> BackendRequest | None:
        """Write the request for the beginning of a prompt with these documents, up to the last one.

        makes_donors: whether it is to make the donors of these documents. Return None where `plan` does.
        Any thread.
        """
        guess = self._templates.guess(
            search.chain,
            search.question,
            documents,
            search.template,
            tenant=search.tenant,
            are_chosen=True,
        )
        if guess is None:
            return None
        options = self._expected_options(guess, search)
        options = replace(ONE_TOKEN, add_special_tokens=options.add_special_tokens)
        spans = find_documents(str(guess.text), documents)
        if not spans:
            return None
        request = self._write(str(guess.text)[: spans[-1].end], documents, options, search)
        return request if request is None or not makes_donors else request.for_donors()

    def _expected_options(self, guess: Guess, search: TrackedSearch) -> SamplingOptions:
        expected = guess.options or search.options or self._templates.last_options()
        options = expected or SamplingOptions()
        # An explicit template may write a ChatPrompt; remembered options already say what such a prompt
        # needs.
        if isinstance(guess.text, ChatPrompt):
            options = guess.text.fit_options(options)
        return options

    def _write(
        self,
        text: str,
        documents: Sequence[Document],
        options: SamplingOptions,
        search: TrackedSearch,
    ) -> BackendRequest | None:
        """Return the request for a prompt that may yet be revoked; None if it does not fit."""
        spans = find_documents(text, documents)
        if self._dedupe:
            text, spans, _ = leave_out_repeats(text, spans)
        names = [document.id for document in documents]
        corpora = {} if search.corpus is None else dict.fromkeys(names, search.corpus)
        if len(text) > CHARACTERS_PER_TOKEN * self.context_tokens:
            return None
        tokenized = None
        if not self._backend.reads_text:
            tokenized = self._backend.tokenize(text, options.add_special_tokens)
        request = BackendRequest(
            self._next_request_id(),
            PromptText(text) if tokenized is None else tokenized,
            () if tokenized is None else token_segments(tokenized, spans),
            options,
            search.tenant,
            is_guess=True,
            is_provisional=True,
            contexts=self._contexts_of(names, search.tenant, corpora),
            spans=spans,
            planned=search.planned,
        )
        return request if 0 < request.expected_tokens < self.context_tokens else None
