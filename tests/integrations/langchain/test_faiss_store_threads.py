"""Many threads use one store: each search sees the documents before a change or after it."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import faiss
import numpy as np
import pytest
from langchain_core.embeddings import Embeddings

from ragcache_integrations.langchain import FaissVectorStore, HNSWIndex, IVFIndex
from ragcache_integrations.shared_lock import SharedLock

BATCH = 40
KINDS = {
    "flat": "flat",
    "ivf": IVFIndex(nlist=4, nprobe=4, train_from=60),
    "hnsw": HNSWIndex(m=16, ef_search=200),
}


class Random(Embeddings):
    def embed_query(self, text):
        seed = sum(text.encode())
        return np.random.default_rng(seed).normal(size=8).tolist()

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]


def versions(documents):
    return {document.metadata["version"] for document in documents}


@pytest.mark.parametrize("index", KINDS.values(), ids=KINDS)
def test_a_search_never_sees_half_of_a_change(index):
    store = FaissVectorStore(Random(), index=index)
    ids = [f"d{number}" for number in range(BATCH)]
    stop = threading.Event()

    def write(version):
        texts = [f"{name} in version {version}" for name in ids]
        store.add_texts(texts, [{"version": version}] * BATCH, ids=ids)

    def read(filter):
        seen = set()
        while not stop.is_set():
            found = store.similarity_search("anything", k=3 * BATCH, filter=filter)
            assert {document.id for document in found} == set(ids)
            assert len(found) == BATCH
            assert len(versions(found)) == 1
            assert all(
                document.page_content.endswith(f" {v}")
                for document in found
                for v in versions([document])
            )
            assert len(versions(store.get_by_ids(ids))) == 1
            seen |= versions(found)
        return seen

    write(0)
    filters = [None, {"version": {"$gte": 0}}, lambda metadata: True]
    with ThreadPoolExecutor(len(filters)) as pool:
        reading = [pool.submit(read, filter) for filter in filters]
        try:
            for version in range(1, 25):
                write(version)
        finally:
            stop.set()
        seen = [each.result() for each in reading]
    assert all(seen)
    assert versions(store.similarity_search("anything", k=BATCH)) == {24}


@pytest.mark.parametrize("index", KINDS.values(), ids=KINDS)
def test_what_many_threads_add_and_delete_is_all_there_and_gone(index):
    store = FaissVectorStore(Random(), index=index)

    def work(thread):
        ids = [f"{thread}-{number}" for number in range(30)]
        for name in ids:
            store.add_texts([name], [{"thread": thread}], ids=[name])
        store.delete(ids[::2])
        found = store.similarity_search("anything", k=100, filter={"thread": thread})
        assert {document.id for document in found} == set(ids[1::2])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert store.document_count == 60
    assert len(store.similarity_search("anything", k=100)) == 60


def test_a_filter_may_look_into_its_own_store_but_not_change_it(tmp_path):
    store = FaissVectorStore.from_texts(
        ["one", "two"], Random(), [{"n": 1}, {"n": 2}], ids=["1", "2"]
    )

    def looks(metadata):
        return bool(store.get_by_ids([str(metadata["n"])]))

    assert len(store.similarity_search("one", filter=looks)) == 2
    for change in (
        lambda _: store.delete(["1"]),
        lambda _: store.add_texts(["three"]),
        lambda _: store.save_local(tmp_path),
    ):
        with pytest.raises(RuntimeError, match="must not change or save the store"):
            store.similarity_search("one", filter=change)
    assert store.document_count == 2


def test_a_writer_waits_for_readers_and_new_readers_wait_for_it():
    lock, order = SharedLock(), []
    reader_in, reader_may_go, writer_waits = (threading.Event() for _ in range(3))

    def first_reader():
        with lock.reading():
            reader_in.set()
            reader_may_go.wait(5)
            with lock.reading():  # although a writer waits
                order.append("first reader")

    def writer():
        reader_in.wait(5)
        writer_waits.set()
        with lock.writing():
            order.append("writer")

    threads = [threading.Thread(target=target) for target in (first_reader, writer)]
    for thread in threads:
        thread.start()
    writer_waits.wait(5)
    while not lock._writers_waiting:
        pass

    def second_reader():
        with lock.reading():
            order.append("second reader")

    threads.append(threading.Thread(target=second_reader))
    threads[-1].start()
    reader_may_go.set()
    for thread in threads:
        thread.join(5)
    assert order == ["first reader", "writer", "second reader"]


# Each: (store, options) -> one of its searches that coroutines await.
AWAITED = {
    "asimilarity_search": lambda store, **options: store.asimilarity_search("a", **options),
    "amax_marginal_relevance_search": lambda store, **options: store.amax_marginal_relevance_search(
        "a", **options
    ),
    "asimilarity_search_by_vector": lambda store, **options: store.asimilarity_search_by_vector(
        Random().embed_query("a"), **options
    ),
    "asimilarity_search_with_score_by_vector": lambda store, **options: (
        store.asimilarity_search_with_score_by_vector(Random().embed_query("a"), **options)
    ),
    "amax_marginal_relevance_search_by_vector": lambda store, **options: (
        store.amax_marginal_relevance_search_by_vector(Random().embed_query("a"), **options)
    ),
    "asearch_by_vector": lambda store, **options: store.asearch_by_vector(
        Random().embed_query("a"), **options
    ),
}


@pytest.mark.parametrize("search", AWAITED.values(), ids=AWAITED)
def test_an_awaited_search_has_as_many_faiss_threads_as_its_caller(search):
    store, seen = FaissVectorStore.from_texts(["a", "b"], Random()), set()

    def see(metadata):
        seen.add(faiss.omp_get_max_threads())
        return True

    faiss.omp_set_num_threads(3)
    assert asyncio.run(search(store, k=1, filter=see))
    assert seen == {3}
