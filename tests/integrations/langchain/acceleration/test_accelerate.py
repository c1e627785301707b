"""One call swaps the retrievers and models of a chain, wherever they stand, and tells what it did."""

import asyncio
import logging
from operator import itemgetter
from typing import Any, TypedDict

import pytest
from langchain_classic.chains import RetrievalQA, create_history_aware_retriever
from langchain_classic.memory import ConversationBufferMemory, ConversationSummaryMemory
from langchain_classic.retrievers import (
    ContextualCompressionRetriever,
    EnsembleRetriever,
    MultiQueryRetriever,
)
from langchain_classic.retrievers.document_compressors import LLMChainExtractor
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import (
    ConfigurableField,
    RouterRunnable,
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnableSerializable,
)
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.tools import create_retriever_tool
from pydantic import PrivateAttr

from ragcache_engine import EngineConfig, InvalidArgument
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_integrations.langchain import (
    ChatRAGCache,
    RAGCacheLLM,
    RAGCacheRetriever,
    accelerate,
)

QUESTION = "Why is the sky blue?"
OURS = "You asked: "


def lines(report):
    """The kinds of parts that were swapped, in order, and those that were left."""
    return [each.before for each in report.swapped], [each.part for each in report.left]


# Each: how the model stands in a runnable that answers a text.
PLACES = {
    "alone": lambda model: model,
    "in a sequence": lambda model: RunnablePassthrough() | model | StrOutputParser(),
    "in the middle of a sequence": lambda model: RunnablePassthrough() | model | str | str,
    "in a parallel": lambda model: RunnableParallel(one=model) | itemgetter("one"),
    "in a branch": lambda model: RunnableBranch((lambda _: True, model), lambda _: "no"),
    "as the branch's default": lambda model: RunnableBranch((lambda _: False, str), model),
    "bound": lambda model: model.bind(stop=["never"]),
    "with a configuration": lambda model: model.with_config(tags=["a"], run_name="b"),
    "with fallbacks": lambda model: model.with_fallbacks([RunnableLambda(lambda _: "no")]),
    "as a fallback": lambda model: RunnableLambda(lambda _: 1 / 0).with_fallbacks([model]),
    "with retries": lambda model: model.with_retry(stop_after_attempt=2),
    "with listeners": lambda model: model.with_listeners(on_end=lambda run: None),
    "with types": lambda model: model.with_types(input_type=str),
    "assigned": lambda model: (
        {"text": RunnablePassthrough()}
        | RunnablePassthrough.assign(answer=itemgetter("text") | model)
        | itemgetter("answer")
    ),
    "picked": lambda model: RunnableParallel(one=model, two=str).pick("one"),
    "in a map": lambda model: (lambda text: [text]) | model.map() | itemgetter(0),
    "routed to": lambda model: (
        {"key": lambda _: "one", "input": RunnablePassthrough()} | RouterRunnable({"one": model})
    ),
    "with configurable alternatives": lambda model: model.configurable_alternatives(
        ConfigurableField(id="model"), other=RunnableLambda(lambda _: "no")
    ),
    "as an alternative": lambda model: (
        RunnablePassthrough()
        .configurable_alternatives(ConfigurableField(id="model"), ours=model)
        .with_config(configurable={"model": "ours"})
    ),
    "in a chain in a chain": lambda model: RunnablePassthrough() | (str | (str | model)),
}


def text_of(answer):
    return getattr(answer, "content", answer)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["chat", "llm"])
def test_a_model_is_swapped_wherever_it_stands_and_the_given_chain_stays(
    place, kind, swap, request
):
    stock = PLACES[place](request.getfixturevalue(kind))
    before = repr(stock)
    swapped, report = swap(stock)
    assert OURS in str(text_of(swapped.invoke(QUESTION)))
    assert OURS in str(text_of(asyncio.run(swapped.ainvoke(QUESTION))))
    assert "stock" in str(text_of(stock.invoke(QUESTION)))
    assert repr(stock) == before
    assert len(report.swapped) == 1
    assert report.is_complete


def test_the_class_of_the_chain_stays_and_parts_without_models_are_shared(chat, prompt, swap):
    stock = prompt | chat | StrOutputParser()
    swapped, _ = swap(stock)
    assert type(swapped) is type(stock)
    assert swapped.first is stock.first
    assert swapped.last is stock.last


def test_a_chain_without_retriever_and_model_is_returned_as_it_is(prompt, swap):
    chain = prompt | str
    swapped, report = swap(chain)
    assert swapped is chain
    assert "no retriever and no model" in str(report)


def test_a_rag_chain_answers_from_its_documents_which_the_engine_knows(
    memory_store, llm, prompt, inputs, swap, engine, recorded
):
    stock = inputs(memory_store.as_retriever(search_kwargs={"k": 2})) | prompt | llm
    swapped, report = swap(stock)
    assert [each.after for each in report.swapped] == [
        "RAGCacheRetriever.from_retriever",
        "RAGCacheLLM(temperature=0.0, max_new_tokens=512)",
    ]
    swapped.invoke(QUESTION)
    found = memory_store.similarity_search(QUESTION, k=2)
    assert recorded[0][0] == "\n\n".join([*(each.page_content for each in found), QUESTION])
    assert list(engine.generate(recorded[0][0]).usage.document_ids) == [each.id for each in found]


def test_a_faiss_stores_own_retriever_is_searched_in_stages(store, swap):
    stock = store.as_retriever(
        search_type="mmr", search_kwargs={"k": 2, "fetch_k": 5}, tags=["mine"], name="found"
    )
    swapped, _ = swap(stock)
    assert isinstance(swapped, RAGCacheRetriever)
    assert swapped.invoke(QUESTION) == stock.invoke(QUESTION)
    assert (swapped.tags, swapped.name, swapped.search_kwargs) == (
        stock.tags,
        "found",
        {"k": 2, "fetch_k": 5},
    )
    assert [stage.final for stage in swapped.stream_stages(QUESTION)][-1]


def test_a_retriever_of_retrievers_is_swapped_as_a_whole_with_the_models_in_it(
    store, memory_store, llm, swap
):
    both = EnsembleRetriever(retrievers=[store.as_retriever(), memory_store.as_retriever()])
    asking = MultiQueryRetriever.from_llm(both, llm, include_original=True)
    stock = ContextualCompressionRetriever(
        base_retriever=asking, base_compressor=LLMChainExtractor.from_llm(llm)
    )
    swapped, report = swap(stock)
    assert lines(report) == (["FakeListLLM", "FakeListLLM", "ContextualCompressionRetriever"], [])
    inner = swapped.retriever
    assert isinstance(inner, ContextualCompressionRetriever)
    assert isinstance(inner.base_retriever.llm_chain.steps[1], RAGCacheLLM)
    assert inner.base_retriever.retriever is both
    assert stock.base_retriever.llm_chain.steps[1] is llm
    assert swapped.invoke(QUESTION)


def test_a_retriever_that_holds_one_of_ours_is_left(store, memory_store, engine, swap):
    ours = RAGCacheRetriever.from_vectorstore(store, engine=engine)
    mixed = EnsembleRetriever(retrievers=[ours, memory_store.as_retriever()])
    swapped, report = swap(mixed)
    assert swapped is mixed
    assert "tells the engine already" in report.left[0].reason


def test_what_is_ours_already_stays_and_another_engines_is_named(
    store, engine, make_engine, recording, prompt, swap
):
    ours = RAGCacheLLM(engine=engine)
    assert swap(prompt | ours)[1].swapped == ()
    other = make_engine(recording())
    foreign = RunnableParallel(
        found=RAGCacheRetriever.from_vectorstore(store, engine=other),
        answer=RAGCacheLLM(engine=other),
    )
    swapped, report = swap(foreign)
    assert swapped is foreign
    assert [each.reason for each in report.left] == [
        "it tells another engine",
        "it runs on another engine",
    ]


def test_one_model_that_stands_in_two_places_becomes_one(chat, swap):
    swapped, report = swap(RunnableParallel(one=chat, two=chat))
    assert swapped.steps__["one"] is swapped.steps__["two"]
    assert [each.place for each in report.swapped] == ["steps.one", "steps.two"]


def test_options_of_a_binding_stay_and_count(chat, swap, recorded):
    swapped, _ = swap(chat.bind(stop=["blue"], temperature=0.5, max_tokens=7))
    assert swapped.kwargs == {"stop": ["blue"], "temperature": 0.5, "max_tokens": 7}
    assert swapped.invoke(QUESTION).content == "You asked: Why is the sky"
    options = recorded[0][1]
    assert (options.stop, options.temperature, options.max_tokens) == (("blue",), 0.5, 7)


def test_a_binding_that_the_engine_cannot_honour_leaves_its_model_and_no_other(chat, swap):
    swapped, report = swap(RunnableParallel(one=chat.bind(logit_bias={7: 1.0}), two=chat))
    assert swapped.steps__["one"].bound is chat
    assert isinstance(swapped.steps__["two"], ChatRAGCache)
    assert "logit_bias" in report.left[0].reason


def test_outer_bindings_count_too(chat, swap):
    stock = chat.with_fallbacks([chat]).bind(top_logprobs=3)
    swapped, report = swap(stock)
    assert swapped is stock
    assert len(report.left) == 2


def test_fields_that_are_configurable_stay_so(stock_chat, swap, recorded):
    stock = stock_chat(temperature=0, max_tokens=9).configurable_fields(
        temperature=ConfigurableField(id="heat"), max_tokens=ConfigurableField(id="length")
    )
    swapped, _ = swap(stock)
    swapped.with_config(configurable={"heat": 0.5, "length": 3}).invoke(QUESTION)
    swapped.invoke(QUESTION)
    told = [(options.temperature, options.max_tokens) for _, options in recorded]
    assert told == [(0.5, 3), (0.0, 9)]


def test_a_configurable_field_that_ours_lacks_leaves_the_model(stock_chat, swap):
    stock = stock_chat().configurable_fields(logit_bias=ConfigurableField(id="bias"))
    swapped, report = swap(stock)
    assert swapped is stock
    assert lines(report) == ([], ["StockChat('any')"])
    assert "logit_bias" in report.left[0].reason


def test_a_chain_with_a_message_history_keeps_its_sessions(chat, swap, recorded):
    sessions = {}

    def session(session_id):
        return sessions.setdefault(session_id, InMemoryChatMessageHistory())

    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("past"), ("human", "{input}")])
    stock = RunnableWithMessageHistory(
        (prompt | chat).with_config(tags=["mine"]),
        session,
        input_messages_key="input",
        history_messages_key="past",
    )
    swapped, report = swap(stock)
    assert lines(report) == (["FakeListChatModel"], [])
    config = {"configurable": {"session_id": "one"}}
    stock.invoke({"input": "First?"}, config)
    assert swapped.invoke({"input": "Second?"}, config).content == "You asked: Second?"
    asyncio.run(swapped.ainvoke({"input": "Third?"}, config))
    assert [each.content for each in sessions["one"].messages] == [
        *("First?", "stock", "Second?", "You asked: Second?", "Third?", "You asked: Third?")
    ]
    assert "First?" in recorded[0][0]


def test_a_history_aware_retriever_is_swapped_inside(store, llm, chat_prompt, swap):
    rephrasing = ChatPromptTemplate.from_messages(
        [MessagesPlaceholder("chat_history"), ("human", "{input}")]
    )
    stock = create_history_aware_retriever(llm, store.as_retriever(), rephrasing)
    swapped, report = swap(stock)
    assert sorted(lines(report)[0]) == [
        "FakeListLLM",
        *["VectorStoreRetriever over FAISS"] * 2,
    ]
    asked = {"input": QUESTION, "chat_history": []}
    assert swapped.invoke(asked) == stock.invoke(asked)


def test_a_chain_of_langchain_classic_gets_a_memory_of_its_own(store, llm, swap):
    memory = ConversationBufferMemory(input_key="query", output_key="result")
    stock = RetrievalQA.from_chain_type(llm, retriever=store.as_retriever(), memory=memory)
    swapped, report = swap(stock)
    assert lines(report)[1] == []
    assert swapped.invoke({"query": QUESTION})["result"].startswith(OURS)
    assert memory.buffer == ""
    assert QUESTION in swapped.memory.buffer


@pytest.mark.parametrize("kind", ["buffer", "summary"])
def test_chains_that_share_a_memory_share_its_copy(kind, store, llm, swap):
    keys = {"input_key": "query", "output_key": "result"}
    if kind == "buffer":
        memory = ConversationBufferMemory(**keys)
    else:
        memory = ConversationSummaryMemory(llm=llm, **keys)
    one, other = (
        RetrievalQA.from_chain_type(llm, retriever=store.as_retriever(), memory=memory)
        for _ in range(2)
    )
    swapped, _ = swap(RunnableParallel(one=one, other=other))
    ours = swapped.steps__
    assert ours["one"].memory is ours["other"].memory is not memory


def test_memories_that_share_a_history_share_its_copy(store, llm, swap):
    history = InMemoryChatMessageHistory()
    memories = [ConversationBufferMemory(chat_memory=history, input_key="query") for _ in range(2)]
    one, other = (
        RetrievalQA.from_chain_type(llm, retriever=store.as_retriever(), memory=memory)
        for memory in memories
    )
    ours = swap(RunnableParallel(one=one, other=other))[0].steps__
    copied = ours["one"].memory.chat_memory
    assert copied is ours["other"].memory.chat_memory is not history


def test_a_memory_may_be_kept(store, llm, swap):
    memory = ConversationBufferMemory(input_key="query", output_key="result")
    stock = RetrievalQA.from_chain_type(llm, retriever=store.as_retriever(), memory=memory)
    swapped, report = swap(stock, keep=[memory])
    assert swapped.memory is memory
    assert report.is_complete


def test_what_a_function_uses_is_left_and_named(chat, store, swap):
    retriever = store.as_retriever()

    def answer(question):
        return chat.invoke(retriever.invoke(question)[0].page_content).content

    swapped, report = swap(RunnableLambda(answer) | str)
    assert swapped.invoke(QUESTION) == "stock"
    assert set(lines(report)[1]) == {"FakeListChatModel", "VectorStoreRetriever over FAISS"}
    assert report.left[0].reason == "the function answer() uses it; swap it there yourself"


class Glossary:
    """No Runnable."""

    def __init__(self, llm):
        self.llm = llm


class Explaining(RunnableSerializable[str, str]):
    glossary: Any

    def invoke(self, input, config=None, **kwargs):
        return self.glossary.llm.invoke(input)


class Unknown(Runnable[str, str]):
    """A Runnable with no fields that say what it is made of."""

    def __init__(self, model):
        self.model = model

    def invoke(self, input, config=None, **kwargs):
        return self.model.invoke(input)


@pytest.mark.parametrize(
    ("make", "holder"),
    [(lambda llm: Explaining(glossary=Glossary(llm)), "Glossary"), (Unknown, "Unknown")],
)
def test_what_an_unknown_object_holds_is_left_and_named(llm, swap, make, holder):
    stock = make(llm)
    swapped, report = swap(stock | str)
    assert swapped.invoke(QUESTION) == "stock"
    assert lines(report) == ([], ["FakeListLLM"])
    assert report.left[0].reason.startswith(f"{holder} holds it")


def test_a_private_attribute_that_holds_a_model_is_named(llm, swap):
    class Secretive(RunnableSerializable[str, str]):
        model: Any
        _again: Any = PrivateAttr()

        def model_post_init(self, context):
            self._again = self.model

        def invoke(self, input, config=None, **kwargs):
            return self.model.invoke(input) + self._again.invoke(input)

    swapped, report = swap(Secretive(model=llm))
    assert swapped.invoke(QUESTION) == "You asked: Why is the sky blue?stock"
    assert report.left[0].reason.startswith("a private attribute of Secretive holds it")


def test_a_model_that_is_made_at_each_call_is_named(swap):
    models = pytest.importorskip("langchain.chat_models")
    stock = models.init_chat_model(configurable_fields=("model", "model_provider"))
    swapped, report = swap(stock)
    assert swapped is stock
    assert "makes its model at each call" in report.left[0].reason


def test_an_agent_of_langchain_is_left_with_its_model_and_its_tools(chat, store, swap):
    agents = pytest.importorskip("langchain.agents")
    tool = create_retriever_tool(store.as_retriever(), "find", "Finds texts.")
    stock = agents.create_agent(chat, [tool])
    swapped, report = swap(stock)
    assert swapped is stock
    assert set(lines(report)[1]) == {"FakeListChatModel", "VectorStoreRetriever over FAISS"}


def test_a_function_that_uses_its_own_chain_does_not_hang(chat, swap):
    def again(text):
        return chain.invoke(text) if len(text) > 100 else text

    chain = RunnableLambda(again) | chat
    _, report = swap(chain)
    assert lines(report)[0] == ["FakeListChatModel"]


def test_the_retriever_in_a_tool_is_left_and_named(store, swap):
    _, report = swap(create_retriever_tool(store.as_retriever(), "find", "Finds texts."))
    assert lines(report) == ([], ["VectorStoreRetriever over FAISS"])


class State(TypedDict):
    question: str
    answer: str


def test_a_graph_with_chains_for_nodes_is_copied(chat, swap):
    graphs = pytest.importorskip("langgraph.graph")
    graph = graphs.StateGraph(State)
    graph.add_node(
        "answer", itemgetter("question") | chat | (lambda message: {"answer": message.content})
    )
    graph.add_node("check", lambda state: {"answer": state["answer"] + chat.invoke("?").content})
    graph.add_edge(graphs.START, "answer")
    graph.add_edge("answer", "check")
    stock = graph.compile()
    swapped, report = swap(stock)
    assert type(swapped) is type(stock)
    assert swapped.invoke({"question": "Why?"})["answer"] == "You asked: Why?stock"
    assert stock.invoke({"question": "Why?"})["answer"] == "stockstock"
    assert lines(report) == (["FakeListChatModel"], ["FakeListChatModel"])


def test_a_graph_in_a_graph_is_copied(chat, swap):
    graphs = pytest.importorskip("langgraph.graph")

    def graph_of(node):
        graph = graphs.StateGraph(State)
        graph.add_node("answer", node)
        graph.add_edge(graphs.START, "answer")
        return graph.compile()

    answering = itemgetter("question") | chat | (lambda message: {"answer": message.content})
    stock = graph_of(graph_of(answering))
    swapped, _ = swap(stock)
    assert swapped.invoke({"question": "Why?"})["answer"] == "You asked: Why?"
    assert stock.invoke({"question": "Why?"})["answer"] == "stock"
    ((_, inner),) = swapped.get_subgraphs()
    assert inner is swapped.nodes["answer"].bound


def test_models_and_retrievers_may_be_left(store, memory_store, chat, swap):
    other = memory_store.as_retriever()
    stock = RunnableParallel(found=store.as_retriever(), other=other, answer=chat)
    assert lines(swap(stock, models="none")[1]) == (
        ["VectorStoreRetriever over FAISS", "VectorStoreRetriever over InMemoryVectorStore"],
        ["FakeListChatModel"],
    )
    assert lines(swap(stock, retrievers=False)[1])[0] == ["FakeListChatModel"]
    swapped, report = swap(stock, keep=[other])
    assert swapped.steps__["other"] is other
    assert len(report.swapped) == 2
    assert report.is_complete  # since all that was left was left on purpose


def test_the_report_goes_to_the_log_and_warns_of_what_was_left(engine, chat, prompt, caplog):
    caplog.set_level(logging.INFO)
    accelerate(prompt | chat, engine=engine)
    accelerate(prompt | chat.bind(logit_bias={7: 1.0}), engine=engine)
    assert [each.levelname for each in caplog.records] == ["INFO", "WARNING"]
    assert "left FakeListChatModel at last.bound" in caplog.text
    assert all("\n" not in each.getMessage() for each in caplog.records)


def test_wrong_arguments_are_refused(engine, chat):
    with pytest.raises(InvalidArgument, match="takes a chain, which is a Runnable"):
        accelerate({"answer": chat}, engine=engine)
    with pytest.raises(InvalidArgument, match="engine= takes a RAGCacheEngine"):
        accelerate(chat, engine=EngineConfig(backend="memory"))
    with pytest.raises(InvalidArgument, match="give 'same', 'all' or 'none'"):
        accelerate(chat, engine=engine, models="some")
    with pytest.raises(InvalidArgument, match="got colour"):
        accelerate(chat, engine=engine, options={"colour": "red"})


def test_an_accelerated_chain_reuses_the_documents_of_its_prompts(
    memory_store, llm, prompt, inputs, engine_on
):
    engine = engine_on(MemoryBackend())
    stock = inputs(memory_store.as_retriever(search_kwargs={"k": 3})) | prompt | llm
    chain = accelerate(stock, engine=engine)
    chain.invoke(QUESTION)
    before = engine.stats().cached.total
    chain.invoke(QUESTION)
    assert engine.stats().cached.total > before
