"""FaissVectorStore: LangChain's vector store over a Faiss index in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import faiss
import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables.config import run_in_executor
from langchain_core.vectorstores import VectorStore

from ragcache_engine import BadRequest, EmptyIndex
from ragcache_integrations.faiss_threads import with_faiss_threads_of_caller
from ragcache_integrations.langchain.faiss_store import community, persistence
from ragcache_integrations.langchain.faiss_store.additions import (
    Additions,
    as_matrix,
    prepare_additions,
)
from ragcache_integrations.langchain.faiss_store.collection import Collection
from ragcache_integrations.langchain.faiss_store.errors import UnsupportedIndex
from ragcache_integrations.langchain.faiss_store.filters import Filter
from ragcache_integrations.langchain.faiss_store.indexes import (
    FlatIndex,
    HNSWIndex,
    IVFIndex,
    parse_index_kind,
)
from ragcache_integrations.langchain.faiss_store.metric import FloatMatrix, choose_metric
from ragcache_integrations.langchain.faiss_store.search_request import (
    DEFAULT_FETCH_K,
    DEFAULT_K,
    SearchRequest,
    copy_document,
    query_matrix,
    refuse_unknown_options,
    relevant_documents,
    without_scores,
)
from ragcache_integrations.staging import OnStage, translate_stages

IndexChoice: TypeAlias = (
    Literal["flat", "ivf", "hnsw"] | FlatIndex | IVFIndex | HNSWIndex | faiss.Index
)
_NO_PICKLE = (
    "What save_local wrote holds no pickle and tells its own metric, so there is nothing to allow or to "
    "choose; the folder of a FAISS store of langchain_community is loaded by from_langchain_community"
)
_ACCEPTED = ("batch_size",)
_OF_A_STORE = ("index", "metric", "relevance_score_fn")
MetricName = Literal["cosine", "l2", "inner_product"]


@dataclass(frozen=True, slots=True)
class IndexView:
    """A store's index, for searches that the store does not have.

    index: None if the store is empty; it must not be changed.
    query: shape (1, dimensions), as the index measures it: of length 1 for the cosine.
    documents: by row; a row without a document was deleted, and must be skipped.
    """

    index: faiss.Index | None
    query: FloatMatrix
    documents: Mapping[int, Document]


class FaissVectorStore(VectorStore):
    """Documents in memory, searched with Faiss: no server, no pickle, safe for threads.

    Setup:
        ```bash
        pip install "ragcache-integrations[langchain]"
        ```

    Instantiate:
        ```python
        from langchain_core.embeddings import DeterministicFakeEmbedding
        from ragcache_integrations.langchain import FaissVectorStore

        store = FaissVectorStore(DeterministicFakeEmbedding(size=64))
        ```

    Add, replace, delete:
        ```python
        from langchain_core.documents import Document

        store.add_documents(
            [
                Document("The tides follow the moon.", id="tides", metadata={"year": 1687}),
                Document("The sky scatters blue light.", id="sky", metadata={"year": 1871}),
            ]
        )
        store.add_texts(["Tides follow the moon and the sun."], [{"year": 1775}], ids=["tides"])
        store.delete(["sky"])
        ```

    Search:
        ```python
        store.similarity_search("Why is there a tide?", k=2, filter={"year": {"$gte": 1700}})
        store.similarity_search_with_score("Why is there a tide?", k=2)
        await store.asimilarity_search("Why is there a tide?")
        ```

    Use as a retriever:
        ```python
        retriever = store.as_retriever(search_type="mmr", search_kwargs={"k": 2, "fetch_k": 10})
        retriever.invoke("Why is there a tide?")
        ```

    Save and load:
        ```python
        store.save_local("my_store")
        store = FaissVectorStore.load_local("my_store", DeterministicFakeEmbedding(size=64))
        ```

    Every search takes `k`, `filter`, `score_threshold`, `nprobe` (IVF) and `ef_search` (HNSW). The
    filter is applied during the search, so k documents come back whenever k pass it;
    `faiss_store.filters` says what a filter may hold. Documents are copied on their way in and out.

    A search raises InvalidTopK, InvalidFilter, and BadRequest for an unknown option, before the query
    is embedded; and QueryShapeError after that, if the query's vector is not of the index's size. A
    search of an empty store finds nothing.
    """

    def __init__(
        self,
        embedding: Embeddings,
        *,
        index: IndexChoice = "flat",
        metric: MetricName | None = None,
        relevance_score_fn: Callable[[float], float] | None = None,
    ) -> None:
        """Make an empty store; the first documents decide the number of dimensions.

        Args:
            embedding: makes vectors of texts and queries.
            index: "flat" compares every vector, "ivf" looks into lists of neighbours and trains
                itself, "hnsw" walks a graph. FlatIndex, IVFIndex and HNSWIndex are the same kinds with
                settings. You may also give a trained, empty faiss.Index; the store fills copies of it.
            metric: "cosine" (the default), "l2" or "inner_product"; a faiss.Index has its own.
            relevance_score_fn: turns a score into a relevance in [0, 1], instead of the metric's
                own function.

        Raises:
            ConfigError: for an unknown index or metric, or two that do not fit each other.
            UnsupportedIndex: for a faiss.Index that cannot be filtered or read back.
        """
        self._embedding = embedding
        self._collection = Collection(parse_index_kind(index), choose_metric(metric, index))
        self._relevance_score_fn = relevance_score_fn

    def __len__(self) -> int:
        """Count the documents."""
        return len(self._collection)

    def __bool__(self) -> bool:
        """Return True for an empty store, too: `store or another` must not pass it over."""
        return True

    def __repr__(self) -> str:
        kind = "empty" if self.index is None else f"{self.index.d} dimensions"
        return f"FaissVectorStore({len(self)} documents, {kind}, {self.metric})"

    @property
    def embeddings(self) -> Embeddings:
        return self._embedding

    @property
    def metric(self) -> str:
        return str(self._collection.metric)

    @property
    def index(self) -> faiss.Index | None:
        """The Faiss index as it is now; None while the store is empty. It must not be changed.

        Its rows are not the documents: some rows belong to deleted documents.
        """
        return self._collection.index

    @property
    def changes(self) -> int:
        """How often documents came or went: a store with the same number has the same documents."""
        return self._collection.changes

    @property
    def document_count(self) -> int:
        return len(self._collection)

    # Adding and deleting

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Embed texts and add them. A text whose id exists replaces that document.

        All texts are added in one step, or none.

        Args:
            texts: the texts.
            metadatas: one for each text.
            ids: one for each text; None, for a text or for all of them, makes a new id. If an id
                is given more than once, its last text is kept.
            **kwargs: `batch_size` is accepted, because LangChain's indexing passes it, and changes
                nothing.

        Returns:
            The id of each text.

        Raises:
            UnequalLengths: if there are not as many metadatas or ids as texts.
            VectorShapeError: if the embedding model's vectors are not of the index's size.
        """
        refuse_unknown_options("add_texts", kwargs, _ACCEPTED)
        additions = prepare_additions(texts, metadatas, ids)
        if additions.documents:
            self._put(additions, self._embedding.embed_documents(_texts(additions)))
        return additions.ids

    async def aadd_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Do what `add_texts` does, with the embedding's async method and off the event loop."""
        refuse_unknown_options("aadd_texts", kwargs, _ACCEPTED)
        additions = prepare_additions(texts, metadatas, ids)
        if additions.documents:
            vectors = await self._embedding.aembed_documents(_texts(additions))
            await run_in_executor(None, self._put, additions, vectors)
        return additions.ids

    def add_embeddings(
        self,
        text_embeddings: Iterable[tuple[str, Sequence[float]]],
        metadatas: list[dict[str, Any]] | None = None,
        ids: Sequence[str | None] | None = None,
    ) -> list[str]:
        """Add texts that are embedded already, given as pairs of a text and its vector."""
        pairs = list(text_embeddings)
        additions = prepare_additions([text for text, _ in pairs], metadatas, ids)
        if additions.documents:
            self._put(additions, [pairs[at][1] for at in additions.positions])
        return additions.ids

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents by id; ignore unknown ids.

        Args:
            ids: the documents' ids; None deletes all documents.

        Returns:
            True.
        """
        refuse_unknown_options("delete", kwargs)
        self._collection.remove([ids] if isinstance(ids, str) else ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents with these ids, in this order; leave out unknown ids."""
        return [copy_document(document) for document in self._collection.get(ids)]

    def all_documents(self) -> list[Document]:
        """Return every document, in the order in which they were added."""
        with self._collection.reading() as state:
            return [copy_document(document) for document in state.rows.values()]

    # Searching by text

    def similarity_search(self, query: str, k: int = DEFAULT_K, **kwargs: Any) -> list[Document]:
        """Return the k documents nearest to the query, nearest first.

        Args:
            query: a text.
            k: how many documents are wanted; fewer come back only if fewer pass.
            **kwargs: `filter`, `score_threshold`, `nprobe`, `ef_search`, as in
                `similarity_search_with_score_by_vector`.
        """
        return without_scores(self.similarity_search_with_score(query, k, **kwargs))

    async def asimilarity_search(
        self, query: str, k: int = DEFAULT_K, **kwargs: Any
    ) -> list[Document]:
        """`similarity_search` off the event loop."""
        return without_scores(await self.asimilarity_search_with_score(query, k, **kwargs))

    def similarity_search_with_score(
        self, query: str, k: int = DEFAULT_K, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return what `similarity_search` returns, with each document's score.

        cosine and inner_product: higher is nearer. l2: the squared distance, lower is nearer.
        """
        request = SearchRequest.from_arguments(self._collection, k, kwargs)
        return request.find_scored(self._embedding.embed_query(query))

    async def asimilarity_search_with_score(
        self, query: str, k: int = DEFAULT_K, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """`similarity_search_with_score` off the event loop."""
        request = SearchRequest.from_arguments(self._collection, k, kwargs)
        vector = await self._embedding.aembed_query(query)
        return await run_in_executor(
            None, with_faiss_threads_of_caller(request.find_scored), vector
        )

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = DEFAULT_K,
        fetch_k: int = DEFAULT_FETCH_K,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> list[Document]:
        """Return k documents that are near the query and unlike each other, in the order chosen.

        Args:
            query: a text.
            k: how many documents are wanted.
            fetch_k: how many of the nearest documents to choose from; at least k.
            lambda_mult: from 0, diversity alone, to 1, nearness alone.
            **kwargs: as in `similarity_search`.
        """
        request = SearchRequest.from_arguments(self._collection, k, kwargs, fetch_k, lambda_mult)
        return request.find_diverse(self._embedding.embed_query(query))

    async def amax_marginal_relevance_search(
        self,
        query: str,
        k: int = DEFAULT_K,
        fetch_k: int = DEFAULT_FETCH_K,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> list[Document]:
        """`max_marginal_relevance_search` off the event loop."""
        request = SearchRequest.from_arguments(self._collection, k, kwargs, fetch_k, lambda_mult)
        vector = await self._embedding.aembed_query(query)
        return await run_in_executor(
            None, with_faiss_threads_of_caller(request.find_diverse), vector
        )

    # Searching by vector

    def similarity_search_by_vector(
        self,
        embedding: Sequence[float],
        k: int = DEFAULT_K,
        *,
        on_stage: OnStage[list[Document]] | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Do what `similarity_search` does, for a query that is embedded already.

        on_stage: as in `search_by_vector`.
        """
        if on_stage is not None:
            kwargs["on_stage"] = translate_stages(without_scores, on_stage)
        return without_scores(self.similarity_search_with_score_by_vector(embedding, k, **kwargs))

    async def asimilarity_search_by_vector(
        self, embedding: Sequence[float], k: int = DEFAULT_K, **kwargs: Any
    ) -> list[Document]:
        """`similarity_search_by_vector` off the event loop."""
        search = with_faiss_threads_of_caller(self.similarity_search_by_vector)
        return await run_in_executor(None, search, embedding, k, **kwargs)

    def similarity_search_with_score_by_vector(
        self,
        embedding: Sequence[float],
        k: int = DEFAULT_K,
        *,
        filter: Filter | None = None,
        score_threshold: float | None = None,
        nprobe: int | None = None,
        ef_search: int | None = None,
        on_stage: OnStage[list[tuple[Document, float]]] | None = None,
        **kwargs: Any,
    ) -> list[tuple[Document, float]]:
        """Return the k nearest documents and their scores.

        Args:
            embedding: the query's vector.
            k: how many documents are wanted; fewer come back only if fewer pass.
            filter: a dict (`faiss_store.filters` says what it may hold) or a function of the
                metadata.
            score_threshold: leaves out documents that are less near than this score; in units of
                the metric, not of relevance.
            nprobe: how many lists an IVF index looks into in this search.
            ef_search: how many candidates an HNSW index keeps in this search.
            on_stage: as in `search_by_vector`, with the scores.
            **kwargs: `fetch_k` is accepted and changes nothing, because filters do not need it.
        """
        options = {
            "filter": filter,
            "score_threshold": score_threshold,
            "nprobe": nprobe,
            "ef_search": ef_search,
            **kwargs,
        }
        request = SearchRequest.from_arguments(self._collection, k, options)
        return request.find_scored(embedding, on_stage)

    async def asimilarity_search_with_score_by_vector(
        self, embedding: Sequence[float], k: int = DEFAULT_K, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """`similarity_search_with_score_by_vector` off the event loop."""
        search = with_faiss_threads_of_caller(self.similarity_search_with_score_by_vector)
        return await run_in_executor(None, search, embedding, k, **kwargs)

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: Sequence[float],
        k: int = DEFAULT_K,
        fetch_k: int = DEFAULT_FETCH_K,
        lambda_mult: float = 0.5,
        *,
        on_stage: OnStage[list[Document]] | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Do what `max_marginal_relevance_search` does, for a query that is embedded already.

        on_stage: as in `search_by_vector`.
        """
        request = SearchRequest.from_arguments(self._collection, k, kwargs, fetch_k, lambda_mult)
        return request.find_diverse(embedding, on_stage)

    async def amax_marginal_relevance_search_by_vector(
        self,
        embedding: Sequence[float],
        k: int = DEFAULT_K,
        fetch_k: int = DEFAULT_FETCH_K,
        lambda_mult: float = 0.5,
        **kwargs: Any,
    ) -> list[Document]:
        """`max_marginal_relevance_search_by_vector` off the event loop."""
        search = with_faiss_threads_of_caller(self.max_marginal_relevance_search_by_vector)
        return await run_in_executor(None, search, embedding, k, fetch_k, lambda_mult, **kwargs)

    def search_by_vector(
        self,
        embedding: Sequence[float],
        search_type: str = "similarity",
        *,
        on_stage: OnStage[list[Document]] | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Return what `as_retriever` would find, for a query that is embedded already.

        Args:
            embedding: the query's vector.
            search_type: "similarity", "mmr" or "similarity_score_threshold".
            on_stage: makes the search run in stages (docs/search.md says for which indexes). It is
                called at each stage with the documents that this call would return if the search
                ended now, filters, thresholds and deletions included, and with the share of the
                search that is done. It must not change the store, which waits for it. An error
                that it raises ends the search.
            **kwargs: as for the method of that search type; for "similarity_score_threshold",
                `score_threshold` is the least relevance.
        """
        # Passed only if it is given, because a subclass's search methods may not have it.
        stage_option: dict[str, Any] = {} if on_stage is None else {"on_stage": on_stage}
        if search_type == "similarity":
            return self.similarity_search_by_vector(embedding, **kwargs, **stage_option)
        if search_type == "mmr":
            return self.max_marginal_relevance_search_by_vector(embedding, **kwargs, **stage_option)
        if search_type != "similarity_score_threshold":
            raise BadRequest(
                f"search_type={search_type!r} is not known; choose 'similarity', 'mmr' or "
                f"'similarity_score_threshold'"
            )
        select = partial(
            relevant_documents,
            self._select_relevance_score_fn(),
            kwargs.pop("score_threshold", None),
        )
        if on_stage is not None:
            kwargs["on_stage"] = translate_stages(select, on_stage)
        return select(self.similarity_search_with_score_by_vector(embedding, **kwargs))

    async def asearch_by_vector(
        self, embedding: Sequence[float], search_type: str = "similarity", **kwargs: Any
    ) -> list[Document]:
        """`search_by_vector` off the event loop."""
        search = with_faiss_threads_of_caller(self.search_by_vector)
        return await run_in_executor(None, search, embedding, search_type, **kwargs)

    def check_searchable(self) -> None:
        """Raise EmptyIndex if the store is empty, for retrievers that should say so."""
        if not self.document_count:
            raise EmptyIndex("the store holds no documents; add some before asking")

    @contextmanager
    def reading(self, embedding: Sequence[float]) -> Iterator[IndexView]:
        """Give access to the index for this block, for searches that the store does not have.

        The store does not change before the block ends: adding and deleting waits, searches go on.
        """
        with self._collection.reading() as state:
            query = self._collection.metric.as_indexed(query_matrix(embedding))
            yield IndexView(state.index, query, state.rows)

    # Making, saving and loading

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Make a store of these texts. kwargs: `index`, `metric`, `relevance_score_fn`."""
        refuse_unknown_options("from_texts", kwargs, _OF_A_STORE)
        store = cls(embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    async def afrom_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Do what `from_texts` does, with the embedding's async method and off the event loop."""
        refuse_unknown_options("from_texts", kwargs, _OF_A_STORE)
        store = cls(embedding, **kwargs)
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    def from_embeddings(
        cls,
        text_embeddings: Iterable[tuple[str, Sequence[float]]],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Make a store of texts that are embedded already; `embedding` is for later texts and queries."""
        refuse_unknown_options("from_embeddings", kwargs, _OF_A_STORE)
        store = cls(embedding, **kwargs)
        store.add_embeddings(text_embeddings, metadatas, ids)
        return store

    def merge_from(self, other: FaissVectorStore) -> None:
        """Add the other store's documents to this one, without embedding them again.

        The vectors are copied as the other index stores them. A document whose id exists here
        replaces the one here.

        Raises:
            VectorShapeError: if the stores were filled by embedding models of different sizes.
        """
        if other is self:
            return
        documents, vectors = other._collection.all_vectors()
        self._collection.put(documents, vectors)

    def save_local(self, folder_path: str | Path) -> None:
        """Save index and documents in a folder, and replace an earlier save there.

        The files are Faiss's own and JSON; `faiss_store.persistence` describes them. A crash leaves
        the old save or the new one. Searches go on meanwhile; adding and deleting waits.

        Raises:
            NotStorable: if some metadata has no exact form in JSON; nothing was written.
            SaveForeign: if another program wrote a file with the manifest's name.
        """
        persistence.save(self._collection, Path(folder_path))

    async def asave_local(self, folder_path: str | Path) -> None:
        """`save_local` off the event loop."""
        await run_in_executor(None, self.save_local, folder_path)

    @classmethod
    def load_local(
        cls,
        folder_path: str | Path,
        embeddings: Embeddings,
        *,
        relevance_score_fn: Callable[[float], float] | None = None,
        **kwargs: Any,
    ) -> Self:
        """Load the store that was saved in a folder, with its metric and kind of index.

        Args:
            folder_path: the folder that `save_local` was given.
            embeddings: the embedding model that the store was filled with.
            relevance_score_fn: as for the constructor.
            **kwargs: refused; they are options of langchain_community's loader.

        Raises:
            BadRequest, SaveNotFound, SaveDamaged, SaveForeign.
        """
        refuse_unknown_options("load_local", kwargs, ("relevance_score_fn",), _NO_PICKLE)
        store = cls(embeddings, relevance_score_fn=relevance_score_fn)
        store._collection = persistence.load(Path(folder_path))
        return store

    @classmethod
    async def aload_local(
        cls, folder_path: str | Path, embeddings: Embeddings, **kwargs: Any
    ) -> Self:
        """`load_local` off the event loop."""
        return await run_in_executor(None, cls.load_local, folder_path, embeddings, **kwargs)

    @classmethod
    def from_langchain_community(
        cls,
        folder_path: str | Path,
        embeddings: Embeddings,
        *,
        index_name: str = "index",
        allow_dangerous_deserialization: bool = False,
        index: IndexChoice = "flat",
        metric: MetricName | None = None,
        relevance_score_fn: Callable[[float], float] | None = None,
    ) -> Self:
        """Load a folder that langchain_community's FAISS store saved, without embedding any text again.

        Args:
            folder_path, index_name: the arguments that the old store's save_local() got.
            embeddings: the embedding model that the old store was filled with.
            allow_dangerous_deserialization: confirms that the pickle in the folder comes from you,
                or from somebody you trust.
            index: kind of the new index.
            metric: by default the old index's, which is "l2" unless it was made otherwise. For a
                store made with normalize_L2 or a cosine distance strategy, give "cosine".
            relevance_score_fn: as for the constructor.

        Raises:
            UntrustedPickle: without the permission, or if the pickle holds more than plain values.
            SaveNotFound, SaveDamaged, IndexOutOfStep: if the folder is not such a save.
            UnsupportedIndex: if the old index cannot return its vectors.
        """
        old, documents = community.read_community_save(
            Path(folder_path), index_name, allow_dangerous_deserialization
        )
        if metric is None and not isinstance(index, faiss.Index):
            metric = "l2" if old.metric_type == faiss.METRIC_L2 else "inner_product"
        store = cls(embeddings, index=index, metric=metric, relevance_score_fn=relevance_score_fn)
        store._collection.put(documents, _vectors_in(old))
        return store

    # What LangChain's base class calls

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return self._relevance_score_fn or self._collection.metric.relevance

    def _put(self, additions: Additions, vectors: Any) -> None:
        self._collection.put(additions.documents, as_matrix(vectors, len(additions.documents)))


def _texts(additions: Additions) -> list[str]:
    return [document.page_content for document in additions.documents]


def _vectors_in(index: faiss.Index) -> FloatMatrix:
    ivf = faiss.try_extract_index_ivf(index)
    try:
        if ivf is not None:
            ivf.make_direct_map()
        vectors: FloatMatrix = index.reconstruct_batch(np.arange(index.ntotal))
    except RuntimeError as error:
        raise UnsupportedIndex(
            f"{type(index).__name__} cannot give its vectors back; fill a new store from the texts"
        ) from error
    return vectors
