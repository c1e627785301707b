"""Checks a prompt, tokenises it, and finds out which part of it is which document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from ragcache_engine.anywhere.neighbours import ContextsOf, without_contexts
from ragcache_engine.checks import (
    require_items,
    require_number,
    require_short_prompt,
    require_switch,
    require_tenant,
    require_text,
)
from ragcache_engine.errors import EmptyPrompt, InvalidArgument, PromptTooLong
from ragcache_engine.prompt import (
    PromptMatch,
    Retrieval,
    find_documents,
    find_repeats,
    leave_out_repeats,
    token_segments,
)
from ragcache_engine.protocols import BackendRequest, PromptText
from ragcache_engine.requests.runner import PreparedRequest
from ragcache_engine.requests.runtime import Runtime
from ragcache_engine.values import (
    DOCUMENTS_HINT,
    ChatPrompt,
    Document,
    SamplingOptions,
    TokenizedPrompt,
    Usage,
    require_options,
)


class RememberedRetrievals(Protocol):
    """What was retrieved lately, as prompts need it; see RetrievalTracker."""

    def match(self, prompt: str, tenant: str | None, *, claims: bool = True) -> PromptMatch:
        """Recognise remembered documents in the prompt, and the retrieval that led to it if it claims."""

    def note_named(self) -> None:
        """Note that the caller of a prompt names its documents, which need no recognising."""

    def learn(self, retrieval: Retrieval, request: BackendRequest, written: str) -> None:
        """Learn from a prompt in which order documents come, and how its chain writes prompts.

        written: the prompt as the chain wrote it.
        """

    def count_hits(
        self, retrieval: Retrieval | None, request: BackendRequest, usage: Usage
    ) -> None:
        """Count what a finished request took from the cache. retrieval: the one that led to it."""


class PromptIntake:
    """Turns a prompt into a request. Any thread may call its methods; they start nothing.

    context_tokens: the most tokens that the model's context holds, prompt and answer together.
    contexts_of: returns the contexts that documents are borrowed from. dedupe: as in EngineConfig.
    """

    def __init__(
        self,
        runtime: Runtime,
        retrievals: RememberedRetrievals,
        context_tokens: int,
        contexts_of: ContextsOf = without_contexts,
        dedupe: bool = False,
    ) -> None:
        self._dedupe = dedupe
        self._contexts_of = contexts_of
        self._runtime = runtime
        self._retrievals = retrievals
        self._context_tokens = context_tokens

    def prepare(
        self,
        prompt: str,
        documents: Sequence[Document] | None,
        options: SamplingOptions | None,
        tenant: str | None,
        exact: bool = False,
        recompute_ratio: float | None = None,
        planned: int | None = None,
        *,
        is_chains: bool = True,
    ) -> PreparedRequest:
        """Check and tokenise a prompt, and find its documents; see RAGCacheEngine.generate.

        planned: the ForgetLog's moment when the documents were found, if that was earlier. is_chains:
          whether a chain wrote the prompt; the engine's own are computed as they are.
        Raises InvalidArgument, EmptyPrompt, PromptTooLong, UnsupportedGuide,
        EngineClosed or EngineInOtherProcess.
        """
        called_s = self._runtime.backend.now()
        planned = self._runtime.forgotten.moment if planned is None else planned
        require_text(prompt, "a prompt")
        if documents is not None:
            documents = require_items(documents, Document, "documents", DOCUMENTS_HINT)
        tenant = require_tenant(tenant)
        require_switch(exact, "exact")
        if recompute_ratio is not None:
            recompute_ratio = require_number(recompute_ratio, "recompute_ratio")
            if not 0 <= recompute_ratio <= 1:
                raise InvalidArgument(f"recompute_ratio is from 0 to 1, got {recompute_ratio}")
            if not self._runtime.may_borrow:
                raise InvalidArgument(
                    "recompute_ratio is for prompts that borrow, and this engine borrows nothing: make "
                    'it with reuse="anywhere", or leave recompute_ratio out'
                )
        options = require_options(options)
        chat_prompt = prompt if isinstance(prompt, ChatPrompt) else None
        if chat_prompt is not None:
            options = chat_prompt.fit_options(options)
            prompt = str(prompt)
        self._runtime.wait_until_up()
        request_id = self._runtime.next_request_id()
        if options.guide:
            self._runtime.backend.check(options)
        written, short = prompt, None
        if self._dedupe and is_chains:
            found = self._match(written, documents, tenant, claims=False)
            short = leave_out_repeats(written, found.spans)
            prompt = short.text
            if chat_prompt is not None:
                points = ((short.place(at), for_s) for at, for_s in chat_prompt.cache_points)
                chat_prompt = ChatPrompt(prompt, chat_prompt.template_args, tuple(points))
        require_short_prompt(len(prompt), self._context_tokens)
        tokenized = None
        if not self._runtime.backend.reads_text:
            tokenized = self._runtime.pipeline.tokenize(prompt, options.add_special_tokens)
        self._require_fitting(prompt, tokenized)
        match = self._match(written, documents, tenant)
        repeats = find_repeats(written, match.spans)
        if short is not None:
            match = replace(match, spans=short.spans)
        names = [span.document_id for span in match.spans]
        retrieval = match.retrieval
        request = BackendRequest(
            request_id=request_id,
            prompt=PromptText(prompt) if tokenized is None else tokenized,
            segments=() if tokenized is None else token_segments(tokenized, match.spans),
            options=options,
            tenant=tenant,
            is_exact=exact,
            recompute_ratio=recompute_ratio,
            contexts={} if exact else self._contexts_of(names, tenant, match.corpora),
            spans=match.spans,
            planned=retrieval.planned if retrieval else planned,
        )
        return PreparedRequest(
            request=request,
            document_ids=tuple(names),
            repeated_ids=tuple(span.document_id for span in repeats),
            chat_prompt=chat_prompt,
            question_s=retrieval.started_s if retrieval else called_s,
            called_s=called_s,
            search_number=retrieval.search_number if retrieval else None,
            learn=(
                partial(self._retrievals.learn, retrieval, request, written) if retrieval else None
            ),
            count_hits=partial(self._retrievals.count_hits, retrieval, request),
        )

    def _match(
        self,
        prompt: str,
        documents: Sequence[Document] | None,
        tenant: str | None,
        *,
        claims: bool = True,
    ) -> PromptMatch:
        """Find the documents in a prompt. documents: those that its caller names."""
        if documents is None:
            return self._retrievals.match(prompt, tenant, claims=claims)
        if claims:
            self._retrievals.note_named()
        return PromptMatch(find_documents(prompt, documents))

    def tokenize(self, prompt: str, add_special_tokens: bool) -> TokenizedPrompt:
        """Return the prompt's tokens; a ChatPrompt gets no special tokens.

        Raises InvalidArgument or EngineClosed.
        """
        require_text(prompt, "a prompt")
        require_switch(add_special_tokens, "add_special_tokens")
        self._runtime.wait_until_up()
        if isinstance(prompt, ChatPrompt):
            prompt, add_special_tokens = str(prompt), False
        return self._runtime.pipeline.tokenize(prompt, add_special_tokens)

    def _require_fitting(self, prompt: str, tokenized: TokenizedPrompt | None) -> None:
        """Raise EmptyPrompt or PromptTooLong. tokenized: None if the backend counts the tokens."""
        if not (prompt if tokenized is None else len(tokenized)):
            raise EmptyPrompt(
                "the prompt is empty: check what your prompt template was filled with"
            )
        if tokenized is not None and len(tokenized) >= self._context_tokens:
            raise PromptTooLong(
                f"the prompt has {len(tokenized)} tokens, and the model's context of "
                f"{self._context_tokens} leaves no room for an answer; retrieve fewer or "
                f"shorter documents, or raise max_model_len in vllm_args"
            )
