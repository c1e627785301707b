import asyncio

import pytest
from langchain_core.callbacks import BaseCallbackHandler

from ragcache_integrations.langchain import RAGCacheLLM, RAGCacheRetriever

QUESTION = "Why does the sky look blue and not violet?"
ANSWER = f"You asked: Question: {QUESTION}"


class LastInfo(BaseCallbackHandler):
    """Keeps what a chain's LLM said that its last answer cost."""

    info = None

    def on_llm_end(self, response, **kwargs):
        self.info = response.generations[0][0].generation_info

    @property
    def cached(self):
        return self.info["usage_metadata"]["input_token_details"]["cache_read"]


@pytest.fixture
def chain(chain_of, store, engine):
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=2)
    return chain_of(retriever, RAGCacheLLM(engine=engine, temperature=0))


async def join_chunks(chunks):
    return "".join([chunk async for chunk in chunks])


WAYS = {
    "invoke": lambda chain, config: chain.invoke(QUESTION, config),
    "ainvoke": lambda chain, config: asyncio.run(chain.ainvoke(QUESTION, config)),
    "stream": lambda chain, config: "".join(chain.stream(QUESTION, config)),
    "astream": lambda chain, config: asyncio.run(join_chunks(chain.astream(QUESTION, config))),
    "batch": lambda chain, config: chain.batch([QUESTION], config)[0],
    "abatch": lambda chain, config: asyncio.run(chain.abatch([QUESTION], config))[0],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_chain_answers_and_its_documents_are_recognised(chain, store, way):
    costs = LastInfo()
    assert WAYS[way](chain, {"callbacks": [costs]}) == ANSWER
    stock = store.as_retriever(search_kwargs={"k": 2}).invoke(QUESTION)
    assert costs.info["document_ids"] == [document.id for document in stock]


@pytest.mark.parametrize("way", WAYS)
def test_the_second_time_the_documents_come_from_the_cache(chain, way):
    costs = LastInfo()
    WAYS[way](chain, {"callbacks": [costs]})
    assert costs.cached == 0
    WAYS[way](chain, {"callbacks": [costs]})
    assert costs.cached > 48


def test_the_prompt_is_the_one_the_stock_retriever_leads_to(chain_of, store, engine, recorded):
    llm = RAGCacheLLM(engine=engine)
    ours = RAGCacheRetriever.from_vectorstore(store, engine=engine, k=3)
    chain_of(ours, llm).invoke(QUESTION)
    chain_of(store.as_retriever(search_kwargs={"k": 3}), llm).invoke(QUESTION)
    assert recorded[0] == recorded[1]


def test_many_questions_at_once_each_recognise_their_own_documents(chain, store, engine, corpus):
    questions = [" ".join(text.split()[:9]) + "?" for text in corpus.values()]
    finds = {question: store.similarity_search(question, k=2) for question in questions}
    infos = [LastInfo() for _ in questions]
    chain.batch(questions, [{"callbacks": [info]} for info in infos])
    for question, info in zip(questions, infos, strict=True):
        assert info.info["document_ids"] == [document.id for document in finds[question]]


def test_leaving_a_chain_stream_early_cancels_the_request(chain_of, store, endless):
    retriever = RAGCacheRetriever.from_vectorstore(store, engine=endless, k=2)
    chain = chain_of(retriever, RAGCacheLLM(engine=endless))

    async def leave():
        stream = chain.astream(QUESTION)
        await anext(stream)
        await stream.aclose()
        for _ in range(2000):
            if endless.stats().cancelled:
                break
            await asyncio.sleep(0.001)

    asyncio.run(leave())
    assert endless.stats().cancelled == 1
