"""Eight threads insert, refresh, delete and forget documents while they ask, in both frameworks.

Each changes two topics of its own. Everybody asks about its shared one, it alone about its private one.
So it knows what may be found there, and when no prompt with a forgotten document can come any more.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from operator import itemgetter
from random import Random
from typing import Any, Protocol

import pytest
from made_embeddings import langchain_embeddings, llamaindex_embedding

from ragcache_engine import Document, EngineConfig, MemoryBackend, RAGCacheEngine, SamplingOptions

TOP_K = 3
FEWEST, MOST = TOP_K + 2, TOP_K + 6
"""How many documents a topic has: always more than a question gets, so that topics do not mix."""
CALLERS, TURNS, QUESTIONS, DIMENSIONS = 8, 40, 5, 64
TIERS = {"device_blocks": 130, "host_blocks": 260, "disk_blocks": 700}
"""Too small for all documents, so that every tier evicts."""
WORDS = ("moon", "tide", "sky", "light", "bread", "yeast", "ice", "steel", "glass", "bee", "salt")


def write_text(topic: int, number: int) -> str:
    """Write a document of some 60 words whose first token no other document has."""
    filler = " ".join(Random(f"{topic} {number}").choices(WORDS, k=50))
    return f"d{topic}x{number} is what is known about topic-{topic}: {filler}."


def write_question(topic: int, number: int) -> str:
    return f"What is known about topic-{topic}, asked in way {number}?"


def topic_of(text: str) -> int:
    return int(re.findall(r"topic-(\d+)", text)[0])


def embed(text: str) -> list[float]:
    """Return a vector near to those of its topic; no two texts are equally near to a question."""
    draw = Random(sha256(text.encode()).digest())
    vector = [draw.gauss(0, 1) for _ in range(DIMENSIONS)]
    vector[topic_of(text) % DIMENSIONS] += 40.0
    return vector


@dataclass(frozen=True)
class Asked:
    """What a query found, as the texts of the documents in their order, and what the LLM answered."""

    texts: tuple[str, ...]
    answer: str


class Index(Protocol):
    """An index with a chain or query engine on it."""

    def insert(self, name: str, text: str) -> None: ...

    def refresh(self, name: str, text: str) -> Sequence[str]:
        """Replace a document. Return the ids by which the engine knows the old one."""

    def delete(self, name: str) -> Sequence[str]:
        """Remove a document. Return the ids by which the engine knows it."""

    def ask(self, question: str) -> Asked: ...


def langchain_index(engine: RAGCacheEngine) -> Index:
    """Make a FaissVectorStore and a chain that answers from it."""
    pytest.importorskip("faiss")
    from langchain_core.documents import Document as LangChainDocument
    from langchain_core.prompts import PromptTemplate
    from langchain_core.runnables import RunnablePassthrough

    from ragcache_integrations.langchain import FaissVectorStore, RAGCacheLLM, RAGCacheRetriever

    store = FaissVectorStore(langchain_embeddings(embed))
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=TOP_K)
    prompt = PromptTemplate.from_template("{context}\n\nQuestion: {question}\nAnswer:")
    llm = RAGCacheLLM(engine=engine, temperature=0, max_new_tokens=16)

    def join(found: dict[str, Any]) -> str:
        return "\n\n".join(document.page_content for document in found["documents"])

    chain = RunnablePassthrough.assign(
        documents=itemgetter("question") | retriever
    ) | RunnablePassthrough.assign(answer=RunnablePassthrough.assign(context=join) | prompt | llm)

    class Stored:
        def insert(self, name: str, text: str) -> None:
            store.add_documents([LangChainDocument(text, id=name)])

        def refresh(self, name: str, text: str) -> Sequence[str]:
            self.insert(name, text)  # replaces the one with this id
            return [name]

        def delete(self, name: str) -> Sequence[str]:
            store.delete([name])
            return [name]

        def ask(self, question: str) -> Asked:
            found = chain.invoke({"question": question})
            texts = tuple(document.page_content for document in found["documents"])
            return Asked(texts, found["answer"])

    return Stored()


def llamaindex_index(engine: RAGCacheEngine) -> Index:
    """Make a VectorStoreIndex over FaissMapVectorStore and a query engine that answers from it."""
    faiss = pytest.importorskip("faiss")
    stores = pytest.importorskip("llama_index.vector_stores.faiss")
    from llama_index.core import Document as LlamaDocument
    from llama_index.core import PromptTemplate, StorageContext, VectorStoreIndex
    from llama_index.core.query_engine import RetrieverQueryEngine

    from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever

    vectors = stores.FaissMapVectorStore(faiss.IndexIDMap2(faiss.IndexFlatL2(DIMENSIONS)))
    storage = StorageContext.from_defaults(vector_store=vectors)
    index = VectorStoreIndex([], storage_context=storage, embed_model=llamaindex_embedding(embed))
    query_engine = RetrieverQueryEngine.from_args(
        RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=TOP_K),
        llm=RAGCacheLLM(engine=engine, temperature=0, max_new_tokens=16),
        text_qa_template=PromptTemplate("{context_str}\n\nQuestion: {query_str}\nAnswer:"),
    )
    changing = (
        threading.Lock()
    )  # LlamaIndex's stores take one change at a time; queries need not wait

    def ids_of(name: str) -> list[str]:
        info = index.docstore.get_ref_doc_info(name)
        assert info, f"the docstore does not know {name}"
        return list(info.node_ids)

    class Stored:
        def insert(self, name: str, text: str) -> None:
            with changing:
                index.insert(LlamaDocument(id_=name, text=text))

        def refresh(self, name: str, text: str) -> Sequence[str]:
            with changing:
                outdated = ids_of(name)
                index.refresh_ref_docs([LlamaDocument(id_=name, text=text)])
            return outdated

        def delete(self, name: str) -> Sequence[str]:
            with changing:
                outdated = ids_of(name)
                index.delete_ref_doc(name, delete_from_docstore=True)
            return outdated

        def ask(self, question: str) -> Asked:
            response = query_engine.query(question)
            texts = tuple(found.node.get_content() for found in response.source_nodes)
            return Asked(texts, str(response))

    return Stored()


@dataclass(frozen=True)
class Gone:
    """A forgotten document. before: what stood before it in the last prompt that held it."""

    before: str
    text: str


class Caller(threading.Thread):
    """Takes TURNS turns; every third changes one of its topics, in each way in turn."""

    def __init__(self, number: int, index: Index, engine: RAGCacheEngine) -> None:
        super().__init__(name=f"caller {number}")
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.gone: list[Gone] = []
        self.gone_shared: list[str] = []
        self._index, self._engine, self._draw = index, engine, Random(number)
        self.shared, self.private = number, CALLERS + number
        self.texts: dict[int, dict[str, str]] = {self.shared: {}, self.private: {}}
        self._written = 0
        for topic in self.texts:
            for _ in range(FEWEST):
                self._insert(topic)

    def run(self) -> None:
        for turn in range(TURNS):
            try:
                if turn % 3 == 0:
                    self._change(self._draw.choice([self.shared, self.private]))
                else:
                    self._ask(self._draw.choice([*range(CALLERS), self.private, self.private]))
            except Exception as error:
                self.failures.append(f"{self.name}: {type(error).__name__}: {error}")

    def _change(self, topic: int) -> None:
        own = self.texts[topic]
        kinds = ["refresh", *["insert"] * (len(own) < MOST), *["delete"] * (len(own) > FEWEST)]
        kind = min(kinds, key=self.counts.__getitem__)
        self.counts[kind] += 1
        if kind == "insert":
            return self._insert(topic)
        asked = self._ask(topic)  # so that some of the topic is cached
        name = self._draw.choice([name for name in own if own[name] in asked.texts] or [*own])
        old = own.pop(name)
        if kind == "refresh":
            own[name] = self._write(topic)
            ids = self._index.refresh(name, own[name])
        else:
            ids = self._index.delete(name)
        self._engine.forget(ids)
        if topic == self.shared:  # somebody may be about to ask the model about what it has found
            self.gone_shared += ids
        else:
            before = asked.texts[: asked.texts.index(old)] if old in asked.texts else ()
            self.gone.append(Gone("".join(f"{text}\n\n" for text in before), old))
        return None

    def _ask(self, topic: int) -> Asked:
        self.counts["query"] += 1
        asked = self._index.ask(write_question(topic, self._draw.randrange(QUESTIONS)))
        if topic in self.texts:  # nobody else changes it, so its documents are known
            wrong = set(asked.texts) - set(self.texts[topic].values())
        else:
            wrong = {text for text in asked.texts if topic_of(text) != topic}
        if wrong or len(set(asked.texts)) != TOP_K:
            self.failures.append(f"{self.name}: found {asked.texts}, of them wrong: {wrong}")
        return asked

    def _insert(self, topic: int) -> None:
        name, text = f"{topic}-{self._written}", self._write(topic)
        self.texts[topic][name] = text
        self._index.insert(name, text)

    def _write(self, topic: int) -> str:
        self._written += 1
        return write_text(topic, self._written)


def start_engine() -> RAGCacheEngine:
    """Start an engine without a model whose answers depend on the whole prompt."""
    backend = MemoryBackend(lambda prompt: sha256(prompt.encode()).hexdigest(), **TIERS)
    return RAGCacheEngine(EngineConfig(backend="memory"), backend=backend)


def ask_everything(index: Index) -> dict[str, Asked]:
    asked = [write_question(topic, way) for topic in range(2 * CALLERS) for way in range(QUESTIONS)]
    return {question: index.ask(question) for question in asked}


def is_left(engine: RAGCacheEngine, gone: Gone) -> bool:
    """Return whether any tier still has tensors of the document, where its last prompt had it."""
    prompt = f"{gone.before}{gone.text}\n\nIs it gone?"
    usage = engine.generate(prompt, options=SamplingOptions(max_tokens=1)).usage
    return usage.cached.total > (len(engine.tokenize(gone.before)) if gone.before else 0)


@pytest.mark.parametrize("make_index", [langchain_index, llamaindex_index])
def test_answers_are_those_of_a_quiet_index_and_what_is_forgotten_is_gone(
    make_index: Callable[[RAGCacheEngine], Index],
):
    with start_engine() as engine:
        index = make_index(engine)
        callers = [Caller(number, index, engine) for number in range(CALLERS)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert [line for caller in callers for line in caller.failures] == []
        counts = sum((caller.counts for caller in callers), Counter[str]())
        assert all(counts[kind] > 0 for kind in ("query", "insert", "refresh", "delete")), counts
        engine.forget({name for caller in callers for name in caller.gone_shared})
        # A check caches what it asks about, so prompts that begin others come first.
        gone = sorted(
            (one for caller in callers for one in caller.gone), key=lambda one: len(one.before)
        )
        assert gone
        assert [one for one in gone if is_left(engine, one)] == []
        answers, stats = ask_everything(index), engine.stats()
    assert stats.failed == 0
    assert sum(stats.tiers.evicted.values()) > 0
    with start_engine() as engine:
        quiet = make_index(engine)
        for caller in callers:
            for own in caller.texts.values():
                for name, text in own.items():
                    quiet.insert(name, text)
        assert answers == ask_everything(quiet)


def test_a_document_that_was_not_forgotten_is_seen_in_the_tiers():
    before, text = "The first one. " * 20, "The second one. " * 20
    gone = Gone(f"{before}\n\n", text)
    with RAGCacheEngine(EngineConfig(backend="memory")) as engine:
        documents = [Document("first", before), Document("second", text)]
        engine.generate(f"{before}\n\n{text}\n\nWhy?", documents)
        engine.forget(["second"])
        assert not is_left(engine, gone)
        engine.generate(f"{before}\n\n{text}\n\nWhy?", documents)
        assert is_left(engine, gone)
