"""What LangChain's own test suite does not check of FaissVectorStore."""

import asyncio
import math

import faiss
import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.indexing import InMemoryRecordManager, aindex, index

from ragcache_engine import BadRequest, ConfigError, EmptyIndex, InvalidTopK, QueryShapeError
from ragcache_integrations.langchain import (
    FaissVectorStore,
    FlatIndex,
    HNSWIndex,
    InvalidFilter,
    IVFIndex,
    UnequalLengths,
    UnsupportedIndex,
    VectorShapeError,
)

SKY = "Why is the sky blue?"
METRICS = ["cosine", "l2", "inner_product"]


@pytest.fixture
def filled(corpus, embeddings):
    """Makes stores of the small corpus, with each text's topic and length as its metadata."""

    def make(**settings):
        metadatas = [{"topic": name, "length": len(text)} for name, text in corpus.items()]
        return FaissVectorStore.from_texts(
            list(corpus.values()), embeddings, metadatas, ids=list(corpus), **settings
        )

    return make


@pytest.fixture
def ours(filled):
    return filled()


def many_vectors(count, size=16, seed=3):
    return np.random.default_rng(seed).normal(size=(count, size)).astype(np.float32)


def many(embeddings, count, **settings):
    """A store of numbered documents with random vectors."""
    vectors = many_vectors(count)
    return FaissVectorStore.from_embeddings(
        [(str(number), vector) for number, vector in enumerate(vectors)],
        embeddings,
        [{"number": number, "even": number % 2 == 0} for number in range(count)],
        ids=[str(number) for number in range(count)],
        **settings,
    )


# Adding


def test_ids_are_made_where_there_are_none(embeddings):
    store = FaissVectorStore(embeddings)
    ids = store.add_texts(["one", "two", "three"], ids=["a", None, None])
    assert ids[0] == "a"
    assert len(set(ids)) == 3
    assert [document.page_content for document in store.get_by_ids(ids)] == ["one", "two", "three"]


def test_of_an_id_that_comes_twice_in_one_call_the_last_text_wins(embeddings):
    store = FaissVectorStore(embeddings)
    assert store.add_texts(["one", "two", "three"], ids=["a", "b", "a"]) == ["a", "b", "a"]
    assert store.document_count == 2
    assert store.get_by_ids(["a"])[0].page_content == "three"


def test_the_callers_metadata_and_the_stores_are_not_the_same_object(embeddings):
    metadata = {"tags": ["a"]}
    store = FaissVectorStore.from_texts(["one"], embeddings, [metadata], ids=["1"])
    metadata["tags"].append("b")
    store.get_by_ids(["1"])[0].metadata["tags"].append("c")
    store.similarity_search("one")[0].metadata["tags"].append("d")
    assert store.get_by_ids(["1"])[0].metadata == {"tags": ["a"]}


def test_nothing_to_add_is_no_error(embeddings):
    store = FaissVectorStore.from_texts([], embeddings)
    assert store.add_documents([]) == []
    assert asyncio.run(store.aadd_texts([])) == []
    assert store.similarity_search(SKY) == []
    assert store.max_marginal_relevance_search(SKY) == []


def test_numbers_as_ids_become_strings_as_in_a_document(embeddings):
    assert FaissVectorStore(embeddings).add_texts(["one"], ids=[7]) == ["7"]


@pytest.mark.parametrize(
    ("arguments", "error", "advice"),
    [
        ({"metadatas": [{}]}, UnequalLengths, "2 texts, 1 metadatas"),
        ({"ids": ["1", "2", "3"]}, UnequalLengths, "2 texts, 3 ids; give one of each"),
        ({"ids": ["1", 2.5]}, BadRequest, "ids are strings, got 2.5"),
        ({"metadatas": [{}, "x"]}, BadRequest, "metadata 1 is a str"),
        ({"metadata": [{}, {}]}, BadRequest, "no option 'metadata'"),
    ],
)
def test_what_does_not_pair_up_is_refused_before_anything_is_embedded(
    embeddings, monkeypatch, arguments, error, advice
):
    monkeypatch.setattr(embeddings, "embed_documents", lambda texts: pytest.fail("embedded"))
    store = FaissVectorStore(embeddings)
    with pytest.raises(error, match=advice):
        store.add_texts(["one", "two"], **arguments)
    with pytest.raises(error, match=advice):
        asyncio.run(store.aadd_texts(["one", "two"], **arguments))


@pytest.mark.parametrize("index", ["flat", "hnsw"])
def test_vectors_of_another_size_are_refused_and_change_nothing(filled, embeddings, index):
    store = filled(index=index)
    before = store.get_by_ids(["sky"])
    embeddings.size = 32
    with pytest.raises(VectorShapeError, match="32 dimensions, the index 64; embed with the model"):
        store.add_texts(["something else"], ids=["sky"])
    assert store.get_by_ids(["sky"]) == before


@pytest.mark.parametrize(
    ("vectors", "advice"),
    [
        ([[1.0, math.nan], [1.0, 2.0]], "vector 0 holds NaN"),
        ([[1.0, 2.0], [1.0, 1e39]], "vector 1 holds NaN, an infinity, or"),
        ([[1.0, 2.0], [1.0]], "all of one size"),
        ([[1.0, 2.0]], "2 texts need 2 vectors"),
        ([[], []], "2 vectors of one size"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_what_no_index_can_hold_is_refused(embeddings, monkeypatch, vectors, advice):
    monkeypatch.setattr(embeddings, "embed_documents", lambda texts: vectors)
    store = FaissVectorStore(embeddings)
    with pytest.raises(VectorShapeError, match=advice):
        store.add_texts(["one", "two"])
    assert store.document_count == 0


def test_an_addition_that_fails_half_way_leaves_no_trace(embeddings, monkeypatch):
    store = many(embeddings, 10)
    kind = type(store.index)
    add, calls = kind.add, []

    def failing(index, vectors):
        calls.append(len(vectors))
        if len(calls) == 2:
            raise MemoryError
        add(index, vectors)

    monkeypatch.setattr(kind, "add", failing)
    vectors = many_vectors(2_000, seed=4)
    with pytest.raises(MemoryError):
        store.add_embeddings([("new", vector) for vector in vectors], ids=new_ids(2_000))
    monkeypatch.undo()
    assert store.document_count == 10
    found = store.similarity_search_by_vector(vectors[0], k=100)
    assert len(found) == 10
    assert "new" not in {document.page_content for document in found}
    store.add_embeddings([("later", vectors[0])], ids=["later"])
    assert store.similarity_search_by_vector(vectors[0], k=1)[0].id == "later"


def new_ids(count):
    return [f"new {number}" for number in range(count)]


def test_after_everything_is_deleted_another_embedding_model_may_be_used(ours, embeddings):
    ours.delete()
    embeddings.size = 32
    ours.add_texts(["Snow is white."], ids=["snow"])
    assert ours.similarity_search("snow")[0].id == "snow"
    assert ours.index.d == 32


def test_stores_merge_without_embedding_anything_again(ours, embeddings, monkeypatch):
    other = FaissVectorStore.from_texts(
        ["Snow is white.", "A new text of the sky."], embeddings, ids=["snow", "sky"]
    )
    monkeypatch.setattr(embeddings, "embed_documents", lambda texts: pytest.fail("embedded"))
    ours.merge_from(other)
    assert ours.document_count == 7
    assert ours.similarity_search("white snow", k=1)[0].id == "snow"
    assert ours.get_by_ids(["sky"])[0].page_content == "A new text of the sky."


@pytest.mark.parametrize("asynchronous", [False, True])
def test_langchains_indexing_keeps_the_store_in_step_with_its_source(embeddings, asynchronous):
    store, records = FaissVectorStore(embeddings), InMemoryRecordManager("here")
    records.create_schema()

    def keep_in_step(*texts):
        documents = [Document(text, metadata={"source": text[0]}) for text in texts]
        options = {"cleanup": "full", "source_id_key": "source", "key_encoder": "sha256"}
        if asynchronous:
            return asyncio.run(aindex(documents, records, store, **options))
        return index(documents, records, store, **options)

    assert keep_in_step("a one", "b two")["num_added"] == 2
    assert keep_in_step("a one", "c three") == {
        "num_added": 1,
        "num_updated": 0,
        "num_skipped": 1,
        "num_deleted": 1,
    }
    found = store.similarity_search("one", k=10)
    assert {document.page_content for document in found} == {"a one", "c three"}


# Searching


@pytest.mark.parametrize("metric", METRICS)
def test_scores_are_faiss_scores_and_relevances_lie_between_0_and_1(filled, embeddings, metric):
    store = filled(metric=metric)
    query = np.array(embeddings.embed_query(SKY))
    for document, score in store.similarity_search_with_score(SKY, k=6):
        vector = np.array(embeddings.embed_query(document.page_content))
        expected = ((query - vector) ** 2).sum() if metric == "l2" else query @ vector
        assert score == pytest.approx(expected, abs=1e-5)
    relevances = [value for _, value in store.similarity_search_with_relevance_scores(SKY, k=6)]
    assert relevances == sorted(relevances, reverse=True)
    assert all(0.0 <= value <= 1.0 for value in relevances)
    itself = store.get_by_ids(["sky"])[0].page_content
    ((_, best),) = store.similarity_search_with_relevance_scores(itself, k=1)
    assert best == pytest.approx(1.0 if metric != "inner_product" else 1 / (1 + math.exp(-1)))


def test_the_cosine_does_not_care_for_lengths_and_bears_a_vector_of_none(embeddings):
    vectors = [("short", [0.1, 0.0]), ("long", [3.0, 3.0]), ("none", [0.0, 0.0])]
    store = FaissVectorStore.from_embeddings(vectors, embeddings)
    found = store.similarity_search_with_score_by_vector([50.0, 0.0], k=3)
    assert [(d.page_content, round(score, 4)) for d, score in found] == [
        ("short", 1.0),
        ("long", round(math.sqrt(0.5), 4)),
        ("none", 0.0),
    ]


def test_a_relevance_function_of_the_users_own_is_used(filled):
    store = filled(relevance_score_fn=lambda score: 0.25)
    assert {value for _, value in store.similarity_search_with_relevance_scores(SKY)} == {0.25}


@pytest.mark.parametrize("metric", METRICS)
def test_a_score_threshold_leaves_out_what_is_less_near(filled, metric):
    store = filled(metric=metric)
    scored = store.similarity_search_with_score(SKY, k=6)
    threshold = scored[2][1]
    expected = [
        document.id for document, score in scored if not is_further(metric, score, threshold)
    ]
    found = store.similarity_search(SKY, k=6, score_threshold=threshold)
    assert [document.id for document in found] == expected
    assert 0 < len(found) < 6


def is_further(metric, score, threshold):
    return score > threshold if metric == "l2" else score < threshold


@pytest.mark.parametrize("index", ["flat", IVFIndex(nlist=8, nprobe=1, train_from=8), "hnsw"])
@pytest.mark.parametrize("share", [0.004, 0.5])
def test_k_documents_come_back_whenever_k_pass_the_filter(embeddings, index, share):
    store = many(embeddings, 2_500, index=index)
    passing = int(2_500 * share)
    query = many_vectors(1, seed=9)[0]
    filter = {"number": {"$lt": passing}}
    found = store.similarity_search_by_vector(query, k=10, filter=filter)
    assert len(found) == 10
    assert all(document.metadata["number"] < passing for document in found)
    everything = store.similarity_search_by_vector(query, k=10_000, filter=filter)
    assert len(everything) == passing


def test_few_that_pass_are_searched_for_exactly_in_every_index(embeddings):
    query = many_vectors(1, seed=9)[0]
    exact, *others = (
        many(embeddings, 2_500, index=index).similarity_search_with_score_by_vector(
            query, k=5, filter=lambda metadata: metadata["number"] % 7 == 0
        )
        for index in ("flat", IVFIndex(nlist=8, nprobe=1, train_from=8), HNSWIndex(ef_search=1))
    )
    for found in others:
        assert [document.id for document, _ in found] == [document.id for document, _ in exact]


def test_a_filter_is_asked_again_after_the_documents_changed(ours):
    query = {"k": 6, "filter": {"length": {"$gt": 0}}}
    assert len(ours.similarity_search(SKY, **query)) == 6
    ours.delete(["sky"])
    assert len(ours.similarity_search(SKY, **query)) == 5
    ours.add_texts(["Snow"], [{"length": 4}], ids=["snow"])
    assert "snow" in {document.id for document in ours.similarity_search(SKY, **query)}


def test_filters_that_differ_only_in_type_are_not_taken_for_each_other(embeddings):
    store = FaissVectorStore.from_texts(["one", "two"], embeddings, [{"a": 1}, {"a": True}])
    for value, text in ((1, "one"), (True, "two"), (1.0, "one")):
        assert [d.page_content for d in store.similarity_search("one", filter={"a": value})] == [
            text
        ]


def test_filters_that_only_look_alike_are_not_taken_for_each_other(embeddings):
    store = FaissVectorStore.from_texts(["one"], embeddings, [{"a": [1, 2]}])
    assert store.similarity_search("one", filter={"a": {"$eq": [1, 2]}})
    assert not store.similarity_search("one", filter={"a": {"$eq": (1, 2)}})


def test_more_filters_than_are_remembered_still_say_the_truth(embeddings):
    store = many(embeddings, 200)
    for _ in range(2):
        for number in range(100):
            (found,) = store.similarity_search_by_vector([1.0] * 16, filter={"number": number})
            assert found.metadata["number"] == number


def test_trying_harder_finds_more(embeddings):
    queries = many_vectors(20, seed=9)
    ivf, graph = IVFIndex(nlist=50, nprobe=2, train_from=50), HNSWIndex(m=4, ef_search=10)
    exact = many(embeddings, 3_000)
    made = {kind: many(embeddings, 3_000, index=kind) for kind in (ivf, graph)}

    def hits(index, filter=None, **effort):
        store = made[index]
        return sum(
            len(
                ids(store.similarity_search_by_vector(query, 10, filter=filter, **effort))
                & ids(exact.similarity_search_by_vector(query, 10, filter=filter))
            )
            for query in queries
        )

    assert hits(ivf, nprobe=1) < hits(ivf) < hits(ivf, nprobe=50) == 200
    assert hits(graph) < hits(graph, ef_search=1_000)
    # If half of the rows cannot pass, twice as many are looked at, unless the caller sets a number.
    assert hits(ivf, filter={"even": True}, nprobe=2) < hits(ivf, filter={"even": True})
    assert hits(graph, filter={"even": True}, ef_search=10) < hits(graph, filter={"even": True})


def ids(documents):
    return {document.id for document in documents}


def test_variety_is_traded_for_nearness(embeddings):
    store = FaissVectorStore.from_embeddings(
        [("near", [1.0, 0.1]), ("nearly the same", [1.0, 0.11]), ("other", [0.5, -0.9])], embeddings
    )

    def found(**options):
        documents = store.max_marginal_relevance_search_by_vector([1.0, 0.0], k=2, **options)
        return [document.page_content for document in documents]

    assert found(lambda_mult=0.2) == ["near", "other"]
    assert found(lambda_mult=1.0) == ["near", "nearly the same"]
    # At least k are chosen from, even if fetch_k is less.
    assert found(lambda_mult=0.2, fetch_k=1) == ["near", "nearly the same"]


def test_searching_by_vector_finds_what_searching_by_text_does(ours, embeddings):
    vector = embeddings.embed_query(SKY)
    for search_type, options in (
        ("similarity", {"k": 3, "filter": {"length": {"$gt": 150}}}),
        ("mmr", {"k": 3, "fetch_k": 5, "lambda_mult": 0.2}),
        ("similarity_score_threshold", {"k": 6, "score_threshold": 0.3}),
    ):
        by_text = ours.search(SKY, search_type, **options)
        assert by_text
        assert ours.search_by_vector(vector, search_type, **options) == by_text
        assert asyncio.run(ours.asearch_by_vector(vector, search_type, **options)) == by_text
        assert asyncio.run(ours.asearch(SKY, search_type, **options)) == by_text
    with pytest.raises(BadRequest, match="search_type='nearest'"):
        ours.search_by_vector(vector, "nearest")


@pytest.mark.parametrize(
    ("options", "error", "advice"),
    [
        ({"k": 0}, InvalidTopK, "at least one document"),
        ({"filter": {"$near": 1}}, InvalidFilter, "not known"),
        ({"filtre": {}}, BadRequest, "no option 'filtre'; the options are filter"),
        ({"nprobe": 3}, BadRequest, "the index is flat and has no nprobe"),
        ({"ef_search": 0}, BadRequest, "ef_search must be at least 1"),
    ],
)
def test_a_search_that_cannot_be_met_is_refused_before_the_query_is_embedded(
    ours, embeddings, options, error, advice
):
    for search in (ours.similarity_search, ours.max_marginal_relevance_search):
        with pytest.raises(error, match=advice):
            search(SKY, **options)
    for search in (ours.asimilarity_search, ours.amax_marginal_relevance_search):
        with pytest.raises(error, match=advice):
            asyncio.run(search(SKY, **options))
    assert embeddings.queries == 0


@pytest.mark.parametrize("options", [{"fetch_k": 0}, {"lambda_mult": 1.5}])
def test_a_trade_there_is_not_is_refused(ours, options):
    with pytest.raises(BadRequest, match=next(iter(options))):
        ours.max_marginal_relevance_search(SKY, **options)


def test_a_query_of_another_size_is_named(ours, embeddings):
    embeddings.size = 32
    with pytest.raises(QueryShapeError, match="32 dimensions, the index 64"):
        ours.similarity_search(SKY)
    for wrong in ([[1.0] * 64], [math.nan] * 64, ["a"] * 64):
        with pytest.raises(QueryShapeError):
            ours.similarity_search_by_vector(wrong)


def test_emptiness_can_be_asked_for(ours):
    ours.check_searchable()
    ours.delete()
    with pytest.raises(EmptyIndex, match="add some"):
        ours.check_searchable()


@pytest.mark.parametrize("slow", ["query", "documents"])
def test_the_event_loop_runs_on_while_the_store_works(ours, embeddings, gate, slow, monkeypatch):
    if slow == "query":
        embeddings.gate = gate
    else:
        embed = embeddings.embed_documents
        monkeypatch.setattr(
            embeddings, "embed_documents", lambda texts: gate.pass_through() or embed(texts)
        )

    async def work():
        task = ours.asimilarity_search(SKY) if slow == "query" else ours.aadd_texts(["Snow."])
        working = asyncio.create_task(task)
        while not gate.reached.is_set():
            await asyncio.sleep(0.001)
        gate.open()
        return await working

    assert asyncio.run(work())
    assert gate.was_opened


# Indexes


def test_ivf_trains_itself_and_trains_anew_as_it_grows(embeddings):
    store = FaissVectorStore(embeddings, index=IVFIndex(train_from=100))
    vectors = many_vectors(2_000)

    def grow(start, stop):
        store.add_embeddings([(str(at), vectors[at]) for at in range(start, stop)])
        return store.index

    assert isinstance(grow(0, 99), faiss.IndexFlat)
    trained = grow(99, 100)
    assert isinstance(trained, faiss.IndexIVFFlat)
    assert trained.nlist == 2
    assert grow(100, 399).nlist == 2
    assert grow(399, 400).nlist == 10
    assert store.similarity_search_by_vector(vectors[7], k=1)[0].page_content == "7"


def test_an_index_of_the_users_own_is_copied_and_stays_empty(embeddings):
    own = faiss.index_factory(16, "PCA8,IVF4,Flat")
    own.train(many_vectors(500))
    store = many(embeddings, 300, index=own)
    assert own.ntotal == 0
    assert store.metric == "l2"
    query = many_vectors(1, seed=9)[0]
    found = store.similarity_search_by_vector(query, k=40, nprobe=1, filter={"even": True})
    assert len(found) == 40
    assert len(store.max_marginal_relevance_search_by_vector(query, 3)) == 3
    store.delete([str(number) for number in range(0, 300, 2)])
    assert store.document_count == 150
    assert store.index.ntotal == 150
    with pytest.raises(VectorShapeError, match="the given index 16"):
        FaissVectorStore.from_embeddings([("one", [1.0])], embeddings, index=own)


@pytest.mark.parametrize(
    ("index", "metric", "error", "advice"),
    [
        ("tree", None, ConfigError, "index='tree' is not known; choose 'flat'"),
        ("flat", "dot", ConfigError, "metric='dot' is not known"),
        (faiss.IndexFlatL2(4), "cosine", ConfigError, "METRIC_INNER_PRODUCT"),
        (faiss.index_factory(4, "IVF2,Flat"), None, UnsupportedIndex, "not trained"),
        (faiss.index_factory(4, "IDMap,Flat"), None, UnsupportedIndex, "without IDMap"),
        (faiss.IndexLSH(4, 8), None, UnsupportedIndex, "IndexLSH cannot be searched among"),
    ],
)
def test_an_index_or_metric_that_cannot_work_is_refused_at_construction(
    embeddings, index, metric, error, advice
):
    with pytest.raises(error, match=advice):
        FaissVectorStore(embeddings, index=index, metric=metric)


def test_an_index_that_holds_vectors_already_is_refused(embeddings):
    index = faiss.IndexFlatL2(4)
    index.add(np.ones((2, 4), dtype=np.float32))
    with pytest.raises(UnsupportedIndex, match="holds 2 vectors whose documents"):
        FaissVectorStore(embeddings, index=index)


@pytest.mark.parametrize(
    "settings",
    [
        lambda: IVFIndex(nlist=0),
        lambda: IVFIndex(nprobe=0),
        lambda: IVFIndex(nlist=100, train_from=50),
        lambda: HNSWIndex(m=1),
        lambda: HNSWIndex(ef_search=0),
    ],
)
def test_settings_that_cannot_work_are_refused_at_birth(settings):
    with pytest.raises(ConfigError):
        settings()


def test_the_plain_names_are_the_kinds_with_their_defaults(embeddings):
    for kind in (FlatIndex(), IVFIndex(), HNSWIndex()):
        by_name, by_kind = (many(embeddings, 50, index=index) for index in (kind.name, kind))
        assert type(by_name.index) is type(by_kind.index)


def test_the_index_can_be_read_for_searches_of_ones_own(ours, embeddings):
    ours.delete(["bees"])
    with ours.reading(embeddings.embed_query(SKY)) as view:
        _, rows = view.index.search(view.query, 6)
        found = [view.documents[row].id for row in rows[0].tolist() if row in view.documents]
    assert found == [document.id for document in ours.similarity_search(SKY, k=6)]


def test_a_batch_of_questions_finds_what_single_questions_find(ours):
    retriever = ours.as_retriever(search_kwargs={"k": 2, "filter": {"length": {"$gt": 100}}})
    questions = [SKY, "Why does bread rise?", "How do bees dance?"]
    single = [retriever.invoke(question) for question in questions]
    assert retriever.batch(questions) == single
    assert asyncio.run(retriever.abatch(questions)) == single


def test_documents_without_metadata_are_searched_as_well(embeddings):
    store = FaissVectorStore.from_documents([Document("one"), Document("two", id="2")], embeddings)
    assert [d.id for d in store.similarity_search("two", k=1)] == ["2"]
    assert store.similarity_search("two", filter={"topic": "x"}) == []


# Showing


def test_a_store_says_what_it_is_and_how_much_it_holds(ours, embeddings):
    assert (
        repr(ours) == f"FaissVectorStore({len(ours)} documents, {ours.index.d} dimensions, cosine)"
    )
    ours.delete(["sky"])
    assert f"({len(ours)} documents" in repr(ours)
    assert repr(FaissVectorStore(embeddings)) == "FaissVectorStore(0 documents, empty, cosine)"


def test_its_length_is_the_number_of_documents(ours, corpus, embeddings):
    assert len(ours) == len(corpus)
    ours.add_texts(["One more."])
    assert len(ours) == len(corpus) + 1
    assert len(FaissVectorStore(embeddings)) == 0


def test_an_empty_store_is_still_a_store(embeddings):
    assert FaissVectorStore(embeddings), "so that `store or another` does not pass it over"
