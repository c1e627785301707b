"""What a retriever inside another one finds is told to the engine at once, and prepared meanwhile."""

import asyncio

import pytest
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import MockLLM
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, TextNode

from ragcache_integrations.llamaindex import RAGCacheRetriever


class Listed(BaseRetriever):
    """Finds the same nodes for every question."""

    def __init__(self, *numbers):
        super().__init__()
        self._numbers = numbers

    def _retrieve(self, query_bundle):
        if "fails" in query_bundle.query_str:
            raise TimeoutError("the index does not answer")
        nodes = [TextNode(id_=f"d{n}", text=f"Text of number {n}. " * 12) for n in self._numbers]
        return [NodeWithScore(node=node, score=1.0 / (1 + at)) for at, node in enumerate(nodes)]


def fusion(*, use_async):
    return QueryFusionRetriever(
        [Listed(1, 2), Listed(3, 4)], llm=MockLLM(), num_queries=1, use_async=use_async
    )


@pytest.mark.parametrize("use_async", [False, True])
def test_each_search_of_a_fusion_is_told(speculating, told, use_async):
    ours = RAGCacheRetriever.from_retriever(fusion(use_async=use_async), engine=speculating)
    assert len(ours.retrieve("Why?")) == 2
    speculating.generate("A prompt.")
    assert sorted(told) == [["d1", "d2"], ["d3", "d4"]]


def test_so_it_is_for_coroutines_and_each_search_is_told_its_own(speculating, told):
    both = [
        RAGCacheRetriever.from_retriever(fusion(use_async=True), engine=speculating),
        RAGCacheRetriever.from_retriever(Listed(7), engine=speculating),
    ]

    async def ask_both():
        await asyncio.gather(*(each.aretrieve("Why?") for each in both))

    asyncio.run(ask_both())
    speculating.generate("A prompt.")
    assert sorted(told) == [["d1", "d2"], ["d3", "d4"]]


def test_a_search_with_none_inside_has_no_candidates(speculating, told):
    RAGCacheRetriever.from_retriever(Listed(1, 2), engine=speculating).retrieve("Why?")
    Listed(3).retrieve("Whose search is this?")
    speculating.generate("A prompt.")
    assert told == []


def test_what_fails_inside_comes_out_unchanged(speculating, told):
    ours = RAGCacheRetriever.from_retriever(fusion(use_async=False), engine=speculating)
    with pytest.raises(TimeoutError, match="the index"):
        ours.retrieve("It fails.")
    assert speculating.generate("A prompt.").text
