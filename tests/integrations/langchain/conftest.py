"""A FAISS store over the small corpus, and the usual chain on top of it."""

import faiss
import pytest
from langchain_community.vectorstores import FAISS
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough


class HashedWords(Embeddings):
    """Embeds without a model. Tests may change `size`, as if the model had changed."""

    def __init__(self, embed, gate=None):
        self.embed, self.gate, self.size, self.queries = embed, gate, 64, 0

    def embed_documents(self, texts):
        return [self.embed(text, self.size) for text in texts]

    def embed_query(self, text):
        self.queries += 1
        if self.gate:
            self.gate.pass_through()
        return self.embed(text, self.size)


@pytest.fixture(autouse=True)
def one_thread():
    """With few vectors, Faiss's threads only wait for each other on busy cores, so use one."""
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(threads)


@pytest.fixture
def embeddings(bag_of_words):
    return HashedWords(bag_of_words)


@pytest.fixture
def store(corpus, embeddings):
    return FAISS.from_documents(
        [Document(text, metadata={"length": len(text)}) for text in corpus.values()],
        embeddings,
        ids=list(corpus),
    )


@pytest.fixture
def chain_of():
    """(retriever, llm) -> the usual chain of retriever, prompt, LLM and parser."""
    prompt = PromptTemplate.from_template(
        "Answer from these texts.\n\n{context}\n\nQuestion: {question}\n"
    )
    join = RunnableLambda(lambda documents: "\n\n".join(d.page_content for d in documents))

    def chain(retriever, llm):
        inputs = {"context": retriever | join, "question": RunnablePassthrough()}
        return inputs | prompt | llm | StrOutputParser()

    return chain
