import asyncio
import copy
import pickle

import faiss
import pytest
from llama_index.core.schema import IndexNode, MetadataMode, QueryBundle, TextNode
from llama_index.vector_stores.faiss import FaissMapVectorStore, FaissVectorStore

from ragcache_engine import EngineNeeded
from ragcache_integrations.llamaindex import RAGCacheLLM, RAGCacheRetriever

QUESTIONS = ["Why is the sky blue?", "Why does bread rise in the oven?", "How do bees dance?"]


def ids_scores_and_texts(found):
    return [(scored.node.node_id, scored.score, scored.text) for scored in found]


@pytest.mark.parametrize("top_k", [1, 3, 100])
@pytest.mark.parametrize("question", QUESTIONS)
def test_it_finds_what_the_stock_retriever_finds(index, engine, question, top_k):
    ours = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=top_k)
    stock = index.as_retriever(similarity_top_k=top_k)
    assert ids_scores_and_texts(ours.retrieve(question)) == ids_scores_and_texts(
        stock.retrieve(question)
    )
    assert ids_scores_and_texts(asyncio.run(ours.aretrieve(question))) == ids_scores_and_texts(
        stock.retrieve(question)
    )


def test_it_asks_for_as_many_nodes_as_the_stock_retriever(index, engine):
    retriever = RAGCacheRetriever.from_index(index, engine=engine)
    assert retriever.similarity_top_k == index.as_retriever().similarity_top_k == 2


def test_a_query_may_bring_its_own_embedding_or_strings_to_embed(index, engine, bag_of_words):
    retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=1)
    stock = index.as_retriever(similarity_top_k=1)
    for make in (
        lambda: QueryBundle("unlike", embedding=bag_of_words("bees dance")),
        lambda: QueryBundle("unlike", custom_embedding_strs=["yeast", "bread rises"]),
    ):
        assert ids_scores_and_texts(retriever.retrieve(make())) == ids_scores_and_texts(
            stock.retrieve(make())
        )


def test_a_store_that_can_delete_is_searched_as_stock_does(make_index, engine):
    vectors = faiss.IndexIDMap2(faiss.IndexFlatL2(64))
    index = make_index(FaissMapVectorStore(faiss_index=vectors))
    index.delete_nodes(["sky"])
    retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=3)
    found = ids_scores_and_texts(retriever.retrieve("Why is the sky blue?"))
    assert found == ids_scores_and_texts(
        index.as_retriever(similarity_top_k=3).retrieve("Why is the sky blue?")
    )
    assert "sky" not in {name for name, _, _ in found}


def test_a_node_that_stands_for_another_object_leads_to_it(make_index, engine):
    answer = TextNode(id_="moon", text="The moon is a rock.")
    pointer = IndexNode(text="Where does the moon come from?", index_id="m", obj=answer)
    index = make_index(nodes=[], objects=[pointer])
    retriever = RAGCacheRetriever.from_index(index, engine=engine)
    assert [found.node.node_id for found in retriever.retrieve("the moon")] == ["moon"]


@pytest.mark.parametrize("slow", ["embedding", "search"])
def test_the_event_loop_runs_on_while_nodes_are_found(
    index, engine, embeddings, gate, slow, monkeypatch
):
    if slow == "embedding":
        embeddings.gate = gate
    else:
        search = FaissVectorStore.query

        def gated(*args, **kwargs):
            gate.pass_through()
            return search(*args, **kwargs)

        monkeypatch.setattr(FaissVectorStore, "query", gated)

    async def ask():
        retriever = RAGCacheRetriever.from_index(index, engine=engine)
        asking = asyncio.create_task(retriever.aretrieve("Why is the sky blue?"))
        while not gate.reached.is_set():
            await asyncio.sleep(0.001)
        gate.open()
        return await asking

    assert asyncio.run(ask())[0].node.node_id == "sky"
    assert gate.was_opened


def test_the_engine_recognises_a_node_with_the_metadata_the_model_sees(index, engine, nodes):
    RAGCacheRetriever.from_index(index, engine=engine).retrieve("Why is the sky blue?")
    written = nodes[0].get_content(metadata_mode=MetadataMode.LLM)
    assert written.startswith("source: sky.txt")
    answer = engine.generate(f"Read this.\n{written}\nWhy is the sky blue?")
    assert answer.usage.document_ids == ("sky",)


def test_nodes_may_be_inserted_after_the_retriever_was_made(index, engine):
    retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=1)
    index.insert_nodes(
        [TextNode(id_="snow", text="Snow is white: its crystals scatter all light.")]
    )
    assert retriever.retrieve("Why is snow white?")[0].node.node_id == "snow"


def test_the_callers_query_is_left_as_it_was(index, engine):
    query = QueryBundle("Why is the sky blue?")
    RAGCacheRetriever.from_index(index, engine=engine).retrieve(query)
    assert query == QueryBundle("Why is the sky blue?")


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_asks_the_same_engine_and_finds_the_same(index, engine, duplicate):
    llm = RAGCacheLLM(engine=engine, tenant="library")
    retriever = RAGCacheRetriever.from_index(
        index, engine=engine, similarity_top_k=3, llm=llm, template="{context_str}{query_str}"
    )
    twin = duplicate(retriever)
    assert ids_scores_and_texts(twin.retrieve(QUESTIONS[0])) == ids_scores_and_texts(
        retriever.retrieve(QUESTIONS[0])
    )
    assert twin.chain is retriever.chain  # it writes the same prompts
    twin.similarity_top_k = 1
    assert retriever.similarity_top_k == 3


def test_a_deep_copy_has_an_index_of_its_own(index, engine):
    retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=1)
    twin = copy.deepcopy(retriever)
    index.insert_nodes([TextNode(id_="snow", text="Why is snow white?")])
    assert retriever.retrieve("Why is snow white?")[0].node.node_id == "snow"
    assert twin.retrieve("Why is snow white?")[0].node.node_id != "snow"


def test_it_cannot_be_pickled(index, engine):
    retriever = RAGCacheRetriever.from_index(index, engine=engine)
    with pytest.raises(EngineNeeded, match=r"from_index\(index, engine=\.\.\.\)"):
        pickle.dumps(retriever)


def test_it_says_how_much_it_searches_and_with_which_engine(index, engine):
    retriever = RAGCacheRetriever.from_index(index, engine=engine, similarity_top_k=3)
    vectors = index.vector_store.client.ntotal
    assert (
        repr(retriever)
        == f"RAGCacheRetriever({vectors} vectors, similarity_top_k=3, engine={engine!r})"
    )
