"""One engine under several chains, called from threads and event loops at the same time."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnablePassthrough

pytestmark = pytest.mark.vllm

# The chains differ in all that could be mixed up: text before, between and after the documents.
FORMS = [
    ("<|im_start|>user\n{context}\n\n{question}<|im_end|>\n<|im_start|>assistant\n", "\n\n"),
    ("{context}\n\n{question}\n", "\n---\n"),
    ("You are asked: {question}\nThis is known:\n{context}\nTherefore,", "\n* "),
]


def chain_of(side, store, form):
    text, separator = form

    def join_texts(documents):
        return separator.join(document.page_content for document in documents)

    retriever = side.over(store)  # each chain has a retriever of its own, as in an application
    inputs = {"context": retriever | join_texts, "question": RunnablePassthrough()}
    return inputs | PromptTemplate.from_template(text) | side.llm | StrOutputParser()


@pytest.fixture
def asked(swap, long_store, questions):
    """(our chain, question, stock's answer), for all chains and questions."""
    cases = []
    for form in FORMS:
        stock, ours = (chain_of(side, long_store, form) for side in (swap.stock, swap.ours))
        cases += [(ours, question, stock.invoke(question)) for question in questions]
    return cases


def test_chains_in_several_threads_answer_as_one_at_a_time(swap, asked):
    swap.engine.clear_cache()
    before = swap.engine.stats()
    with ThreadPoolExecutor(len(asked)) as threads:
        for _ in range(2):
            answers = threads.map(lambda case: case[0].invoke(case[1]), asked)
            assert list(answers) == [expected for _, _, expected in asked]
    after = swap.engine.stats()
    assert after.finished - before.finished == 2 * len(asked)
    assert after.cached.total > before.cached.total


def test_chains_on_one_event_loop_answer_as_one_at_a_time(swap, asked):
    async def ask_all():
        return await asyncio.gather(*(chain.ainvoke(question) for chain, question, _ in asked))

    swap.engine.clear_cache()
    for _ in range(2):
        assert asyncio.run(ask_all()) == [expected for _, _, expected in asked]


def test_threads_and_event_loops_at_once_answer_as_one_at_a_time(swap, asked):
    async def streamed(chain, question):
        return "".join([piece async for piece in chain.astream(question)])

    async def ask_all():
        return await asyncio.gather(*(streamed(chain, question) for chain, question, _ in asked))

    swap.engine.clear_cache()
    expected = [answer for _, _, answer in asked]
    with ThreadPoolExecutor(5) as threads:
        loops = [threads.submit(asyncio.run, ask_all()) for _ in range(2)]
        batches = [threads.submit(chain.batch, [question]) for chain, question, _ in asked[:3]]
        assert [loop.result() for loop in loops] == [expected] * 2
        assert [batch.result() for batch in batches] == [[answer] for answer in expected[:3]]
