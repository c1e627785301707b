"""Forgetting is a moment: what was planned before brings nothing back, what comes later is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from ragcache_engine import Corpus, Document, EngineConfig, RAGCacheEngine, SamplingOptions
from ragcache_engine.backends.memory.backend import MemoryBackend
from ragcache_engine.errors import (
    EngineDied,
    EngineError,
    GenerationFailed,
    InvalidArgument,
    UnknownDocument,
)

DOCUMENTS = [
    Document(f"d{number}", " ".join(f"w{number}x{at}" for at in range(60))) for number in range(12)
]


def long_answer(prompt: str) -> str:
    return "word " * 5_000


def prompt_of(documents: Sequence[Document]) -> str:
    return "\n\n".join(["System here.", *(one.text for one in documents), "Why is it?"])


SHORT = SamplingOptions(max_tokens=2)


def template(question: str, documents: Sequence[Document]) -> str:
    return "\n\n".join(["System here.", *(one.text for one in documents), question])


def held(engine: RAGCacheEngine) -> set[str]:
    """The documents of which some tier has tensors."""
    tree = engine.snapshot(500)
    assert tree is not None
    return {name for one in tree.documents if any(one.blocks.values()) for name in one.documents}


class Fault:
    """Makes the model's next step fail, if it is told to."""

    failure: type[EngineError] | None = None

    def __call__(self, step: int) -> None:
        if self.failure:
            failure, self.failure = self.failure, None
            raise failure("injected")


@pytest.fixture
def fault() -> Fault:
    return Fault()


@pytest.fixture
def engine(fault: Fault) -> Iterator[RAGCacheEngine]:
    backend = MemoryBackend(reply=long_answer, fault=fault, host_blocks=200, disk_blocks=400)
    with RAGCacheEngine(EngineConfig(backend="memory"), backend=backend) as made:
        yield made


@pytest.mark.parametrize("failure", [None, GenerationFailed, EngineDied])
def test_an_answer_that_is_retried_brings_no_forgotten_document_back(
    engine: RAGCacheEngine, fault: Fault, failure: type[EngineError] | None
):
    stream = engine.stream(
        prompt_of(DOCUMENTS[:3]), DOCUMENTS[:3], SamplingOptions(max_tokens=5_000)
    )
    next(stream)
    engine.forget(["d1"])
    fault.failure = failure
    list(stream)
    assert engine.stats().retried == (failure is not None)
    assert held(engine).isdisjoint({"d1", "d2"}), "what stands behind it goes too"


def test_a_prompt_that_comes_later_is_kept(engine: RAGCacheEngine):
    documents = DOCUMENTS[:3]
    engine.generate(prompt_of(documents), documents)
    engine.forget(["d1"])
    engine.generate(prompt_of(documents), documents)
    assert held(engine) == {"d0", "d1", "d2"}


def test_warming_that_runs_brings_no_forgotten_document_back(engine: RAGCacheEngine):
    def template(question: str, documents: Sequence[Document]) -> str:
        if documents[0].id == "d11":  # in the middle of the planning
            engine.forget(["d11"])
        return prompt_of(documents)

    engine.warm([[one] for one in DOCUMENTS], template=template)
    assert held(engine) == {one.id for one in DOCUMENTS[:11]}


def test_a_search_that_runs_meanwhile_brings_no_forgotten_document_back(engine: RAGCacheEngine):
    documents = DOCUMENTS[:3]
    with engine.retrieval("Why is it?") as search:
        engine.forget(["d1"])
        search.found(documents)
    engine.generate(prompt_of(documents))
    assert held(engine) == {"d0"}


@pytest.fixture
def borrowing_engine() -> Iterator[RAGCacheEngine]:
    config = EngineConfig(backend="memory", reuse="anywhere", recompute_ratio=0.0)
    with RAGCacheEngine(config) as made:
        yield made


def look_up_while(
    engine: RAGCacheEngine, documents: Sequence[Document], forget: Callable[[], None]
) -> None:
    """Forget in the middle of a search's look-up of neighbours, which finds d5 for all."""

    def find(found: Sequence[Document]) -> list[Document | None]:
        forget()
        return [DOCUMENTS[5] for _ in found]

    with engine.retrieval("Why is it?") as search:
        search.look_up_neighbours(documents, Corpus(1, find))
        search.found(documents)


def test_a_neighbour_that_was_forgotten_during_the_look_up_stores_nothing(
    borrowing_engine: RAGCacheEngine,
):
    engine, documents = borrowing_engine, DOCUMENTS[:3]
    look_up_while(engine, documents, lambda: engine.forget(["d5"]))
    engine.generate(prompt_of(documents))
    assert "d5" not in held(engine)
    assert {"d0", "d1", "d2"} <= held(engine)


def test_a_neighbour_that_is_forgotten_before_the_prompt_comes_stores_nothing(
    borrowing_engine: RAGCacheEngine,
):
    engine, documents = borrowing_engine, DOCUMENTS[:3]
    look_up_while(engine, documents, lambda: None)
    engine.forget(["d5"])
    engine.generate(prompt_of(documents))
    assert "d5" not in held(engine)


# -- a tenant --------------------------------------------------------------------------------------


def found(engine: RAGCacheEngine, tenant: str | None) -> int:
    """How many tokens of a prompt of this tenant's are cached; asking caches it."""
    return engine.generate(
        prompt_of(DOCUMENTS[:3]), DOCUMENTS[:3], SHORT, tenant=tenant
    ).usage.cached.total


@pytest.mark.parametrize(
    ("forgotten", "gone"),
    [
        ("shop", {"shop", "shop::anna", "shop::ben"}),
        ("shop::anna", {"shop::anna"}),
        ("sho", set()),
        ("press", {"press"}),
    ],
)
def test_a_tenant_is_forgotten_with_its_users_and_no_other_one(
    engine: RAGCacheEngine, forgotten: str, gone: set[str]
):
    tenants = ["shop", "shop::anna", "shop::ben", "shopping", "press", None]
    for tenant in tenants:
        found(engine, tenant)
    engine.forget_tenant(forgotten)
    assert {tenant for tenant in tenants if not found(engine, tenant)} == gone
    assert all(found(engine, tenant) for tenant in tenants), "what comes later is kept"


@pytest.mark.parametrize("failure", [None, GenerationFailed, EngineDied])
def test_an_answer_that_runs_leaves_nothing_of_a_tenant_forgotten_meanwhile(
    engine: RAGCacheEngine, fault: Fault, failure: type[EngineError] | None
):
    stream = engine.stream(
        prompt_of(DOCUMENTS[:3]),
        DOCUMENTS[:3],
        SamplingOptions(max_tokens=5_000),
        tenant="shop::anna",
    )
    next(stream)
    engine.forget_tenant("shop")
    fault.failure = failure
    list(stream)
    assert held(engine) == set()


def test_what_is_kept_of_a_forgotten_tenant_is_kept_no_longer(engine: RAGCacheEngine):
    for tenant in ("shop", "press"):
        engine.keep(["d1"], template=template, corpus=DOCUMENTS, tenant=tenant)
    engine.forget_tenant("shop")
    assert [one.tenant for one in engine.kept()] == ["press"]
    assert not found(engine, "shop")


def test_retrievals_and_donors_of_a_forgotten_tenant_are_remembered_no_more(
    borrowing_engine: RAGCacheEngine,
):
    engine, documents = borrowing_engine, DOCUMENTS[:3]
    for tenant in ("shop", "press"):
        with engine.retrieval("Why is it?", tenant=tenant) as search:
            search.look_up_neighbours(
                documents, Corpus(1, lambda asked: [DOCUMENTS[5]] * len(asked))
            )
            search.found(documents)
        engine.generate(prompt_of(documents), options=SHORT, tenant=tenant)
    engine.forget_tenant("shop")
    with pytest.raises(UnknownDocument):
        engine.warm([["d0"]], template=template, tenant="shop")
    engine.warm([["d0"]], template=template, tenant="press")
    tree = engine.snapshot(500)
    assert tree is not None
    again = engine.generate(prompt_of(documents), documents, SHORT, tenant="press").usage
    assert again.cached.total + again.borrowed.total > 0.5 * again.prompt_tokens


@pytest.mark.parametrize("tenant", ["", None, 7])
def test_what_is_no_tenants_name_is_refused(engine: RAGCacheEngine, tenant: Any):
    with pytest.raises(InvalidArgument, match="tenant"):
        engine.forget_tenant(tenant)
