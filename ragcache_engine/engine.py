"""RAGCacheEngine: the public methods of the engine. Each leads to the part that does the work."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Self, cast

from ragcache_engine.anywhere.calibration import find_calibration, with_ratio
from ragcache_engine.anywhere.corpus import Corpus
from ragcache_engine.anywhere.found_documents import FoundDocuments
from ragcache_engine.anywhere.idle_backend import with_idle_work
from ragcache_engine.anywhere.neighbours import NeighbourBook, without_contexts
from ragcache_engine.backends.choice import (
    choose_backend,
    find_configured_server,
    require_borrowing,
    require_guarded_caller,
)
from ragcache_engine.cache_stats import CacheStats
from ragcache_engine.checks import (
    require_duration,
    require_instance,
    require_items,
    require_switch,
    require_tenant,
    require_text,
    require_whole_number,
)
from ragcache_engine.config import EngineConfig
from ragcache_engine.dashboard import open_dashboard
from ragcache_engine.dashboard.engine_observer import EngineObserver
from ragcache_engine.engine_chat import EngineChat, moved_to_chat
from ragcache_engine.engine_table import engine_table
from ragcache_engine.errors import (
    CannotKeep,
    EngineClosed,
    EngineInOtherProcess,
    EngineNeeded,
    InvalidArgument,
)
from ragcache_engine.forwarding import WithdrawingBackend
from ragcache_engine.knowledge import policy_of_tiers
from ragcache_engine.observing.metrics import EngineCollector, EngineFigures, write_metrics
from ragcache_engine.observing.request_log import FinishedRequest
from ragcache_engine.prompt import ForgetLog, Render, TemplateBook, as_render
from ragcache_engine.protocols import Backend
from ragcache_engine.requests.intake import PromptIntake
from ragcache_engine.requests.loop import call_in_thread, finish_even_if_cancelled, run_in_thread
from ragcache_engine.requests.runner import PreparedRequest
from ragcache_engine.requests.runtime import Runtime
from ragcache_engine.requests.streams import AnswerStream, join_pieces, read_async
from ragcache_engine.retrievals.document_order import DocumentOrdering
from ragcache_engine.retrievals.tracker import RetrievalInProgress, RetrievalTracker
from ragcache_engine.tenants import forget_id, forget_ids_of
from ragcache_engine.tiers.kept import KeepOrder
from ragcache_engine.tiers.tree_snapshot import MOST_DOCUMENTS, TreeSnapshot
from ragcache_engine.values import (
    Answer,
    ChatPrompt,
    Document,
    ModelLimits,
    Piece,
    SamplingOptions,
    TokenizedPrompt,
    require_options,
)
from ragcache_engine.warming.cache_points import CachePoints
from ragcache_engine.warming.keep import (
    Keeping,
    KeepingBackend,
    KeptDocuments,
    KeptTier,
    as_sets,
    make_order,
)
from ragcache_engine.warming.plan import Prefill, Warmed, plan_prefills
from ragcache_engine.warming.prefill import Prefiller, prefill_all, prefill_all_async
from ragcache_engine.warming.sync import Preparing, Synced, SyncRecord, sync_documents

if TYPE_CHECKING:
    from ragcache_engine.dashboard.serving import Dashboard


CACHE_POINTS, SHARE_OF_CACHE_POINTS = "cache points", 0.5
"""Which part of what may be kept is for prompts that say so themselves: they may be anybody's."""


class RAGCacheEngine:
    """A language model in the caller's process that knows which part of a prompt is which document.

    One engine serves any number of threads, event loops, chains and query engines at the same time. Use
    it as a context manager, with `with` or `async with`, or call close(). At interpreter exit an engine
    closes itself. It serves only the process that made it: in a forked child every method raises
    EngineInOtherProcess, and closing does nothing.

        >>> config = EngineConfig(backend="memory")    # with a real model: EngineConfig(model="org/name")
        >>> with RAGCacheEngine(config) as engine:
        ...     engine.generate("Why is the sky blue?").text
        'You asked: Why is the sky blue?'

    Making an engine takes as long as the model takes to load; on an event loop use `acreate`, which
    does not block it.
    backend: an instance to use instead of the one that the configuration names, such as a MemoryBackend
      with replies of your own.
    config, limits: what the engine was made with, with a calibrated recompute ratio filled in, and what
      its model can take.
    chat: writes conversations as prompts and reads tool calls; see EngineChat.
    threads: where the classes for LangChain and LlamaIndex run what coroutines wait for; see
      EngineThreads.
    Raises, when made: ConfigError or one of its kinds for settings that cannot work; EngineStartFailed
    if the model does not start.
    """

    def __init__(self, config: EngineConfig, *, backend: Backend | None = None) -> None:
        _require_config(config)
        require_borrowing(config, backend)
        if config.backend == "server" and backend is None:
            found = call_in_thread(partial(find_configured_server, config, config.model))
            config, backend = config.model_copy(update=found.settings), found.backend
        calibration = find_calibration(config)
        self.config = config = with_ratio(config, calibration)
        self._templates, forgotten = TemplateBook(), ForgetLog()
        templates = self._templates
        backend = WithdrawingBackend(backend or _make_backend(config), forgotten)
        backend = self._keeping = KeepingBackend(backend)
        idle = with_idle_work(
            backend,
            prepares_later=config.prepares_later,
            recheck_share=config.share_to_recheck,
            least=calibration.least_rouge_l if calibration else None,
        )
        backend = idle.backend
        neighbours = _make_neighbour_book(config, backend, forgotten)
        if neighbours and idle.preparing:
            neighbours.found = FoundDocuments()
            idle.preparing.prepare_found(neighbours.found, neighbours.contexts_of_found)
        contexts_of = neighbours.contexts if neighbours else without_contexts
        self._runtime = Runtime(
            backend,
            templates,
            speculation=config.speculation,
            request_timeout_s=config.request_timeout_s,
            contexts_of=contexts_of,
            dedupe=config.dedupe,
            may_borrow=config.reuse == "anywhere",
            is_borrowing=lambda: config.reuse == "anywhere" and not idle.is_switched_off(),
            forgotten=forgotten,
            reports=idle.reports,
        )
        self.threads = self._runtime.threads
        self._sync_records: dict[tuple[str | None, Hashable], SyncRecord] = {}
        self._cache_points = CachePoints()
        # Not bound to self: the engine must be collectable while its runtime waits to be closed.
        self._finalizer = weakref.finalize(self, self._runtime.close)
        try:
            self.limits: ModelLimits = self._runtime.start()
            self._retrievals = RetrievalTracker(
                self._runtime,
                _make_ordering(config, self.limits),
                templates,
                is_speculating=config.speculation != "off",
                neighbours=neighbours,
            )
            self._intake = PromptIntake(
                self._runtime,
                self._retrievals,
                self.limits.context_tokens,
                contexts_of,
                config.dedupe,
            )
            self.chat = EngineChat(
                self._runtime, config.chat_template, config.tool_parser, config.tells_reasoning
            )
        except BaseException:
            self._finalizer()
            raise

    @classmethod
    async def acreate(cls, config: EngineConfig, *, backend: Backend | None = None) -> Self:
        """Make an engine without blocking the caller's event loop while the model loads.

        Takes and raises what making an engine does. If the task is cancelled, the engine closes as soon
        as it has started.

            >>> async def ask():
            ...     async with await RAGCacheEngine.acreate(EngineConfig(backend="memory")) as engine:
            ...         return await engine.agenerate("Why is the sky blue?")
            >>> asyncio.run(ask()).text
            'You asked: Why is the sky blue?'
        """
        _require_config(config)
        if backend is None:
            require_guarded_caller(config)  # here, as the new thread does not show who called
        return await run_in_thread(partial(cls, config, backend=backend), undo=cls.close)

    @classmethod
    def connect(
        cls, url: str, *, api_key: str | None = None, model: str | None = None, **settings: Any
    ) -> Self:
        """Return an engine whose model runs in a server, started by `ragcache serve` or `vllm serve`.

            with RAGCacheEngine.connect("http://host:8000", api_key="...") as engine:
                engine.generate("Why is the sky blue?")

        It has the methods of every other engine and gives the same answers, and needs neither torch
        nor vLLM. Retrievals and speculation are its own, tensors and tiers are the server's. forget,
        clear_cache and stats().tiers want an operator's key. A plain vLLM server has no tiers: a
        warning says what is missing.
        api_key: as in EngineConfig. model: raise ModelNotFound if the server serves another one.
        settings: document_order, policy, dedupe, speculation, request_timeout_s and chat_template of
          EngineConfig.
        Raises ServerUnreachable, KeyRefused, ModelNotFound, BackendUnavailable without httpx2, or
        ConfigError and InvalidArgument for what cannot work.
        """
        own = {"backend": "server", "server_url": url, "api_key": api_key, "model": model or url}
        config = EngineConfig.model_validate({**settings, **own})
        found = call_in_thread(partial(find_configured_server, config, model))
        return cls(config.model_copy(update=found.settings), backend=found.backend)

    @classmethod
    async def aconnect(
        cls, url: str, *, api_key: str | None = None, model: str | None = None, **settings: Any
    ) -> Self:
        """Return an engine whose model runs in a server: `connect` for coroutines."""
        connect = partial(cls.connect, url, api_key=api_key, model=model, **settings)
        return await run_in_thread(connect, undo=cls.close)

    def generate(
        self,
        prompt: str,
        documents: Sequence[Document] | None = None,
        options: SamplingOptions | None = None,
        *,
        tenant: str | None = None,
        exact: bool = False,
        recompute_ratio: float | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Answer a finished prompt.

        documents: those in the prompt, in any order, their texts exactly as in the prompt. None: the
          engine looks for documents that were lately retrieved through it (see `retrieval`).
        options: how to draw the answer; greedy by default.
        tenant: whose cached tensors this request may use. Requests of different tenants never share
          any, nor do requests with a tenant and requests without.
        exact: borrow nothing from other contexts, even with reuse="anywhere".
        recompute_ratio: for this request instead of EngineConfig.recompute_ratio, 0 to 1.
        timeout_s: end the request if it has no whole answer after so many seconds, its time in the queue
          among them; None: no limit but EngineConfig.request_timeout_s.
        Raises InvalidArgument, EmptyPrompt, PromptTooLong or UnsupportedGuide before any work;
        EngineClosed, EngineDied, GenerationFailed or RequestTimedOut.

            >>> tides = Document("tides", "The moon pulls the oceans, and the tides follow it. " * 9)
            >>> with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
            ...     first = engine.generate(f"{tides.text}\\n\\nWhy?", [tides])
            ...     second = engine.generate(f"{tides.text}\\n\\nWhen?", [tides])
            >>> second.usage.prompt_tokens, first.usage.cached.total, second.usage.cached.total
            (110, 0, 96)
        """
        with self.stream(
            prompt,
            documents,
            options,
            tenant=tenant,
            exact=exact,
            recompute_ratio=recompute_ratio,
            timeout_s=timeout_s,
        ) as pieces:
            return pieces.answer()

    def stream(
        self,
        prompt: str,
        documents: Sequence[Document] | None = None,
        options: SamplingOptions | None = None,
        *,
        tenant: str | None = None,
        exact: bool = False,
        recompute_ratio: float | None = None,
        timeout_s: float | None = None,
    ) -> AnswerStream:
        """Answer a finished prompt piece by piece.

        Takes and raises what `generate` does; bad input raises here, not at the first piece. Close the
        stream to cancel the request.

            >>> with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
            ...     with engine.stream("Why is the sky blue?") as pieces:
            ...         for piece in pieces:
            ...             print(piece.text, end="|")
            You| asked|:| Why| is| the| sky| blue|?|
        """
        require_duration(timeout_s, "timeout_s")
        prepared = self._intake.prepare(prompt, documents, options, tenant, exact, recompute_ratio)
        prepared = self._with_cache_points(prepared)
        return self._answer(replace(prepared, timeout_s=timeout_s))

    def _with_cache_points(self, prepared: PreparedRequest) -> PreparedRequest:
        """Return a request after whose answer its prompt is kept up to its cache points."""
        prompt = prepared.chat_prompt
        if prompt is None or not prompt.cache_points or not self._can_keep:
            return prepared
        request = prepared.request
        keep = partial(self._keep_beginning, request.tenant, request.planned)
        note = partial(self._cache_points.note, prompt, request.spans, request.tenant, keep)
        # Where documents are borrowed, the text behind them would be one more of them.
        return replace(prepared, when_answered=partial(note, whole=self.config.reuse != "anywhere"))

    @property
    def _can_keep(self) -> bool:
        """Whether there is a tier in which documents can be kept."""
        has_tier = bool(self.limits.host_blocks or self.config.disk_cache)
        return has_tier and self.config.backend != "server"

    def _keep_beginning(
        self,
        tenant: str | None,
        planned: int | None,
        text: str,
        documents: Sequence[Document],
        for_s: float,
        name: str,
    ) -> None:
        """Keep the beginning of a prompt with these documents for a while, in a set of this name."""
        order = self._order_to_keep("host" if self.limits.host_blocks else "disk", for_s, None)
        order = replace(order, name=name, owner=CACHE_POINTS, share=SHARE_OF_CACHE_POINTS)
        prefiller = self._prefiller(tenant, only_missing=False, planned=planned)
        request = prefiller.prepare((ChatPrompt(text), documents))
        self._begin_keeping(order, prefiller, [request], False).result()

    def _answer(self, prepared: PreparedRequest) -> AnswerStream:
        return AnswerStream(
            partial(self._runtime.start_request, prepared),
            self._runtime.require_this_process,
            keep_alive=self,
            has_start=self._runtime.backend.reads_text,
        )

    async def agenerate(
        self,
        prompt: str,
        documents: Sequence[Document] | None = None,
        options: SamplingOptions | None = None,
        *,
        tenant: str | None = None,
        exact: bool = False,
        recompute_ratio: float | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Answer a finished prompt: `generate` for coroutines. Cancelling the task cancels the request.

        >>> async def both():
        ...     with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
        ...         asked = [engine.agenerate("Why?"), engine.agenerate("When?")]
        ...         return [answer.text for answer in await asyncio.gather(*asked)]
        >>> asyncio.run(both())
        ['You asked: Why?', 'You asked: When?']
        """
        stream = self.astream(
            prompt,
            documents,
            options,
            tenant=tenant,
            exact=exact,
            recompute_ratio=recompute_ratio,
            timeout_s=timeout_s,
        )
        try:
            return join_pieces([piece async for piece in stream])
        finally:
            await stream.aclose()

    async def astream(
        self,
        prompt: str,
        documents: Sequence[Document] | None = None,
        options: SamplingOptions | None = None,
        *,
        tenant: str | None = None,
        exact: bool = False,
        recompute_ratio: float | None = None,
        timeout_s: float | None = None,
    ) -> AsyncGenerator[Piece, None]:
        """Answer piece by piece: `stream` for coroutines. Closing it cancels the request.

        >>> async def first_words():
        ...     with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
        ...         async with aclosing(engine.astream("Why is the sky blue?")) as pieces:
        ...             return [await anext(pieces) for _ in range(2)]     # then: cancelled
        >>> [piece.text for piece in asyncio.run(first_words())]
        ['You', ' asked']
        """
        require_duration(timeout_s, "timeout_s")
        # Tokenising a long prompt takes milliseconds that belong to the caller's other tasks.
        prepared = await self.threads.prepare(
            partial(
                self._intake.prepare, prompt, documents, options, tenant, exact, recompute_ratio
            )
        )
        prepared = replace(self._with_cache_points(prepared), timeout_s=timeout_s)
        pieces = read_async(partial(self._runtime.start_request, prepared))
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    def tokenize(self, prompt: str, *, add_special_tokens: bool = True) -> TokenizedPrompt:
        """Return the prompt's tokens as the model reads them, with the characters that each stands for.

        add_special_tokens: as in SamplingOptions; a ChatPrompt never gets any.

            >>> with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
            ...     engine.tokenize("Why so blue?").offsets
            [(0, 3), (3, 6), (6, 11), (11, 12)]
        """
        return self._intake.tokenize(prompt, add_special_tokens)

    # The old names of methods that now belong to `chat`.
    chat_prompt = moved_to_chat("chat_prompt", "prompt")
    takes_tools = moved_to_chat("takes_tools", "takes_tools")
    tool_options = moved_to_chat("tool_options", "tool_options")
    tool_reader = moved_to_chat("tool_reader", "tool_reader")

    @contextmanager
    def retrieval(
        self,
        question: str,
        *,
        chain: Hashable = None,
        template: str | Render | None = None,
        options: SamplingOptions | None = None,
        tenant: str | None = None,
    ) -> Iterator[RetrievalInProgress]:
        """Tell the engine about a search, so that it recognises the documents in the prompt that follows.

            >>> question, tides = "Why are there tides?", Document("tides", "They follow the moon.")
            >>> with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
            ...     with engine.retrieval(question) as retrieval:
            ...         retrieval.provisional([tides])     # as often as the search has something
            ...         retrieval.found([tides])
            ...     engine.generate(f"{tides.text}\\n\\n{question}").usage.document_ids
            ('tides',)

        The time inside the block counts into the TTFT of the first prompt made from the documents. If the
        block raises, the engine remembers nothing of the search.
        chain: identifies what makes prompts of the documents, such as one object for each retriever. The
          engine remembers how each chain wrote its last prompt, so that it can begin before the next one.
        template: how the chain writes its prompts, if you know it: a text such as
          "{context}\\n\\n{question}", a Template, or a function (question, documents) -> prompt. A wrong
          template costs time, never a wrong answer.
        options: the sampling options of the first prompt, if you know them; later ones are expected to
          have those of the prompt before.
        tenant: the tenant of the prompt that follows. No other tenant's prompt is taken for one made from
          these documents. None: any tenant's may be.
        Raises InvalidArgument for a text that is not a template, and for any other bad argument.
        """
        # The engine must not be collected, and so closed, before the search has ended.
        with self._retrievals.track(question, chain, template, options, tenant) as in_progress:
            yield in_progress

    def expect_options(self, options: SamplingOptions) -> None:
        """Expect the first prompt to have these sampling options, unless its `retrieval` says others.

        Later prompts are expected to have those of the one before. The models of the integrations call
        this when they are made.
        """
        self._templates.expect_options(require_options(options))

    def warm(
        self,
        document_sets: Iterable[Sequence[Document | str]],
        *,
        template: str | Render | None = None,
        chain: Hashable = None,
        corpus: Iterable[Document] = (),
        neighbours: Corpus | None = None,
        tenant: str | None = None,
        only_missing: bool = False,
        progress: bool = False,
    ) -> Warmed:
        """Prefill sets of documents before anybody asks about them, such as the top of a query log.

            >>> sea = [Document("tides", "They follow the moon. " * 9), Document("salt", "It stays.")]
            >>> with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
            ...     engine.warm([["tides", "salt"]], template="{context}\\n\\n{question}", corpus=sea)
            Warmed(sets=1, prompt_tokens=46, computed_tokens=46, left_out=())

        document_sets: each in the order in which prompts will have its documents; ids, or Documents with
          the texts that prompts will contain.
        template: what the prompts look like, see `retrieval`. None: like the last prompt of this chain.
          Only the text before the question can be prefilled for every question.
        corpus: the documents that ids stand for. The engine knows lately retrieved documents anyway.
        neighbours: where to look up the documents' neighbours, with donors="neighbours". Without
          it, those documents are prefilled alone whose neighbours no retriever has looked up yet.
        tenant: as in `generate`.
        only_missing: leave the sets alone that some tier holds whole. Otherwise those that only the disk
          has are loaded as well, so that the first questions find them in memory.
        progress: show a bar on standard error.
        With reuse="anywhere", the first document of a set is stored for prompts that begin with it, and
        each later one as it is borrowed: behind its neighbour, if that is known, or alone.
        Warming counts as a use of the documents. With a disk cache, later processes profit as well.
        A set that cannot be prefilled, such as one that is longer than the model's context, is left out
        with a warning, and named in the result; if all are, the first one's error is raised.
        Raises InvalidArgument, UnknownDocument or UnknownTemplate before any work.
        """
        require_switch(only_missing, "only_missing")
        prefiller = self._prefiller(tenant, only_missing)
        prefills = self._plan_warming(document_sets, template, chain, corpus, neighbours, tenant)
        return prefill_all(prefills, prefiller, progress=progress)

    async def awarm(
        self,
        document_sets: Iterable[Sequence[Document | str]],
        *,
        template: str | Render | None = None,
        chain: Hashable = None,
        corpus: Iterable[Document] = (),
        neighbours: Corpus | None = None,
        tenant: str | None = None,
        only_missing: bool = False,
        progress: bool = False,
    ) -> Warmed:
        """Prefill sets of documents: `warm` for coroutines. Cancelling the task ends the prefills."""
        self._runtime.require_open()
        require_switch(only_missing, "only_missing")
        prefiller = self._prefiller(tenant, only_missing)
        prefills = await self.threads.search(
            partial(self._plan_warming, document_sets, template, chain, corpus, neighbours, tenant)
        )
        return await prefill_all_async(prefills, prefiller, self.threads.prepare, progress=progress)

    def keep(
        self,
        documents: Iterable[Document | str | Sequence[Document | str]],
        *,
        tier: KeptTier | None = None,
        for_s: float | None = None,
        until: datetime | None = None,
        template: str | Render | None = None,
        chain: Hashable = None,
        corpus: Iterable[Document] = (),
        neighbours: Corpus | None = None,
        tenant: str | None = None,
        progress: bool = False,
    ) -> tuple[KeptDocuments, ...]:
        """Keep documents in a tier: nothing evicts them from it. What is missing of them is computed now.

            >>> handbook = Document("handbook", "Whoever is last turns off the lights. " * 9)
            >>> with RAGCacheEngine(EngineConfig(backend="memory", host_cache="1GiB")) as engine:
            ...     (kept,) = engine.keep([handbook], for_s=86400, template="{context}\\n\\n{question}")
            >>> kept.documents, kept.tier, kept.tokens, kept.held_tokens
            (('handbook',), 'host', 64, 64)

        documents: each alone, as the first one of prompts; or a sequence of several that stand in prompts
          one behind the other. Ids, or Documents with the texts that prompts will contain.
        tier: "disk" or "host"; None: the disk if the engine has one. What is kept on the disk survives
          this process. What is kept in host memory comes back when the model is started again; a new
          process has to be asked again.
        for_s: how many seconds; until: until when, a datetime. Without either: until `release`.
        template, chain, corpus, neighbours, tenant: as in `warm`.
        progress: show a bar on standard error.
        A set has one tier, one template and one end: those of the latest call. `forget` ends all keeping
        of a document.
        Return what is kept, and how much of it has reached the tier: all, unless the disk failed or other
        requests evicted it on its way; that comes with the next prompt that has it. A document shorter
        than a block has 0 tokens to keep.
        Raises KeepLimitReached if more than kept_share of the tier were kept, and then all is kept as
        before; CannotKeep, PromptTooLong, or what `warm` raises, before any work. If a set cannot be
        computed, the others are kept, and its error is raised. After cancelling, `release` them.
        """
        order = self._order_to_keep(tier, for_s, until)
        requests = self._plan_keeping(documents, template, chain, corpus, neighbours, tenant)
        return self._begin_keeping(order, *requests, progress).result()

    async def akeep(
        self,
        documents: Iterable[Document | str | Sequence[Document | str]],
        *,
        tier: KeptTier | None = None,
        for_s: float | None = None,
        until: datetime | None = None,
        template: str | Render | None = None,
        chain: Hashable = None,
        corpus: Iterable[Document] = (),
        neighbours: Corpus | None = None,
        tenant: str | None = None,
        progress: bool = False,
    ) -> tuple[KeptDocuments, ...]:
        """Keep documents: `keep` for coroutines. Cancelling the task ends the prefills."""
        self._runtime.require_open()
        order = self._order_to_keep(tier, for_s, until)
        requests = await self.threads.search(
            partial(self._plan_keeping, documents, template, chain, corpus, neighbours, tenant)
        )
        return await asyncio.wrap_future(self._begin_keeping(order, *requests, progress))

    def _order_to_keep(
        self, tier: KeptTier | None, for_s: float | None, until: datetime | None
    ) -> KeepOrder:
        if self.config.backend == "server":
            raise CannotKeep(
                "the tensors are the server's: keep its documents with `ragcache corpus keep`, or with "
                "ServerCorpora.warm(keep=...)"
            )
        has_disk = self.config.disk_cache > 0
        return make_order(
            tier or ("disk" if has_disk else "host"),
            for_s,
            until,
            limits=self.limits,
            has_disk=has_disk,
            most=self.config.kept_share,
        )

    def _plan_keeping(
        self,
        documents: Iterable[Document | str | Sequence[Document | str]],
        template: str | Render | None,
        chain: Hashable,
        corpus: Iterable[Document],
        neighbours: Corpus | None,
        tenant: str | None,
    ) -> tuple[Prefiller, list[PreparedRequest]]:
        """Return the requests that prefill what is to be kept, each set once, and what runs them."""
        prefiller = self._prefiller(tenant, only_missing=False)
        sets = as_sets(documents)
        prefills = self._plan_warming(sets, template, chain, corpus, neighbours, tenant)
        requests = [prefiller.prepare(prefill) for prefill in prefills]
        each = {tuple(one.request.document_ids): one for one in requests}
        return prefiller, list(each.values())

    def _begin_keeping(
        self,
        order: KeepOrder,
        prefiller: Prefiller,
        requests: Sequence[PreparedRequest],
        progress: bool,
    ) -> Future[tuple[KeptDocuments, ...]]:
        runtime = self._runtime

        async def keep() -> tuple[KeptDocuments, ...]:
            keeping = Keeping(self._keeping, prefiller, requests, order, runtime.beat)
            return tuple(map(KeptDocuments.of, await keeping.run(progress=progress)))

        return runtime.call_backend(keep, "keep documents")

    def release(
        self, documents: Iterable[str | Sequence[str]], *, tenant: str | None = None
    ) -> None:
        """Keep documents no longer. They stay cached, and may be evicted from now on.

        documents: ids, or sequences of ids, as they were given to `keep`; others are ignored.
        Raises CannotKeep, EngineClosed, EngineDied or RequestTimedOut.
        """
        self._begin_release(documents, tenant).result()

    async def arelease(
        self, documents: Iterable[str | Sequence[str]], *, tenant: str | None = None
    ) -> None:
        """Keep documents no longer: `release` for coroutines."""
        await finish_even_if_cancelled(self._begin_release(documents, tenant))

    def _begin_release(
        self, documents: Iterable[str | Sequence[str]], tenant: str | None
    ) -> Future[None]:
        self._runtime.require_this_process()
        tenant = require_tenant(tenant)
        sets = [
            tuple(_require_ids([one] if isinstance(one, str) else cast("Iterable[str]", one)))
            for one in require_items(documents, object, "documents", 'such as ["handbook"]')
        ]
        self._cache_points.clear()
        return self._runtime.call_backend(
            partial(self._keeping.release, sets, tenant), "keep documents no longer"
        )

    def kept(self) -> tuple[KeptDocuments, ...]:
        """Return what is kept, of all tenants, in the order in which that was asked for.

        What an earlier process kept on the disk is listed once this one was asked to keep it.
        Raises CannotKeep, EngineClosed, EngineDied or RequestTimedOut.
        """
        return self._begin_listing_kept().result()

    async def akept(self) -> tuple[KeptDocuments, ...]:
        """Return what is kept: `kept` for coroutines."""
        return await asyncio.wrap_future(self._begin_listing_kept())

    def _begin_listing_kept(self) -> Future[tuple[KeptDocuments, ...]]:
        async def look() -> tuple[KeptDocuments, ...]:
            return tuple(map(KeptDocuments.of, await self._keeping.kept()))

        self._runtime.require_this_process()
        return self._runtime.call_backend(look, "tell what it keeps")

    def _prefiller(
        self, tenant: str | None, only_missing: bool, planned: int | None = None
    ) -> Prefiller:
        return Prefiller(
            self._runtime,
            self._intake,
            planned=self._runtime.forgotten.moment if planned is None else planned,
            tenant=tenant,
            # A borrowed document's own tensors matter here, not the answer: nothing is computed anew.
            recompute_ratio=0.0 if self.config.reuse == "anywhere" else None,
            only_missing=only_missing,
        )

    def _plan_warming(
        self,
        document_sets: Iterable[Sequence[Document | str]],
        template: str | Render | None,
        chain: Hashable,
        corpus: Iterable[Document],
        neighbours: Corpus | None,
        tenant: str | None,
    ) -> list[Prefill]:
        self._runtime.require_this_process()
        tenant = require_tenant(tenant)
        remembered = self._retrievals.remembered_template
        prefills = plan_prefills(
            document_sets,
            self._retrievals.known_documents(corpus, tenant),
            remembered(chain, tenant) if template is None else as_render(template),
        )
        if neighbours is not None:
            each = {one.id: one for _, documents in prefills for one in documents}
            self._retrievals.learn_usual_neighbours(list(each.values()), neighbours, tenant)
        return prefills

    def sync(
        self,
        documents: Iterable[Document],
        *,
        record: SyncRecord | None = None,
        prepare: bool = True,
        template: str | Render | None = None,
        chain: Hashable = None,
        neighbours: Corpus | None = None,
        tenant: str | None = None,
        progress: bool = False,
    ) -> Synced:
        """Make the cache follow documents: forget what changed or vanished, compute what is new.

            >>> old = [Document("tides", "They follow the moon. " * 9), Document("salt", "It stays.")]
            >>> new = [Document("tides", "They follow the moon and the sun. " * 9)]
            >>> with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
            ...     _ = engine.sync(old, template="{context}\\n\\n{question}")
            ...     synced = engine.sync(new, template="{context}\\n\\n{question}")
            >>> synced.added, synced.changed, synced.removed, synced.same
            ((), ('tides',), ('salt',), 0)

        documents: all that there are now. What the sync before had and these lack is forgotten.
        record: what the sync before had; give one with a file where later processes are to know it, and
          one for each set of documents that is synced apart. None: the engine's own for this tenant and
          chain.
        prepare: compute documents that are new or changed, as `warm` does with each, and keep again what
          this tenant kept of them, in prompts of this template. The first sync computes all that no tier
          holds. What cannot be computed is named, and tried again once it changes.
        template, chain, neighbours, tenant: as in `warm`. progress: show a bar on standard error.
        A sync that fails is made good by the next one. Coroutines call it in a thread.
        Raises InvalidArgument, such as for two texts under one id or a record that cannot be read, and
        UnknownTemplate, before any work; what `forget` and `warm` raise.
        """
        self._runtime.require_this_process()
        require_switch(prepare, "prepare")
        tenant = require_tenant(tenant)
        if record is None:
            record = self._sync_records.setdefault((tenant, chain), SyncRecord())
        record = require_instance(record, SyncRecord, "record")
        remembered = self._retrievals.remembered_template
        preparing = Preparing(
            warm=self.warm,
            keep=self.keep,
            kept=self.kept if self._can_keep else tuple,
            arguments={
                "template": template,
                "chain": chain,
                "neighbours": neighbours,
                "progress": progress,
            },
            render=remembered(chain, tenant) if template is None else as_render(template),
            tenant=tenant,
            borrows=self.config.reuse == "anywhere",
        )
        return sync_documents(documents, record, self.forget, preparing if prepare else None)

    def forget(self, document_ids: Iterable[str]) -> None:
        """Drop the cached tensors of documents, and all tensors that were computed after them.

        Use this for documents that changed or must go. Every tier drops them, and the files of a disk
        cache go too, whichever process wrote them. Tensors that running requests need go when these
        requests end. Unknown ids are ignored. Afterwards `warm` knows the documents by id only if they
        are in its corpus, or are retrieved again.

        Raises InvalidArgument for ids that are no strings; EngineClosed; EngineDied if the model's
        process is gone, or RequestTimedOut if it shows no sign of life for request_timeout_s. Some
        tensors may be left after the last two: forget the documents again.

            >>> tides = Document("tides", "The moon pulls the oceans, and the tides follow it. " * 9)
            >>> with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
            ...     _ = engine.generate(tides.text, [tides])
            ...     engine.forget(["tides"])
            ...     engine.generate(tides.text, [tides]).usage.cached.total
            0
        """
        self._begin_forgetting(document_ids).result()

    async def aforget(self, document_ids: Iterable[str]) -> None:
        """Drop documents: `forget` for coroutines. Cancelling the task does not stop the forgetting."""
        await finish_even_if_cancelled(self._begin_forgetting(document_ids))

    def _begin_forgetting(self, document_ids: Iterable[str]) -> Future[None]:
        self._runtime.require_this_process()
        ids = _require_ids(document_ids)
        self._runtime.forgotten.note(ids)
        self._cache_points.clear()
        self._retrievals.forget(ids)
        return self._runtime.forget(ids)

    def forget_tenant(self, tenant: str) -> None:
        """Forget a tenant: everything that was computed for its requests, in every tier.

        tenant: as in `generate`; with "shop" its users go as well, such as "shop::anna". What is kept of
          it is kept no longer, and what the engine remembers of its ended retrievals and prompts goes
          too. If the disk cache is encrypted, the key of "shop" is thrown away, so that copies of its
          files elsewhere cannot be read again; "shop::anna" has the key of "shop".

        Its later requests are answered, and cached anew. Raises InvalidArgument and what `forget` raises.

            >>> tides = Document("tides", "The moon pulls the oceans, and the tides follow it. " * 9)
            >>> with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
            ...     _ = engine.generate(tides.text, [tides], tenant="shop::anna")
            ...     engine.forget_tenant("shop")
            ...     engine.generate(tides.text, [tides], tenant="shop::anna").usage.cached.total
            0
        """
        self._begin_forgetting_tenant(tenant).result()

    async def aforget_tenant(self, tenant: str) -> None:
        """Forget a tenant: `forget_tenant` for coroutines. Cancelling the task does not stop it."""
        await finish_even_if_cancelled(self._begin_forgetting_tenant(tenant))

    def _begin_forgetting_tenant(self, tenant: str) -> Future[None]:
        named = require_tenant(tenant)
        if named is None:
            raise InvalidArgument(
                "forget_tenant takes a tenant's name; documents of requests without a tenant are "
                "forgotten by id"
            )
        for key in list(self._sync_records):  # others may sync meanwhile
            if forget_id(named) in forget_ids_of(key[0]):
                self._sync_records.pop(key, None)
        return self._begin_forgetting([forget_id(named)])

    def clear_cache(self) -> None:
        """Drop all cached key-value tensors from device and host, as before a cold measurement.

        What is on disk stays; `forget` removes single documents there.
        Raises EngineError while requests run, and then drops nothing; EngineClosed, EngineDied or
        RequestTimedOut as `forget` does.
        """
        self._runtime.clear_cache().result()

    async def aclear_cache(self) -> None:
        """Drop all cached tensors: `clear_cache` for coroutines. Cancelling the task does not stop it."""
        await finish_even_if_cancelled(self._runtime.clear_cache())

    def stats(self) -> CacheStats:
        """Return the counters since the engine started.

        >>> with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
        ...     _ = engine.generate("Why is the sky blue?")
        ...     stats = engine.stats()
        >>> stats.finished, stats.prompt_tokens, stats.hit_rate
        (1, 6, 0.0)
        >>> print(stats)
        Cache
          requests       1 finished
          hit rate       0% of 6 prompt tokens
          answer tokens  9
          [................................]  computed 100%
        """
        rates = self._retrievals.hit_rates
        return replace(
            self._runtime.stats(), by_chain=rates.by_chain(), by_document=rates.by_document()
        )

    def recent_requests(self) -> tuple[FinishedRequest, ...]:
        """Return the last answered requests, the oldest first, each with where its documents came from.

        An engine that connects to a server does not know that; the server's dashboard shows it.

        >>> tides = Document("tides", "The tides follow the moon, and so it goes on " * 9 + "all day.")
        >>> with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
        ...     for question in "Why?", "When?":
        ...         _ = engine.generate(f"{tides.text}\\n\\n{question}", [tides])
        ...     for request in engine.recent_requests():
        ...         print(request.question, request.documents[0].cached.device, request.documents[0].why)
        Why? 0 no request had it before
        When? 96 its end shares a block with what follows
        """
        return self._runtime.recent_requests()

    def dashboard(
        self, *, port: int = 0, host: str = "127.0.0.1", show_text: bool = False
    ) -> Dashboard:
        """Serve a live page of the knowledge tree, the hit ratios and the last requests, until the engine
        closes.

        In a notebook the result shows the page; elsewhere open its `url`. It needs the extra
        `dashboard`.
        port: 0 takes any that is free.
        host: the address to listen on; only this machine can reach the default. The page has no
          password, so give another address only where every reader may see all ids of documents.
        show_text: show the beginnings of documents that were lately retrieved, and questions. Otherwise
          the page shows ids only.
        Raises ConfigError if the extra is not installed, or if the port is taken; EngineClosed.

            >>> with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
            ...     with engine.dashboard() as dashboard:
            ...         dashboard.url
            'http://127.0.0.1:.../'
        """
        self._runtime.require_open()
        name = PurePath(self.config.model or self.config.backend).name
        retrievals = self._retrievals

        def texts() -> dict[str, str]:
            known = retrievals.known_documents((), None)
            return {name: document.text for name, document in known.items()}

        observer = EngineObserver(name, self._runtime, texts if show_text else None)
        opened = open_dashboard(observer, host, port)
        try:
            opened.after_close = self._runtime.call_before_close(opened.close)
        except EngineClosed:
            opened.close()
            raise
        return opened

    def snapshot(self, documents: int = 200) -> TreeSnapshot | None:
        """Return what the tiers hold now; None if vLLM runs without a knowledge tree.

        documents: list at most this many, those with most blocks; 500 at the most. The request costs the
          model one token. The tree is looked over in slices, between the steps of the model. So of a
          large tree, the documents may be as of an earlier moment: ask again for the news.
        Raises EngineClosed, EngineDied or RequestTimedOut.

            >>> tides = Document("tides", "The moon pulls the oceans, and the tides follow it. " * 9)
            >>> with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
            ...     _ = engine.generate(f"{tides.text}\\n\\nWhy?", [tides])
            ...     snapshot = engine.snapshot()
            >>> snapshot.documents[0].documents, snapshot.documents[0].blocks["device"]
            (('tides',), 6)
        """
        return self._begin_snapshot(documents).result()

    async def asnapshot(self, documents: int = 200) -> TreeSnapshot | None:
        """Return what the tiers hold now: `snapshot` for coroutines."""
        return await asyncio.wrap_future(self._begin_snapshot(documents))

    def _begin_snapshot(self, documents: int) -> Future[TreeSnapshot | None]:
        return self._runtime.snapshot(
            require_whole_number(documents, "documents", 1, MOST_DOCUMENTS)
        )

    def metrics(self) -> str:
        """Return the engine's figures in Prometheus's text format; docs/guides/observing.md names them.

        >>> with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
        ...     _ = engine.generate("Why is the sky blue?")
        ...     "ragcache_requests_total{outcome=\\"finished\\"} 1.0" in engine.metrics()
        True
        """
        return write_metrics(self.collector())

    def collector(self, labels: Mapping[str, str] | None = None) -> EngineCollector:
        """Return a collector of the engine's figures, for a registry of prometheus_client's."""
        runtime = self._runtime  # a registry must not keep the engine from being closed

        def read() -> EngineFigures:
            return EngineFigures(runtime.stats(), runtime.times_to_first_token())

        return EngineCollector(read, labels)

    def close(self) -> None:
        """End running requests with EngineClosed and free everything. A second call does nothing."""
        self._finalizer()

    async def aclose(self) -> None:
        """Close the engine: `close` for coroutines. Cancelling the task does not stop the closing."""
        await run_in_thread(self.close)

    @property
    def closed(self) -> bool:
        """Whether the engine was closed, or is being closed."""
        return not self._finalizer.alive

    def __repr__(self) -> str:
        return f"RAGCacheEngine({self.config.model_name!r}, {self._state()})"

    def _repr_html_(self) -> str:
        return engine_table(
            self.config, self.limits, self._state(), self._stats_or_none()
        ).as_html()

    def _state(self) -> str:
        stats = self._stats_or_none()
        if stats is None:
            return "of another process"
        if self.closed:
            return "closed"
        answers = "1 answer" if stats.finished == 1 else f"{stats.finished} answers"
        borrowed = f", borrowed {stats.borrowed_rate:.0%}" if stats.borrowed.total else ""
        return f"{answers}, hit rate {stats.hit_rate:.0%}{borrowed}"

    def _stats_or_none(self) -> CacheStats | None:
        try:
            return self.stats()
        except EngineInOtherProcess:
            return None

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # There is one running model. Frameworks copy chains with all that they refer to.
        return self

    def __getstate__(self) -> object:
        raise EngineNeeded(
            "an engine lives in one process and cannot be pickled: send engine.config, and start "
            "another engine with RAGCacheEngine(config) there"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _make_backend(config: EngineConfig) -> Backend:
    """Make the backend on a thread of its own. Raises what `choose_backend` does, and UnguardedMain.

    The first backend of a process may import vLLM, and its modules keep the errors of imports that
    failed, with all frames that waited for them. On the caller's thread the engine's own were among
    them, so that a dropped engine was never collected.
    """
    require_guarded_caller(config)  # here, as the new thread does not show who called
    return call_in_thread(partial(choose_backend, config))


def _require_config(config: Any) -> None:
    """Raise InvalidArgument, which says what to write, for anything but an EngineConfig."""
    model = repr(str(config)) if isinstance(config, str | PurePath) else "..."
    settings = "**settings" if isinstance(config, Mapping) else f"model={model}"
    hint = f"write RAGCacheEngine(EngineConfig({settings}))"
    require_instance(config, EngineConfig, "config", hint)


def _make_neighbour_book(
    config: EngineConfig, backend: Backend, forgotten: ForgetLog
) -> NeighbourBook | None:
    """Return what knows documents' neighbours; None if nothing is borrowed from behind them."""
    if config.reuse != "anywhere" or config.donors != "neighbours":
        return None
    return NeighbourBook(None if backend.reads_text else backend.tokenize, forgotten)


def _make_ordering(config: EngineConfig, limits: ModelLimits) -> DocumentOrdering | None:
    """Return what orders the documents of a search; None if they stay as they were retrieved."""
    if config.document_order == "retrieved":
        return None
    capacity_tokens = limits.device_tokens + limits.host_tokens
    return DocumentOrdering(config.document_order, capacity_tokens, policy_of_tiers(config.policy))


def _require_ids(document_ids: Iterable[str]) -> list[str]:
    if isinstance(document_ids, str):
        raise InvalidArgument(f"forget takes a sequence of ids: forget([{document_ids!r}])")
    ids = require_items(document_ids, str, "document_ids", "forget takes ids of documents")
    return [require_text(one, "a document's id") for one in ids]
