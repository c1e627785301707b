"""Chains of LangChain's documentation, built stock, then accelerated in one call.

The accelerated chain gives the answer of the stock one on the same model, and the second time from the
cache. The stock chain answers as before, since `accelerate` changes nothing of it.
"""

import asyncio
from operator import itemgetter
from typing import TypedDict

import pytest
from langchain_classic.chains import create_history_aware_retriever, create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.retrievers import EnsembleRetriever, MultiQueryRetriever
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import RunnableBranch, RunnableParallel, RunnablePassthrough
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.graph import END, START, StateGraph

from ragcache_integrations.langchain import accelerate

pytestmark = pytest.mark.vllm

TEXT = PromptTemplate.from_template(
    "<|im_start|>user\nAnswer from these texts.\n\n{context}\n\nQuestion: {question}<|im_end|>\n"
    "<|im_start|>assistant\n"
)
CHAT = ChatPromptTemplate.from_messages(
    [("system", "Answer from these texts.\n\n{context}"), ("human", "{question}")]
)
QUESTION = "Why does the sky look blue and not violet?"
ASKED = {"input": QUESTION}


class Stock:
    """What a chain is made of: two models, and retrievers over a Faiss store and over another one."""

    def __init__(self, llm, chat, faiss_store, other_store):
        self.llm, self.chat = llm, chat
        self.faiss = faiss_store.as_retriever(search_kwargs={"k": 3})
        self.other = other_store.as_retriever(search_kwargs={"k": 3})


def join_texts(documents):
    return "\n\n".join(document.page_content for document in documents)


def rag_chain(stock):
    inputs = {"context": stock.faiss | join_texts, "question": RunnablePassthrough()}
    return inputs | TEXT | stock.llm | StrOutputParser()


def chain_over_another_store(stock):
    inputs = {"context": stock.other | join_texts, "question": RunnablePassthrough()}
    return inputs | CHAT | stock.chat | StrOutputParser()


def chain_with_sources(stock):
    answer = (
        RunnablePassthrough.assign(context=lambda inputs: join_texts(inputs["context"]))
        | TEXT
        | stock.llm
        | StrOutputParser()
    )
    inputs = RunnableParallel(context=stock.other, question=RunnablePassthrough())
    return inputs.assign(answer=answer)


def retrieval_chain(stock):
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Answer from these texts.\n\n{context}"), ("human", "{input}")]
    )
    answering = create_stuff_documents_chain(stock.chat, prompt)
    return create_retrieval_chain(stock.faiss, answering)


def history_aware(stock):
    rephrasing = ChatPromptTemplate.from_messages(
        [
            MessagesPlaceholder("chat_history"),
            ("human", "{input}"),
            ("human", "Ask this again so that it is understood by itself."),
        ]
    )
    answering = PromptTemplate.from_template("{context}\n\n{input}")
    return create_retrieval_chain(
        create_history_aware_retriever(stock.chat, stock.other, rephrasing),
        create_stuff_documents_chain(stock.llm, answering),
    )


def multi_query(stock):
    retriever = MultiQueryRetriever.from_llm(stock.faiss, stock.llm, include_original=True)
    answering = PromptTemplate.from_template("{context}\n\n{input}")
    return create_retrieval_chain(retriever, create_stuff_documents_chain(stock.llm, answering))


def ensemble(stock):
    both = EnsembleRetriever(retrievers=[stock.faiss, stock.other])
    inputs = {"context": both | join_texts, "question": RunnablePassthrough()}
    return inputs | TEXT | stock.llm


def branching(stock):
    """Answers questions from the texts, and everything else without."""
    plain = PromptTemplate.from_template(
        "Say something friendly to everybody who writes this to you in the middle of the night, "
        "and keep it short, so that all of them may sleep:\n{question}\n"
    )
    talking = {"question": RunnablePassthrough()} | plain | stock.llm | StrOutputParser()
    return RunnableBranch((lambda text: "?" in text, rag_chain(stock)), talking)


def with_fallbacks(stock):
    inputs = {"context": stock.faiss | join_texts, "question": RunnablePassthrough()}
    model = stock.llm.bind(stop=["\n\n"]).with_fallbacks([stock.chat | StrOutputParser()])
    return inputs | TEXT | model


def structured(stock):
    schema = {
        "title": "Cause",
        "type": "object",
        "properties": {
            "cause": {"enum": ["air", "water", "light"]},
            "is_sure": {"type": "boolean"},
        },
        "required": ["cause", "is_sure"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "Cause", "schema": schema}}
    chat = stock.chat.model_copy(update={"max_tokens": 40})
    inputs = {"context": stock.faiss | join_texts, "question": RunnablePassthrough()}
    return inputs | CHAT | chat.bind(response_format=form) | JsonOutputParser()


class State(TypedDict):
    question: str
    documents: list
    answer: str


def graph(stock):
    answering = (
        RunnablePassthrough.assign(context=lambda state: join_texts(state["documents"]))
        | CHAT
        | stock.chat
        | {"answer": StrOutputParser()}
    )
    builder = StateGraph(State)
    builder.add_node("retrieve", itemgetter("question") | RunnableParallel(documents=stock.other))
    builder.add_node("answer", answering)
    builder.add_edge(START, "retrieve")
    builder.add_edge("retrieve", "answer")
    builder.add_edge("answer", END)
    return builder.compile()


PATTERNS = {
    "a RAG chain": (rag_chain, QUESTION),
    "a RAG chain over another store": (chain_over_another_store, QUESTION),
    "sources beside the answer": (chain_with_sources, QUESTION),
    "create_retrieval_chain": (retrieval_chain, ASKED),
    "a history-aware retriever": (
        history_aware,
        {
            "input": "And at sunset?",
            "chat_history": [HumanMessage(QUESTION), AIMessage("The air scatters blue light.")],
        },
    ),
    "several queries for one question": (multi_query, ASKED),
    "an ensemble of two stores": (ensemble, QUESTION),
    "a branch with retrieval": (branching, QUESTION),
    "a branch without": (branching, "Good night!"),
    "fallbacks": (with_fallbacks, QUESTION),
    "structured output": (structured, QUESTION),
    "a graph": (graph, {"question": QUESTION}),
}


@pytest.fixture
def stock(stock_llm, stock_chat, long_store, telling_words):
    documents = long_store.similarity_search(QUESTION, k=6)
    other = InMemoryVectorStore.from_documents(documents, telling_words)
    return Stock(stock_llm, stock_chat, long_store, other)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_stock_chain_answers_alike_when_accelerated_and_then_from_the_cache(
    pattern, stock, vllm_engine, heard
):
    build, asked = PATTERNS[pattern]
    chain = build(stock)
    expected = chain.invoke(asked)
    assert expected
    reports = []
    accelerated = accelerate(chain, engine=vllm_engine, report=reports.append)
    assert reports[0].is_complete, str(reports[0])
    vllm_engine.clear_cache()
    warm = type(heard)()
    assert accelerated.invoke(asked, {"callbacks": [heard]}) == expected
    assert asyncio.run(accelerated.ainvoke(asked, {"callbacks": [warm]})) == expected
    assert warm.prompts == heard.prompts
    assert warm.cached > heard.cached
    assert any(warm.document_ids) == (pattern != "a branch without")
    assert chain.invoke(asked) == expected


def test_a_conversation_goes_on_in_the_same_session(stock, vllm_engine, heard):
    sessions = {}

    def session(session_id):
        return sessions.setdefault(session_id, InMemoryChatMessageHistory())

    prompt = ChatPromptTemplate.from_messages(
        [("system", "{context}"), MessagesPlaceholder("past"), ("human", "{input}")]
    )
    answering = (
        RunnablePassthrough.assign(context=itemgetter("input") | stock.faiss | join_texts)
        | prompt
        | stock.chat
    )
    chain = RunnableWithMessageHistory(
        answering, session, input_messages_key="input", history_messages_key="past"
    )
    accelerated = accelerate(chain, engine=vllm_engine)
    vllm_engine.clear_cache()
    for question in (QUESTION, "And why is it red at sunset?"):
        answers = [
            each.invoke({"input": question}, {"configurable": {"session_id": name}, **config})
            for name, each, config in [
                ("stock", chain, {}),
                ("ours", accelerated, {"callbacks": [heard]}),
            ]
        ]
        assert answers[0].content == answers[1].content
    assert len(sessions["ours"].messages) == len(sessions["stock"].messages) == 4
    assert heard.cached > 0
