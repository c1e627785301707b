"""Any retriever, over any store, may tell the engine what it finds: RAGCacheRetriever.from_retriever."""

import asyncio
from copy import copy, deepcopy
from pickle import dumps

import pytest
from llama_index.core import MockEmbedding, PromptTemplate, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle
from waiting import eventually

from ragcache_engine import EngineConfig, EngineNeeded, InvalidArgument, UnsupportedStore
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_integrations.llamaindex import EngineRetriever, RAGCacheLLM, RAGCacheRetriever

QUESTION = "Why is the sky blue?"


class NoSuchDatabase(RuntimeError):
    pass


class Keywords(BaseRetriever):
    """Finds the nodes with most of the question's words."""

    def __init__(self, nodes, **options):
        super().__init__(**options)
        self._nodes = nodes

    def _retrieve(self, query_bundle):
        if "down" in query_bundle.query_str:
            raise NoSuchDatabase("the database is down")
        words = set(query_bundle.query_str.lower().split())
        scored = [(len(words & set(node.text.lower().split())), node) for node in self._nodes]
        scored.sort(key=lambda pair: -pair[0])
        return [NodeWithScore(node=node, score=float(score)) for score, node in scored[:2]]


@pytest.fixture
def plain_index(nodes, embeddings):
    """An index in LlamaIndex's own vector store."""
    return VectorStoreIndex(nodes, embed_model=embeddings)


@pytest.fixture
def keywords(nodes):
    return Keywords(nodes, callback_manager=CallbackManager([LlamaDebugHandler(False)]))


@pytest.fixture(params=["index", "keywords", "fusion"])
def stock(request, plain_index, keywords):
    """An index's own retriever, a retriever of one's own, and one that joins both."""
    of_index = plain_index.as_retriever(similarity_top_k=3)
    return {
        "index": of_index,
        "keywords": keywords,
        "fusion": QueryFusionRetriever(
            [of_index, keywords], llm=MockLLM(), num_queries=1, use_async=False
        ),
    }[request.param]


@pytest.fixture
def ours(stock, engine):
    return RAGCacheRetriever.from_retriever(stock, engine=engine)


def ids(found):
    return [(each.node.node_id, each.score) for each in found]


def test_it_finds_what_the_other_retriever_finds_in_every_way_of_asking(stock, ours):
    found = ids(stock.retrieve(QUESTION))
    assert len(found) >= 2
    assert ids(ours.retrieve(QUESTION)) == found
    assert ids(ours.retrieve(QueryBundle(QUESTION))) == found
    assert ids(asyncio.run(ours.aretrieve(QUESTION))) == found


def test_a_query_engine_answers_from_the_nodes_and_the_engine_recognises_them(
    stock, ours, engine, recorded
):
    llm = RAGCacheLLM(engine=engine, temperature=0)
    RetrieverQueryEngine.from_args(ours, llm=llm).query(QUESTION)
    prompt = recorded[0][0]
    found = stock.retrieve(QUESTION)
    assert all(each.node.get_content(MetadataMode.LLM) in prompt for each in found)
    assert list(engine.generate(prompt).usage.document_ids) == [each.node.node_id for each in found]


def test_the_first_prompt_is_begun_early_if_the_template_is_given(keywords, engine_on):
    engine = engine_on(MemoryBackend(), speculation="on")
    llm = RAGCacheLLM(engine=engine, temperature=0)
    template = PromptTemplate("{context_str}\n\nQuestion: {query_str}\nAnswer:")
    ours = RAGCacheRetriever.from_retriever(keywords, engine=engine, template=template, llm=llm)
    found = ours.retrieve(QUESTION)
    assert eventually(lambda: engine.stats().speculation.started == 1)
    get_response_synthesizer(llm=llm, text_qa_template=template).synthesize(QUESTION, found)
    assert engine.stats().speculation.adopted == 1


def test_callbacks_see_the_other_retrievers_run_once(keywords, engine):
    ours = RAGCacheRetriever.from_retriever(keywords, engine=engine)
    assert ours.callback_manager is keywords.callback_manager
    (debug,) = keywords.callback_manager.handlers
    ours.retrieve(QUESTION)
    assert len(debug.get_event_pairs(CBEventType.RETRIEVE)) == 1


def test_the_other_retrievers_errors_come_out_unchanged(keywords, engine):
    ours = RAGCacheRetriever.from_retriever(keywords, engine=engine)
    with pytest.raises(NoSuchDatabase, match=r"^the database is down$"):
        ours.retrieve("down?")
    with pytest.raises(NoSuchDatabase):
        asyncio.run(ours.aretrieve("down?"))
    assert ours.retrieve(QUESTION)  # and the next question is answered


def test_prompts_are_those_of_the_other_retriever(plain_index, engine):
    fusion = QueryFusionRetriever([plain_index.as_retriever()], llm=MockLLM())
    ours = RAGCacheRetriever.from_retriever(fusion, engine=engine)
    assert ours.get_prompts() == fusion.get_prompts()


def test_a_copy_shares_the_engine_the_retriever_and_the_chain(ours):
    for twin in (copy(ours), deepcopy(ours)):
        assert twin.engine is ours.engine
        assert twin.chain is ours.chain
        assert ids(twin.retrieve(QUESTION)) == ids(ours.retrieve(QUESTION))
    with pytest.raises(EngineNeeded, match="from_retriever"):
        dumps(ours)


def test_what_is_no_retriever_is_refused(plain_index, index, engine):
    with pytest.raises(InvalidArgument, match=r"give index\.as_retriever\(\)"):
        RAGCacheRetriever.from_retriever(plain_index, engine=engine)
    with pytest.raises(InvalidArgument, match="takes a retriever, got str"):
        RAGCacheRetriever.from_retriever("nodes", engine=engine)
    told = RAGCacheRetriever.from_index(index, engine=engine)
    for ours in (told, RAGCacheRetriever.from_retriever(index.as_retriever(), engine=engine)):
        with pytest.raises(InvalidArgument, match="tells an engine already"):
            RAGCacheRetriever.from_retriever(ours, engine=engine)


def test_engine_llm_and_template_are_checked_as_elsewhere(keywords, engine, make_engine):
    with pytest.raises(InvalidArgument, match="engine= takes a RAGCacheEngine"):
        RAGCacheRetriever.from_retriever(keywords, engine=EngineConfig(backend="memory"))
    with pytest.raises(InvalidArgument, match="llm= takes a RAGCacheLLM, got MockLLM"):
        RAGCacheRetriever.from_retriever(keywords, engine=engine, llm=MockLLM())
    other = RAGCacheLLM(engine=make_engine(MemoryBackend()))
    with pytest.raises(InvalidArgument, match="two engines"):
        RAGCacheRetriever.from_retriever(keywords, engine=engine, llm=other)
    with pytest.raises(ValueError, match="template"):
        RAGCacheRetriever.from_retriever(keywords, engine=engine, template=3)


def test_the_error_about_another_store_names_the_way(engine):
    index = VectorStoreIndex([], embed_model=MockEmbedding(embed_dim=4))
    with pytest.raises(UnsupportedStore, match=r"from_retriever\(index\.as_retriever\(\), engine="):
        RAGCacheRetriever.from_index(index, engine=engine)


def test_retrievers_of_every_store_have_one_base_that_warms(index, nodes, keywords, engine):
    template = "{context_str}\n\n{query_str}"
    ours = RAGCacheRetriever.from_index(index, engine=engine, template=template)
    told = RAGCacheRetriever.from_retriever(keywords, engine=engine, template=template)
    for retriever in (ours, told):
        assert isinstance(retriever, EngineRetriever)
        assert retriever.warm(nodes).sets == len(nodes)
    assert asyncio.run(ours.awarm(only_missing=True)).sets == len(nodes)
    with pytest.raises(InvalidArgument, match=r"Keywords does not tell .* give those"):
        told.warm()
