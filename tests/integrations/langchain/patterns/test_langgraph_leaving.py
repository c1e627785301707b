"""Whoever leaves the stream of a graph stops the engine, in the ways that the LangGraph guide names."""

import asyncio
from threading import Event
from typing import TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from waiting import eventually

from ragcache_engine.backends.memory import MemoryBackend, Stall
from ragcache_integrations.langchain import ChatRAGCache


class State(TypedDict, total=False):
    question: str
    answer: str


ASKED = {"question": "Why?"}


def graph_of(answer):
    graph = StateGraph(State)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph.compile()


@pytest.fixture
def chat(endless):
    return ChatRAGCache(engine=endless, temperature=0)


def is_stopped(engine):
    """Return whether the one request is cancelled within 30 s."""
    eventually(lambda: engine.stats().cancelled)
    return engine.stats().cancelled == 1 and engine.stats().running == 0


async def close(pieces):
    await anext(pieces)
    await pieces.aclose()


async def break_out(pieces):
    async for _ in pieces:
        break


async def be_cancelled(pieces):
    begun = Event()

    async def read():
        async for _ in pieces:
            begun.set()

    reading = asyncio.create_task(read())
    while not begun.is_set():
        await asyncio.sleep(0.001)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


@pytest.mark.parametrize("leave", [close, break_out, be_cancelled])
def test_leaving_an_async_stream_of_a_graph_stops_the_engine(chat, endless, leave):
    async def answer(state):
        return {"answer": (await chat.ainvoke(state["question"])).content}

    async def run():
        await leave(graph_of(answer).astream(ASKED, stream_mode="messages"))
        return await asyncio.to_thread(is_stopped, endless)

    assert asyncio.run(run())


def test_a_node_that_looks_at_a_flag_stops_the_engine_when_its_graph_is_left(make_engine):
    is_left, is_seen = Event(), Event()

    def wait_for_leaving_and_never_end(step):
        if step > 3:
            assert is_left.wait(60)
        if step > 10:
            raise Stall

    backend = MemoryBackend(lambda prompt: "and on " * 1000, fault=wait_for_leaving_and_never_end)
    engine = make_engine(backend)
    chat = ChatRAGCache(engine=engine, temperature=0, max_tokens=2000)

    def answer(state):
        said = ""
        for piece in chat.stream(state["question"]):
            said += piece.content
            if is_left.is_set():
                is_seen.set()
                break
        return {"answer": said}

    pieces = graph_of(answer).stream(ASKED, stream_mode="messages")
    next(pieces)
    is_left.set()
    pieces.close()
    assert is_seen.is_set()
    assert is_stopped(engine)
