"""What is kept stays in its tier, comes back after a death of the model, and ends when it should."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ragcache_engine import (
    Document,
    EngineConfig,
    EngineDied,
    GenerationFailed,
    InvalidArgument,
    KeepLimitReached,
    KeptDocuments,
    MemoryBackend,
    PromptTooLong,
    RAGCacheEngine,
    UnknownDocument,
    UnknownTemplate,
)
from ragcache_engine.forwarding import WithdrawingBackend
from ragcache_engine.knowledge import Tier
from ragcache_engine.prompt import ForgetLog
from ragcache_engine.protocols import BackendRequest
from ragcache_engine.tiers.kept import KeepOrder, Kept
from ragcache_engine.warming.keep import KeepingBackend

TEMPLATE = "Use the reports.\n\n{context}\n\nQuestion: {question}"


def report(name: str) -> Document:
    return Document(name, f"The report {name} is about the harvest of the year. " * 9)


def reversing(question: str, documents: Sequence[Document]) -> str:
    return "\n\n".join([*(one.text for one in documents[::-1]), question])


HANDBOOK = report("handbook")
OTHERS = [report(f"report {number}") for number in range(40)]


@contextmanager
def engine_of(
    fault: Callable[[int], None] | None = None, disk_blocks: int = 0, **settings: Any
) -> Iterator[RAGCacheEngine]:
    """The host holds some six reports, and the disk twelve."""
    config = EngineConfig(backend="memory", disk_cache="1MiB" if disk_blocks else 0, **settings)
    backend = MemoryBackend(
        device_blocks=64,
        host_blocks=40,
        disk_blocks=disk_blocks,
        context_tokens=1024,
        policy="lru",
        fault=fault,
        recompute_ratio=config.recompute_ratio,
    )
    with RAGCacheEngine(config, backend=backend) as engine:
        yield engine


def ask(engine: RAGCacheEngine, *documents: Document) -> int:
    """Return how many tokens of a question's prompt came from any tier."""
    context = "\n\n".join(one.text for one in documents)
    prompt = TEMPLATE.format(context=context, question="Which?")
    usage = engine.generate(prompt, list(documents)).usage
    return usage.cached.total + usage.borrowed.total


def ask_about_others(engine: RAGCacheEngine) -> None:
    for one in OTHERS:
        for _ in range(2):
            ask(engine, one)


def is_whole(kept: KeptDocuments) -> bool:
    return 0 < kept.tokens == kept.held_tokens


@pytest.mark.parametrize(("tier", "disk_blocks"), [("host", 0), ("host", 80), ("disk", 80)])
def test_no_traffic_takes_what_is_kept_out_of_its_tier(tier: Any, disk_blocks: int):
    with engine_of(disk_blocks=disk_blocks) as engine:
        (kept,) = engine.keep([HANDBOOK], tier=tier, template=TEMPLATE)
        assert (kept.documents, kept.tenant, kept.tier) == (("handbook",), None, tier)
        ask_about_others(engine)
        assert engine.stats().tiers.evicted[tier] > 0
        (later,) = engine.kept()
        assert later == kept
        assert is_whole(later)
        assert ask(engine, HANDBOOK) == kept.tokens


def test_a_document_is_kept_on_the_disk_if_there_is_one():
    for blocks, tier in ((80, "disk"), (0, "host")):
        with engine_of(disk_blocks=blocks) as engine:
            assert engine.keep([HANDBOOK], template=TEMPLATE)[0].tier == tier


def test_what_is_cached_already_is_kept_without_computing_it_again():
    with engine_of() as engine:
        ask(engine, HANDBOOK)
        engine.keep([HANDBOOK], template=TEMPLATE)
        finished = engine.stats().tiers.ended
        assert is_whole(engine.keep([HANDBOOK], template=TEMPLATE)[0])
        assert engine.stats().tiers.ended == finished


def test_several_documents_are_kept_one_behind_the_other_as_prompts_have_them():
    with engine_of() as engine:
        (kept,) = engine.keep([["handbook", OTHERS[0]]], corpus=[HANDBOOK], template=TEMPLATE)
        assert kept.documents == ("handbook", "report 0")
        ask_about_others(engine)
        assert ask(engine, HANDBOOK, OTHERS[0]) == kept.tokens


def test_documents_to_be_borrowed_are_kept_where_prompts_borrow_them():
    anywhere = {"reuse": "anywhere", "recompute_ratio": 0.1, "donors": "alone"}
    with engine_of(**anywhere) as engine:
        (kept,) = engine.keep([[OTHERS[0], HANDBOOK]], template=TEMPLATE)
        assert is_whole(kept)
        ask_about_others(engine)
        context = f"{OTHERS[5].text}\n\n{HANDBOOK.text}"
        prompt = TEMPLATE.format(context=context, question="Which?")
        assert engine.generate(prompt, [OTHERS[5], HANDBOOK]).usage.borrowed.total > 0


def test_too_much_is_refused_whole_and_what_was_kept_stays_as_it_was():
    with engine_of(disk_blocks=80) as engine:
        until = datetime.now(UTC) + timedelta(hours=1)
        engine.keep([HANDBOOK], tier="host", until=until, template=TEMPLATE)
        before, finished = engine.kept(), engine.stats().tiers.ended
        assert before[0].until == until
        with pytest.raises(KeepLimitReached, match="more may be kept in the disk tier") as refused:
            engine.keep([HANDBOOK, *OTHERS], tier="disk", template=TEMPLATE)
        assert "release some, keep fewer, or raise kept_share or disk_cache" in str(refused.value)
        assert engine.kept() == before
        assert engine.stats().tiers.ended == finished


def test_after_a_refusal_a_document_is_kept_behind_the_text_it_was_kept_behind():
    with engine_of() as engine:
        engine.keep([HANDBOOK], template=TEMPLATE)
        with pytest.raises(KeepLimitReached):
            engine.keep([HANDBOOK, *OTHERS], template="Quite another text. {context} {question}")
        assert all(map(is_whole, engine.kept()))
        ask_about_others(engine)
        assert ask(engine, HANDBOOK) == engine.kept()[0].tokens


def test_a_set_that_cannot_be_computed_is_kept_no_longer_and_the_others_are():
    failures = 0

    def fail(step: int) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise GenerationFailed("out of luck")

    with engine_of(fail) as engine:
        engine.keep([OTHERS[0]], template=TEMPLATE)
        failures = 2  # the engine tries everything twice
        with pytest.raises(GenerationFailed):
            engine.keep([HANDBOOK], template=TEMPLATE)
        assert [one.documents for one in engine.kept()] == [("report 0",)]


def test_released_and_forgotten_documents_are_kept_no_longer():
    with engine_of(kept_share=1.0) as engine:
        engine.keep([HANDBOOK, OTHERS[0], [OTHERS[1], OTHERS[2]]], template=TEMPLATE)
        engine.release(["handbook", "unknown"])
        assert [one.documents for one in engine.kept()] == [
            ("report 0",),
            ("report 1", "report 2"),
        ]
        engine.forget(["report 1"])
        assert [one.documents for one in engine.kept()] == [("report 0",)]
        engine.release([["report 1", "report 2"], ["report 0"]])
        assert engine.kept() == ()
        ask_about_others(engine)
        assert ask(engine, HANDBOOK) < 64


def test_documents_that_a_template_reverses_are_released_as_they_were_given():
    with engine_of(kept_share=1.0) as engine:
        kept = engine.keep([OTHERS[:2], OTHERS[2:4]], template=reversing)
        assert [one.documents for one in kept] == [
            ("report 1", "report 0"),
            ("report 3", "report 2"),
        ]
        engine.release([["report 0", "report 1"], ["report 3", "report 2"]])
        assert engine.kept() == ()


def test_tenants_keep_their_own():
    with engine_of() as engine:
        engine.keep([HANDBOOK], template=TEMPLATE, tenant="press")
        engine.keep([HANDBOOK], template=TEMPLATE)
        engine.release(["handbook"])
        assert [one.tenant for one in engine.kept()] == ["press"]


def test_keeping_ends_at_its_time():
    with engine_of() as engine:
        engine.keep([HANDBOOK], for_s=0.2, template=TEMPLATE)
        assert len(engine.kept()) == 1
        asyncio.run(asyncio.sleep(0.25))
        assert engine.kept() == ()


def test_coroutines_keep_too():
    async def use(engine: RAGCacheEngine) -> None:
        (kept,) = await engine.akeep([HANDBOOK], template=TEMPLATE)
        assert await engine.akept() == (kept,)
        await engine.arelease(["handbook"])
        assert await engine.akept() == ()

    with engine_of() as engine:
        asyncio.run(use(engine))


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({"tier": "device"}, InvalidArgument, 'tier is "host" or "disk"'),
        ({"tier": "disk"}, InvalidArgument, "no disk tier .* disk_cache"),
        ({"for_s": -1}, InvalidArgument, "for_s"),
        ({"for_s": 1e12}, InvalidArgument, "at most"),
        ({"until": "tomorrow"}, InvalidArgument, "until is a datetime"),
        ({"until": datetime(2020, 1, 1, tzinfo=UTC)}, InvalidArgument, "over already"),
        ({"until": datetime.min}, InvalidArgument, "over already"),
        ({"until": datetime.max}, InvalidArgument, "at most 100 years"),
        ({"until": datetime.max.replace(tzinfo=UTC)}, InvalidArgument, "at most 100 years"),
        ({"for_s": 1, "until": datetime(2999, 1, 1)}, InvalidArgument, "one of them"),
        ({"documents": "handbook"}, InvalidArgument, "handbook"),
        ({"documents": [7]}, InvalidArgument, "7"),
        ({"documents": ["unknown"]}, UnknownDocument, "corpus="),
        ({"template": None}, UnknownTemplate, "template="),
        ({"documents": [Document("long", "word " * 2000)]}, PromptTooLong, "tokens"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_any_work(
    wrong: dict[str, Any], error: type[Exception], said: str
):
    with engine_of() as engine:
        asked: dict[str, Any] = {"documents": [HANDBOOK], "template": TEMPLATE, **wrong}
        with pytest.raises(error, match=said):
            engine.keep(**asked)
        assert engine.kept() == ()
        assert engine.stats().tiers.ended == 0


class Death:
    """Lets the model die in its next step, once that is due."""

    is_due = False

    def __call__(self, step: int) -> None:
        if self.is_due:
            self.is_due = False
            raise EngineDied("killed")


def test_what_is_kept_comes_back_after_the_model_has_died():
    dying = Death()
    with engine_of(dying) as engine:
        (kept,) = engine.keep([HANDBOOK], template=TEMPLATE)
        dying.is_due = True
        ask(engine, OTHERS[0])
        assert engine.stats().restarts == 1
        assert [one.tokens for one in engine.kept()] == [kept.tokens], "kept before it is computed"
        asyncio.run(asyncio.sleep(1.0))  # idle
        assert engine.kept() == (kept,)
        assert ask(engine, HANDBOOK) == kept.tokens


def test_a_kept_text_that_was_replaced_by_one_too_short_does_not_come_back_with_the_model():
    dying = Death()
    with engine_of(dying) as engine:
        engine.keep([HANDBOOK], template="{context}\n{question}")
        engine.keep([Document("handbook", "It is kept no more.")], template="{context}\n{question}")
        assert engine.kept() == ()
        dying.is_due = True
        ask(engine, OTHERS[0])
        assert engine.stats().restarts == 1
        assert engine.kept() == ()


def test_what_got_lost_comes_back_with_the_next_prompt_that_needs_it():
    with engine_of() as engine:
        (kept,) = engine.keep([HANDBOOK], template=TEMPLATE)
        engine.clear_cache()
        assert engine.kept()[0].held_tokens == 0
        ask(engine, HANDBOOK)
        assert engine.kept() == (kept,)


class ForgetsMeanwhile(MemoryBackend):
    """While the first request is being kept, somebody forgets a document."""

    def __init__(self, log: ForgetLog) -> None:
        super().__init__(host_blocks=40)
        self.log = log

    async def keep(self, requests: Sequence[BackendRequest], order: KeepOrder) -> Sequence[Kept]:
        self.log.note(["report 0"])
        return await super().keep(requests, order)


@pytest.mark.parametrize("is_before", [True, False])
def test_what_is_forgotten_is_not_kept_and_each_request_gets_its_own_answer(is_before: bool):
    async def keep() -> None:
        log = ForgetLog()
        backend = KeepingBackend(WithdrawingBackend(ForgetsMeanwhile(log), log))
        await backend.start()
        with RAGCacheEngine(EngineConfig(backend="memory", host_cache="1GiB")) as engine:
            documents = [OTHERS[0], HANDBOOK]
            _, prepared = engine._plan_keeping(documents, TEMPLATE, None, (), None, None)
        requests = [replace(one.request, planned=log.moment) for one in prepared]
        if is_before:
            log.note(["report 0"])
        kept = await backend.keep(requests, KeepOrder(Tier.HOST))
        assert [one.documents for one in kept] == [("report 0",), ("handbook",)]
        assert kept[1].tokens > 0
        if is_before:
            assert [one.documents for one in await backend.kept()] == [("handbook",)]
            assert kept[0].tokens == 0
        await backend.close()

    asyncio.run(keep())
