"""What a client hands on to its server: documents, guesses, conversations, tool calls."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from http_servers import OPERATOR, serve
from waiting import eventually

from ragcache_engine import (
    Corpus,
    Document,
    EngineNeeded,
    GenerationFailed,
    NoChatTemplate,
    RAGCacheEngine,
    RefusedMessages,
    RequestTimedOut,
    SamplingOptions,
    SpeculationOutcome,
)
from ragcache_engine.anywhere.idle_backend import with_idle_work
from ragcache_engine.anywhere.neighbours import context_behind
from ragcache_engine.backends.memory import MemoryBackend, Stall
from ragcache_engine.protocols import Backend, BackendRequest, Conversation
from ragcache_engine.serving import routes
from ragcache_engine.tiers.borrowing.plan import WhyExact
from ragcache_engine.values import SegmentKind

A, B = (Document(name, f"Passage {name} says something of its own. " * 12) for name in "ab")
TEMPLATE = "Use these.\n\n{context}\n\n{question}"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


class Recording(MemoryBackend):
    """Keeps its requests, and which guesses were adopted."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.asked: list[BackendRequest] = []
        self.were_adopted: list[str] = []

    def generate(self, request: BackendRequest) -> Any:
        self.asked.append(request)
        return super().generate(request)

    def adopted(self, request_id: str) -> None:
        self.were_adopted.append(request_id)
        super().adopted(request_id)


@contextmanager
def client_of(
    backend: Backend,
    tool_parser: str | None = None,
    reuse: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Iterator[RAGCacheEngine]:
    with (
        serve(backend, tool_parser=tool_parser, reuse=reuse) as server,
        RAGCacheEngine.connect(server.url, api_key=OPERATOR, **settings) as engine,
    ):
        yield engine


def prompt_of(*documents: Document, question: str = "Why?") -> str:
    joined = "\n\n".join(document.text for document in documents)
    return TEMPLATE.format(context=joined, question=question)


def test_the_server_knows_which_tokens_are_which_document():
    backend = Recording()
    with client_of(backend) as engine:
        engine.generate(prompt_of(A, B), [B, A], SamplingOptions(max_tokens=1))
    (request,) = backend.asked
    assert [segment.document_id for segment in request.segments] == [None, "a", "b", None]
    assert request.segments[0].kind is SegmentKind.SYSTEM
    assert request.segments[-1].end == len(request.tokens)


class FailsOnce(Recording):
    """Fails the first request, once `meanwhile` was called."""

    meanwhile: Any = None

    async def generate(self, request: BackendRequest) -> Any:
        self.asked.append(request)
        if len(self.asked) == 1:
            await asyncio.to_thread(self.meanwhile)
            raise GenerationFailed("a step broke")
        async for delta in MemoryBackend.generate(self, request):
            yield delta


def test_the_server_keeps_nothing_of_what_was_forgotten_since_a_prompt_was_planned():
    backend = FailsOnce()
    with client_of(backend) as engine:
        backend.meanwhile = lambda: engine.forget(["a"])
        with engine.retrieval("Why?") as search:
            search.found([A, B])
        engine.generate(prompt_of(A, B))
    first, second = backend.asked
    assert (list(first.withdrawn), list(second.withdrawn)) == ([], ["a"])


class Slow(Recording):
    """Takes `seconds` to begin an answer, as in a long queue."""

    seconds = 2.0

    async def generate(self, request: BackendRequest) -> Any:
        self.asked.append(request)
        await asyncio.sleep(self.seconds)
        async for delta in MemoryBackend.generate(self, request):
            yield delta


@pytest.mark.slow
def test_a_server_that_shows_signs_of_life_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(routes, "ALIVE_S", 0.05)
    backend = Slow()
    with client_of(backend, request_timeout_s=0.5) as engine:
        answer = engine.generate(prompt_of(A))
        assert list(engine.stream(prompt_of(A)))[-1].usage is not None
        assert answer.usage.output_tokens
        assert len(backend.asked) == 2
        assert engine.stats().retried == 0


def test_a_silent_server_is_given_up_and_not_started_again(caplog: pytest.LogCaptureFixture):
    with client_of(Slow(), request_timeout_s=0.2) as engine:
        with pytest.raises(RequestTimedOut):
            engine.generate(prompt_of(A))
        assert engine.stats().retried == 1
        assert "starting it once more" not in caplog.text


def test_usage_tells_the_servers_count_and_the_tiers():
    with client_of(MemoryBackend(device_blocks=20, host_blocks=512)) as engine:
        first = engine.generate(prompt_of(A, B), [A, B])
        second = engine.generate(prompt_of(A, B, question="And?"), [A, B])
        assert first.usage.prompt_tokens == len(engine.tokenize(prompt_of(A, B)))
        assert second.usage.cached.device > 100
        # This takes the whole device. The host still has what it overwrites there.
        other = Document("other", "The other one is long. " * 50)
        engine.generate(prompt_of(other), [other])
        third = engine.generate(prompt_of(A, B, question="Still?"), [A, B])
        assert third.usage.cached.host > 100
        assert engine.stats().tiers.evicted["device"] > 0


def test_a_guess_that_comes_true_is_adopted_and_the_server_hears_of_it():
    backend = Recording()
    with client_of(backend, speculation="on") as engine:
        with engine.retrieval("Why?", template=TEMPLATE) as retrieval:
            retrieval.provisional([A, B])
            assert eventually(lambda: len(backend.asked) == 1)
            retrieval.found([A, B])
        answer = engine.generate(prompt_of(A, B))
        assert answer.usage.speculation.outcome is SpeculationOutcome.ADOPTED
        assert answer.usage.prompt_tokens == len(backend.asked[0].tokens)
        assert engine.stats().speculation.wasted_prefill_tokens == 0
        engine.generate("Next.")
    guess = backend.asked[0]
    assert guess.is_guess
    assert guess.is_provisional
    assert backend.were_adopted == [guess.request_id]


def test_a_guess_that_was_wrong_is_cancelled_on_the_server():
    def stall(step: int) -> None:
        if step > 2 and backend.running == 1 and not may_go.is_set():
            raise Stall

    may_go = threading.Event()
    backend = Recording(fault=stall)
    with client_of(backend, speculation="on") as engine:
        with engine.retrieval("Why?", template=TEMPLATE) as retrieval:
            retrieval.provisional([A])
            assert eventually(lambda: len(backend.asked) == 1)
            retrieval.provisional([B])
            assert eventually(lambda: len(backend.asked) == 2 and backend.aborted == 1)
            may_go.set()
            retrieval.found([B])
        answer = engine.generate(prompt_of(B))
        assert answer.text == "You asked: Why?"
        assert answer.usage.speculation.outcome is SpeculationOutcome.ADOPTED
        assert engine.stats().speculation.cancelled == 1


def test_documents_of_a_retrieval_are_recognised_in_the_prompt():
    with client_of(MemoryBackend()) as engine:
        with engine.retrieval("Why?") as retrieval:
            retrieval.found([A, B])
        assert engine.generate(prompt_of(A, B)).usage.document_ids == ("a", "b")


def test_documents_are_ordered_by_what_the_clients_own_prompts_had():
    with client_of(MemoryBackend(), document_order="cached") as engine:
        with engine.retrieval("Why?", chain="c") as retrieval:
            retrieval.found([A, B])
        engine.generate(prompt_of(A, B))
        with engine.retrieval("And?", chain="c") as retrieval:
            assert retrieval.order([B, A]) == [1, 0]


class Refusing(MemoryBackend):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def render(self, conversation: Conversation) -> str:
        raise self.error


@pytest.mark.parametrize("error", [NoChatTemplate("none"), RefusedMessages("no system message")])
def test_what_the_chat_template_refuses_keeps_its_name(error: Exception):
    with client_of(Refusing(error)) as engine, pytest.raises(type(error), match=str(error)):
        engine.chat.prompt([{"role": "user", "content": "Hello."}])


@pytest.mark.parametrize("parser", [None, "hermes"], ids=["our reader", "the server's parser"])
def test_tool_calls_are_read_whole_and_from_a_stream(parser: str | None):
    call = {"name": "look", "arguments": {"at": "the sea"}}
    said = f"I look.\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
    with client_of(MemoryBackend(lambda prompt: said), tool_parser=parser) as engine:
        assert engine.config.tool_parser == parser
        prompt = engine.chat.prompt([{"role": "user", "content": "Look."}], tools=[TOOL])
        whole = engine.chat.tool_reader([TOOL]).whole(engine.generate(prompt).text)
        reader = engine.chat.tool_reader([TOOL])
        parts = [reader.read(piece.text, piece.token_ids) for piece in engine.stream(prompt)]
        parts.append(reader.end())
    assert (whole.text, [(c.name, json.loads(c.arguments)) for c in whole.calls]) == (
        "I look.",
        [("look", {"at": "the sea"})],
    )
    assert "".join(part.text for part in parts) == "I look."
    calls = [each for part in parts for each in part.calls]
    assert calls[0].name == "look"
    assert json.loads("".join(each.arguments for each in calls)) == {"at": "the sea"}


ANYWHERE = {
    "reuse": "anywhere",
    "recompute_ratio": 0.25,
    "donors": "neighbours",
    "recheck_share": 0.0,
}
C = Document("c", "Passage c says something of its own. " * 12)
CORPUS = Corpus(1, lambda documents: [{"a": B, "b": C, "c": A}[one.id] for one in documents])


def test_a_client_of_a_server_that_borrows_tells_it_the_neighbours():
    backend = Recording(recompute_ratio=0.25)
    with client_of(backend, reuse=ANYWHERE) as engine:
        with engine.retrieval("Why?") as retrieval:
            retrieval.look_up_neighbours([A, B], CORPUS)
            retrieval.found([A, B])
        first = engine.generate(prompt_of(A, B))
        again = engine.generate(prompt_of(C, B, question="And?"), [C, B])
    here = MemoryBackend().tokenize
    assert backend.asked[0].contexts == {
        "a": context_behind(here, A.text, B),
        "b": context_behind(here, B.text, C),
    }
    assert first.usage.recomputed_tokens > 0
    assert again.usage.borrowed.device > 0, "from the same donor, as its neighbour is the same"


def test_the_configuration_of_a_client_says_how_its_server_borrows():
    with client_of(MemoryBackend(recompute_ratio=0.25), reuse=ANYWHERE) as engine:
        assert (engine.config.reuse, engine.config.recompute_ratio) == ("anywhere", 0.25)
        answer = engine.generate(prompt_of(A, B), [A, B], recompute_ratio=1.0)
        assert answer.usage.reused[1].recomputed == answer.usage.reused[1].tokens
    with client_of(MemoryBackend()) as engine:
        assert engine.config.reuse == "prefix"


def test_what_a_client_warms_the_server_stores_behind_its_neighbours():
    backend = Recording(recompute_ratio=0.25)
    with client_of(backend, reuse=ANYWHERE) as engine:
        engine.warm([[A, B, C]], template=TEMPLATE, neighbours=CORPUS)
        assert all(request.makes_donors for request in backend.asked)
        answer = engine.generate(prompt_of(C, B), [C, B])
    assert answer.usage.borrowed.device > 0


def test_a_server_prepares_what_clients_asked_about_while_it_has_no_request():
    inner = MemoryBackend(recompute_ratio=0.25, donors_later=True)
    idle = with_idle_work(inner, prepares_later=True, recheck_share=0.0, least=None)
    with client_of(idle.backend, reuse={**ANYWHERE, "missing_donors": "later"}) as engine:
        first = engine.generate(prompt_of(A, B), [A, B])
        assert first.usage.why_exact == WhyExact.NOT_PREPARED.value
        assert engine.stats().unprepared == 0, "the client itself prepares nothing"
        assert eventually(lambda: idle.reports[0]()["unprepared"] == 0)
        assert engine.generate(prompt_of(C, B), [C, B]).usage.borrowed.device > 0


def test_a_server_that_borrows_nothing_is_told_no_neighbours():
    backend = Recording()
    with client_of(backend) as engine:
        with engine.retrieval("Why?") as retrieval:
            retrieval.look_up_neighbours([A, B], CORPUS)
            retrieval.found([A, B])
        engine.generate(prompt_of(A, B))
    assert backend.asked[0].contexts == {}


def test_connections_serve_again():
    with serve(MemoryBackend()) as server, RAGCacheEngine.connect(server.url) as engine:
        for number in range(12):
            engine.generate(f"Number {number}?")
        assert len(server.thread.server.server_state.connections) <= 3


def test_an_engine_that_asks_a_server_is_not_pickled_and_its_settings_start_another(
    caplog: pytest.LogCaptureFixture,
):
    with serve(MemoryBackend()) as server, RAGCacheEngine.connect(server.url) as engine:
        with pytest.raises(EngineNeeded):
            engine.__reduce_ex__(2)
        with RAGCacheEngine(engine.config) as other:
            assert other.generate("Why?").text == "You asked: Why?"
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
