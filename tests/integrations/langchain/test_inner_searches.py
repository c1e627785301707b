"""What a retriever inside another one finds is told to the engine at once, and prepared meanwhile."""

import asyncio

import pytest
from langchain_classic.retrievers import (
    ContextualCompressionRetriever,
    EnsembleRetriever,
    MultiQueryRetriever,
)
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda

from ragcache_integrations.langchain import RAGCacheLLM, RAGCacheRetriever

TEXTS = [f"Text {n} tells what there is to say of number {n}. " * 12 for n in range(8)]
TEMPLATE = "{context}\n\nQuestion: {question}"


class Listed(BaseRetriever):
    """Finds the same documents for every question."""

    numbers: list[int]

    def _get_relevant_documents(self, query, *, run_manager):
        return [Document(TEXTS[n], id=f"d{n}") for n in self.numbers]


class KeepsThird(BaseDocumentCompressor):
    """A reranker that keeps the third document and the first."""

    def compress_documents(self, documents, query, callbacks=None):
        if "fails" in query:
            raise TimeoutError("the reranker does not answer")
        return [documents[2], documents[0]]


def ours(retriever, engine):
    return RAGCacheRetriever.from_retriever(retriever, engine=engine, template=TEMPLATE)


def ids(found):
    return [one.id for one in found]


def reranked():
    return ContextualCompressionRetriever(
        base_retriever=Listed(numbers=[1, 2, 3, 4]), base_compressor=KeepsThird()
    )


def test_candidates_of_a_reranker_are_told_before_it_chooses(speculating, told):
    assert ids(ours(reranked(), speculating).invoke("Why?")) == ["d3", "d1"]
    speculating.generate("A prompt.")
    assert told == [["d1", "d2", "d3", "d4"]]


def test_so_they_are_for_coroutines(speculating, told):
    assert ids(asyncio.run(ours(reranked(), speculating).ainvoke("Why?"))) == ["d3", "d1"]
    speculating.generate("A prompt.")
    assert told == [["d1", "d2", "d3", "d4"]]


def test_each_search_of_an_ensemble_is_told(speculating, told):
    both = EnsembleRetriever(
        retrievers=[Listed(numbers=[1, 2]), Listed(numbers=[2, 5])], weights=[0.5, 0.5]
    )
    assert set(ids(ours(both, speculating).invoke("Why?"))) == {"d1", "d2", "d5"}
    speculating.generate("A prompt.")
    assert sorted(told) == [["d1", "d2"], ["d2", "d5"]]


def test_a_retriever_at_the_beginning_of_a_sequence_is_told(speculating, told):
    chosen = Listed(numbers=[1, 2, 3]) | RunnableLambda(lambda found: found[1:])
    assert ids(ours(chosen, speculating).invoke("Why?")) == ["d2", "d3"]
    speculating.generate("A prompt.")
    assert told == [["d1", "d2", "d3"]]


def test_a_search_with_none_inside_has_no_candidates(speculating, told):
    ours(Listed(numbers=[1, 2]), speculating).invoke("Why?")
    speculating.generate("A prompt.")
    assert told == []


def test_what_fails_inside_comes_out_unchanged(speculating, told):
    with pytest.raises(TimeoutError, match="the reranker"):
        ours(reranked(), speculating).invoke("It fails.")
    assert speculating.generate("A prompt.").text


class Runs(BaseCallbackHandler):
    """What each retriever found, and what each model was asked."""

    def __init__(self):
        self.seen = []

    def on_retriever_end(self, documents, *, parent_run_id=None, **_):
        self.seen.append((ids(documents), parent_run_id is None))

    def on_llm_start(self, serialized, prompts, **_):
        self.seen += prompts


def asked_of_several(llm):
    return MultiQueryRetriever.from_llm(Listed(numbers=[1, 2]), llm)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", ["reranker", "several queries"])
def test_callbacks_of_the_application_see_the_runs_as_before(speculating, kind, is_async):
    def runs_of(wrap):
        runs = Runs()
        llm = RAGCacheLLM(engine=speculating, max_new_tokens=4)
        retriever = wrap(reranked() if kind == "reranker" else asked_of_several(llm))
        config = {"callbacks": [runs]}
        if is_async:
            asyncio.run(retriever.ainvoke("Why?", config))
        else:
            retriever.invoke("Why?", config)
        return runs.seen

    assert runs_of(lambda retriever: ours(retriever, speculating)) == runs_of(
        lambda retriever: retriever
    )
