"""One engine under a LangChain chain and a LlamaIndex query engine, in one process, at the same time."""

from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("langchain_core")
pytest.importorskip("llama_index.core")

import faiss
import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnablePassthrough
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import TextNode

from ragcache_integrations import langchain, llamaindex

QUESTIONS = [
    "Why does the sky look blue and not violet?",
    "What makes bread rise in the oven?",
    "Why do the tides rise twice a day?",
    "How do bees tell the way to a flower?",
]
TOKENS = 8


class LangChainWords(Embeddings):
    def __init__(self, embed):
        self.embed = embed

    def embed_query(self, text):
        return self.embed(text)

    def embed_documents(self, texts):
        return [self.embed(text) for text in texts]


class LlamaIndexWords(BaseEmbedding):
    embed: object

    def _get_text_embedding(self, text):
        return self.embed(text)

    _get_query_embedding = _get_text_embedding

    async def _aget_query_embedding(self, query):
        return self.embed(query)


def langchain_asks(engine, corpus, embed):
    store = langchain.FaissVectorStore.from_texts(
        list(corpus.values()), LangChainWords(embed), ids=list(corpus)
    )
    retriever = langchain.RAGCacheRetriever.from_vectorstore(store, engine=engine, k=2)
    inputs = {
        "context": retriever | (lambda found: "\n\n".join(d.page_content for d in found)),
        "question": RunnablePassthrough(),
    }
    prompt = PromptTemplate.from_template("{context}\n\nQuestion: {question}\nAnswer:")
    llm = langchain.RAGCacheLLM(engine=engine, temperature=0, max_tokens=TOKENS)
    return (inputs | prompt | llm | StrOutputParser()).invoke


def llamaindex_asks(engine, corpus, embed):
    vectors = faiss.IndexFlatL2(64)
    vectors.add(np.array([embed(text) for text in corpus.values()], dtype="float32"))
    retriever = llamaindex.RAGCacheRetriever.from_faiss(
        vectors,
        [TextNode(id_=name, text=text) for name, text in corpus.items()],
        engine=engine,
        embed_model=LlamaIndexWords(embed=embed),
        similarity_top_k=2,
    )
    llm = llamaindex.RAGCacheLLM(engine=engine, temperature=0, max_tokens=TOKENS)
    queries = RetrieverQueryEngine.from_args(retriever, llm=llm)
    return lambda question: str(queries.query(question))


ON_A_MODEL = [
    pytest.param(name, marks=pytest.mark.vllm) for name in ("vllm_engine", "server_engine")
]


@pytest.fixture(params=["engine", *ON_A_MODEL])
def shared(request):
    return request.getfixturevalue(request.param)


def test_one_engine_answers_both_at_once_as_it_answers_each_alone(shared, corpus, bag_of_words):
    asks = [make(shared, corpus, bag_of_words) for make in (langchain_asks, llamaindex_asks)]
    alone = [[ask(question) for question in QUESTIONS] for ask in asks]
    before = shared.stats()
    with ThreadPoolExecutor(2 * len(QUESTIONS)) as pool:
        running = [[pool.submit(ask, question) for question in QUESTIONS] for ask in asks]
        at_once = [[answer.result() for answer in each] for each in running]
    after = shared.stats()
    assert at_once == alone
    assert all(any(answer.strip() for answer in answers) for answers in alone)
    assert after.finished - before.finished == 2 * len(QUESTIONS)
    assert after.cached.total - before.cached.total > 0
