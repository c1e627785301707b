"""Leaving a chain's stream cancels its request at once, and nothing else cuts an answer short."""

import gc
import time

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import PromptTemplate
from langchain_core.runnables import RunnableGenerator, RunnableLambda, RunnablePassthrough

from ragcache_engine.backends.memory import MemoryBackend
from ragcache_integrations.langchain import ChatRAGCache, RAGCacheLLM

QUESTION = "Why?"
PROMPT = PromptTemplate.from_template("Question: {question}")
REPLY = " ".join(f"part {n}" for n in range(60))


def first_pieces(pieces):
    """A step that needs only the first pieces."""
    for _, piece in zip(range(3), pieces, strict=False):
        yield piece


def as_it_is(pieces):
    yield from pieces


# Steps that may follow a model. None of them may lose a piece.
STEPS = {
    "parser": lambda model: model | StrOutputParser(),
    "two parsers": lambda model: model | StrOutputParser() | StrOutputParser(),
    "nothing": lambda model: model | RunnablePassthrough() | StrOutputParser(),
    "its own pieces": lambda model: model | RunnableGenerator(as_it_is) | StrOutputParser(),
    "bound": lambda model: model.bind(stop=["never said"]) | StrOutputParser(),
    "configured": lambda model: model.with_config(tags=["x"]) | StrOutputParser(),
    "bound, nothing": lambda model: model.bind(seed=3) | RunnablePassthrough() | StrOutputParser(),
    "a chain in a chain": lambda model: RunnableLambda(
        lambda asked: PROMPT | model | StrOutputParser()
    ),
}
FORKS = {
    "steps": lambda model: model | {"one": StrOutputParser(), "two": StrOutputParser()},
    "steps behind a step": lambda model: (
        model | RunnablePassthrough() | {"one": StrOutputParser(), "two": StrOutputParser()}
    ),
    "models": lambda model: {
        "one": model | StrOutputParser(),
        "two": model.bind(seed=3) | StrOutputParser(),
    },
    "bare models": lambda model: (
        RunnablePassthrough()
        | {"one": model.bind(seed=3), "two": model}
        | RunnableLambda(contents_of)
    ),
    "one that has enough": lambda model: (
        model
        | {
            "one": StrOutputParser(),
            "two": StrOutputParser(),
            "some": RunnableGenerator(first_pieces) | StrOutputParser(),
        }
    ),
}


def contents_of(said):
    return {name: getattr(what, "content", what) for name, what in said.items()}


@pytest.fixture(params=[RAGCacheLLM, ChatRAGCache])
def model_on(request):
    return lambda engine: request.param(engine=engine, temperature=0)


@pytest.fixture
def talkative(model_on, make_engine):
    return model_on(make_engine(MemoryBackend(lambda prompt: REPLY)))


@pytest.mark.parametrize("step", STEPS)
def test_who_reads_on_gets_the_whole_answer(talkative, step):
    chain = PROMPT | STEPS[step](talkative)
    assert "".join(chain.stream({"question": QUESTION})) == REPLY


@pytest.mark.parametrize("fork", FORKS)
def test_every_branch_gets_the_whole_answer(talkative, fork):
    chain = PROMPT | FORKS[fork](talkative)
    said = {"one": "", "two": ""}
    for piece in chain.stream({"question": QUESTION}):
        for name in said.keys() & piece.keys():
            said[name] += piece[name]
    assert said == {"one": REPLY, "two": REPLY}


def cancelled(engine):
    for _ in range(2000):
        if engine.stats().cancelled and not engine.stats().running:
            break
        time.sleep(0.001)
    return engine.stats().cancelled


@pytest.mark.parametrize("pieces", [1, 2, 4])
@pytest.mark.parametrize("step", STEPS)
def test_closing_the_stream_cancels_at_once(model_on, endless, step, pieces):
    stream = (PROMPT | STEPS[step](model_on(endless))).stream({"question": QUESTION})
    for _ in range(pieces):
        next(stream)
    stream.close()
    assert cancelled(endless) == 1


def test_dropping_the_stream_cancels_at_once(model_on, endless):
    chain = PROMPT | model_on(endless) | StrOutputParser()
    for _ in chain.stream({"question": QUESTION}):
        break
    gc.collect()
    assert cancelled(endless) == 1


def test_a_chain_inside_may_be_left_while_the_one_around_it_goes_on(model_on, endless):
    inner = PROMPT | model_on(endless) | StrOutputParser()

    def two_pieces(asked):
        stream = inner.stream(asked)
        yield next(stream)
        yield next(stream)
        stream.close()
        yield "."

    answer = "".join(RunnableLambda(two_pieces).stream({"question": QUESTION}))
    assert answer.endswith(".")
    assert cancelled(endless) == 1


def test_a_stream_read_by_hand_is_read_to_its_end(talkative):
    pieces = talkative.transform(iter([QUESTION]))
    next(pieces)
    rest = "".join(StrOutputParser().transform(pieces))
    assert REPLY.endswith(rest)
    assert len(rest) > len(REPLY) - 16
