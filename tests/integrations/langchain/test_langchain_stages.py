"""A LangChain retriever that searches in stages: the answer is the same, and the engine hears
early.
"""

import asyncio
import json
import threading
import time
from contextlib import aclosing, suppress

import faiss
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.vectorstores import FAISS
from langchain_community.vectorstores.utils import DistanceStrategy
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.prompts import PromptTemplate
from thoroughness import examples
from waiting import eventually

import ragcache_engine.search
from ragcache_engine import EngineConfig, RAGCacheEngine, SpeculationOutcome, SpeculationStep
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_integrations import staging
from ragcache_integrations.langchain import (
    FaissVectorStore,
    FlatIndex,
    HNSWIndex,
    IVFIndex,
    RAGCacheLLM,
    RAGCacheRetriever,
)

D = 8
FAMILIES = ("flat", "ivf", "ivf inner product", "hnsw", "id map")
TEMPLATE = PromptTemplate.from_template("Read this.\n\n{context}\n\nQuestion: {question}\n")


class Numbers(Embeddings):
    """Embeds the text "7" as a random point drawn with the seed 7."""

    def embed_query(self, text):
        return np.random.default_rng(int(text)).standard_normal(D).tolist()

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]


def documents_of(count):
    return [
        Document(f"Passage {n} tells what there is to say of {n}.", id=f"d{n}", metadata={"n": n})
        for n in range(count)
    ]


def vectors_of(count, seed):
    # Rounded, to get equal distances, for which searches could differ.
    return np.round(np.random.default_rng(seed).standard_normal((count, D)), 1).astype(np.float32)


def index_of(family, vectors):
    lists = max(2, len(vectors) // 12)
    if family == "hnsw":
        index = faiss.IndexHNSWFlat(D, 8)
        index.hnsw.efSearch = 512
    elif family.startswith("ivf"):
        product = "product" in family
        quantizer = faiss.IndexFlatIP(D) if product else faiss.IndexFlatL2(D)
        metric = faiss.METRIC_INNER_PRODUCT if product else faiss.METRIC_L2
        index = faiss.IndexIVFFlat(quantizer, D, lists, metric)
        index.cp.min_points_per_centroid = 1
        index.nprobe = lists - 1
        index.train(vectors)
    else:
        index = faiss.IndexFlatL2(D)
        if family == "id map":
            index = faiss.IndexIDMap2(index)
            index.add_with_ids(vectors, np.arange(len(vectors)))
            return index
    index.add(vectors)
    if family.startswith("ivf"):
        index.make_direct_map()  # so that the index can return its vectors, which mmr needs
    return index


def community_store(family, count=60, seed=0, **options):
    documents = documents_of(count)
    names = {row: document.id for row, document in enumerate(documents)}
    docstore = InMemoryDocstore({document.id: document for document in documents})
    strategy = (
        DistanceStrategy.MAX_INNER_PRODUCT
        if "product" in family
        else DistanceStrategy.EUCLIDEAN_DISTANCE
    )
    index = index_of(family, vectors_of(count, seed))
    return FAISS(Numbers(), index, docstore, names, distance_strategy=strategy, **options)


def own_store(index, count=60, seed=0):
    store = FaissVectorStore(Numbers(), index=index)
    add(store, documents_of(count), vectors_of(count, seed))
    return store


def add(store, documents, vectors):
    texts = [document.page_content for document in documents]
    metadatas = [document.metadata for document in documents]
    ids = [document.id for document in documents]
    store.add_embeddings(list(zip(texts, vectors.tolist(), strict=True)), metadatas, ids)


@pytest.fixture
def every_stage(monkeypatch):
    """Shows every stage of a search.

    Small indexes are searched in microseconds, and would have only the last stage.
    """
    monkeypatch.setattr(staging, "SLICE_S", 0.0)


@pytest.fixture(scope="module")
def heard():
    """An engine that keeps its retrievals' arguments and results."""

    class Hearing(RAGCacheEngine):
        def retrieval(self, question, **told):
            return _listening(self, super().retrieval(question, **told))

    config = EngineConfig(model="any", backend="memory", speculation="on")
    with Hearing(config, backend=MemoryBackend()) as engine:
        engine.provisional, engine.found = [], []
        yield engine


class _listening:  # noqa: N801
    def __init__(self, engine, retrieving):
        self.engine, self.retrieving = engine, retrieving

    def __enter__(self):
        self.in_progress = self.retrieving.__enter__()
        self.engine.provisional, self.engine.found = [], []
        return self

    def provisional(self, documents):
        self.engine.provisional.append([document.id for document in documents])
        self.in_progress.provisional(documents)

    def order(self, documents):
        return self.in_progress.order(documents)

    def found(self, documents):
        self.engine.found = [document.id for document in documents]
        self.in_progress.found(documents)

    def __exit__(self, *error):
        return self.retrieving.__exit__(*error)


COMMUNITY_SEARCHES = st.one_of(
    st.tuples(st.just("similarity"), st.just({})),
    st.tuples(
        st.just("similarity"),
        st.builds(
            lambda n, fetch_k: {"filter": {"n": {"$lt": n}}, "fetch_k": fetch_k},
            st.integers(0, 80),
            st.integers(1, 80),
        ),
    ),
    st.tuples(
        st.just("similarity"),
        st.builds(lambda n: {"filter": lambda metadata: metadata["n"] % n == 0}, st.integers(1, 9)),
    ),
    st.tuples(
        st.just("similarity"), st.builds(lambda t: {"score_threshold": t}, st.floats(-5, 30))
    ),
    st.tuples(
        st.just("mmr"),
        st.builds(
            lambda fetch_k, mult: {"fetch_k": fetch_k, "lambda_mult": mult},
            st.integers(1, 70),
            st.floats(0, 1),
        ),
    ),
    st.tuples(
        st.just("similarity_score_threshold"),
        st.builds(lambda t: {"score_threshold": t}, st.floats(-3, 1)),
    ),
)
MANY = settings(
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.mark.filterwarnings("ignore:Relevance scores must be between")
@pytest.mark.filterwarnings("ignore:No relevant docs were retrieved")
@pytest.mark.filterwarnings("ignore:Normalizing L2 is not applicable")
@pytest.mark.parametrize("family", FAMILIES)
@MANY
@given(
    search=COMMUNITY_SEARCHES,
    count=st.integers(20, 90),
    k=st.integers(1, 100),
    normalize=st.booleans(),
    question=st.integers(0, 50),
)
def test_the_answer_is_the_community_stores_own(
    every_stage, heard, family, search, count, k, normalize, question
):
    search_type, options = search
    store = community_store(family, count, seed=question, normalize_L2=normalize)
    ours = RAGCacheRetriever.from_vectorstore(
        store, engine=heard, k=k, search_type=search_type, **options
    )
    stock = store.as_retriever(search_type=search_type, search_kwargs={"k": k, **options})
    found = ours.invoke(str(question))
    assert found == stock.invoke(str(question))
    assert heard.found == [document.id for document in found]
    assert all(len(set(ids)) == len(ids) <= k for ids in heard.provisional)
    if "filter" in options and isinstance(options["filter"], dict):
        allowed = {f"d{n}" for n in range(count) if n < options["filter"]["n"]["$lt"]}
        assert all(set(ids) <= allowed for ids in heard.provisional)


OWN_SEARCHES = st.one_of(
    st.tuples(st.just("similarity"), st.just({})),
    st.tuples(
        st.just("similarity"),
        st.builds(lambda n: {"filter": {"n": {"$lt": n}}}, st.integers(0, 2_000)),
    ),
    st.tuples(
        st.just("similarity"),
        st.builds(lambda n: {"filter": lambda metadata: metadata["n"] % n == 0}, st.integers(1, 9)),
    ),
    st.tuples(st.just("similarity"), st.builds(lambda t: {"score_threshold": t}, st.floats(-1, 1))),
    st.tuples(
        st.just("mmr"),
        st.builds(
            lambda fetch_k, mult: {"fetch_k": fetch_k, "lambda_mult": mult},
            st.integers(1, 70),
            st.floats(0, 1),
        ),
    ),
    st.tuples(
        st.just("similarity_score_threshold"),
        st.builds(lambda t: {"score_threshold": t}, st.floats(0, 1)),
    ),
)


@pytest.fixture(
    scope="module",
    params=[FlatIndex(), IVFIndex(nlist=40, nprobe=30, train_from=100), HNSWIndex(ef_search=512)],
    ids=["flat", "ivf", "hnsw"],
)
def own(request):
    """A store that is large enough for the index itself to apply filters, with a tenth of it
    deleted.
    """
    store = own_store(request.param, 2_000)
    store.delete([f"d{n}" for n in range(0, 2_000, 10)])
    return store


@MANY
@given(search=OWN_SEARCHES, k=st.integers(1, 100), question=st.integers(0, 10_000))
def test_the_answer_is_our_stores_own(every_stage, heard, own, search, k, question):
    search_type, options = search
    ours = RAGCacheRetriever.from_vectorstore(
        own, engine=heard, k=k, search_type=search_type, **options
    )
    stock = own.as_retriever(search_type=search_type, search_kwargs={"k": k, **options})
    found = ours.invoke(str(question))
    assert found == stock.invoke(str(question))
    assert heard.found == [document.id for document in found]
    for ids in heard.provisional:
        assert len(set(ids)) == len(ids) <= k
        assert not any(int(name[1:]) % 10 == 0 for name in ids), "a deleted document was told"


@pytest.mark.parametrize(
    "store",
    [
        lambda: community_store("ivf", 300),
        lambda: community_store("flat", 5_000),
        lambda: community_store("hnsw", 300),
        lambda: community_store("id map", 5_000),
        lambda: own_store(FlatIndex(), 5_000),
        lambda: own_store(IVFIndex(nlist=20, nprobe=20, train_from=100), 300),
    ],
    ids=["ivf", "flat", "hnsw", "id map", "own flat", "own ivf"],
)
@pytest.mark.parametrize(("search_type", "options"), [("similarity", {}), ("mmr", {"fetch_k": 9})])
def test_the_engine_hears_of_provisional_documents(every_stage, heard, store, search_type, options):
    store = store()
    retriever = RAGCacheRetriever.from_vectorstore(
        store, engine=heard, k=3, search_type=search_type, **options
    )
    found = asyncio.run(retriever.ainvoke("3"))
    asynchronously = heard.provisional
    assert retriever.invoke("3") == found
    assert heard.provisional == asynchronously
    assert heard.provisional
    assert all(len(ids) == 3 for ids in heard.provisional)
    nearest = [document.id for document in found]
    assert sum(name in heard.provisional[-1] for name in nearest) >= 2


@pytest.mark.parametrize("kind", ["community", "own"])
def test_a_search_that_changes_its_mind_still_gives_the_right_answer(every_stage, heard, kind):
    """The first list holds fairly near vectors; the nearest one of all is just inside the second list."""
    centres = np.zeros((8, D), dtype=np.float32)
    centres[:, 0] = 10.0 * np.arange(8)
    vectors = np.repeat(centres, 12, axis=0)
    vectors[:, 1] = np.tile(np.linspace(2, 3, 12), 8)  # all a good way off the line of centres
    vectors[12] = [6.0, 0, 0, 0, 0, 0, 0, 0]  # in the second list, and nearest to the question
    quantizer = faiss.IndexFlatL2(D)
    quantizer.add(centres)
    index = faiss.IndexIVFFlat(quantizer, D, 8)
    index.is_trained, index.nprobe = True, 8
    question = [4.6, 0, 0, 0, 0, 0, 0, 0]

    class Asks(Numbers):
        def embed_query(self, text):
            return question

    documents = documents_of(len(vectors))
    if kind == "community":
        index.add(vectors)
        names = {row: document.id for row, document in enumerate(documents)}
        docstore = InMemoryDocstore({document.id: document for document in documents})
        store = FAISS(Asks(), index, docstore, names)
    else:
        store = FaissVectorStore(Asks(), index=index, metric="l2")
        add(store, documents, vectors)
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=heard, k=1)
    assert [document.id for document in retriever.invoke("?")] == ["d12"]
    assert heard.provisional[0] == ["d0"]
    assert heard.provisional[-1] == ["d12"]


def test_with_speculation_off_nothing_is_searched_in_stages(every_stage, engine_on, monkeypatch):
    calls = []

    def counted(*args, stages_of=ragcache_engine.search.stages, **kwargs):
        calls.append(args)
        return stages_of(*args, **kwargs)

    monkeypatch.setattr(ragcache_engine.search, "stages", counted)
    off = engine_on(MemoryBackend(), speculation="off")
    for store in (community_store("ivf", 300), own_store(FlatIndex(), 300)):
        for search_type in ("similarity", "mmr"):
            retriever = RAGCacheRetriever.from_vectorstore(
                store, engine=off, k=3, search_type=search_type
            )
            stock = store.as_retriever(search_type=search_type, search_kwargs={"k": 3})
            assert retriever.invoke("3") == asyncio.run(retriever.ainvoke("3")) == stock.invoke("3")
    on = engine_on(MemoryBackend(), speculation="on")
    assert not calls
    RAGCacheRetriever.from_vectorstore(store, engine=on).invoke("3")
    assert calls


def test_the_store_is_left_as_it_was(every_stage, heard):
    store = community_store("ivf", 300)
    before = dict(vars(store))
    RAGCacheRetriever.from_vectorstore(store, engine=heard, k=3).invoke("3")
    assert vars(store) == before
    assert isinstance(store.index, faiss.Index)


def test_a_store_that_hides_its_parts_is_searched_as_it_is(every_stage, heard):
    class Hidden(FAISS):
        """A store that keeps its index elsewhere."""

        @property
        def index(self):
            return self.opened

        @index.setter
        def index(self, index):
            self.opened = index

    made = community_store("ivf", 300)
    store = Hidden(Numbers(), made.index, made.docstore, made.index_to_docstore_id)
    found = RAGCacheRetriever.from_vectorstore(store, engine=heard, k=3).invoke("3")
    assert found == made.similarity_search("3", k=3)
    assert not heard.provisional


# Stages for those who want them


@pytest.mark.parametrize("speculation", ["on", "off"])
@pytest.mark.parametrize(
    "store", [lambda: community_store("ivf", 300), lambda: own_store(FlatIndex(), 5_000)]
)
def test_stages_can_be_streamed(every_stage, engine_on, store, speculation):
    engine = engine_on(MemoryBackend(), speculation=speculation)
    retriever = RAGCacheRetriever.from_vectorstore(store(), engine=engine, k=3)
    stages = list(retriever.stream_stages("3"))
    assert len(stages) > 2
    assert [stage.final for stage in stages] == [False] * (len(stages) - 1) + [True]
    assert stages[-1].documents == retriever.invoke("3")
    assert stages[-1].fraction_done == 1.0
    assert len(next(retriever.stream_stages("3", k=2)).documents) == 2


@pytest.mark.parametrize("store", [lambda: community_store("flat"), lambda: own_store(FlatIndex())])
def test_an_awaited_search_has_as_many_faiss_threads_as_its_caller(heard, store):
    seen = set()

    def see(metadata):
        seen.add(faiss.omp_get_max_threads())
        return True

    retriever = RAGCacheRetriever.from_vectorstore(store(), engine=heard, k=3, filter=see)
    faiss.omp_set_num_threads(3)
    assert asyncio.run(retriever.ainvoke("3"))
    assert seen == {3}


@pytest.fixture
def slow_stages(monkeypatch):
    """Each stage waits until the event is set after it was seen, and then a little longer."""
    stages_of, drawn, goes_on = ragcache_engine.search.stages, [], threading.Event()

    def slowly(*args, **kwargs):
        for stage in stages_of(*args, **kwargs):
            drawn.append(stage)
            yield stage
            goes_on.wait(20)
            time.sleep(0.05)  # long enough to notice that the search was stopped

    monkeypatch.setattr(ragcache_engine.search, "stages", slowly)
    return drawn, goes_on


def test_closing_the_stages_stops_the_search(every_stage, heard, slow_stages):
    drawn, goes_on = slow_stages
    retriever = RAGCacheRetriever.from_vectorstore(community_store("ivf", 300), engine=heard)
    stages = retriever.stream_stages("3")
    assert not next(stages).final
    threading.Timer(0.05, goes_on.set).start()
    stages.close()
    assert len(drawn) < 8
    assert not heard.found


def test_stages_can_be_awaited(every_stage, heard):
    retriever = RAGCacheRetriever.from_vectorstore(community_store("ivf", 300), engine=heard, k=3)

    async def all_of_them():
        return [stage async for stage in retriever.astream_stages("3")]

    stages = asyncio.run(all_of_them())
    assert len(stages) > 2
    assert [stage.final for stage in stages] == [False] * (len(stages) - 1) + [True]
    assert heard.found == [document.id for document in stages[-1].documents]
    assert stages[-1].documents == retriever.invoke("3")


def test_leaving_awaited_stages_stops_the_search(every_stage, heard, slow_stages):
    drawn, goes_on = slow_stages
    retriever = RAGCacheRetriever.from_vectorstore(community_store("ivf", 300), engine=heard)

    async def first_of_them():
        async with aclosing(retriever.astream_stages("3")) as stages:
            return await anext(stages)

    async def cancelled_at_the_second():
        async with aclosing(retriever.astream_stages("3")) as stages:
            await anext(stages)
            return await asyncio.wait_for(anext(stages), timeout=0.05)

    for leaving in (first_of_them, cancelled_at_the_second):
        drawn.clear()
        goes_on.clear()
        with suppress(TimeoutError):
            assert not asyncio.run(leaving()).final
        goes_on.set()
        eventually(lambda: not any("ragcache-s" in thread.name for thread in threading.enumerate()))
        assert len(drawn) < 8
        assert not heard.found


def test_an_empty_store_has_one_stage_without_documents(heard):
    retriever = RAGCacheRetriever.from_vectorstore(
        FaissVectorStore(Numbers(), index="flat"), engine=heard
    )
    assert list(retriever.stream_stages("3")) == [([], 1.0, True)]


def test_what_cannot_be_searched_is_said_by_streamed_stages_too(heard):
    store = FaissVectorStore.from_texts(["3"], Numbers(), index="flat")
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=heard)
    with pytest.raises(ragcache_engine.InvalidTopK):
        next(retriever.stream_stages("3", k=0))


def test_our_store_tells_of_stages_by_itself(every_stage):
    store, told = own_store(FlatIndex(), 5_000), []
    vector = Numbers().embed_query("3")
    found = store.search_by_vector(
        vector, "similarity", k=3, on_stage=lambda *stage: told.append(stage)
    )
    assert found == store.search_by_vector(vector, "similarity", k=3)
    assert [done for _, done in told] == sorted(done for _, done in told)
    scored = []
    store.similarity_search_with_score_by_vector(
        vector, k=3, on_stage=lambda *stage: scored.append(stage)
    )
    assert [[document for document, _ in pairs] for pairs, _ in scored] == [d for d, _ in told]


def test_who_is_told_by_our_store_may_end_its_search(every_stage):
    class EnoughError(Exception):
        pass

    def enough(documents, fraction_done):
        raise EnoughError

    store = own_store(FlatIndex(), 5_000)
    with pytest.raises(EnoughError):
        store.search_by_vector(Numbers().embed_query("3"), k=3, on_stage=enough)
    store.delete(["d1"])  # no reference to it is left


# End to end: an unchanged chain, adopted speculations, the timeline


def test_a_chain_as_it_is_adopts_what_was_begun_during_the_search(
    every_stage, engine_on, chain_of, waiting_search
):
    engine = engine_on(MemoryBackend(), speculation="on")
    steady = waiting_search(engine)
    plain = engine_on(MemoryBackend(), speculation="off")
    store = community_store("ivf", 300)
    answers = {}
    for each in (engine, plain):
        llm = RAGCacheLLM(engine=each, temperature=0)
        chain = chain_of(RAGCacheRetriever.from_vectorstore(store, engine=each, k=2), llm)
        answers[each] = []
        for question in ("3", "5", "8", "13", "21", "34"):
            answers[each].append(chain.invoke(question))
    assert answers[engine] == answers[plain]
    # A speculation that starts only when the search ends may come later than the prompt.
    assert engine.stats().speculation.adopted >= sum(steady) >= 3
    assert plain.stats().speculation.started == 0


def wait_until_speculating(engine: RAGCacheEngine) -> None:
    """Wait until the engine has processed the latest stage and speculates on it."""

    def under_way() -> int:
        s = engine.stats().speculation
        return s.started - s.adopted - s.prefilled - s.cancelled - s.expired - s.failed

    time.sleep(0.05)  # the search does not wait for the engine to process a stage
    eventually(lambda: under_way() == 1)


def test_the_timeline_says_what_happened(every_stage, engine_on, monkeypatch):
    def waits(*args, stages_of=ragcache_engine.search.stages, **kwargs):
        for stage in stages_of(*args, **kwargs):
            yield stage
            wait_until_speculating(engine)

    monkeypatch.setattr(ragcache_engine.search, "stages", waits)
    engine = engine_on(MemoryBackend(), speculation="on")
    retriever = RAGCacheRetriever.from_vectorstore(
        community_store("ivf", 300), engine=engine, k=2, template=TEMPLATE
    )
    llm = RAGCacheLLM(engine=engine, temperature=0)
    infos = []
    for question in ("3", "5"):
        found = retriever.invoke(question)
        wait_until_speculating(engine)
        text = "\n\n".join(document.page_content for document in found)
        result = llm.generate([TEMPLATE.format(context=text, question=question)])
        infos.append(result.generations[0][0].generation_info)
    # Even the first prompt is foreseen: from the template, and with the options that the model told.
    assert [info["speculation"] for info in infos] == [SpeculationOutcome.ADOPTED] * 2
    timeline = infos[1]["speculation_timeline"]
    assert json.loads(json.dumps(timeline)) == timeline
    steps = [event["step"] for event in timeline]
    assert steps.count(SpeculationStep.STAGE) > 2
    assert SpeculationStep.STARTED in steps
