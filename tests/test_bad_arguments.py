"""Whatever is passed to the engine: an error by name, at once, and right answers afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thoroughness import examples

from ragcache_engine import (
    Document,
    EngineConfig,
    Guide,
    InvalidArgument,
    RAGCacheEngine,
    RAGCacheError,
    SamplingOptions,
)

TIDES = Document("tides", "The moon pulls the oceans, and the tides follow it. " * 9)
TEMPLATE = "{context}\n\n{question}"
MESSAGE = {"role": "user", "content": "Hello."}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def engine() -> Iterator[RAGCacheEngine]:
    with RAGCacheEngine(EngineConfig(backend="memory", request_timeout_s=5)) as engine:
        yield engine


@pytest.mark.parametrize(
    ("given", "write"),
    [
        ("org/name", r"RAGCacheEngine\(EngineConfig\(model='org/name'\)\)"),
        (Path("models/mine"), r"RAGCacheEngine\(EngineConfig\(model='models/mine'\)\)"),
        ({"model": "org/name"}, r"RAGCacheEngine\(EngineConfig\(\*\*settings\)\)"),
        (None, r"RAGCacheEngine\(EngineConfig\(model=\.\.\.\)\)"),
    ],
)
async def test_what_is_no_configuration_is_told_with_what_to_write(given: Any, write: str):
    with pytest.raises(InvalidArgument, match=write):
        RAGCacheEngine(given)
    with pytest.raises(InvalidArgument, match=write):
        await RAGCacheEngine.acreate(given)


def assert_it_still_answers(engine: RAGCacheEngine) -> None:
    with engine.retrieval("Why?") as retrieval:
        retrieval.found([TIDES])
    answer = engine.generate(f"{TIDES.text}\n\nWhy?")
    assert answer.usage.document_ids == ("tides",)
    assert engine.warm([["tides"]], template=TEMPLATE).sets == 1
    assert engine.stats().running == 0


MISTAKES: dict[str, Callable[[RAGCacheEngine], Any]] = {
    "a tenant that is a number": lambda e: e.generate("Hello", tenant=42),
    "a tenant that is a list": lambda e: e.generate("Hello", tenant=[]),
    "a tenant without a name": lambda e: e.generate("Hello", tenant=""),
    "a prompt that is no text": lambda e: e.generate(5),
    "half a character": lambda e: e.generate("Hello \ud800"),
    "options as a mapping": lambda e: e.generate("hi", None, {"max_tokens": 3}),
    "documents as texts": lambda e: e.generate("hi", ["text"]),
    "documents as one text": lambda e: e.generate("hi", "text"),
    "a document that is not in a list": lambda e: e.generate("hi", TIDES),
    "a conversation that is a text": lambda e: e.chat.prompt("hello"),
    "a message that is a text": lambda e: e.chat.prompt(["hello"]),
    "tools that are texts": lambda e: e.chat.prompt([MESSAGE], tools=["look"]),
    "a tool without a name": lambda e: e.chat.prompt([MESSAGE], tools=[{"type": "function"}]),
    "tools that are one tool": lambda e: e.chat.tool_reader(TOOL),
    "arguments of a template that are a list": lambda e: e.chat.prompt(
        [MESSAGE], template_args=[1]
    ),
    "a template among its own variables": lambda e: e.chat.prompt(
        [MESSAGE], template_args={"chat_template": "{{ 6 * 7 }}"}
    ),
    "ids that are bytes": lambda e: e.forget([b"a"]),
    "ids that hold half a character": lambda e: e.forget(["\ud800"]),
    "ids that are one id": lambda e: e.forget("tides"),
    "ids that are none": lambda e: e.forget(None),
    "a corpus that is a mapping": lambda e: e.warm([], corpus={"tides": TIDES}),
    "a corpus of texts": lambda e: e.warm([["tides"]], corpus=["tides"], template=TEMPLATE),
    "sets to warm that are one text": lambda e: e.warm("tides", template=TEMPLATE),
    "sets to warm that are ids": lambda e: e.warm(["tides"], template=TEMPLATE),
    "a set to warm with a number": lambda e: e.warm([[5]], template=TEMPLATE),
    "a template that is a number": lambda e: e.warm([[TIDES]], template=5),
    "a prompt to count that is none": lambda e: e.tokenize(None),
    "a question that is none": lambda e: e.retrieval(None).__enter__(),
    "a chain that is a list": lambda e: e.retrieval("Why?", chain=[]).__enter__(),
    "options of a search as a mapping": lambda e: e.retrieval("Why?", options={}).__enter__(),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_plain_mistake_is_named_and_harms_nobody(engine: RAGCacheEngine, mistake):
    with pytest.raises(RAGCacheError):
        mistake(engine)
    assert_it_still_answers(engine)


@pytest.mark.parametrize("found", [[5], ["text"], None, "text", [TIDES, None]])
def test_a_search_that_found_no_documents_is_refused_where_it_says_so(engine, found):
    with (
        pytest.raises(InvalidArgument, match="documents"),
        engine.retrieval("Why?") as retrieval,
    ):
        retrieval.found(found)
    assert_it_still_answers(engine)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(), max_size=8),
    st.binary(max_size=4),
    st.lists(st.one_of(st.text(max_size=4), st.integers(), st.none(), st.just(TIDES)), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
    st.just(TIDES),
    st.just(object()),
    st.just(MESSAGE),
    st.just([MESSAGE]),
    st.just([TOOL]),
    st.just(SamplingOptions(max_tokens=3)),
)

DOORS: dict[str, Callable[..., Any]] = {
    "generate": lambda e, a, b, c: e.generate(a, b, c),
    "tenant": lambda e, a, b, c: e.generate("Hello", None, None, tenant=a),
    "found": lambda e, a, b, c: _search(e, a, b, c),
    "warm": lambda e, a, b, c: e.warm(a, template=b, corpus=[] if c is None else c),
    "forget": lambda e, a, b, c: e.forget(a),
    "tokenize": lambda e, a, b, c: e.tokenize(a),
    "chat prompt": lambda e, a, b, c: e.generate(e.chat.prompt(a, tools=b, template_args=c)),
    "tool options": lambda e, a, b, c: e.chat.tool_options(SamplingOptions(), a, must_call=True),
    "options": lambda e, a, b, c: SamplingOptions(max_tokens=a, temperature=b, stop=c),
    "more options": lambda e, a, b, c: SamplingOptions(seed=a, top_k=b, ignore_eos=c),
    "guide": lambda e, a, b, c: Guide(a, b),
    "document": lambda e, a, b, c: Document(a, b),
}


def _search(engine: RAGCacheEngine, question: Any, provisional: Any, found: Any) -> None:
    with engine.retrieval(question, template=TEMPLATE) as retrieval:
        retrieval.provisional(provisional)
        retrieval.found(found)


@settings(
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(door=st.sampled_from(sorted(DOORS)), a=ANYTHING, b=ANYTHING, c=ANYTHING)
@pytest.mark.slow
def test_nothing_but_errors_by_name_leaves_the_engine(engine: RAGCacheEngine, door, a, b, c):
    with suppress(RAGCacheError):
        DOORS[door](engine, a, b, c)
    assert_it_still_answers(engine)
