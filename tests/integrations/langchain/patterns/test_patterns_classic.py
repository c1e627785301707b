"""The chains of langchain-classic: `create_retrieval_chain`, and RetrievalQA with every chain type."""

import asyncio

import pytest
from langchain_classic.chains import RetrievalQA, create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_classic.output_parsers import RegexParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate

pytestmark = pytest.mark.vllm


def retrieval_chain(side):
    prompt = ChatPromptTemplate.from_messages(
        [("system", "Answer from these texts.\n\n{context}"), ("human", "{input}")]
    )
    return create_retrieval_chain(side.retriever, create_stuff_documents_chain(side.llm, prompt))


class WordCount(RegexParser):
    """Scores an answer by its number of words, because the small model gives no scores."""

    def parse(self, text):
        return {"answer": text, "score": str(len(set(text.split())))}


RERANKED = PromptTemplate(
    template="{context}\n\nQuestion: {question}\nHelpful Answer:",
    input_variables=["context", "question"],
    output_parser=WordCount(regex="(.*)", output_keys=["answer", "score"]),
)
SETTINGS = {"map_rerank": {"prompt": RERANKED}}


def qa_of(chain_type):
    def build(side):
        return RetrievalQA.from_chain_type(
            side.llm,
            chain_type,
            retriever=side.retriever,
            return_source_documents=True,
            chain_type_kwargs=SETTINGS.get(chain_type, {}),
        )

    return build


def test_a_retrieval_chain_answers_alike_and_its_documents_are_recognised(
    either_swap, questions, found
):
    asked = {"input": questions[0]}
    answer, cold, _ = either_swap.answers_alike(retrieval_chain, asked)
    assert [document.id for document in answer["context"]] == found(questions[0])
    assert cold.document_ids == [found(questions[0])]


def test_a_retrieval_chain_streams_the_same_answer(either_swap, questions):
    def ask(chain, asked, config):
        return "".join(chunk.get("answer", "") for chunk in chain.stream(asked, config))

    answer, _, _ = either_swap.answers_alike(retrieval_chain, {"input": questions[1]}, ask)
    assert answer == retrieval_chain(either_swap.stock).invoke({"input": questions[1]})["answer"]


@pytest.mark.parametrize("chain_type", ["stuff", "map_reduce", "refine", "map_rerank"])
def test_retrieval_qa_answers_alike_with_every_chain_type(swap, questions, found, chain_type):
    answer, cold, _ = swap.answers_alike(qa_of(chain_type), {"query": questions[2]})
    assert answer["result"].strip()
    recognised = sorted(name for ids in cold.document_ids for name in ids)
    assert recognised == sorted(found(questions[2]))


def test_retrieval_qa_asks_a_chat_model_in_messages(chat_swap, questions, found):
    _, cold, _ = chat_swap.answers_alike(qa_of("stuff"), {"query": questions[2]})
    assert cold.document_ids == [found(questions[2])]
    assert cold.prompts[0].startswith("System: ")


def test_retrieval_qa_answers_coroutines_alike(swap, questions):
    def ask(chain, asked, config):
        return asyncio.run(chain.ainvoke(asked, config))

    swap.answers_alike(qa_of("refine"), {"query": questions[2]}, ask)
