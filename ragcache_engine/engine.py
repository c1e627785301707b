"""RAGCacheEngine: takes prompts in, hands answers out, and wires the parts together."""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import weakref
from collections.abc import (
    AsyncGenerator,
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from types import TracebackType
from typing import Any, Self

from ragcache_engine.backends.choice import choose_backend
from ragcache_engine.chat import (
    GuidedReader,
    ToolReader,
    call_guide,
    check_messages,
    describe_tools,
)
from ragcache_engine.config import EngineConfig
from ragcache_engine.document_order import DocumentOrdering
from ragcache_engine.errors import (
    EmptyPrompt,
    EngineClosed,
    EngineDied,
    EngineError,
    PromptTooLong,
    RAGCacheError,
    RefusedMessages,
    UnknownTemplate,
)
from ragcache_engine.knowledge import policy_of_tiers
from ragcache_engine.loop import LoopThread
from ragcache_engine.prompt import (
    PromptMatch,
    Render,
    Retrieval,
    RetrievalLog,
    TemplateBook,
    as_render,
    find_documents,
    token_segments,
)
from ragcache_engine.protocols import Backend, BackendRequest, Conversation
from ragcache_engine.retry import Heartbeat, answered
from ragcache_engine.speculation import Pipeline, TrackedSearch
from ragcache_engine.streams import AnswerStream, Item, joined, read_async
from ragcache_engine.values import (
    Answer,
    CachedTokens,
    CacheStats,
    ChatPrompt,
    Document,
    ModelLimits,
    Piece,
    SamplingOptions,
    SpeculationOutcome,
    TokenizedPrompt,
    Usage,
)
from ragcache_engine.warming import Warmed, head, progress_bar, resolved

logger = logging.getLogger(__name__)

WARM_AT_ONCE = 4
"""Prompts in the engine at a time while warming: enough for full steps, few beside real questions."""


class RAGCacheEngine:
    """A language model in the caller's process that knows which part of a prompt is which document.

    One engine serves any number of threads, event loops, chains and query engines at once. Use it as
    a context manager, or call close(); at interpreter exit it closes by itself.

        >>> config = EngineConfig(model="any", backend="memory")    # a real one: model="org/name"
        >>> with RAGCacheEngine(config) as engine:
        ...     engine.generate("Why is the sky blue?").text
        'You asked: Why is the sky blue?'

    Raises when made: ConfigError and its kinds for settings that cannot work; EngineStartFailed if
    the model does not come up. Making one takes as long as the model takes to load.
    backend: an instance to use instead of the one the configuration names, such as a MemoryBackend
      with replies of your own.
    """

    def __init__(self, config: EngineConfig, *, backend: Backend | None = None) -> None:
        self.config = config
        self._runtime = _Runtime(backend or choose_backend(config), config)
        self._retrievals = RetrievalLog()
        self._takes_tools: bool | None = None
        # Not bound to self: the engine must be collectable while its runtime waits to be closed.
        self._finalizer = weakref.finalize(self, self._runtime.close)
        try:
            self.limits: ModelLimits = self._runtime.start()
        except BaseException:
            self._finalizer()
            raise

    def generate(
        self,
        prompt: str,
        documents: Sequence[Document] | None = None,
        options: SamplingOptions | None = None,
        *,
        tenant: str | None = None,
    ) -> Answer:
        """Answer a finished prompt.

        documents: what stands in the prompt, in any order, texts as they stand there. None: the
          engine looks for what was lately retrieved through it (see `retrieval`).
        options: how to draw the answer; greedy by default.
        tenant: whose tensors may be shared; requests of another tenant, or of none, never share.
        Raises EmptyPrompt, PromptTooLong or UnsupportedGuide before any work; EngineClosed, EngineDied,
        GenerationFailed or RequestTimedOut.

            >>> tides = Document("tides", "The moon pulls the oceans, and the tides follow it. " * 9)
            >>> with RAGCacheEngine(EngineConfig(model="any", backend="memory")) as engine:
            ...     first = engine.generate(f"{tides.text}\\n\\nWhy?", [tides])
            ...     second = engine.generate(f"{tides.text}\\n\\nWhen?", [tides])
            >>> second.usage.prompt_tokens, first.usage.cached.total, second.usage.cached.total
            (110, 0, 96)
        """
        with self.stream(prompt, documents, options, tenant=tenant) as pieces:
            return pieces.answer()

    def stream(
        self,
        prompt: str,
        documents: Sequence[Document] | None = None,
        options: SamplingOptions | None = None,
        *,
        tenant: str | None = None,
    ) -> AnswerStream:
        """Answer a finished prompt piece by piece. Bad input raises here, not at the first piece.

        Takes and raises what `generate` does. Close the stream to cancel the request.

            >>> with RAGCacheEngine(EngineConfig(model="any", backend="memory")) as engine:
            ...     with engine.stream("Why is the sky blue?") as pieces:
            ...         for piece in pieces:
            ...             print(piece.text, end="|")
            You| asked|:| Why| is| the| sky| blue|?|
        """
        prepared = self._prepare(prompt, documents, options, tenant)
        return AnswerStream(lambda put: self._runtime.begin(prepared, put), keep_alive=self)

    async def agenerate(
        self,
        prompt: str,
        documents: Sequence[Document] | None = None,
        options: SamplingOptions | None = None,
        *,
        tenant: str | None = None,
    ) -> Answer:
        """`generate` for coroutines, from any event loop. Cancelling the task cancels the request.

        >>> async def both():
        ...     with RAGCacheEngine(EngineConfig(model="any", backend="memory")) as engine:
        ...         asked = [engine.agenerate("Why?"), engine.agenerate("When?")]
        ...         return [answer.text for answer in await asyncio.gather(*asked)]
        >>> asyncio.run(both())
        ['You asked: Why?', 'You asked: When?']
        """
        stream = self.astream(prompt, documents, options, tenant=tenant)
        try:
            return joined([piece async for piece in stream])
        finally:
            await stream.aclose()

    async def astream(
        self,
        prompt: str,
        documents: Sequence[Document] | None = None,
        options: SamplingOptions | None = None,
        *,
        tenant: str | None = None,
    ) -> AsyncGenerator[Piece, None]:
        """`stream` for coroutines, from any event loop. Closing it cancels the request.

        >>> async def first_words():
        ...     with RAGCacheEngine(EngineConfig(model="any", backend="memory")) as engine:
        ...         async with aclosing(engine.astream("Why is the sky blue?")) as pieces:
        ...             return [await anext(pieces) for _ in range(2)]     # then: cancelled
        >>> [piece.text for piece in asyncio.run(first_words())]
        ['You', ' asked']
        """
        # Tokenising a long prompt takes milliseconds that belong to the caller's other tasks.
        prepared = await asyncio.to_thread(self._prepare, prompt, documents, options, tenant)
        pieces = read_async(lambda put: self._runtime.begin(prepared, put))
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    def tokenize(self, prompt: str, *, add_special_tokens: bool = True) -> TokenizedPrompt:
        """The prompt's tokens exactly as the model reads them, with the characters they stand for.

        add_special_tokens: as in SamplingOptions; a ChatPrompt gets none in any case.

            >>> with RAGCacheEngine(EngineConfig(model="any", backend="memory")) as engine:
            ...     engine.tokenize("Why so blue?").offsets
            [(0, 3), (3, 6), (6, 11), (11, 12)]
        """
        if isinstance(prompt, ChatPrompt):
            return self._runtime.tokenize(str(prompt), False)
        return self._runtime.tokenize(prompt, add_special_tokens)

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_args: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """A conversation as the prompt that the model was trained on, by its own chat template.

            prompt = engine.chat_prompt([{"role": "user", "content": "Why is the sky blue?"}])
            answer = engine.generate(prompt, documents)

        The request then has the very tokens that vLLM's own chat endpoint would make of it. Call it
        as often as you like: nothing is computed.
        messages: as in OpenAI's chat API; the contents are texts.
        tools: functions the model may call, as in that API: {"type": "function", "function": {...}}.
          Where the template has no place for them they are described in the system message.
        add_generation_prompt: end with what begins the assistant's answer.
        continue_final_message: leave the last message open, for the model to go on with it; then
          there is no generation prompt.
        template_args: further variables of the template, such as {"enable_thinking": False}.
        Raises NoChatTemplate, or RefusedMessages for what the template cannot write.
        """
        if continue_final_message and add_generation_prompt:
            raise RefusedMessages(
                "a message that is gone on with needs no new answer begun: with "
                "continue_final_message=True, set add_generation_prompt=False"
            )
        conversation = Conversation(
            messages=check_messages(messages),
            tools=list(tools or ()),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template=self.config.chat_template,
            template_args=dict(template_args or {}),
        )
        speaks_of_tools = tools or any(m["role"] == "tool" or m.get("tool_calls") for m in messages)
        if speaks_of_tools and not self.takes_tools:
            in_words = describe_tools(conversation.messages, conversation.tools)
            conversation = replace(conversation, messages=in_words, tools=())
        return ChatPrompt(self._runtime.render(conversation))

    @property
    def takes_tools(self) -> bool:
        """Whether the model's chat template has a place for tools.

        For others, `chat_prompt` describes them in the system message; how well a model then calls
        them is up to the model. Raises NoChatTemplate.
        """
        if self._takes_tools is None:
            probe = {"name": "is_there_a_place", "description": "", "parameters": {}}
            conversation = Conversation(
                [{"role": "user", "content": "Hello."}],
                [{"type": "function", "function": probe}],
                template=self.config.chat_template,
            )
            try:
                self._takes_tools = str(probe["name"]) in self._runtime.render(conversation)
            except RefusedMessages:
                self._takes_tools = False
        return self._takes_tools

    def tool_options(
        self,
        options: SamplingOptions,
        tools: Sequence[Mapping[str, Any]],
        *,
        must_call: bool = False,
        name: str | None = None,
    ) -> SamplingOptions:
        """The options for an answer of a model that may call these tools, or must.

        must_call: the answer is held to be a call of one of them, or of the one named: any model
          then makes a sound call, if max_tokens leaves room for it.
        Raises BadRequest if there is no such tool.
        """
        if must_call or name is not None:
            return replace(options, guide=call_guide(tools, name))
        if self.config.tool_parser is not None:
            return replace(options, skip_special_tokens=False)
        return options

    def tool_reader(
        self, tools: Sequence[Mapping[str, Any]], *, must_call: bool = False
    ) -> ToolReader:
        """What reads the calls out of one answer, whole or as it comes; see `tool_options`.

        reader = engine.tool_reader(tools)
        answer = reader.whole(engine.generate(prompt, options=options).text)
        answer.text, answer.calls
        """
        return GuidedReader() if must_call else self._runtime.tool_reader(tools)

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
        """Tell the engine of a search, so that it recognises the documents in the prompt to come.

            >>> question, tides = "Why are there tides?", Document("tides", "They follow the moon.")
            >>> with RAGCacheEngine(EngineConfig(model="any", backend="memory")) as engine:
            ...     with engine.retrieval(question) as retrieval:
            ...         retrieval.provisional([tides])     # as often as the search has something
            ...         retrieval.found([tides])
            ...     engine.generate(f"{tides.text}\\n\\n{question}").usage.document_ids
            ('tides',)

        The time inside the block counts into the TTFT of the first prompt made from the documents.
        If the block raises, nothing is remembered.
        chain: tells apart what makes prompts of the documents, such as an object for each retriever:
          the engine learns what the prompts of each look like, to answer them before they come.
        template: what they look like, if that is known: a text such as "{context}\\n\\n{question}", a
          Template, or a function (question, documents) -> prompt. A wrong one costs time only.
        options: those the first prompt will come with, if that is known; later ones are learned.
        tenant: that of the prompt; what is begun for another one is of no use to it.
        Raises ValueError for a text that is no template.
        """
        render = None if template is None else as_render(template)
        search = self._runtime.search(question, chain, render, options, tenant)
        started_s = search.started_s if search else self._runtime.now()
        stage = partial(self._runtime.stage, search) if search else _ignore_stage
        order = partial(self._runtime.ordering.positions, chain=chain)
        in_progress = RetrievalInProgress(question, started_s, _stage=stage, _order=order)
        try:
            yield in_progress
        except BaseException:
            in_progress.documents = ()
            raise
        finally:
            if search and not in_progress.documents:
                self._runtime.abandon(search)
        if in_progress.documents:
            self._retrievals.add(
                Retrieval(
                    question,
                    in_progress.documents,
                    in_progress.started_s,
                    chain,
                    render,
                    search.number if search else None,
                )
            )

    def warm(
        self,
        document_sets: Iterable[Sequence[Document | str]],
        *,
        template: str | Render | None = None,
        chain: Hashable = None,
        corpus: Iterable[Document] = (),
        tenant: str | None = None,
        progress: bool = False,
    ) -> Warmed:
        """Prefill sets of documents, such as those at the top of a query log, before they are asked for.

            >>> sea = [Document("tides", "They follow the moon. " * 9), Document("salt", "It stays.")]
            >>> with RAGCacheEngine(EngineConfig(model="any", backend="memory")) as engine:
            ...     engine.warm([["tides", "salt"]], template="{context}\\n\\n{question}", corpus=sea)
            Warmed(sets=1, prompt_tokens=46, computed_tokens=46)

        document_sets: each in the order in which prompts will have it; ids, or Documents with the texts
          as they will stand in the prompt.
        template, chain: what the prompts look like, see `retrieval`; None: as learned from the chain's
          prompts so far. Only what stands before the question can be prefilled for all questions.
        corpus: where the texts of ids are; those lately retrieved are known anyway.
        progress: show a bar on standard error.
        It counts as a use of the documents. With a disk cache, a later process finds them too.
        Raises UnknownDocument or UnknownTemplate before any work.
        """
        known = {d.id: d for d in (*self._retrievals.documents(), *corpus)}
        sets = resolved(document_sets, known)
        heads = [(self._head(each, template, chain, tenant), each) for each in sets if each]
        options = SamplingOptions(max_tokens=1)

        def prefill(one: tuple[str, Sequence[Document]]) -> Usage:
            return self.generate(one[0], one[1], options, tenant=tenant).usage

        warmed = Warmed()
        with (
            progress_bar(len(heads), progress) as advance,
            ThreadPoolExecutor(WARM_AT_ONCE) as pool,
        ):
            for usage in pool.map(prefill, heads):
                warmed = warmed.after(usage)
                advance()
        return warmed

    def _head(
        self,
        documents: Sequence[Document],
        template: str | Render | None,
        chain: Hashable,
        tenant: str | None,
    ) -> str:
        render = (
            self._runtime.template_of(chain, tenant) if template is None else as_render(template)
        )
        text = head(render, documents) if render else None
        if text is None:
            raise UnknownTemplate(
                "it is not known what the prompts will look like before the question: give template=, "
                'such as "{context}\n\nQuestion: {question}", with the documents before the question'
            )
        return text

    def forget(self, document_ids: Iterable[str]) -> None:
        """A document changed or must go: drop its tensors, and all computed after them, everywhere.

        Every tier forgets, the files of a disk cache included, whoever wrote them. What running
        requests need goes when they end. An id that is not known is none to forget.

            >>> tides = Document("tides", "The moon pulls the oceans, and the tides follow it. " * 9)
            >>> with RAGCacheEngine(EngineConfig(model="any", backend="memory")) as engine:
            ...     _ = engine.generate(tides.text, [tides])
            ...     engine.forget(["tides"])
            ...     engine.generate(tides.text, [tides]).usage.cached.total
            0
        """
        self._runtime.forget(_all_ids(document_ids))

    def clear_cache(self) -> None:
        """Drop all cached key-value tensors from device and host, as before a cold measurement.

        What is on disk stays; `forget` removes single documents there.
        Raises EngineError while requests run, and then drops nothing.
        """
        self._runtime.clear_cache()

    def stats(self) -> CacheStats:
        """Counters since the engine started.

        >>> with RAGCacheEngine(EngineConfig(model="any", backend="memory")) as engine:
        ...     _ = engine.generate("Why is the sky blue?")
        ...     stats = engine.stats()
        >>> stats.finished, stats.prompt_tokens, stats.hit_ratio()
        (1, 6, 0.0)
        """
        return self._runtime.latest_stats()

    def close(self) -> None:
        """End running requests with EngineClosed and free everything. A second call does nothing."""
        self._finalizer()

    @property
    def closed(self) -> bool:
        return not self._finalizer.alive

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _prepare(
        self,
        prompt: str,
        documents: Sequence[Document] | None,
        options: SamplingOptions | None,
        tenant: str | None,
    ) -> _Prepared:
        """Check and tokenise a prompt, and find its documents. Any thread; starts nothing."""
        asked_s = self._runtime.now()
        if not isinstance(prompt, str):
            raise TypeError(f"a prompt is a string, got {type(prompt).__name__}")
        options = options or SamplingOptions()
        if isinstance(prompt, ChatPrompt):
            prompt, options = str(prompt), replace(options, add_special_tokens=False)
        if options.guide:
            self._runtime.check(options)
        tokenized = self.tokenize(prompt, add_special_tokens=options.add_special_tokens)
        if not len(tokenized):
            raise EmptyPrompt(
                "the prompt is empty: check what your prompt template was filled with"
            )
        if len(tokenized) >= self.limits.context_tokens:
            raise PromptTooLong(
                f"the prompt has {len(tokenized)} tokens, and the model's context of "
                f"{self.limits.context_tokens} leaves no room for an answer; retrieve fewer or "
                f"shorter documents, or raise max_model_len in vllm_args"
            )
        if documents is None:
            match = self._retrievals.match(prompt)
        else:
            match = PromptMatch(find_documents(prompt, documents))
        return _Prepared(
            request=BackendRequest(
                request_id=self._runtime.next_request_id(),
                prompt=tokenized,
                segments=token_segments(tokenized, match.spans),
                options=options,
                tenant=tenant,
            ),
            document_ids=tuple(span.document_id for span in match.spans),
            asked_s=asked_s,
            retrieval=match.retrieval,
        )


def _ignore_stage(documents: Sequence[Document], final: bool) -> None:
    """Without speculation, stages say nothing."""


def _as_they_are(documents: Sequence[Document]) -> list[int]:
    return list(range(len(documents)))


def _all_ids(document_ids: Iterable[str]) -> list[str]:
    if isinstance(document_ids, str):
        raise TypeError(f"forget takes a sequence of ids: forget([{document_ids!r}])")
    return list(document_ids)


@dataclass(slots=True)
class RetrievalInProgress:
    """A search the engine was told of; see RAGCacheEngine.retrieval."""

    question: str
    started_s: float
    documents: tuple[Document, ...] = ()
    _stage: Callable[[Sequence[Document], bool], None] = field(default=_ignore_stage, repr=False)
    _order: Callable[[Sequence[Document]], list[int]] = field(default=_as_they_are, repr=False)

    def order(self, documents: Sequence[Document]) -> list[int]:
        """The places of these documents, nearest first, in the order the prompt is to have them.

        As EngineConfig.document_order says; with "retrieved" as they are. Whoever follows it tells the
        engine of documents in that order, and hands them on so.
        """
        return self._order(documents)

    def provisional(self, documents: Sequence[Document]) -> None:
        """What the search would return if it ended now, nearest first. Quick, and from any thread."""
        try:
            self._stage(tuple(documents), False)
        except Exception as error:  # nothing begun early is worth a search that fails
            logger.warning("provisional documents were ignored: %r", error)

    def found(self, documents: Sequence[Document]) -> None:
        """The final result, nearest first, each text in the form the prompt will contain."""
        self.documents = tuple(documents)
        self._stage(self.documents, True)


@dataclass(frozen=True, slots=True)
class _Prepared:
    request: BackendRequest
    document_ids: tuple[str, ...]
    asked_s: float
    retrieval: Retrieval | None


class _Runtime:
    """What lives on the engine's own event loop: the backend, the running requests, the counters."""

    def __init__(self, backend: Backend, config: EngineConfig) -> None:
        self._backend = backend
        self._heartbeat = Heartbeat(config.request_timeout_s)
        self._order, self._policy = config.document_order, config.policy
        self._speculates = config.speculation != "off"
        self._templates = TemplateBook()
        self._pipeline = Pipeline(
            backend,
            self._templates,
            is_automatic=config.speculation == "auto",
            next_request_id=self.next_request_id,
            sign_of_life=self._heartbeat.beat,
        )
        self._thread = LoopThread("ragcache-engine")
        self._tasks: set[asyncio.Task[None]] = set()
        self._request_numbers = count()
        self._closing = False
        self._close_lock = threading.Lock()
        self._starts = 0
        self._start_lock = asyncio.Lock()
        self.stats = CacheStats()

    def start(self) -> ModelLimits:
        limits = self._thread.submit(self._backend.start()).result()
        self._starts = 1
        self._pipeline.use_limits(limits)
        self.ordering = DocumentOrdering(
            self._order, limits.device_tokens + limits.host_tokens, policy_of_tiers(self._policy)
        )
        # What is registered last runs first: before multiprocessing's own exit, which would end the
        # backend's processes under running requests.
        atexit.register(self.close)
        return limits

    def now(self) -> float:
        return self._backend.now()

    def next_request_id(self) -> str:
        return f"ragcache-{next(self._request_numbers)}"

    def tokenize(self, prompt: str, add_special_tokens: bool) -> TokenizedPrompt:
        self._refuse_if_closed()
        known = self._pipeline.tokenized(prompt, add_special_tokens)
        return known or self._backend.tokenize(prompt, add_special_tokens)

    def check(self, options: SamplingOptions) -> None:
        self._refuse_if_closed()
        self._backend.check(options)

    def render(self, conversation: Conversation) -> str:
        self._refuse_if_closed()
        return self._backend.render(conversation)

    def tool_reader(self, tools: Sequence[Mapping[str, Any]]) -> ToolReader:
        self._refuse_if_closed()
        return self._backend.tool_reader(tools)

    def template_of(self, chain: Hashable, tenant: str | None) -> Render | None:
        """What a chain's prompts look like, as learned; None if that is not known."""

        def render(question: str, documents: Sequence[Document]) -> str:
            guess = self._templates.guess((chain, tenant), question, documents)
            return guess.text if guess else ""

        return render if self._templates.may_guess((chain, tenant)) else None

    # What speculation is told, from any thread; nothing of it reaches the caller as an error.

    def search(
        self,
        question: str,
        chain: Hashable,
        template: Render | None,
        options: SamplingOptions | None,
        tenant: str | None,
    ) -> TrackedSearch | None:
        if not self._speculates:
            return None
        return self._pipeline.search(question, chain, template, options, tenant)

    def stage(self, search: TrackedSearch, documents: Sequence[Document], final: bool) -> None:
        self._thread.soon(lambda: self._pipeline.stage(search, documents, final))

    def abandon(self, search: TrackedSearch) -> None:
        self._thread.soon(lambda: self._pipeline.abandon(search))

    def _learn(self, retrieval: Retrieval, request: BackendRequest) -> None:
        found = {document.id: document for document in retrieval.documents}
        names = dict.fromkeys(segment.document_id for segment in request.segments)
        self.ordering.used([found[name] for name in names if name in found], retrieval.chain)
        if not self._speculates:
            return
        try:
            self._templates.learn(
                (retrieval.chain, request.tenant),
                retrieval.question,
                retrieval.documents,
                request.prompt.text,
                request.options,
                retrieval.template,
            )
        except Exception:  # no answer depends on it
            logger.exception("could not learn from a prompt; please report this")

    def clear_cache(self) -> None:
        self._refuse_if_closed()
        if not self._thread.submit(self._clear_cache()).result():
            raise EngineError("the cache is in use by running requests; wait for them to end")

    async def _clear_cache(self) -> bool:
        await self._pipeline.end_unclaimed(SpeculationOutcome.EXPIRED)
        return await self._backend.clear_cache()

    def forget(self, document_ids: Sequence[str]) -> None:
        self._refuse_if_closed()
        self._thread.submit(self._forget(document_ids)).result()

    async def _forget(self, document_ids: Sequence[str]) -> None:
        # What nobody has asked for yet would keep the documents until it ends.
        await self._pipeline.end_unclaimed(SpeculationOutcome.EXPIRED, document_ids)
        await self._backend.forget(document_ids)

    def latest_stats(self) -> CacheStats:
        return replace(self.stats, tiers=self._backend.counters(), speculation=self._pipeline.stats)

    def _refuse_if_closed(self) -> None:
        if self._closing:
            raise EngineClosed("this engine was closed; make a new RAGCacheEngine")

    def begin(self, prepared: _Prepared, put: Callable[[Item], None]) -> Callable[[], None]:
        """Start a request from any thread. Returns what cancels it, also from any thread."""
        self._refuse_if_closed()
        future = self._thread.submit(self._run(prepared, put))

        def cancel() -> None:
            future.cancel()

        return cancel

    async def _run(self, prepared: _Prepared, put: Callable[[Item], None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.stats = replace(self.stats, running=self.stats.running + 1)
        is_counted = False
        try:
            async with aclosing(self._pieces(prepared)) as pieces:
                async for piece in pieces:
                    if piece.usage:
                        # Who has the whole answer finds it in `stats` too.
                        self._count_end(piece.usage)
                        is_counted = True
                    put(piece)
            put(None)
        except asyncio.CancelledError:
            put(EngineClosed("the engine was closed while this request ran; make a new one"))
            raise
        except Exception as error:
            if not is_counted:
                self._count_end(failed=1)
                is_counted = True
            put(error)
        finally:
            self._tasks.discard(task)
            if not is_counted:
                self._count_end(cancelled=int(task.cancelling() > 0))

    async def _pieces(self, prepared: _Prepared) -> AsyncGenerator[Piece, None]:
        request, retrieval = prepared.request, prepared.retrieval
        asked_s = retrieval.started_s if retrieval else prepared.asked_s
        cached, first_s, output_tokens = CachedTokens(), None, 0
        # Known before the first attempt: by the time a request learns of a death, others that it hit
        # may have brought the backend up again.
        on_failure = partial(self._on_failure, self._starts)
        with self._pipeline.claim(request, retrieval.search if retrieval else None) as claim:
            attempts = answered(self._backend, request, self._heartbeat, on_failure, claim.begun)
            # Beside the prefill: what a chain's prompts look like is not worth a later first token.
            loop = asyncio.get_running_loop()
            learned = retrieval and loop.run_in_executor(None, self._learn, retrieval, request)
            async with aclosing(attempts) as deltas:
                async for delta in deltas:
                    if first_s is None:
                        first_s = self.now()
                        claim.first_token(delta.cached or cached)
                    cached = delta.cached or cached
                    output_tokens += len(delta.token_ids)
                    usage = None
                    if delta.finish_reason:
                        if learned:
                            await learned  # before the chain's next question can come
                        usage = Usage(
                            prompt_tokens=len(request.prompt),
                            output_tokens=output_tokens,
                            cached=cached,
                            ttft_s=first_s - asked_s,
                            total_s=self.now() - asked_s,
                            retrieval_s=prepared.asked_s - asked_s,
                            document_ids=prepared.document_ids,
                            speculation=claim.report(),
                        )
                    if delta.text or delta.token_ids or usage:
                        yield Piece(delta.text, delta.token_ids, delta.finish_reason, usage)

    async def _on_failure(self, starts: int, failure: Exception) -> None:
        """Make a second attempt possible: bring a dead backend back up, once for all its requests.

        starts: how often the backend had been started when the request's first attempt began.
        """
        self.stats = replace(self.stats, retried=self.stats.retried + 1)
        if not isinstance(failure, EngineDied):
            return
        async with self._start_lock:
            if self._starts > starts:
                return  # another of its requests already did
            logger.warning("%s; starting it once more", failure)
            await self._pipeline.end_unclaimed(SpeculationOutcome.FAILED)
            await self._backend.close()
            try:
                await self._backend.start()
            except RAGCacheError as error:
                raise EngineDied(
                    f"the model's process died and did not come up again: {error}"
                ) from error
            self._starts += 1
            self._heartbeat.beat()  # the silence of a start is no fault of those who waited for it

    def _count_end(
        self, usage: Usage | None = None, *, failed: int = 0, cancelled: int = 0
    ) -> None:
        stats = replace(
            self.stats,
            running=self.stats.running - 1,
            failed=self.stats.failed + failed,
            cancelled=self.stats.cancelled + cancelled,
        )
        if usage:
            stats = replace(
                stats,
                finished=stats.finished + 1,
                prompt_tokens=stats.prompt_tokens + usage.prompt_tokens,
                output_tokens=stats.output_tokens + usage.output_tokens,
                cached=stats.cached + usage.cached,
            )
        self.stats = stats

    def close(self) -> None:
        with self._close_lock:
            if self._closing:
                return
            self._closing = True
        atexit.unregister(self.close)
        closing = self._thread.submit(self._close())
        if self._thread.owns_current_thread():  # the engine was dropped there: nobody can wait
            closing.add_done_callback(lambda _: self._thread.stop())
        else:
            closing.result()
            self._thread.stop()

    async def _close(self) -> None:
        tasks = [task for task in self._tasks if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._pipeline.close()
        await self._backend.close()
