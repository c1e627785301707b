"""How a prompt is taken in: which documents it holds, and which prompts are refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from http_servers import OPERATOR, serve
from slices import SLICES, TWELVE, WITH, prompt_of

from ragcache_engine import (
    Document,
    EmptyPrompt,
    EngineConfig,
    InvalidArgument,
    PromptTooLong,
    RAGCacheEngine,
    cache_point,
)
from ragcache_engine.backends.memory import MemoryBackend


def test_documents_may_be_given_with_the_prompt(engine: RAGCacheEngine):
    usage = engine.generate(prompt_of(SLICES, WITH), [SLICES], options=TWELVE).usage
    assert usage.document_ids == ("slices",)


def test_an_empty_prompt_is_refused(engine: RAGCacheEngine):
    with pytest.raises(EmptyPrompt, match="template"):
        engine.generate("")


def test_a_prompt_longer_than_the_context_is_refused_before_any_work(engine: RAGCacheEngine):
    before = engine.stats()
    with pytest.raises(PromptTooLong, match="fewer or shorter documents"):
        engine.stream("word " * (engine.limits.context_tokens + 1))
    assert engine.stats() == before


def test_a_prompt_that_is_no_text_is_refused(engine: RAGCacheEngine):
    with pytest.raises(TypeError, match="string"):
        engine.generate(["a", "list"])  # type: ignore[arg-type]


def test_a_ratio_for_an_engine_that_borrows_nothing_is_refused(memory_engine: RAGCacheEngine):
    with pytest.raises(InvalidArgument, match="anywhere"):
        memory_engine.generate("Why?", recompute_ratio=0.1)


# -- documents that stand in a prompt twice ------------------------------------------------------------

TIDES = Document("tides", "The moon pulls the oceans, and the tides follow it. " * 4)
SALT = Document("salt", "Rain dissolves stone, and the rivers carry its salt to the sea. " * 4)
TURNS = f"{TIDES.text}\nWhat pulls?\nThe moon.\n{SALT.text}\n{TIDES.text}\nAnd the salt?"


@pytest.fixture(params=["memory", "server"])
def make_engine(request: pytest.FixtureRequest) -> Iterator[Callable[..., RAGCacheEngine]]:
    """Makes an engine with these settings, in this process or as the client of a server."""
    with ExitStack() as stack:

        def make(**settings: Any) -> RAGCacheEngine:
            if request.param == "memory":
                config = EngineConfig(backend="memory", **settings)
                return stack.enter_context(RAGCacheEngine(config))
            url = stack.enter_context(serve(MemoryBackend())).url
            connected = RAGCacheEngine.connect(url, api_key=OPERATOR, **settings)
            return stack.enter_context(connected)

        yield make


def test_a_document_of_an_earlier_turn_that_is_found_again_is_told(make_engine):
    answer = make_engine().generate(TURNS, [TIDES, SALT])
    assert answer.usage.document_ids == ("tides", "salt", "tides")
    assert answer.usage.repeated_ids == ("tides",)
    assert "repeated documents" in str(answer.usage)


def test_with_dedupe_it_is_left_out_of_the_prompt(make_engine):
    usual, short = make_engine(), make_engine(dedupe=True)
    answer = short.generate(TURNS, [TIDES, SALT])
    assert answer.usage.document_ids == ("tides", "salt")
    assert answer.usage.repeated_ids == ("tides",)
    by_hand = TURNS[::-1].replace(TIDES.text[::-1], "[as above]"[::-1], 1)[::-1]
    expected = usual.generate(by_hand, [TIDES, SALT])
    assert (answer.text, answer.usage.prompt_tokens) == (
        expected.text,
        expected.usage.prompt_tokens,
    )


def test_what_the_engine_itself_retrieved_is_left_out_as_well(make_engine):
    engine = make_engine(dedupe=True)
    for found in ([TIDES], [SALT, TIDES]):
        with engine.retrieval("And the salt?") as retrieval:
            retrieval.found(found)
    usage = engine.generate(TURNS).usage
    assert (usage.document_ids, usage.repeated_ids) == (("tides", "salt"), ("tides",))


def test_a_conversation_that_only_fits_without_repeats_fits(make_engine):
    engine = make_engine(dedupe=True)
    many = engine.limits.context_tokens // len(TIDES.text.split())
    usage = engine.generate(f"{TIDES.text}\n" * many + "Why?", [TIDES]).usage
    assert len(usage.repeated_ids) == many - 1
    assert usage.prompt_tokens < engine.limits.context_tokens


def test_cache_points_stand_where_they_stood_in_the_text(make_engine):
    engine = make_engine(dedupe=True)
    messages = [{"role": "user", "content": f"{TURNS}{cache_point()}\nTell."}]
    prompt = engine.chat.prompt(messages)
    prepared = engine._intake.prepare(prompt, [TIDES, SALT], None, None)
    [(at, _)] = prepared.chat_prompt.cache_points
    assert prepared.chat_prompt[:at].endswith("[as above]\nAnd the salt?")
    assert prepared.chat_prompt[at:].startswith("\nTell.")


@pytest.mark.parametrize("make_engine", ["server"], indirect=True)  # memory's clock stands still
def test_a_prompt_that_is_refused_leaves_its_retrieval_to_the_next(make_engine):
    engine = make_engine(dedupe=True)
    with engine.retrieval("And the salt?") as retrieval:
        time.sleep(0.01)
        retrieval.found([SALT, TIDES])
    with pytest.raises(PromptTooLong):
        engine.generate(TURNS + "word " * 5_000_000)
    assert engine.generate(TURNS).usage.retrieval_s > 0


def test_what_the_engine_computes_of_its_own_is_computed_as_it_is():
    twice = [replace(TIDES, id=name) for name in ("tides", "copy")]
    config = EngineConfig(backend="memory", host_cache=1 << 30, dedupe=True)
    with RAGCacheEngine(config) as engine:
        [kept] = engine.keep([twice], template="{context}\n\n{question}")
        assert kept.documents == ("tides", "copy")
