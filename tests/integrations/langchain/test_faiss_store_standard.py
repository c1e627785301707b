"""LangChain's own test suite for vector stores, over every kind of index, with nothing switched off."""

import faiss
import pytest
from langchain_tests.integration_tests.vectorstores import (
    EMBEDDING_SIZE,
    VectorStoreIntegrationTests,
)

from ragcache_integrations.langchain import FaissVectorStore, HNSWIndex, IVFIndex


class OverAnIndex(VectorStoreIntegrationTests):
    """Runs the suite on stores with this index."""

    index = "flat"
    metric = "cosine"

    @pytest.fixture
    def vectorstore(self):
        return FaissVectorStore(self.get_embeddings(), index=self.index, metric=self.metric)


class TestFlat(OverAnIndex):
    pass


class TestFlatByDistance(OverAnIndex):
    metric = "l2"


class TestIVFBeforeItIsTrained(OverAnIndex):
    index = "ivf"


class TestIVF(OverAnIndex):
    index = IVFIndex(nlist=2, nprobe=1, train_from=2)


class TestHNSW(OverAnIndex):
    index = HNSWIndex(m=4, ef_construction=8, ef_search=4)


class TestHNSWByDistance(OverAnIndex):
    index = "hnsw"
    metric = "l2"


class TestGivenIndex(OverAnIndex):
    metric = None

    @property
    def index(self):
        return faiss.index_factory(EMBEDDING_SIZE, "HNSW8_SQfp16")
