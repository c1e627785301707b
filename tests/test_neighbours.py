"""Which neighbour a document is stored behind: its corpus decides, and nothing that was asked before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from ragcache_engine import Corpus, Document, EngineConfig, MemoryBackend, RAGCacheEngine
from ragcache_engine.neighbours import NeighbourBook
from ragcache_engine.protocols import BackendRequest

A, B, C = (Document(name, f"All that is known about {name}. " * 12) for name in "abc")
NEAREST = {"a": B, "b": C, "c": A}


class LookUps:
    """Finds neighbours, and counts how often it was asked for each document."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def corpus(self, version: int = 1) -> Corpus:
        return Corpus(version, self.find)

    def find(self, documents: Sequence[Document]) -> list[Document | None]:
        self.asked += [one.id for one in documents]
        return [NEAREST.get(one.id) for one in documents]


@pytest.fixture
def book() -> NeighbourBook:
    return NeighbourBook(lambda text: [len(word) for word in text.split()])


def names(book: NeighbourBook, *ids: str, tenant: str | None = None) -> dict[str, str]:
    return {name: context[0] for name, context in book.contexts(ids, tenant).items()}


def test_each_document_is_looked_up_once_for_each_version_of_its_corpus(book: NeighbourBook):
    looked = LookUps()
    book.learn([A, B], looked.corpus(), None)
    book.learn([A, B, C], looked.corpus(), None)
    assert looked.asked == ["a", "b", "c"]
    book.learn([A], looked.corpus(version=2), None)
    assert looked.asked == ["a", "b", "c", "a"]
    assert names(book, "a", "b", "c", "unknown") == {"a": "b", "b": "c", "c": "a"}


def test_a_context_is_the_neighbours_text_as_tokens(book: NeighbourBook):
    book.learn([A], LookUps().corpus(), None)
    assert book.contexts(["a"], None) == {"a": ("b", tuple(len(word) for word in B.text.split()))}


def test_a_document_without_a_neighbour_and_one_whose_look_up_fails_are_stored_alone(
    book: NeighbourBook, caplog: pytest.LogCaptureFixture
):
    def fail(documents: Sequence[Document]) -> list[Document | None]:
        raise RuntimeError("the index is gone")

    book.learn([Document("lonely", "x")], LookUps().corpus(), None)
    book.learn([A], Corpus(1, fail), None)
    assert book.contexts(["lonely", "a"], None) == {}
    assert "could not look up neighbours" in caplog.text


def test_no_tenant_sees_anothers_neighbours(book: NeighbourBook):
    book.learn([A], LookUps().corpus(), "ours")
    book.learn([B], LookUps().corpus(), None)
    assert names(book, "a", "b", tenant="ours") == {"a": "b", "b": "c"}
    assert names(book, "a", "b", tenant="theirs") == {"b": "c"}


def test_a_forgotten_document_is_nobodys_neighbour(book: NeighbourBook):
    book.learn([A, B, C], LookUps().corpus(), None)
    book.forget(["b"])
    assert names(book, "a", "b", "c") == {"c": "a"}


class Listening(MemoryBackend):
    """Keeps the requests that reach it."""

    def __init__(self) -> None:
        super().__init__(recompute_ratio=0.1)
        self.requests: list[BackendRequest] = []

    def generate(self, request: BackendRequest):  # type: ignore[no-untyped-def]
        self.requests.append(request)
        return super().generate(request)


@pytest.fixture
def backend() -> Listening:
    return Listening()


@pytest.fixture
def engine(backend: Listening) -> Iterator[RAGCacheEngine]:
    config = EngineConfig(backend="memory", reuse="anywhere", recompute_ratio=0.1)
    with RAGCacheEngine(config, backend=backend) as engine:
        yield engine


TEMPLATE = "You know all.\n\n{context}\n\n{question}"


def test_warming_looks_neighbours_up_and_prefills_behind_them(
    engine: RAGCacheEngine, backend: Listening
):
    looked = LookUps()
    engine.warm([[A, B], [B, C]], template=TEMPLATE, neighbours=looked.corpus())
    assert sorted(looked.asked) == ["a", "b", "c"]
    found = [{name: c[0] for name, c in one.contexts.items()} for one in backend.requests]
    assert sorted(found, key=sorted) == [{"a": "b", "b": "c"}, {"b": "c", "c": "a"}]
    backend.requests.clear()
    prompt = f"You know all.\n\n{C.text}\n\n{B.text}\n\nWhy?"
    usage = engine.generate(prompt, [C, B]).usage
    assert [one.tier for one in usage.reused] == [None, "device"], "b was stored behind c"


def test_warming_without_neighbours_prefills_documents_alone(
    engine: RAGCacheEngine, backend: Listening
):
    engine.warm([[A, B]], template=TEMPLATE)
    assert [one.contexts for one in backend.requests] == [{}]


def test_an_exact_request_needs_no_neighbours(engine: RAGCacheEngine, backend: Listening):
    engine.warm([[A, B]], template=TEMPLATE, neighbours=LookUps().corpus())
    engine.generate(f"{A.text}\n\n{B.text}\n\nWhy?", [A, B], exact=True)
    assert backend.requests[-1].is_exact
    assert backend.requests[-1].contexts == {}
