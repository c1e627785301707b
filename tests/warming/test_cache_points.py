"""An answered prompt stays cached up to its cache points, for as long as they say."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ragcache_engine import (
    ChatPrompt,
    Document,
    EngineConfig,
    KeptDocuments,
    MemoryBackend,
    RAGCacheEngine,
    cache_point,
)
from ragcache_engine.backends.memory import Stall
from ragcache_engine.prompt import Span
from ragcache_engine.warming.cache_points import MOST_WAITING, CachePoints

RULES = "Answer as the handbook says, in one sentence and no more. " * 6
HANDBOOK = Document("handbook", "Whoever is last turns off the lights. " * 9)
OTHERS = [Document(f"report {n}", f"The report {n} is about the year. " * 9) for n in range(40)]


@contextmanager
def engine_of(
    host_blocks: int = 64, fault: Callable[[int], None] | None = None, **settings: Any
) -> Iterator[RAGCacheEngine]:
    config = EngineConfig(backend="memory", **settings)
    backend = MemoryBackend(
        fault=fault,
        device_blocks=64,
        host_blocks=host_blocks if settings.get("host_cache") else 0,
        context_tokens=1024,
        policy="lru",
        recompute_ratio=config.recompute_ratio,
    )
    with RAGCacheEngine(config, backend=backend) as engine:
        yield engine


def ask(engine: RAGCacheEngine, before: str, documents: list[Document], **options: Any) -> Any:
    context = "\n".join(one.text for one in documents)
    content = f"{RULES}{context}{before} Who turns off the lights?"
    prompt = engine.chat.prompt([{"role": "user", "content": content}])
    return engine.generate(prompt, documents, **options)


def kept(engine: RAGCacheEngine, sets: int = 1) -> tuple[KeptDocuments, ...]:
    end = time.monotonic() + 10
    while len(found := engine.kept()) < sets:
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def test_the_prompt_stays_after_much_other_traffic() -> None:
    with engine_of(host_cache="1GiB") as engine:
        ask(engine, cache_point(3600), [HANDBOOK])
        [one] = kept(engine)
        assert one.documents[0] == "handbook"
        assert one.until is not None
        assert 3600 < one.until.timestamp() - time.time() < 6000
        for other in OTHERS:
            engine.generate(other.text, [other])
        assert ask(engine, "", [HANDBOOK]).usage.cached.total >= one.tokens > 100


def test_a_prompt_without_documents_stays_too() -> None:
    with engine_of(host_cache="1GiB") as engine:
        ask(engine, cache_point(), [])
        [one] = kept(engine)
        assert len(one.documents) == 1
        for other in OTHERS:
            engine.generate(other.text, [other])
        assert ask(engine, "", []).usage.cached.total >= one.tokens > 50


def test_forgetting_a_document_ends_it() -> None:
    with engine_of(host_cache="1GiB") as engine:
        ask(engine, cache_point(), [HANDBOOK])
        kept(engine)
        engine.forget(["handbook"])
        assert engine.kept() == ()
        assert ask(engine, "", [HANDBOOK]).usage.cached.total < 100


def test_what_somebody_keeps_by_hand_is_left_alone() -> None:
    with engine_of(host_blocks=256, host_cache="1GiB") as engine:
        template = f"{RULES}{{context}}{{question}}"
        engine.keep([HANDBOOK], template=template)
        for rules in ("", "Be brief. "):
            content = f"{rules}{RULES}{HANDBOOK.text}{cache_point(60)}?"
            prompt = engine.chat.prompt([{"role": "user", "content": content}])
            engine.generate(prompt, [HANDBOOK])
        by_hand = [one for one in kept(engine, 3) if one.documents == ("handbook",)]
        assert [one.until for one in by_hand] == [None]
        assert len(engine.kept()) == 3


def test_they_leave_room_for_what_is_kept_by_hand() -> None:
    with engine_of(host_cache="1GiB") as engine:
        for number in range(12):
            content = f"{number} {RULES}{cache_point(3600)}"
            engine.generate(engine.chat.prompt([{"role": "user", "content": content}]))
        engine._cache_points._threads.submit(lambda: None).result()
        assert engine.keep([HANDBOOK], template="{context}{question}")


def test_coroutines_and_streams_have_them_too() -> None:
    waits = threading.Event()

    def hold(step: int) -> None:
        if waits.is_set():
            raise Stall

    with engine_of(host_cache="1GiB", fault=hold) as engine:
        prompts = [
            engine.chat.prompt([{"role": "user", "content": f"{at} {RULES}{cache_point()}"}])
            for at in range(3)
        ]
        asyncio.run(engine.agenerate(prompts[0]))
        with engine.stream(prompts[1]) as pieces:
            pieces.answer()
        waits.set()
        with engine.stream(prompts[2]):
            pass  # nobody waits for the answer
        waits.clear()
        assert len(kept(engine, 2)) == 2


def test_what_is_borrowed_is_kept_up_to_its_last_document() -> None:
    with engine_of(
        host_cache="1GiB", reuse="anywhere", recompute_ratio=0.1, donors="alone"
    ) as engine:
        ask(engine, cache_point(), [HANDBOOK, OTHERS[0]])
        [one] = kept(engine)
        assert one.documents[:-1] == ("handbook", "report 0")


def test_without_a_tier_and_without_room_the_answer_is_the_same() -> None:
    with engine_of() as engine:
        assert ask(engine, cache_point(), [HANDBOOK]).text
        assert engine.kept() == ()
    with engine_of(host_cache="1GiB", kept_share=0.01) as engine:
        assert ask(engine, cache_point(), [HANDBOOK]).text
        engine._cache_points._threads.submit(lambda: None).result()
        assert engine.kept() == ()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class TestCachePoints:
    def points(self, clock: Callable[[], float] = time.monotonic) -> CachePoints:
        return CachePoints(clock)

    def settle(self, points: CachePoints) -> None:
        points._threads.submit(lambda: None).result()

    def test_a_prompt_is_kept_for_as_long_as_it_says_behind_each_use(self) -> None:
        clock, calls = Clock(), []
        points = self.points(clock)
        prompt = ChatPrompt(RULES, None, ((100, 60.0),))
        for clock.now in (0.0, 10.0, 29.0, 31.0, 40.0, 100.0, 400.0):
            points.note(prompt, (), None, lambda *_: calls.append(clock.now), whole=True)
            self.settle(points)
        # It is kept for 90 s each time, so that each prompt leaves it kept for 60 s at least.
        assert calls == [0.0, 31.0, 100.0, 400.0]

    def test_what_stands_behind_the_last_document_is_a_document_too(self) -> None:
        seen: list[Any] = []
        points = self.points()
        prompt = ChatPrompt(RULES, None, ((100, 60.0), (30, 60.0)))
        spans = (Span(10, 30, "a"), Span(90, 110, "b"))
        for whole in (True, False):
            points.note(prompt, spans, str(whole), lambda *told: seen.append(told), whole=whole)
            self.settle(points)
        rest = seen[0][1][1]
        assert [one.id for one in seen[0][1]] == ["a", rest.id]
        assert rest.text == RULES[30:100]
        assert seen[0][2:] == (90.0, rest.id)
        assert [(text, [one.id for one in some]) for text, some, *_ in seen[1:]] == [
            (RULES[:30], ["a"]),
            (RULES[:30], ["a"]),
        ]

    def test_what_is_cleared_is_kept_anew(self) -> None:
        calls: list[int] = []
        points = self.points()
        prompt = ChatPrompt(RULES, None, ((100, 60.0),))
        for number in range(3):
            points.note(prompt, (), None, lambda *_, n=number: calls.append(n), whole=True)
            self.settle(points)
            if number == 1:
                points.clear()
        assert calls == [0, 2]

    def test_a_failure_of_any_kind_is_logged_and_tried_again(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        points = self.points()
        prompt = ChatPrompt(RULES, None, ((100, 60.0),))

        def fail(*_: Any) -> None:
            raise LookupError("of ours")

        for _ in range(2):
            points.note(prompt, (), None, fail, whole=True)
            self.settle(points)
        assert caplog.text.count("of ours") == 2

    def test_tenants_have_their_own(self) -> None:
        calls: list[str] = []
        points = self.points()
        prompt = ChatPrompt(RULES, None, ((100, 60.0),))
        for tenant in ("shop", "press", "shop"):
            points.note(prompt, (), tenant, lambda *_, t=tenant: calls.append(t), whole=True)
        self.settle(points)
        assert calls == ["shop", "press"]

    def test_more_than_can_wait_are_passed_over(self) -> None:
        import threading

        gate, calls = threading.Event(), []
        points = self.points()

        def keep(*told: Any) -> None:
            gate.wait(10)
            calls.append(told)

        for number in range(2 * MOST_WAITING):
            prompt = ChatPrompt(f"{number} {RULES}", None, ((100, 60.0),))
            points.note(prompt, (), None, keep, whole=True)
        gate.set()
        self.settle(points)
        assert len(calls) == MOST_WAITING


@pytest.mark.parametrize("characters", [0, 3])
def test_a_point_before_any_token_keeps_nothing(characters: int) -> None:
    with engine_of(host_cache="1GiB") as engine:
        engine.generate(ChatPrompt(RULES, None, ((characters, 60.0),)))
        engine._cache_points._threads.submit(lambda: None).result()
        assert [one.tokens for one in engine.kept()] in ([], [0])
