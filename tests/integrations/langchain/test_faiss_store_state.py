"""After any changes, a search finds what comparing every document would find."""

import faiss
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from langchain_core.embeddings import Embeddings
from thoroughness import examples

from ragcache_integrations.langchain import FaissVectorStore, HNSWIndex, IVFIndex

SIZE = 4
KINDS = {
    "flat": lambda: "flat",
    "ivf": lambda: IVFIndex(nlist=3, nprobe=3, train_from=5),
    "ivf, one list probed": lambda: IVFIndex(nlist=3, nprobe=1, train_from=5),
    "hnsw": lambda: HNSWIndex(m=16, ef_construction=64, ef_search=64),
    "given": lambda: faiss.index_factory(SIZE, "HNSW16", faiss.METRIC_INNER_PRODUCT),
}
IDS = st.integers(0, 12).map(str)
TEXTS = st.integers(0, 10_000).map(str)
COLOURS = st.sampled_from(["red", "green", "blue"])
ENTRIES = st.lists(st.tuples(IDS, TEXTS, COLOURS), max_size=6)


class Hashed(Embeddings):
    """Embeds each text as a direction that is always the same."""

    def embed_query(self, text):
        return np.random.default_rng(abs(hash(int(text)))).normal(size=SIZE).tolist()

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]


class Store(RuleBasedStateMachine):
    metric = "cosine"
    kind = "flat"

    @initialize()
    def empty(self):
        metric = None if self.kind == "given" else self.metric
        self.store = FaissVectorStore(Hashed(), index=KINDS[self.kind](), metric=metric)
        self.model = {}

    @rule(entries=ENTRIES)
    def put(self, entries):
        ids = [name for name, _, _ in entries]
        texts = [text for _, text, _ in entries]
        metadatas = [{"colour": colour} for _, _, colour in entries]
        assert self.store.add_texts(texts, metadatas, ids=ids) == ids
        self.model.update({name: (text, colour) for name, text, colour in entries})

    @rule(ids=st.lists(IDS, max_size=8))
    def delete(self, ids):
        self.store.delete(ids)
        for name in ids:
            self.model.pop(name, None)

    @rule(query=TEXTS, k=st.integers(1, 15), colour=st.none() | COLOURS)
    def search(self, query, k, colour):
        filter = {"colour": colour} if colour else None
        found = self.store.similarity_search_with_score(query, k, filter=filter)
        expected = self.nearest(query, k, colour)
        assert len({document.id for document, _ in found}) == len(found) == len(expected)
        for document, score in found:
            text, its_colour = self.model[document.id]
            assert document.page_content == text
            assert document.metadata == {"colour": its_colour}
            assert colour in (None, its_colour)
            assert score == pytest.approx(self.score(query, text), abs=1e-5)
        scores = [score for _, score in found]
        assert scores == sorted(scores, reverse=self.metric != "l2")
        if "one list" not in self.kind or colour:
            assert scores == pytest.approx(expected, abs=1e-5)

    @rule(query=TEXTS, k=st.integers(1, 5))
    def search_for_variety(self, query, k):
        found = self.store.max_marginal_relevance_search(query, k, fetch_k=6)
        assert len({document.id for document in found}) == min(k, len(self.model))

    @invariant()
    def holds_what_was_put(self):
        documents = self.store.get_by_ids([str(name) for name in range(13)])
        held = {d.id: (d.page_content, d.metadata["colour"]) for d in documents}
        assert held == self.model
        assert self.store.document_count == len(self.model)

    @invariant()
    def keeps_at_most_a_third_of_dead_rows(self):
        rows = self.store.index.ntotal if self.store.index else 0
        assert 3 * (rows - len(self.model)) <= rows

    def nearest(self, query, k, colour):
        scores = [
            self.score(query, text) for text, its in self.model.values() if colour in (None, its)
        ]
        return sorted(scores, reverse=self.metric != "l2")[:k]

    def score(self, query, text):
        one, other = (np.array(Hashed().embed_query(each)) for each in (query, text))
        if self.metric == "l2":
            return float(((one - other) ** 2).sum())
        product = float(one @ other)
        if self.metric == "inner_product":
            return product
        return product / float(np.linalg.norm(one) * np.linalg.norm(other))


@pytest.mark.parametrize(
    ("kind", "metric"),
    [
        ("flat", "cosine"),
        ("flat", "inner_product"),
        ("ivf", "cosine"),
        ("ivf", "l2"),
        ("ivf, one list probed", "cosine"),
        ("hnsw", "l2"),
        ("hnsw", "cosine"),
        ("given", "inner_product"),
    ],
)
def test_every_index_agrees_with_comparing_everything(kind, metric):
    class Chosen(Store):
        pass

    Chosen.kind, Chosen.metric = kind, metric
    Chosen.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=20)
    Chosen.TestCase("runTest").runTest()
