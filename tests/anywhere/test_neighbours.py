"""Which neighbour a document is stored behind: its corpus decides, and nothing that was asked before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from ragcache_engine import Corpus, Document, EngineConfig, MemoryBackend, RAGCacheEngine
from ragcache_engine.anywhere.corpus import FindNeighbours
from ragcache_engine.anywhere.found_documents import Found
from ragcache_engine.anywhere.neighbours import NeighbourBook
from ragcache_engine.protocols import BackendRequest
from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.values import TokenizedPrompt

A, B, C = (Document(name, f"All that is known about {name}. " * 12) for name in "abc")
NEAREST = {"a": B, "b": C, "c": A}


class LookUps:
    """Finds neighbours, and counts how often it was asked for each document."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def corpus(self, version: int = 1, name: str = "sea") -> Corpus:
        return Corpus(version, self.find, name)

    def find(self, documents: Sequence[Document]) -> list[Document | None]:
        self.asked += [one.id for one in documents]
        return [NEAREST.get(one.id) for one in documents]


@pytest.fixture
def book() -> NeighbourBook:
    def tokenize(text: str, add_special_tokens: bool) -> TokenizedPrompt:
        return TokenizedPrompt(text, [len(word) for word in text.split()])

    return NeighbourBook(tokenize)


def names(
    book: NeighbourBook, *ids: str, tenant: str | None = None, corpus: str = "sea"
) -> dict[str, str]:
    found = book.contexts(ids, tenant, dict.fromkeys(ids, corpus))
    return {name: context[0] for name, context in found.items()}


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
    tokens = tuple(len(word) for word in B.text.split())
    assert book.contexts(["a"], None, {"a": "sea"}) == {"a": Context("b", tokens)}


def test_a_backend_that_reads_text_gets_the_neighbours_text():
    book = NeighbourBook(None)
    book.learn([A], LookUps().corpus(), None)
    assert book.contexts(["a"], None, {"a": "sea"}) == {"a": Context("b", (), text=B.text)}


def tokenized(text: str, *ends: int) -> TokenizedPrompt:
    """Return a text as tokens that end here; each is named by its length."""
    starts = [0, *ends[:-1]]
    offsets = list(zip(starts, ends, strict=True))
    return TokenizedPrompt(text, [end - start for start, end in offsets], offsets)


def test_documents_are_tokenised_as_text_that_another_one_follows():
    def tokenize(text: str, add_special_tokens: bool) -> TokenizedPrompt:
        """The last full stop and the first line end are one token, and the second one another."""
        assert text.endswith("\n\nA")
        return tokenized(text, len(text) - 4, len(text) - 2, len(text) - 1, len(text))

    book = NeighbourBook(tokenize)
    book.learn([A], LookUps().corpus(), None)
    assert book.contexts(["a"], None, {"a": "sea"})["a"] == Context("b", (len(B.text) - 1, 2, 1), 2)


def test_a_document_whose_end_merges_with_the_next_one_is_tokenised_alone():
    book = NeighbourBook(lambda text, _: tokenized(text, len(text)))
    book.learn([A], LookUps().corpus(), None)
    found = book.contexts(["a"], None, {"a": "sea"})["a"]
    assert found == Context("b", (len(B.text) + 2,), 200 + 3), "the text between stays with the end"


def too_few(documents: Sequence[Document]) -> list[Document | None]:
    return []


def fail(documents: Sequence[Document]) -> list[Document | None]:
    raise RuntimeError("the index is gone")


@pytest.mark.parametrize("find", [fail, too_few])
def test_a_document_without_a_neighbour_and_one_whose_look_up_fails_are_stored_alone(
    book: NeighbourBook, caplog: pytest.LogCaptureFixture, find: FindNeighbours
):
    book.learn([Document("lonely", "x")], LookUps().corpus(), None)
    book.learn([A], Corpus(1, find, "sea"), None)
    assert names(book, "lonely", "a") == {}
    assert "could not look up neighbours" in caplog.text
    looked = LookUps()
    book.learn([A], looked.corpus(), None)
    assert names(book, "a") == {"a": "b"}, "the next search looks again"


def test_a_failed_look_up_leaves_no_neighbour_of_another_version(book: NeighbourBook):
    book.learn([A], LookUps().corpus(), None)
    book.learn([A], Corpus(2, fail, "sea"), None)
    assert names(book, "a") == {}


def test_each_corpus_has_neighbours_of_its_own(book: NeighbourBook):
    book.learn([A], LookUps().corpus(), None)
    book.learn([A], Corpus(1, lambda asked: [C for _ in asked], "land"), None)
    assert names(book, "a") == {"a": "b"}
    assert names(book, "a", corpus="land") == {"a": "c"}
    assert names(book, "a", corpus="nowhere") == {}


def test_documents_that_a_prompt_names_are_those_of_their_usual_corpus(book: NeighbourBook):
    book.learn([A, B], LookUps().corpus(), None, is_usual=True)
    book.learn([A, B], Corpus(1, lambda asked: [C for _ in asked], "land"), None)
    assert {name: c[0] for name, c in book.contexts("ab", None).items()} == {"a": "b", "b": "c"}
    book.forget(["a"])
    assert book.contexts("a", None) == {}


def test_no_tenant_sees_anothers_neighbours(book: NeighbourBook):
    book.learn([A], LookUps().corpus(), "ours")
    book.learn([B], LookUps().corpus(), None)
    assert names(book, "a", "b", tenant="ours") == {"a": "b", "b": "c"}
    assert names(book, "a", "b", tenant="theirs") == {"b": "c"}


def test_what_was_found_for_everybody_is_prepared_for_a_tenant_and_stays_everybodys(
    book: NeighbourBook,
):
    a, b, c = (Document(name, f"Text of {name}.") for name in "abc")
    nearest = b
    versions = [Corpus(n, lambda documents: [nearest for _ in documents], "store") for n in (1, 2)]
    prepared = book.contexts_of_found(Found(a, versions[0], planned=0), "anna")
    assert prepared["a"].document == "b"
    nearest = c
    book.learn([a], versions[1], None)
    for tenant in (None, "anna", "ben"):
        assert book.contexts(["a"], tenant, {"a": "store"})["a"].document == "c"


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


class Ask:
    """Searches one of two corpora for A and B, and asks with what was found."""

    def __init__(self, engine: RAGCacheEngine, backend: Listening) -> None:
        self.engine, self.backend = engine, backend

    def search(self, question: str, neighbour: Document, corpus: str) -> None:
        looked_up = Corpus(1, lambda asked: [neighbour for _ in asked], corpus)
        with self.engine.retrieval(question) as retrieval:
            retrieval.look_up_neighbours([A, B], looked_up, only_here=True)
            retrieval.found([A, B])

    def prompt(self, question: str, documents: list[Document] | None = None) -> dict[str, str]:
        self.engine.generate(f"{A.text}\n\n{B.text}\n\n{question}", documents)
        return {name: c[0] for name, c in self.backend.requests[-1].contexts.items()}


def test_a_search_in_another_corpus_changes_nothing_for_a_prompt(
    engine: RAGCacheEngine, backend: Listening
):
    ask, lake, land = Ask(engine, backend), Document("lake", "x " * 30), Document("land", "y " * 30)
    ask.search("Is it deep?", lake, "lakes")
    ask.search("Is it dry?", land, "lands")
    assert ask.prompt("Is it deep?") == {"a": "lake", "b": "lake"}
    assert ask.prompt("Is it dry?") == {"a": "land", "b": "land"}
    assert ask.prompt("Is it deep?") == {"a": "lake", "b": "lake"}, "a second prompt of the search"


def test_no_search_changes_a_prompt_that_names_its_documents(
    engine: RAGCacheEngine, backend: Listening
):
    ask = Ask(engine, backend)
    assert ask.prompt("Is it deep?", [A, B]) == {}
    ask.search("Is it deep?", C, "seas")
    assert ask.prompt("Is it deep?", [A, B]) == {}
    engine.warm([[A, B]], template=TEMPLATE, neighbours=LookUps().corpus())
    assert ask.prompt("Is it deep?", [A, B]) == {"a": "b", "b": "c"}


def test_an_exact_request_needs_no_neighbours(engine: RAGCacheEngine, backend: Listening):
    engine.warm([[A, B]], template=TEMPLATE, neighbours=LookUps().corpus())
    engine.generate(f"{A.text}\n\n{B.text}\n\nWhy?", [A, B], exact=True)
    assert backend.requests[-1].is_exact
    assert backend.requests[-1].contexts == {}
