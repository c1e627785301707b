"""One retrieval chain, built three times: on stock LangChain, LangChain with RAGCache, and LlamaIndex.

All three search the same Faiss index and write the same prompt, to the character. So their answers and
their times can be compared. The two on RAGCache can share an engine, exact or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from ragcache_cli.errors import CommandError
from ragcache_cli.extras import needed
from ragcache_cli.measurements import Asked, PassageSource, Side
from ragcache_cli.prompts import BETWEEN_PASSAGES, PromptForm
from ragcache_engine import CachedTokens, EngineStartFailed, FinishedRequest, RAGCacheEngine, Tier

TOP_K = 5
UNCUT_TOKENS = 1 << 20
WARM_UP = "Hello."
"""A question shorter than a block: it readies the engine and leaves nothing in the cache."""

Say = Callable[[str], None]


class Chain(Protocol):
    """Answers questions one at a time.

    name: the side's name in tables and pictures. model: what runs its model; sides may share it.
    """

    name: str

    @property
    def model(self) -> object: ...

    def ask(self, question: str, say: Say) -> Asked:
        """Answer a question. `say` is called with each piece of the text as it arrives."""
        ...


def langchain_chain(retriever: Any, llm: Any, form: PromptForm) -> Any:
    """Build the chain of every LangChain tutorial from a retriever and an LLM, stock or RAGCache's."""
    with needed("the LangChain chain"):
        from langchain_core.output_parsers import StrOutputParser
        from langchain_core.prompts import PromptTemplate
        from langchain_core.runnables import RunnablePassthrough

    def join_documents(documents: list[Any]) -> str:
        return BETWEEN_PASSAGES.join(document.page_content for document in documents)

    template = PromptTemplate.from_template(
        _double_braces(form.before)
        + "{context}"
        + _double_braces(form.between)
        + "{question}"
        + _double_braces(form.after)
    )
    inputs = {"context": retriever | join_documents, "question": RunnablePassthrough()}
    return inputs | template | llm | StrOutputParser()


def _double_braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


@dataclass(frozen=True, slots=True)
class StockSettings:
    """Settings of stock vLLM. dtype: as vLLM spells it. context_tokens: of a prompt, and of a step."""

    model: str
    dtype: str
    context_tokens: int
    device_cache_bytes: int
    max_tokens: int


class StockLangChain:
    """LangChain with its own VLLM class: prefix caching on, vLLM's default block size.

    LangChain's VLLM gives the whole answer at once; what it has said so far is heard from vLLM itself.
    Call `search` before `ask`. `close` ends vLLM's processes. Raises MissingExtra, and EngineStartFailed
    if vLLM does not start.
    """

    name = Side.STOCK.value

    def __init__(self, settings: StockSettings) -> None:
        with needed("the stock side"):
            import vllm  # noqa: F401
            from langchain_community.llms import VLLM
        try:
            llm: Any = VLLM(
                model=settings.model,
                temperature=0,
                max_new_tokens=settings.max_tokens,
                dtype=settings.dtype,
                vllm_kwargs={
                    "enforce_eager": True,
                    "kv_cache_memory_bytes": settings.device_cache_bytes,
                    "max_model_len": settings.context_tokens,
                    "max_num_batched_tokens": settings.context_tokens,
                    "disable_log_stats": False,  # the time to first token comes with them
                },
            )
        except Exception as error:  # vLLM raises what its many parts raise
            reason = str(error).strip().split("\n")[0]
            raise EngineStartFailed(
                f"stock vLLM did not start {settings.model}: {reason} (`ragcache doctor` checks "
                f"the machine, and VLLM_LOGGING_LEVEL=INFO shows vLLM's log)"
            ) from error
        self._llm = self.model = llm
        self._client = llm.client = _RecordingClient(llm.client)
        llm.invoke(WARM_UP)

    def search(self, store: Any, form: PromptForm) -> None:
        """Answer from this store from now on, with prompts of this form."""
        retriever = store.as_retriever(search_kwargs={"k": TOP_K})
        self._chain = langchain_chain(retriever, self._llm, form)
        retriever.invoke(WARM_UP)

    def ask(self, question: str, say: Say) -> Asked:
        asked_at_s = time.time()  # vLLM stamps arrivals with this clock
        with self._client.said_to(say):
            answer = self._chain.invoke(question)
        output = self._client.last
        return Asked(
            question=question,
            prompt=output.prompt,
            answer=answer,
            ttft_s=stock_ttft_s(output.metrics, asked_at_s),
            prompt_tokens=len(output.prompt_token_ids),
            cached=CachedTokens(device=output.num_cached_tokens or 0),
        )

    def close(self) -> None:
        self._client.close()


def stock_ttft_s(metrics: Any, asked_at_s: float) -> float:
    """Compute the seconds from the question to the first token.

    asked_at_s: time.time() of the question. Until the request arrives at vLLM, the chain retrieves and
    writes the prompt. From then on vLLM measures up to its first token, tokenizing included.
    Raises CommandError if vLLM kept no statistics.
    """
    if metrics is None or not metrics.first_token_latency:
        raise CommandError("this vLLM reports no time to first token; `ragcache doctor` says why")
    return float(metrics.arrival_time - asked_at_s + metrics.first_token_latency)


class _RecordingClient:
    """Stands for vLLM's LLM, and says an answer while it arrives, because LangChain waits for its end.

    It runs the LLM's own engine step by step, as `LLM.generate` does. last: vLLM's last output.
    """

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._say: Say | None = None
        self._number = 0
        self.last: Any = None

    @contextmanager
    def said_to(self, say: Say) -> Iterator[None]:
        """Call `say` with the pieces of the answers of this block."""
        self._say = say
        try:
            yield
        finally:
            self._say = None

    def generate(self, prompts: Sequence[str], sampling_params: Any) -> list[Any]:
        return [self._answer(prompt, sampling_params) for prompt in prompts]

    def _answer(self, prompt: str, sampling_params: Any) -> Any:
        engine, said = self._llm.llm_engine, 0
        self._number += 1
        engine.add_request(f"demo-{self._number}", prompt, sampling_params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                text = output.outputs[0].text  # all of it so far, which is vLLM's default
                if self._say and len(text) > said:
                    self._say(text[said:])
                    said = len(text)
                self.last = output
        return self.last

    def close(self) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()


class RAGCacheLangChain:
    """The stock chain with two classes swapped: the retriever and the LLM.

    is_exact: borrow nothing from other contexts, even if the engine would.
    """

    def __init__(
        self,
        store: Any,
        engine: RAGCacheEngine,
        form: PromptForm,
        max_tokens: int,
        *,
        is_exact: bool = True,
    ) -> None:
        with needed("the LangChain chain"):
            from ragcache_integrations.langchain import RAGCacheLLM, RAGCacheRetriever
        self.name = _side_of(is_exact)
        self.model = engine
        retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=TOP_K)
        llm = RAGCacheLLM(engine=engine, max_new_tokens=max_tokens, temperature=0, exact=is_exact)
        self._chain = langchain_chain(retriever, llm, form)

    def ask(self, question: str, say: Say) -> Asked:
        heard = _langchain_listener()
        pieces = []
        for piece in self._chain.stream(question, config={"callbacks": [heard]}):
            say(piece)
            pieces.append(piece)
        return _measured_answer(question, heard, "".join(pieces), self.model)


class RAGCacheLlamaIndex:
    """The same retrieval and prompt in a LlamaIndex query engine, in its "compact" mode.

    is_exact: as for RAGCacheLangChain.
    """

    def __init__(
        self,
        index: Any,
        engine: RAGCacheEngine,
        form: PromptForm,
        max_tokens: int,
        *,
        is_exact: bool = True,
    ) -> None:
        with needed("the LlamaIndex query engine"):
            from llama_index.core import PromptTemplate, get_response_synthesizer
            from llama_index.core.callbacks import CallbackManager
            from llama_index.core.indices.prompt_helper import PromptHelper
            from llama_index.core.query_engine import RetrieverQueryEngine
            from llama_index.core.response_synthesizers import ResponseMode

            from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever
        self.name = _side_of(is_exact)
        self.model = engine
        self._listener = _llamaindex_listener()
        listening = CallbackManager([self._listener])
        retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=TOP_K)
        llm = RAGCacheLLM(
            engine=engine,
            max_new_tokens=max_tokens,
            temperature=0,
            exact=is_exact,
            callback_manager=listening,
        )
        synthesizer = get_response_synthesizer(
            llm=llm,
            callback_manager=listening,  # the synthesizer gives its own to the LLM
            response_mode=ResponseMode.COMPACT,
            streaming=True,
            text_qa_template=PromptTemplate(
                f"{form.before}{{context_str}}{form.between}{{query_str}}{form.after}"
            ),
            # "compact" cuts passages to a context that it assumes, with the tokenizer of another model.
            # This setting prevents that; the engine refuses a prompt that is too long.
            prompt_helper=PromptHelper(context_window=UNCUT_TOKENS, num_output=max_tokens),
        )
        self._query_engine = RetrieverQueryEngine(retriever, response_synthesizer=synthesizer)

    def ask(self, question: str, say: Say) -> Asked:
        pieces = []
        response: Any = self._query_engine.query(question)  # streaming, as asked for above
        for piece in response.response_gen:
            say(piece)
            pieces.append(piece)
        answer = "".join(pieces)
        return _measured_answer(question, self._listener, answer, self.model)


def _side_of(is_exact: bool) -> str:
    return (Side.EXACT if is_exact else Side.ANYWHERE).value


def _langchain_listener() -> Any:
    """Make a callback handler that keeps the prompt as the model gets it, and the answer's cost."""
    from langchain_core.callbacks import BaseCallbackHandler

    class Listener(BaseCallbackHandler):
        def __init__(self) -> None:
            self.prompt = ""
            self.cost: dict[str, Any] = {}

        def on_llm_start(self, serialized: Any, prompts: list[str], **kwargs: Any) -> None:
            (self.prompt,) = prompts

        def on_llm_end(self, response: Any, **kwargs: Any) -> None:
            info = response.generations[0][0].generation_info or {}
            self.cost = {**info, "prompt_tokens": info["usage_metadata"]["input_tokens"]}

    return Listener()


def _llamaindex_listener() -> Any:
    """Make such a handler for LlamaIndex: one handler gets the events of all queries."""
    from llama_index.core.callbacks import CBEventType, EventPayload
    from llama_index.core.callbacks.base_handler import BaseCallbackHandler

    class Listener(BaseCallbackHandler):
        def __init__(self) -> None:
            super().__init__(event_starts_to_ignore=[], event_ends_to_ignore=[])
            self.prompt = ""
            self.cost: dict[str, Any] = {}

        def on_event_start(
            self, event_type: Any, payload: Any = None, event_id: str = "", *_: Any, **__: Any
        ) -> str:
            return event_id

        def on_event_end(
            self, event_type: Any, payload: Any = None, event_id: str = "", **_: Any
        ) -> None:
            if event_type == CBEventType.LLM and payload:
                self.prompt = payload[EventPayload.PROMPT]
                self.cost = payload[EventPayload.COMPLETION].additional_kwargs

        def start_trace(self, trace_id: str | None = None) -> None: ...

        def end_trace(self, trace_id: str | None = None, trace_map: Any = None) -> None: ...

    return Listener()


def _measured_answer(question: str, heard: Any, answer: str, engine: RAGCacheEngine) -> Asked:
    """Make an Asked of an answer, of its cost and of what the engine remembers of the request.

    heard: one of the listeners.
    """
    if "ttft_s" not in heard.cost:
        raise CommandError("the answer came without what it cost; please report this")
    request = engine.recent_requests()[-1]
    return Asked(
        question=question,
        prompt=heard.prompt,
        answer=answer,
        ttft_s=heard.cost["ttft_s"],
        prompt_tokens=heard.cost["prompt_tokens"],
        cached=CachedTokens(**{t.value: heard.cost[f"cached_tokens_{t.value}"] for t in Tier}),
        borrowed=request.usage.borrowed,
        passages=describe_passages(request),
    )


def describe_passages(request: FinishedRequest) -> tuple[PassageSource, ...]:
    """Say for each document of an answered request where its tensors came from."""
    borrowed = {one.document: one for one in request.usage.reused if one.borrowed}
    return tuple(
        PassageSource(one.document_id, one.tokens, one.cached)
        if (reuse := borrowed.get(one.document_id)) is None
        else PassageSource(
            one.document_id,
            one.tokens,
            one.cached,
            borrowed=reuse.borrowed,
            recomputed=reuse.recomputed,
            tier=reuse.tier,
        )
        for one in request.documents
    )
