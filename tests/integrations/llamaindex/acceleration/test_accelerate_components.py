"""One call swaps the retrievers and LLMs of a query engine or chat engine, and tells what it did."""

import asyncio
import logging
from typing import Any

import pytest
from llama_index.core import PromptTemplate, Settings, VectorStoreIndex
from llama_index.core.agent import ReActAgent
from llama_index.core.base.llms.types import ChatMessage, LLMMetadata, MessageRole
from llama_index.core.chat_engine import (
    CondensePlusContextChatEngine,
    CondenseQuestionChatEngine,
    ContextChatEngine,
    SimpleChatEngine,
)
from llama_index.core.evaluation import RelevancyEvaluator
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.llms import MockLLM
from llama_index.core.memory import (
    BaseMemoryBlock,
    ChatMemoryBuffer,
    Memory,
    SimpleComposableMemory,
)
from llama_index.core.postprocessor import LLMRerank, SimilarityPostprocessor
from llama_index.core.program import LLMTextCompletionProgram
from llama_index.core.query_engine import (
    CitationQueryEngine,
    CustomQueryEngine,
    MultiStepQueryEngine,
    RetrieverQueryEngine,
    RetryQueryEngine,
    RouterQueryEngine,
    SubQuestionQueryEngine,
    TransformQueryEngine,
)
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer
from llama_index.core.retrievers import AutoMergingRetriever, QueryFusionRetriever
from llama_index.core.selectors import LLMSingleSelector
from llama_index.core.tools import FunctionTool, QueryEngineTool
from pydantic import BaseModel, Field

from ragcache_engine import EngineConfig, InvalidArgument
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_integrations.acceleration import AccelerationTask, Rules
from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever, accelerate
from ragcache_integrations.llamaindex.acceleration.component_copy import (
    ComponentCopier,
)
from ragcache_integrations.llamaindex.acceleration.llms import make_our_llm
from ragcache_integrations.llamaindex.acceleration.memories import own_memory

QUESTION = "Why is the sky blue?"
STOCK = "text text"


class NamedLLM(MockLLM):
    """A stock LLM with the fields that an OpenAILike has."""

    model_name: str = "any"
    temperature: float | None = None
    logit_bias: dict[str, float] | None = None
    additional_kwargs: dict[str, Any] | None = None
    can_call: bool = False

    @property
    def metadata(self):
        return LLMMetadata(
            model_name=self.model_name,
            is_chat_model=bool(self.is_chat_model),
            is_function_calling_model=self.can_call,
        )


def named(**fields):
    llm = NamedLLM(max_tokens=fields.pop("max_tokens", None))
    for name, value in fields.items():
        setattr(llm, name, value)
    return llm


@pytest.fixture
def llm(monkeypatch):
    stock = MockLLM(max_tokens=32)
    monkeypatch.setattr(Settings, "_llm", stock)  # parts that ask the LLM nothing still take one
    return stock


@pytest.fixture
def plain_index(nodes, embeddings):
    return VectorStoreIndex(nodes, embed_model=embeddings)


@pytest.fixture
def swap(engine):
    """Accelerates, and returns the result and the report."""

    def run(component, **rules):
        reports = []
        swapped = accelerate(component, engine=engine, report=reports.append, **rules)
        (report,) = reports
        return swapped, report

    return run


def lines(report):
    """The kinds of parts that were swapped, in order, and those that were left."""
    return [each.before for each in report.swapped], [each.part for each in report.left]


@pytest.mark.parametrize("mode", ResponseMode)
def test_a_query_engine_asks_our_llm_in_every_mode_and_the_given_one_stays(
    mode, plain_index, llm, swap, recorded
):
    stock = plain_index.as_query_engine(llm=llm, response_mode=mode, similarity_top_k=2)
    swapped, report = swap(stock)
    assert type(swapped) is type(stock)
    assert lines(report) == (["VectorIndexRetriever", "MockLLM"], [])
    expected = stock.query(QUESTION)
    answers = [swapped.query(QUESTION), asyncio.run(swapped.aquery(QUESTION))]
    for answer in answers:
        assert [each.node.node_id for each in answer.source_nodes] == [
            each.node.node_id for each in expected.source_nodes
        ]
    if mode in (ResponseMode.NO_TEXT, ResponseMode.CONTEXT_ONLY):
        assert str(answers[0]) == str(expected)
        assert not recorded
    else:
        assert "You asked" in str(answers[0])
        assert str(answers[0]) == str(answers[1])
        assert STOCK in str(expected)


def test_it_streams(plain_index, llm, swap):
    swapped, _ = swap(plain_index.as_query_engine(llm=llm, streaming=True))
    assert "".join(swapped.query(QUESTION).response_gen) == "You asked: Answer:"


def test_the_retriever_of_an_index_over_faiss_is_searched_in_stages(index, llm, swap):
    stock = index.as_retriever(similarity_top_k=2)
    swapped, report = swap(stock)
    assert isinstance(swapped, RAGCacheRetriever)
    assert report.swapped[0].after == "RAGCacheRetriever.from_index"
    found = swapped.retrieve(QUESTION)
    assert [each.node_id for each in found] == [each.node_id for each in stock.retrieve(QUESTION)]
    assert list(swapped.stream_stages(QUESTION))[-1].nodes == found


def tool_of(queries):
    return QueryEngineTool.from_defaults(queries, name="world", description="The world.")


QUERY_ENGINES = {
    "citations": lambda queries, retriever, llm: CitationQueryEngine(retriever, llm=llm),
    "router": lambda queries, retriever, llm: RouterQueryEngine(
        LLMSingleSelector.from_defaults(llm=llm), [tool_of(queries)], llm=llm
    ),
    "sub-questions": lambda queries, retriever, llm: SubQuestionQueryEngine.from_defaults(
        [tool_of(queries)],
        llm=llm,
        question_gen=LLMQuestionGenerator.from_defaults(llm),
        use_async=False,
    ),
    "transform": lambda queries, retriever, llm: TransformQueryEngine(
        queries, HyDEQueryTransform(llm=llm)
    ),
    "retry": lambda queries, retriever, llm: RetryQueryEngine(queries, RelevancyEvaluator(llm=llm)),
    "reranked": lambda queries, retriever, llm: RetrieverQueryEngine.from_args(
        retriever, llm=llm, node_postprocessors=[LLMRerank(llm=llm)]
    ),
    "fusion": lambda queries, retriever, llm: RetrieverQueryEngine.from_args(
        QueryFusionRetriever([retriever], llm=llm), llm=llm
    ),
    "tool": lambda queries, retriever, llm: tool_of(queries),
    "synthesizer": lambda queries, retriever, llm: get_response_synthesizer(llm=llm),
    "agent": lambda queries, retriever, llm: ReActAgent(tools=[tool_of(queries)], llm=llm),
    "condensing chat": lambda queries, retriever, llm: CondenseQuestionChatEngine.from_defaults(
        queries, llm=llm
    ),
}


def llms_in(part, seen):
    """Every LLM that can be reached from a component."""
    if id(part) in seen:
        return
    seen[id(part)] = part
    if isinstance(part, (MockLLM, RAGCacheLLM)):
        yield part
    elif isinstance(part, dict):
        for value in part.values():
            yield from llms_in(value, seen)
    elif isinstance(part, (list, tuple)):
        for value in part:
            yield from llms_in(value, seen)
    elif type(part).__module__.startswith(("llama_index.core", "ragcache_integrations")):
        yield from llms_in(getattr(part, "__dict__", {}), seen)
        yield from llms_in(getattr(part, "__pydantic_private__", None) or {}, seen)
    elif hasattr(part, "__self__"):
        yield from llms_in(part.__self__, seen)


@pytest.mark.parametrize("kind", QUERY_ENGINES)
def test_no_stock_llm_is_left_in_it_and_none_of_ours_gets_into_the_given_one(
    kind, plain_index, llm, swap
):
    retriever = plain_index.as_retriever(similarity_top_k=2)
    queries = RetrieverQueryEngine.from_args(retriever, llm=llm)
    stock = QUERY_ENGINES[kind](queries, retriever, llm)
    swapped, report = swap(stock)
    assert report.is_complete, str(report)
    assert type(swapped) is type(stock)
    assert {type(each) for each in llms_in(swapped, {})} == {RAGCacheLLM}
    assert {type(each) for each in llms_in(stock, {})} == {MockLLM}


def test_a_retriever_of_retrievers_is_swapped_as_a_whole(plain_index, llm, swap):
    retriever = plain_index.as_retriever()
    merging = AutoMergingRetriever(retriever, plain_index.storage_context)
    _, report = swap(RetrieverQueryEngine.from_args(merging, llm=llm))
    assert lines(report) == (["AutoMergingRetriever", "MockLLM"], [])


def test_a_retriever_that_holds_one_of_ours_is_left(index, plain_index, engine, llm, swap):
    ours = RAGCacheRetriever.from_index(index, engine=engine)
    mixed = QueryFusionRetriever([ours, plain_index.as_retriever()], llm=llm)
    swapped, report = swap(mixed)
    assert lines(report) == (["MockLLM"], ["QueryFusionRetriever"])
    assert "tells the engine already" in report.left[0].reason
    assert isinstance(swapped, QueryFusionRetriever)


def test_the_retriever_of_an_index_server_is_ours_already(
    plain_index, embeddings, engine, llm, swap
):
    ours = RAGCacheRetriever.from_server("http://host:8100", engine=engine, embed_model=embeddings)
    swapped, report = swap(RetrieverQueryEngine.from_args(ours, llm=llm))
    assert swapped.retriever is ours
    assert lines(report) == (["MockLLM"], [])
    mixed = QueryFusionRetriever([ours, plain_index.as_retriever()], llm=llm)
    assert "tells the engine already" in swap(mixed)[1].left[0].reason


def test_parts_that_are_shared_stay_shared(plain_index, llm, swap):
    queries = plain_index.as_query_engine(llm=llm)
    stock = RouterQueryEngine(
        LLMSingleSelector.from_defaults(llm=llm), [tool_of(queries), tool_of(queries)], llm=llm
    )
    swapped, _ = swap(stock)
    one, other = swapped._query_engines
    assert one is other
    assert len({id(each) for each in llms_in(swapped, {})}) == 1


CHATS = {
    "simple": lambda retriever, llm, memory: SimpleChatEngine.from_defaults(llm=llm, memory=memory),
    "context": lambda retriever, llm, memory: ContextChatEngine.from_defaults(
        retriever, llm=llm, memory=memory
    ),
    "condense plus context": lambda retriever, llm, memory: (
        CondensePlusContextChatEngine.from_defaults(retriever, llm=llm, memory=memory)
    ),
}
MEMORIES = {
    "the default": lambda: None,
    "a buffer": ChatMemoryBuffer.from_defaults,
    "a memory": Memory.from_defaults,
    "a memory of memories": SimpleComposableMemory.from_defaults,
}


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", CHATS)
def test_a_chat_engine_goes_on_from_its_history_with_a_memory_of_its_own(
    kind, memory, plain_index, llm, swap
):
    stock = CHATS[kind](plain_index.as_retriever(), llm, MEMORIES[memory]())
    stock.chat("First?")
    swapped, report = swap(stock)
    assert report.is_complete
    swapped.chat("Second?")
    swapped.chat("Third?")
    said = [each.content for each in swapped.chat_history if each.role == MessageRole.USER]
    assert said == ["First?", "Second?", "Third?"]
    assert len(stock.chat_history) == 2
    stock.chat("Fourth?")
    assert len(swapped.chat_history) == 6


def test_every_source_of_a_memory_of_memories_is_its_own():
    stock = SimpleComposableMemory.from_defaults(
        secondary_memory_sources=[ChatMemoryBuffer.from_defaults()]
    )
    ours = own_memory(stock)
    ours.put(ChatMessage("Why?"))
    assert [each.content for each in ours.secondary_memory_sources[0].get_all()] == ["Why?"]
    assert stock.secondary_memory_sources[0].get_all() == stock.get_all() == []


class Kept(BaseMemoryBlock[str]):
    """Keeps what was said."""

    said: list[str] = Field(default_factory=list)

    async def _aget(self, messages=None, **kwargs):
        return " ".join(self.said)

    async def _aput(self, messages):
        self.said += [each.content for each in messages]


def test_the_blocks_of_a_memory_are_its_own():
    stock = Memory.from_defaults(memory_blocks=[Kept(name="kept", said=["First."])])
    ours = own_memory(stock)
    asyncio.run(ours.memory_blocks[0].aput([ChatMessage("Second.")]))
    assert ours.memory_blocks[0].said == ["First.", "Second."]
    assert stock.memory_blocks[0].said == ["First."]


def test_a_chat_engine_answers_coroutines(plain_index, llm, swap):
    memory = ChatMemoryBuffer.from_defaults()
    stock = ContextChatEngine.from_defaults(plain_index.as_retriever(), llm=llm, memory=memory)
    assert "You asked" in str(asyncio.run(swap(stock)[0].achat("Why?")))
    assert memory.get_all() == []


class Asking(CustomQueryEngine):
    """A query engine of one's own, as the documentation shows."""

    retriever: Any
    llm: Any

    def custom_query(self, query_str):
        return str(self.llm.complete(self.retriever.retrieve(query_str)[0].node.get_content()))


def test_a_query_engine_of_ones_own_is_copied(plain_index, llm, swap):
    stock = Asking(retriever=plain_index.as_retriever(), llm=llm)
    swapped, report = swap(stock)
    assert report.is_complete
    assert str(swapped.query(QUESTION)).startswith("You asked: ")
    assert STOCK in str(stock.query(QUESTION))


def test_what_a_function_uses_is_left_and_named(plain_index, llm, swap):
    queries = plain_index.as_query_engine(llm=llm)

    def look_up(text: str) -> str:
        """Look up."""
        return str(queries.query(text))

    swapped, report = swap(FunctionTool.from_defaults(look_up))
    assert lines(report) == ([], ["VectorIndexRetriever", "MockLLM"])
    assert report.left[0].reason == "the function look_up() uses it; swap it there yourself"
    assert STOCK in str(swapped("Why?"))


class Glossary:
    """Not a component of LlamaIndex."""

    def __init__(self, llm):
        self.llm = llm


class WithGlossary(SimilarityPostprocessor):
    glossary: Any


def test_what_an_unknown_object_holds_is_left_and_named(plain_index, llm, swap):
    stock = plain_index.as_query_engine(
        llm=llm, node_postprocessors=[WithGlossary(glossary=Glossary(llm))]
    )
    _, report = swap(stock)
    assert lines(report) == (["VectorIndexRetriever", "MockLLM"], ["MockLLM"])
    assert report.left[0].reason == (
        "Glossary holds it, which accelerate cannot copy; swap it there yourself"
    )


class WithOwnFunction(MultiStepQueryEngine):
    def __init__(self, queries, llm):
        super().__init__(queries, HyDEQueryTransform(llm=llm))
        self.ask = lambda text: self._query_engine.query(text)


def test_a_component_that_cannot_be_copied_is_left_with_all_that_is_in_it(plain_index, llm, swap):
    queries = plain_index.as_query_engine(llm=llm)
    stock = WithOwnFunction(queries, llm)
    stock._response_synthesizer = get_response_synthesizer(llm=llm)
    swapped, report = swap(stock)
    assert swapped is stock
    assert report.swapped == ()
    assert {each.part for each in report.left} == {"VectorIndexRetriever", "MockLLM"}
    assert "cannot be copied" in report.left[0].reason
    assert {type(each) for each in llms_in(vars(stock), {})} == {MockLLM}
    # The same query engine elsewhere is copied, and told of.
    router = RouterQueryEngine(
        LLMSingleSelector.from_defaults(llm=llm), [tool_of(stock), tool_of(queries)], llm=llm
    )
    swapped, report = swap(router)
    assert swapped._query_engines[0] is stock
    assert "query_engines[1].retriever" in [each.place for each in report.swapped]


def test_the_llm_keeps_its_options_and_how_it_writes_prompts(swap):
    stock = named(temperature=0.2, max_tokens=7, additional_kwargs={"top_p": 0.5})
    stock.system_prompt = "Be brief."
    stock.query_wrapper_prompt = PromptTemplate("<{query_str}>")
    ours, report = swap(stock)
    assert (ours.temperature, ours.max_new_tokens, ours.top_p) == (0.2, 7, 0.5)
    assert (ours.system_prompt, ours.query_wrapper_prompt) == (
        "Be brief.",
        stock.query_wrapper_prompt,
    )
    assert report.swapped[0].before == "NamedLLM('any')"


@pytest.mark.parametrize("is_chat_model", [False, True])
def test_conversations_are_written_as_the_stock_llm_wrote_them(swap, is_chat_model, recorded):
    stock = named(is_chat_model=is_chat_model, can_call=is_chat_model)
    ours, _ = swap(stock)
    assert ours.metadata.is_chat_model == is_chat_model
    assert ours.metadata.is_function_calling_model == is_chat_model
    messages = [ChatMessage("Why?")]
    ours.chat(messages)
    written = stock.messages_to_prompt(messages)
    assert (recorded[0][0] == written) == (not is_chat_model)


def test_a_structured_llm_keeps_its_form(llm, swap):
    class Cause(BaseModel):
        """A cause."""

        name: str

    stock = llm.as_structured_llm(Cause)
    swapped, report = swap(stock)
    assert lines(report) == (["MockLLM"], [])
    assert isinstance(swapped.complete("Why?").raw, Cause)
    assert stock.llm is llm


def test_a_program_asks_our_llm(llm, swap):
    class Cause(BaseModel):
        """A cause."""

        name: str

    stock = LLMTextCompletionProgram.from_defaults(
        output_cls=Cause, prompt_template_str="{what}", llm=llm
    )
    swapped, _ = swap(stock)
    assert isinstance(swapped._llm, RAGCacheLLM)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"logit_bias": {"1": 2.0}}, "logit_bias"),
        ({"additional_kwargs": {"n": 3}}, "got n=3"),
        ({"temperature": -1}, "temperature"),
        (
            {"additional_kwargs": {"chat_template_kwargs": {"enable_thinking": False}}},
            "chat_template_kwargs",
        ),
    ],
)
def test_an_llm_with_an_option_that_the_engine_lacks_is_left(fields, reason, swap):
    stock = named(**fields)
    swapped, report = swap(stock)
    assert swapped is stock
    assert reason in report.left[0].reason


def test_an_llm_that_asks_for_another_model_is_left_unless_all_are_to_be_swapped(
    engine, monkeypatch
):
    config = EngineConfig(model="Qwen/Qwen2.5-7B-Instruct", backend="vllm")
    monkeypatch.setattr(engine, "config", config)
    stock = named(model_name="gpt-4o")
    task = AccelerationTask(Rules(engine))
    assert ComponentCopier(task).copy(stock) is stock
    assert "asks for the model 'gpt-4o'" in task.report().left[0].reason
    assert isinstance(make_our_llm(stock, Rules(engine, models="all")), RAGCacheLLM)
    assert isinstance(make_our_llm(MockLLM(), Rules(engine)), RAGCacheLLM)


def test_llms_and_retrievers_may_be_left(plain_index, llm, swap):
    stock = plain_index.as_query_engine(llm=llm)
    assert lines(swap(stock, models="none")[1]) == (["VectorIndexRetriever"], ["MockLLM"])
    assert lines(swap(stock, retrievers=False)[1]) == (["MockLLM"], ["VectorIndexRetriever"])
    swapped, report = swap(stock, keep=[stock.retriever])
    assert swapped.retriever is stock.retriever
    assert report.is_complete  # since all that was left was left on purpose


def test_what_is_ours_already_stays_and_another_engines_is_named(index, engine, make_engine, swap):
    ours = RetrieverQueryEngine.from_args(
        RAGCacheRetriever.from_index(index, engine=engine), llm=RAGCacheLLM(engine=engine)
    )
    assert swap(ours)[0] is ours
    other = make_engine(MemoryBackend())
    foreign = RetrieverQueryEngine.from_args(
        RAGCacheRetriever.from_index(index, engine=other), llm=RAGCacheLLM(engine=other)
    )
    swapped, report = swap(foreign)
    assert swapped is foreign
    assert [each.reason for each in report.left] == ["it belongs to another engine"] * 2


def test_the_report_goes_to_the_log_and_warns_of_what_was_left(engine, plain_index, llm, caplog):
    caplog.set_level(logging.INFO)
    accelerate(plain_index.as_query_engine(llm=llm), engine=engine)
    accelerate(plain_index.as_query_engine(llm=named(temperature=-1)), engine=engine)
    ours = [each for each in caplog.records if each.name == "ragcache_integrations"]
    assert [each.levelname for each in ours] == ["INFO", "WARNING"]
    assert all("\n" not in each.getMessage() for each in ours)


def test_wrong_arguments_are_refused(engine, plain_index, llm):
    with pytest.raises(InvalidArgument, match=r"got VectorStoreIndex; give index\.as_query_engine"):
        accelerate(plain_index, engine=engine)
    with pytest.raises(InvalidArgument, match="got str"):
        accelerate("query engine", engine=engine)
    with pytest.raises(InvalidArgument, match="engine= takes a RAGCacheEngine"):
        accelerate(llm, engine=EngineConfig(backend="memory"))
    with pytest.raises(InvalidArgument, match="give 'same', 'all' or 'none'"):
        accelerate(llm, engine=engine, models="some")


def test_an_accelerated_query_engine_reuses_the_nodes_of_its_prompts(plain_index, llm, engine_on):
    engine = engine_on(MemoryBackend())
    queries = accelerate(plain_index.as_query_engine(llm=llm), engine=engine)
    queries.query(QUESTION)
    before = engine.stats().cached.total
    queries.query(QUESTION)
    assert engine.stats().cached.total > before
