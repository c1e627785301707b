"""Write the request that a chain will probably send, from what is known of its prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ragcache_engine.prompt import TemplateBook, find_documents, token_segments
from ragcache_engine.protocols import Backend, BackendRequest
from ragcache_engine.speculation.generation import Speculation
from ragcache_engine.speculation.tracked_search import TrackedSearch
from ragcache_engine.values import ChatPrompt, SamplingOptions

_ONE_TOKEN = SamplingOptions(max_tokens=1)


class RequestPlanner:
    """Write, tokenise and segment expected prompts.

    templates: what the prompts of each chain look like. next_request_id: names requests to the backend.
    context_tokens: the size of the model's context. The planner plans no prompt that leaves no room for
      an answer. Before the model has started the size is 0, so it plans nothing.
    """

    def __init__(
        self, backend: Backend, templates: TemplateBook, next_request_id: Callable[[], str]
    ) -> None:
        self._backend = backend
        self._templates = templates
        self._next_request_id = next_request_id
        self.context_tokens = 0

    def may_plan(self, search: TrackedSearch) -> bool:
        """Return True if there is a trusted template for the prompt of this search."""
        return self._templates.may_guess(search.chain, search.template, tenant=search.tenant)

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
        expected = guess.options or search.options or self._templates.last_options()
        options = expected or SamplingOptions()
        # An explicit template may write a ChatPrompt; learned options already say what such a prompt
        # needs.
        if isinstance(guess.text, ChatPrompt):
            options = replace(options, add_special_tokens=False)
        tokenized = self._backend.tokenize(str(guess.text), options.add_special_tokens)
        if not 0 < len(tokenized) < self.context_tokens:
            return None
        segments = token_segments(tokenized, find_documents(guess.text, documents))
        if not guess.is_whole:
            options = replace(_ONE_TOKEN, add_special_tokens=options.add_special_tokens)
        speculation.is_whole = guess.is_whole
        speculation.request = BackendRequest(
            self._next_request_id(),
            tokenized,
            segments,
            options,
            search.tenant,
            is_guess=True,
            is_provisional=not speculation.is_final,
        )
        return speculation.request
