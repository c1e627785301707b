"""Chains in LangChain's expression language, called in every way it has."""

import asyncio

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_core.runnables import RunnableParallel, RunnablePassthrough

pytestmark = pytest.mark.vllm

PROMPT = PromptTemplate.from_template(
    "<|im_start|>user\nAnswer from these texts.\n\n{context}\n\nQuestion: {question}<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def join_texts(documents):
    return "\n\n".join(document.page_content for document in documents)


def plain_chain(side):
    inputs = {"context": side.retriever | join_texts, "question": RunnablePassthrough()}
    return inputs | PROMPT | side.llm | StrOutputParser()


def chain_with_sources(side):
    """Returns the documents together with the answer, as the tutorials do."""
    answer = (
        RunnablePassthrough.assign(context=lambda inputs: join_texts(inputs["context"]))
        | PROMPT
        | side.llm
        | StrOutputParser()
    )
    inputs = RunnableParallel(context=side.retriever, question=RunnablePassthrough())
    return inputs.assign(answer=answer)


def chain_of_two_answers(side):
    """One retrieval, and two prompts made from it at the same time."""
    short = PromptTemplate.from_template("{context}\n\nIn one word, {question}")
    inputs = {"context": side.retriever | join_texts, "question": RunnablePassthrough()}
    return inputs | RunnableParallel(long=PROMPT | side.llm, short=short | side.llm)


def chain_over_chat_prompt(side):
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Answer from these texts.\n\n{context}"), ("human", "{question}")]
    )
    inputs = {"context": side.retriever | join_texts, "question": RunnablePassthrough()}
    return inputs | prompt | side.llm | StrOutputParser()


async def drained(chunks):
    return "".join([chunk async for chunk in chunks])


WAYS = {
    "invoke": lambda chain, asked, config: chain.invoke(asked, config),
    "ainvoke": lambda chain, asked, config: asyncio.run(chain.ainvoke(asked, config)),
    "stream": lambda chain, asked, config: "".join(chain.stream(asked, config)),
    "astream": lambda chain, asked, config: asyncio.run(drained(chain.astream(asked, config))),
    "batch": lambda chain, asked, config: chain.batch([asked], config)[0],
    "abatch": lambda chain, asked, config: asyncio.run(chain.abatch([asked], config))[0],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_chain_answers_alike_in_every_way_of_asking(swap, questions, found, way):
    answer, cold, warm = swap.answers_alike(plain_chain, questions[0], WAYS[way])
    assert answer.strip()
    assert cold.document_ids == warm.document_ids == [found(questions[0])]


@pytest.mark.parametrize("build", [chain_with_sources, chain_over_chat_prompt])
def test_documents_handed_on_beside_the_answer_are_the_stock_ones(swap, questions, found, build):
    _, cold, _ = swap.answers_alike(build, questions[1])
    assert cold.document_ids == [found(questions[1])]


def test_two_prompts_of_one_retrieval_are_both_recognised(swap, questions, found):
    _, cold, _ = swap.answers_alike(chain_of_two_answers, questions[0])
    assert cold.document_ids == [found(questions[0])] * 2


@pytest.mark.parametrize("way", ["batch", "abatch"])
def test_a_batch_answers_each_question_as_if_it_were_alone(swap, questions, way):
    def ask(chain, asked, config):
        if way == "batch":
            return chain.batch(asked, config)
        return asyncio.run(chain.abatch(asked, config))

    answers, cold, _ = swap.answers_alike(plain_chain, questions, ask)
    assert answers == [plain_chain(swap.stock).invoke(question) for question in questions]
    assert len(cold.infos) == len(questions)


def test_another_question_on_the_same_documents_reuses_them(swap, questions, found, heard):
    other = "Why does the sky look violet and not blue?"
    assert found(other) == found(questions[0])
    chain = plain_chain(swap.ours)
    swap.engine.clear_cache()
    chain.invoke(questions[0])
    answer = chain.invoke(other, {"callbacks": [heard]})
    assert answer == plain_chain(swap.stock).invoke(other)
    documents_tokens = len(swap.engine.tokenize(heard.prompts[0].split("Question:")[0]).token_ids)
    assert heard.cached >= documents_tokens - swap.engine.limits.block_tokens
