"""The reasoning of a model is told apart from its answer, here and behind a server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from http_servers import OPERATOR, serve

from ragcache_engine import (
    ChatPrompt,
    Document,
    EngineConfig,
    GenerationFailed,
    Guide,
    RAGCacheEngine,
    SamplingOptions,
    SpeculationOutcome,
)
from ragcache_engine.backends.memory import MemoryBackend

ThinkingEngine = Callable[..., RAGCacheEngine]

THOUGHT, SAID = "\nThey ask why. 1 < 2, so I say.\n", "\n\nBecause of the air, </b>."
REPLY = f"<think>{THOUGHT}</think>{SAID}"
MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]
SKY = Document("sky", "The sky looks blue because the air scatters short waves of sunlight. " * 3)


@pytest.fixture(params=["here", "served"])
def thinking(request: pytest.FixtureRequest) -> Iterator[ThinkingEngine]:
    """Makes engines on a backend, with a reasoning parser; "served" puts HTTP between."""
    with ExitStack() as opened:

        def make(backend: MemoryBackend, parser: str | None = "qwen3") -> RAGCacheEngine:
            if request.param == "here":
                config = EngineConfig(backend="memory", reasoning_parser=parser, speculation="on")
                return opened.enter_context(RAGCacheEngine(config, backend=backend))
            server = opened.enter_context(serve(backend, reasoning_parser=parser))
            engine = RAGCacheEngine.connect(server.url, api_key=OPERATOR, speculation="on")
            return opened.enter_context(engine)

        yield make


def test_what_a_model_thinks_is_not_in_its_answer(thinking: ThinkingEngine):
    engine = thinking(MemoryBackend(lambda prompt: REPLY))
    assert engine.config.reasoning_parser == "qwen3"
    assert engine.config.tells_reasoning
    answer = engine.generate(engine.chat.prompt(MESSAGES))
    assert (answer.reasoning, answer.text) == (THOUGHT, SAID)
    assert 0 < answer.usage.reasoning_tokens < answer.usage.output_tokens == len(answer.token_ids)


def test_a_stream_has_first_the_reasoning_and_then_the_answer(thinking: ThinkingEngine):
    engine = thinking(MemoryBackend(lambda prompt: REPLY))
    pieces = list(engine.stream(engine.chat.prompt(MESSAGES)))
    assert "".join(piece.reasoning for piece in pieces) == THOUGHT
    assert "".join(piece.text for piece in pieces) == SAID
    thinks = [bool(piece.reasoning) for piece in pieces if piece.reasoning or piece.text]
    assert thinks == sorted(thinks, reverse=True)
    assert thinks.count(True) > 3
    assert thinks.count(False) > 3


def test_without_a_parser_it_stays_in_the_text(thinking: ThinkingEngine):
    engine = thinking(MemoryBackend(lambda prompt: REPLY), parser=None)
    assert not engine.config.tells_reasoning
    answer = engine.generate(engine.chat.prompt(MESSAGES))
    assert (answer.reasoning, answer.text, answer.usage.reasoning_tokens) == ("", REPLY, 0)


def test_what_no_chat_template_wrote_is_continued_as_it_is(thinking: ThinkingEngine):
    engine = thinking(MemoryBackend(lambda prompt: REPLY))
    assert engine.generate("The sky is blue because").text == REPLY
    handmade = SamplingOptions(template_args={"enable_thinking": True})
    assert engine.generate("<user>Why?</user>", options=handmade).reasoning == THOUGHT


def test_an_answer_that_ends_while_the_model_thinks_has_no_text(thinking: ThinkingEngine):
    engine = thinking(MemoryBackend(lambda prompt: REPLY))
    answer = engine.generate(engine.chat.prompt(MESSAGES), options=SamplingOptions(max_tokens=6))
    assert (answer.reasoning, answer.text) == ("\nThey ask why", "")


def test_a_guide_holds_what_comes_behind_the_reasoning(thinking: ThinkingEngine):
    engine = thinking(MemoryBackend(lambda prompt: REPLY))
    options = SamplingOptions(guide=Guide.choice(["yes", "no"]))
    answer = engine.generate(engine.chat.prompt(MESSAGES), options=options)
    assert (answer.reasoning, answer.text) == (THOUGHT, "yes")
    assert engine.generate("Is it blue?", options=options).text == "yes"


def test_an_answer_that_was_begun_early_is_divided_too(thinking: ThinkingEngine):
    def write(question: str, documents: object) -> ChatPrompt:
        return engine.chat.prompt([{"role": "system", "content": SKY.text}, *MESSAGES])

    engine = thinking(MemoryBackend(lambda prompt: REPLY))
    with engine.retrieval("Why?", template=write) as retrieval:
        retrieval.provisional([SKY])
        waiting = threading.Event()
        assert any(engine.stats().speculation.started or waiting.wait(0.01) for _ in range(1000))
        retrieval.found([SKY])
    answer = engine.generate(write("Why?", ()))
    assert answer.usage.speculation.outcome is SpeculationOutcome.ADOPTED
    assert (answer.reasoning, answer.text) == (THOUGHT, SAID)
    assert answer.usage.reasoning_tokens


@pytest.mark.parametrize("step", range(0, 24, 3))
def test_a_failure_in_the_middle_of_the_reasoning_is_not_noticed(step: int):
    def fault(at: int) -> None:
        if at == step:
            raise GenerationFailed("a step broke")

    config = EngineConfig(backend="memory", reasoning_parser="qwen3")
    backend = MemoryBackend(lambda prompt: REPLY, fault=fault)
    with RAGCacheEngine(config, backend=backend) as engine:
        answer = engine.generate(engine.chat.prompt(MESSAGES))
        assert engine.stats().retried == 1
    assert (answer.reasoning, answer.text) == (THOUGHT, SAID)


def test_the_parser_may_stand_among_vllms_own_arguments():
    config = EngineConfig(backend="memory", vllm_args={"reasoning_parser": "qwen3"})
    with RAGCacheEngine(config, backend=MemoryBackend(lambda prompt: REPLY)) as engine:
        assert engine.generate(engine.chat.prompt(MESSAGES)).reasoning == THOUGHT
