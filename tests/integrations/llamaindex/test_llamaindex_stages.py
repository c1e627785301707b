"""A LlamaIndex retriever that searches in stages: the nodes are the same, and the engine hears
early.
"""

import asyncio

import faiss
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.span_handlers import SimpleSpanHandler
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import TextNode
from llama_index.vector_stores.faiss import FaissMapVectorStore, FaissVectorStore
from thoroughness import examples

import ragcache_engine.search
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_integrations import staging
from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever
from ragcache_integrations.llamaindex.store import can_be_staged, faiss_index, retriever_with_index

D = 8
FAMILIES = ("flat", "ivf", "hnsw", "map flat", "map ivf")


class Numbers(BaseEmbedding):
    """Embeds a text that ends in 7 as a point drawn with the seed 7.

    Points are rounded, so that some are equally near.
    """

    def _get_text_embedding(self, text):
        seed = int(text.split()[-1])
        return np.round(np.random.default_rng(seed).standard_normal(D), 1).tolist()

    _get_query_embedding = _get_text_embedding

    async def _aget_query_embedding(self, query):
        return self._get_query_embedding(query)


def nodes_of(count):
    return [
        TextNode(id_=f"n{n}", text=f"This tells of the matter that has the number {n}")
        for n in range(count)
    ]


def index_of(family, count):
    vectors = np.array([Numbers()._get_text_embedding(f"{n}") for n in range(count)], "float32")
    lists = max(2, count // 15)
    if "ivf" in family:
        inner = faiss.IndexIVFFlat(faiss.IndexFlatL2(D), D, lists)
        inner.cp.min_points_per_centroid = 1
        inner.train(vectors)
        inner.nprobe = lists - 1
    elif family == "hnsw":
        inner = faiss.IndexHNSWFlat(D, 8)
        inner.hnsw.efSearch = 512
    else:
        inner = faiss.IndexFlatL2(D)
    if family.startswith("map"):
        store = FaissMapVectorStore(faiss_index=faiss.IndexIDMap2(inner))
    else:
        store = FaissVectorStore(faiss_index=inner)
    return VectorStoreIndex(
        nodes=nodes_of(count),
        embed_model=Numbers(),
        storage_context=StorageContext.from_defaults(vector_store=store),
    )


@pytest.fixture(autouse=True)
def every_stage(monkeypatch):
    """Shows every stage of a search.

    Small indexes are searched in microseconds, and would have only the last stage.
    """
    monkeypatch.setattr(staging, "SLICE_S", 0.0)
    faiss.omp_set_num_threads(1)


@pytest.fixture(scope="module")
def indexes():
    made = {family: index_of(family, 200) for family in FAMILIES}
    # Faiss itself cannot do this: an IVF index keeps its numbers when its ID map closes the gaps.
    made["map flat"].delete_nodes([f"n{n}" for n in range(0, 200, 10)])
    return made


@pytest.fixture
def heard(engine_on, monkeypatch):
    """(engine, lists of the ids it was told provisionally)."""
    told = []
    engine = engine_on(MemoryBackend(), speculation="on")
    retrieving = ragcache_engine.RetrievalInProgress.provisional

    def provisional(self, documents):
        told.append([document.id for document in documents])
        retrieving(self, documents)

    monkeypatch.setattr(ragcache_engine.RetrievalInProgress, "provisional", provisional)
    return engine, told


def names(found):
    return [(scored.node.node_id, scored.score) for scored in found]


@pytest.mark.parametrize("family", FAMILIES)
@settings(
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(top_k=st.integers(1, 210), question=st.integers(0, 10_000))
def test_the_nodes_are_the_stock_retrievers(indexes, heard, family, top_k, question):
    engine, told = heard
    told.clear()
    index = indexes[family]
    ours = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=top_k)
    stock = index.as_retriever(similarity_top_k=top_k)
    assert names(ours.retrieve(str(question))) == names(stock.retrieve(str(question)))
    for ids in told:
        assert len(set(ids)) == len(ids) == top_k
        if family == "map flat":
            assert not any(int(name[1:]) % 10 == 0 for name in ids), "a deleted node was told"


@pytest.mark.parametrize("family", ["ivf", "hnsw", "map ivf"])
def test_the_engine_hears_of_provisional_nodes(indexes, heard, family):
    engine, told = heard
    ours = RAGCacheRetriever.from_index(indexes[family], engine=engine, similarity_top_k=3)
    found = asyncio.run(ours.aretrieve("7777"))
    asynchronously = list(told)
    told.clear()
    assert names(ours.retrieve("7777")) == names(found)
    assert told == asynchronously
    assert told
    assert set(told[-1]) & {name for name, _ in names(found)}


def test_a_search_that_changes_its_mind_still_gives_the_right_nodes(indexes, heard):
    engine, told = heard
    ours = RAGCacheRetriever.from_index(indexes["ivf"], engine=engine, similarity_top_k=1)
    stock = indexes["ivf"].as_retriever(similarity_top_k=1)
    changed = 0
    for question in range(300, 400):
        told.clear()
        found = names(ours.retrieve(str(question)))
        assert found == names(stock.retrieve(str(question)))
        changed += told[0] != [found[0][0]]
    assert changed


def test_with_speculation_off_nothing_is_searched_in_stages(indexes, engine_on, monkeypatch):
    calls = []

    def counted(*args, stages_of=ragcache_engine.search.stages, **kwargs):
        calls.append(args)
        return stages_of(*args, **kwargs)

    monkeypatch.setattr(ragcache_engine.search, "stages", counted)
    off, on = (engine_on(MemoryBackend(), speculation=mode) for mode in ("off", "on"))
    ours = RAGCacheRetriever.from_index(indexes["ivf"], engine=off)
    stock = indexes["ivf"].as_retriever()
    assert names(ours.retrieve("7")) == names(stock.retrieve("7"))
    assert names(asyncio.run(ours.aretrieve("7"))) == names(stock.retrieve("7"))
    assert not calls
    RAGCacheRetriever.from_index(indexes["ivf"], engine=on).retrieve("7")
    assert calls


@pytest.mark.parametrize("family", FAMILIES)
def test_the_private_names_are_still_where_they_were(indexes, heard, family):
    """If this fails, LlamaIndex has moved what `retriever_with_index` replaces."""
    engine, _ = heard
    ours = RAGCacheRetriever.from_index(indexes[family], engine=engine)
    assert can_be_staged(ours)
    stand_in = faiss.IndexFlatL2(D)
    view = retriever_with_index(ours, stand_in)
    assert view._vector_store.client is stand_in
    assert faiss_index(indexes[family]) is not stand_in
    assert ours._vector_store.client is faiss_index(indexes[family])


def test_a_store_that_keeps_its_index_elsewhere_is_searched_as_it_is(heard):
    class Elsewhere(FaissVectorStore):
        @property
        def client(self):
            return self._faiss_index.inner

        def query(self, query, **kwargs):
            kept, self._faiss_index = self._faiss_index, self._faiss_index.inner
            try:
                return super().query(query, **kwargs)
            finally:
                self._faiss_index = kept

    class Holder:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

    engine, told = heard
    index = index_of("ivf", 100)
    index.storage_context.vector_stores["default"] = index._vector_store = Elsewhere(
        faiss_index=Holder(index.vector_store.client)
    )
    found = RAGCacheRetriever.from_index(index, engine=engine).retrieve("7")
    assert names(found) == names(index.as_retriever().retrieve("7"))
    assert not told


def test_provisional_searches_leave_no_trace(indexes, heard):
    engine, told = heard
    spans = SimpleSpanHandler()
    dispatcher = get_dispatcher()
    dispatcher.add_span_handler(spans)
    try:
        RAGCacheRetriever.from_index(indexes["ivf"], engine=engine).retrieve("7")
        ours = sum("_retrieve" in span.id_ for span in spans.completed_spans)
        spans.completed_spans.clear()
        indexes["ivf"].as_retriever().retrieve("7")
        stock = sum("_retrieve" in span.id_ for span in spans.completed_spans)
    finally:
        dispatcher.span_handlers.remove(spans)
    assert told
    assert stock
    assert ours == stock + 1  # our method, then LlamaIndex's; no span for a stage


def test_an_awaited_search_has_as_many_faiss_threads_as_its_caller(indexes, heard, monkeypatch):
    engine, _ = heard
    seen, query = set(), FaissVectorStore.query

    def see(*args, **kwargs):
        seen.add(faiss.omp_get_max_threads())
        return query(*args, **kwargs)

    monkeypatch.setattr(FaissVectorStore, "query", see)
    retriever = RAGCacheRetriever.from_index(indexes["flat"], engine=engine)
    faiss.omp_set_num_threads(3)
    assert asyncio.run(retriever.aretrieve("7"))
    assert seen == {3}


def test_stages_can_be_streamed_and_closed(indexes, heard):
    engine, _ = heard
    ours = RAGCacheRetriever.from_index(indexes["ivf"], engine=engine, similarity_top_k=3)
    stages = list(ours.stream_stages("7"))
    assert len(stages) > 2
    assert [stage.final for stage in stages] == [False] * (len(stages) - 1) + [True]
    assert names(stages[-1].nodes) == names(ours.retrieve("7"))
    early = ours.stream_stages("7")
    assert not next(early).final
    early.close()


def test_stages_can_be_awaited(indexes, heard):
    engine, _ = heard
    ours = RAGCacheRetriever.from_index(indexes["ivf"], engine=engine, similarity_top_k=3)

    async def all_of_them():
        return [stage async for stage in ours.astream_stages("7")]

    stages = asyncio.run(all_of_them())
    assert len(stages) > 2
    assert [stage.final for stage in stages] == [False] * (len(stages) - 1) + [True]
    assert names(stages[-1].nodes) == names(ours.retrieve("7"))


def test_a_query_engine_as_it_is_adopts_what_was_begun_during_the_search(
    indexes, engine_on, waiting_search
):
    answers = {}
    engine = engine_on(MemoryBackend(), speculation="on")
    steady = waiting_search(engine)
    plain = engine_on(MemoryBackend(), speculation="off")
    for each in (engine, plain):
        retriever = RAGCacheRetriever.from_index(indexes["ivf"], engine=each)
        query_engine = RetrieverQueryEngine.from_args(retriever, llm=RAGCacheLLM(engine=each))
        answers[each] = []
        for question in [f"What is there to be said of matter {number}" for number in range(7)]:
            answers[each].append(str(query_engine.query(question)))
    assert answers[engine] == answers[plain]
    # A speculation that starts only when the search ends may come later than the prompt.
    assert engine.stats().speculation.adopted >= sum(steady) >= 3
