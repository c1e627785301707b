"""What an engine remembers is bounded by bytes, however large the documents are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from ragcache_engine import Corpus, Document, MemoryBackend, SamplingOptions
from ragcache_engine.anywhere.donor_preparation import PreparingBackend
from ragcache_engine.anywhere.drift import Drift
from ragcache_engine.anywhere.neighbours import NeighbourBook
from ragcache_engine.anywhere.rechecking import Answered, RecheckingBackend
from ragcache_engine.prompt import Retrieval, RetrievalLog
from ragcache_engine.protocols import BackendRequest
from ragcache_engine.serving.known_contexts import KnownContexts
from ragcache_engine.speculation.search_registry import SearchRegistry
from ragcache_engine.speculation.tracked_search import TrackedSearch
from ragcache_engine.values import TokenizedPrompt

MIB = 1 << 20
BOUND, LARGE_TOKENS = MIB, 1_000


def tokenize(text: str, add_special_tokens: bool = False) -> TokenizedPrompt:
    ids = tuple(range(1000, 1000 + len(text) // 4))
    return TokenizedPrompt(text, ids, tuple((4 * at, 4 * at + 4) for at in range(len(ids))))


def document(number: int, characters: int) -> Document:
    return Document(f"d{number}", f"{number:08} ".ljust(characters, "x"))


def large_request(number: int, tokens: int = LARGE_TOKENS) -> BackendRequest:
    prompt = tokenize(document(number, 4 * tokens).text)
    return BackendRequest(f"r{number}", prompt, (), SamplingOptions(temperature=0), f"t{number}")


def learn_neighbours(count: int) -> NeighbourBook:
    book = NeighbourBook(tokenize)

    def find(documents: Sequence[Document]) -> list[Document | None]:
        return [document(int(one.id[1:]) + 1, 20_000) for one in documents]

    for number in range(count):
        book.learn([document(number, 1)], Corpus(1, find), None)
    return book


def wait_for_donors(count: int) -> PreparingBackend:
    backend = PreparingBackend(MemoryBackend())
    for number in range(count):
        # Its name is that of its documents, of which it has none.
        backend._keep(replace(large_request(number), tenant=str(number)))
    return backend


def wait_for_rechecks(count: int) -> RecheckingBackend:
    backend = RecheckingBackend(MemoryBackend(), Drift(0.5), 1.0)
    for number in range(count):
        backend._keep(Answered(large_request(number).compact(), "an answer"))
        backend._keep(Answered(replace(large_request(number), is_guess=True).compact(), "a guess"))
    return backend


def track_searches(count: int) -> SearchRegistry:
    registry = SearchRegistry(8)
    for number in range(count):
        search = TrackedSearch(number, "Why?", None, None, None, None, 0.0)
        search.note_stage(0.0, [document(number, MIB // 8)], True, is_idle=True)
        registry.add_search(search)
    return registry


def serve_contexts(count: int) -> KnownContexts:
    known = KnownContexts()
    for number in range(count):
        known.find(tokenize, "text", document(number, 20_000))
    return known


@pytest.mark.parametrize(
    ("keep", "count", "constant", "bounds"),
    [
        (learn_neighbours, 70, "anywhere.neighbours.MOST_BYTES", 1),
        (wait_for_donors, 60, "anywhere.donor_preparation.MOST_WAITING_BYTES", 1),
        (wait_for_rechecks, 60, "anywhere.rechecking.MOST_WAITING_BYTES", 2),
        (track_searches, 40, "speculation.search_registry.MOST_SEARCH_BYTES", 1),
        (serve_contexts, 70, "serving.known_contexts.MOST_BYTES", 1),
    ],
)
def test_large_documents_take_no_more_memory_than_is_said(
    keep: Callable[[int], object],
    count: int,
    constant: str,
    bounds: int,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(f"ragcache_engine.{constant}", BOUND)
    keep(1)  # imports what it needs
    tracemalloc.start()
    try:
        kept = keep(count)
        size_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept
    # A backend itself takes some as well.
    assert bounds * BOUND / 2 < size_bytes < 1.1 * bounds * BOUND + MIB / 2


def test_remembered_retrievals_are_bounded_likewise():
    log = RetrievalLog(most_bytes=BOUND)
    for number in range(40):
        log.add(Retrieval("Why?", (document(number, MIB // 8),), 0.0))
    assert len(log.documents()) == 7


def test_the_latest_retrieval_is_remembered_whatever_its_size():
    log = RetrievalLog(most_bytes=BOUND)
    log.add(Retrieval("Why?", (document(1, 10),), 0.0))
    log.add(Retrieval("Why?", (document(7, 3 * MIB),), 0.0))
    assert [one.id for one in log.documents()] == ["d7"]


def test_the_sizes_are_those_that_python_takes():
    """Of a prompt, the largest thing that anything keeps."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        request = large_request(1, 5_000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert request.size_bytes == pytest.approx(after - before, rel=0.2)
    assert request.compact().size_bytes < request.size_bytes / 4
