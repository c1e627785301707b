"""Stock models that say what they were asked, and chains made of them."""

from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel, FakeListChatModel, FakeListLLM
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import Field

from ragcache_integrations.langchain import accelerate


class StockChat(BaseChatModel):
    """A chat model with the fields that ChatOpenAI has, and its way to bind tools."""

    model_name: str = "any"
    temperature: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    n: int | None = None
    logit_bias: dict[int, float] | None = None
    model_kwargs: dict[str, Any] = Field(default_factory=dict)

    @property
    def _llm_type(self):
        return "stock"

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        return ChatResult(generations=[ChatGeneration(message=AIMessage("stock"))])

    def bind_tools(self, tools, *, tool_choice=None, **kwargs):
        converted = [convert_to_openai_tool(tool) for tool in tools]
        choice = "required" if tool_choice == "any" else tool_choice
        return self.bind(tools=converted, tool_choice=choice, **kwargs)


@pytest.fixture
def stock_chat():
    return StockChat


@pytest.fixture
def chat():
    return FakeListChatModel(responses=["stock"])


@pytest.fixture
def llm():
    return FakeListLLM(responses=["stock"])


@pytest.fixture
def memory_store(corpus, embeddings):
    documents = [Document(text, id=name) for name, text in corpus.items()]
    return InMemoryVectorStore.from_documents(documents, embeddings)


@pytest.fixture
def prompt():
    return PromptTemplate.from_template("{context}\n\n{question}")


@pytest.fixture
def chat_prompt():
    return ChatPromptTemplate.from_messages([("system", "{context}"), ("human", "{question}")])


@pytest.fixture
def inputs():
    """retriever -> the first step of the usual chain."""
    join = RunnableLambda(lambda found: "\n\n".join(each.page_content for each in found))
    return lambda retriever: {"context": retriever | join, "question": RunnablePassthrough()}


@pytest.fixture
def swap(engine):
    """Accelerates, and returns the result and the report."""

    def run(chain, **rules):
        reports = []
        swapped = accelerate(chain, engine=engine, report=reports.append, **rules)
        (report,) = reports
        return swapped, report

    return run
