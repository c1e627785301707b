"""Listeners of a chain hear of the retriever, of the LLM, and of what the answer cost."""

import asyncio

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnablePassthrough

pytestmark = pytest.mark.vllm

PROMPT = PromptTemplate.from_template(
    "<|im_start|>user\n{context}\n\n{question}<|im_end|>\n<|im_start|>assistant\n"
)


def join_texts(documents):
    return "\n\n".join(document.page_content for document in documents)


def chain_of(side):
    inputs = {"context": side.retriever | join_texts, "question": RunnablePassthrough()}
    return inputs | PROMPT | side.llm | StrOutputParser()


def events_of(chain, question):
    async def listen():
        return [event async for event in chain.astream_events(question, version="v2")]

    return asyncio.run(listen())


def only_event(events, kind):
    (event,) = (event for event in events if event["event"] == kind)
    return event["data"]


def test_astream_events_tell_of_the_documents_every_piece_and_the_cost(swap, questions, found):
    events = events_of(chain_of(swap.ours), questions[0])
    documents = only_event(events, "on_retriever_end")["output"]
    assert [document.id for document in documents] == found(questions[0])
    pieces = [e["data"]["chunk"].text for e in events if e["event"] == "on_llm_stream"]
    answer = chain_of(swap.stock).invoke(questions[0])
    assert "".join(pieces) == answer
    assert len(pieces) > 1
    (ended,) = only_event(events, "on_llm_end")["output"]["generations"][0]
    info = ended["generation_info"]
    assert ended["text"] == answer
    assert info["document_ids"] == found(questions[0])
    assert info["usage_metadata"]["output_tokens"] <= swap.ours.llm.max_new_tokens


def test_the_events_come_in_the_order_of_the_chain(swap, questions):
    names = [event["event"] for event in events_of(chain_of(swap.ours), questions[0])]
    in_order = ["on_chain_start", "on_retriever_start", "on_retriever_end", "on_llm_start"]
    in_order += ["on_llm_stream", "on_llm_end"]
    places = [names.index(name) for name in in_order]
    assert places == sorted(places)
    assert names[-1] == "on_chain_end"


def test_the_events_are_those_of_the_stock_classes_and_more_pieces(swap, questions):
    def kinds(side):
        return {event["event"] for event in events_of(chain_of(side), questions[0])}

    # VLLM does not stream, so no piece is heard from it. Nothing else differs.
    assert kinds(swap.ours) - kinds(swap.stock) <= {"on_llm_stream"}
    assert kinds(swap.stock) <= kinds(swap.ours)


def test_a_second_ask_tells_of_what_came_from_the_cache(swap, questions):
    def cached():
        events = events_of(chain_of(swap.ours), questions[0])
        (ended,) = only_event(events, "on_llm_end")["output"]["generations"][0]
        return ended["generation_info"]["usage_metadata"]["input_token_details"]["cache_read"]

    swap.engine.clear_cache()
    cold, warm = cached(), cached()
    assert warm > cold
