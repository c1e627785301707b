"""An index in another process finds what it finds here, bit for bit, and refuses what it must."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from waiting import eventually

faiss = pytest.importorskip("faiss")
np = pytest.importorskip("numpy")

from http_servers import serve, serve_app  # noqa: E402

from ragcache_engine import (  # noqa: E402
    EngineError,
    InvalidArgument,
    KeyRefused,
    QueryShapeError,
    ServerLost,
    ServerUnreachable,
    UnknownDocument,
)
from ragcache_engine.backends.memory import MemoryBackend  # noqa: E402
from ragcache_engine.index_server import IndexedDocument, IndexServer  # noqa: E402
from ragcache_engine.index_server import served as served_module  # noqa: E402
from ragcache_engine.index_server.app import LIMITS, IndexApp  # noqa: E402
from ragcache_engine.index_server.served import FoundRows, ServedIndex  # noqa: E402
from ragcache_engine.serving.keys import Keys  # noqa: E402

Start = Callable[..., Any]
KEY, OTHER = "the key of the shop", "a key of nobody's at all"

VECTORS, DIMENSIONS = 3_000, 16


@pytest.fixture(scope="session")
def vectors() -> Any:
    """Random vectors; every tenth is there twice or more."""
    random = np.random.default_rng(5)
    found = random.standard_normal((VECTORS, DIMENSIONS), dtype=np.float32)
    found[::10] = found[random.integers(0, 100, VECTORS // 10)]
    return found


@pytest.fixture(scope="session")
def build(vectors: Any) -> Callable[[str], Any]:
    """Make the index that a factory string names."""

    def make(factory: str) -> Any:
        index = faiss.index_factory(DIMENSIONS, factory)
        index.train(vectors)
        if factory.startswith("IDMap"):
            index.add_with_ids(vectors, np.arange(VECTORS, dtype=np.int64) + (1 << 60))
        else:
            index.add(vectors)
        if factory.startswith("IVF"):
            index.nprobe = 24
        return index

    return make


def documents_of(ids: Any) -> dict[int, IndexedDocument]:
    return {
        int(row): IndexedDocument(f"d{number}", f"What is known of {number}.", {"n": number})
        for number, row in enumerate(ids)
    }


@pytest.fixture
def served(build: Callable[[str], Any]) -> ServedIndex:
    return ServedIndex(build("IVF32,Flat"), documents_of(range(VECTORS)))


@pytest.fixture(scope="module")
def listening(build: Callable[[str], Any]) -> Iterator[tuple[Any, IndexServer]]:
    """A server that the tests of a module ask in turn, and its client."""
    served = ServedIndex(build("IVF32,Flat"), documents_of(range(VECTORS)))
    with serve_app(IndexApp(served, limits=replace(LIMITS, body_bytes=50_000))) as server:
        yield server, IndexServer(server.url)


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Serve an index; returns its server and a client."""
    with ExitStack() as opened:

        def begin(
            served: ServedIndex, keys: Path | None = None, key: str | None = None, **limits: int
        ) -> tuple[Any, IndexServer]:
            app = IndexApp(served, Keys(keys), replace(LIMITS, **limits))
            server = opened.enter_context(serve_app(app))
            return server, IndexServer(server.url, key)

        yield begin


@pytest.fixture(scope="session")
def questions() -> Any:
    return np.random.default_rng(6).standard_normal((40, DIMENSIONS), dtype=np.float32)


# -- what is found ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "factory", ["Flat", "IVF32,Flat", "IVF32,SQ8", "HNSW16", "IDMap,Flat", "IDMap2,IVF32,Flat"]
)
def test_the_answer_is_that_of_the_index_bit_for_bit(
    factory: str,
    build: Callable[[str], Any],
    questions: Any,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(served_module, "SLICE_S", 0.0)
    index = build(factory)
    first = 1 << 60 if factory.startswith("IDMap") else 0
    served = ServedIndex(index, documents_of(range(first, first + VECTORS)))
    _, client = start(served)
    for question in questions:
        distances, ids = index.search(question[None, :], 5)
        *before, last = client.stages(question.tolist(), 5)
        assert [one.id for one in last.documents] == [f"d{row - first}" for row in ids[0]]
        assert np.array(last.distances, dtype=np.float32).tobytes() == distances[0].tobytes()
        assert last.is_final
        assert not any(stage.is_final for stage in before)


def test_it_is_told_in_stages_and_each_has_all_documents(
    served: ServedIndex, questions: Any, start: Start, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(served_module, "SLICE_S", 0.0)
    _, client = start(served)
    found = list(client.stages(questions[0].tolist(), 4, count=6))
    assert len(found) == 6
    shares = [stage.fraction_done for stage in found]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    for stage in found:
        assert len(stage.documents) == len(stage.distances) == 4
        assert all(one.text == f"What is known of {one.metadata['n']}." for one in stage.documents)


def test_one_stage_is_the_answer_alone(questions: Any, listening: tuple[Any, IndexServer]):
    _, client = listening
    (only,) = client.stages(questions[0].tolist(), 4, count=1)
    assert only.is_final


def test_a_text_is_embedded_by_the_server(build: Callable[[str], Any], vectors: Any, start: Start):
    embedded = []

    def embed(text: str) -> list[float]:
        embedded.append(text)
        return list(map(float, vectors[int(text)]))

    _, client = start(ServedIndex(build("Flat"), documents_of(range(VECTORS)), embed))
    assert client.describe().embeds
    (found,) = client.stages("17", 1, count=1)
    assert [one.id for one in found.documents] == ["d17"]
    assert embedded == ["17"]


def test_vectors_without_a_document_are_passed_over(
    build: Callable[[str], Any], vectors: Any, start: Start
):
    documents = documents_of(range(VECTORS))
    nearest = build("Flat").search(vectors[3:4], 40)[1][0].tolist()
    for row in nearest[:30]:
        del documents[row]
    _, client = start(ServedIndex(build("Flat"), documents))
    *_, last = client.stages(vectors[3].tolist(), 5)
    assert [one.metadata["n"] for one in last.documents] == nearest[30:35]


def test_an_index_with_fewer_documents_finds_them_all(start: Start):
    index = faiss.IndexFlatL2(2)
    index.add(np.eye(2, dtype=np.float32))
    _, client = start(ServedIndex(index, documents_of(range(2))))
    (found,) = client.stages([1.0, 0.0], 9)
    assert [one.id for one in found.documents] == ["d0", "d1"]


def test_an_empty_index_finds_nothing(start: Start):
    _, client = start(ServedIndex(faiss.IndexFlatL2(2), {}))
    (found,) = client.stages([1.0, 0.0], 9)
    assert found.documents == ()
    assert found.is_final


def test_questions_get_the_form_that_the_vectors_have(start: Start):
    def unit_length(rows: Any) -> Any:
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    index = faiss.IndexFlatIP(2)
    index.add(np.eye(2, dtype=np.float32))
    _, client = start(ServedIndex(index, documents_of(range(2)), as_indexed=unit_length))
    (found,) = client.stages([30.0, 40.0], 2)
    assert found.distances == pytest.approx((0.8, 0.6))


# -- what else a retriever asks --------------------------------------------------------------------


@pytest.mark.parametrize(
    "factory",
    [*("Flat", "IVF32,Flat", "HNSW16", "IDMap2,Flat"), *("IDMap2,IVF32,Flat", "PCA12,IVF32,Flat")],
)
def test_neighbours_are_the_nearest_others(
    factory: str, build: Callable[[str], Any], vectors: Any, start: Start
):
    first = 1 << 60 if factory.startswith("IDMap") else 0
    _, client = start(ServedIndex(build(factory), documents_of(range(first, first + VECTORS))))
    assert client.describe().knows_neighbours
    of_seven, of_nobody = client.neighbours(["d7", "unknown"], 3)
    index = build(factory)
    nearest = index.search(vectors[7:8], 4)[1][0] - first
    assert [one.metadata["n"] for one in of_seven] == [row for row in nearest if row != 7][:3]
    assert of_nobody == []


def test_copies_of_a_document_are_no_neighbours(start: Start):
    index = faiss.IndexFlatL2(2)
    index.add(np.array([[0, 0], [0, 0], [0, 0], [0, 1], [0, 2]], dtype=np.float32))
    texts = ("same", "same", "same", "near", "far")
    documents = {row: IndexedDocument(f"d{row}", text) for row, text in enumerate(texts)}
    _, client = start(ServedIndex(index, documents))
    ((near, far),) = client.neighbours(["d0"], 2)
    assert (near.text, far.text) == ("near", "far")


def test_neighbours_of_any_number_of_documents_are_asked_for_in_pieces(
    listening: tuple[Any, IndexServer],
):
    _, client = listening
    found = client.neighbours([f"d{row}" for row in range(300)] + ["x" * 600], 1)
    assert len(found) == 301
    assert all(len(near) == 1 for near in found[:300])
    assert found[300] == []


def test_an_index_that_keeps_no_vectors_knows_no_neighbours(
    build: Callable[[str], Any], start: Start
):
    documents = documents_of(range(1 << 60, (1 << 60) + VECTORS))
    _, client = start(ServedIndex(build("IDMap,Flat"), documents))
    assert not client.describe().knows_neighbours
    with pytest.raises(UnknownDocument):
        client.neighbours(["d7"], 3)


def test_an_index_that_crashes_when_asked_for_vectors_is_not_asked(
    build: Callable[[str], Any], tmp_path: Path, start: Start
):
    path = str(tmp_path / "index")
    faiss.write_index(build("IVF32,PQ8x4fs"), path)
    _, client = start(ServedIndex(faiss.read_index(path), documents_of(range(VECTORS))))
    assert not client.describe().knows_neighbours
    *_, last = client.stages([0.0] * DIMENSIONS, 2)
    assert len(last.documents) == 2


def test_texts_and_metadata_that_json_hardly_takes_arrive(start: Start):
    index = faiss.IndexFlatL2(2)
    index.add(np.eye(2, dtype=np.float32))
    odd = IndexedDocument("\ud800", "half \udfff", {"score": float("inf")})
    _, client = start(ServedIndex(index, {0: odd, 1: IndexedDocument("d1", "whole")}))
    *_, last = client.stages([1.0, 0.0], 1)
    assert last.documents == (odd,)
    assert client.neighbours(["d1"], 1) == [[odd]]
    assert next(client.documents()) == odd


def test_numbers_of_numpy_are_numbers(questions: Any, listening: tuple[Any, IndexServer]):
    _, client = listening
    *_, last = client.stages(questions[0], np.int64(3))
    assert len(last.documents) == 3


def test_all_documents_are_listed(listening: tuple[Any, IndexServer]):
    _, client = listening
    assert list(client.documents()) == list(documents_of(range(VECTORS)).values())


def test_the_version_changes_with_the_documents(start: Start):
    index = faiss.IndexFlatL2(2)
    index.add(np.eye(1, 2, dtype=np.float32))
    versions = set()
    for document in (
        IndexedDocument("a", "bc"),
        IndexedDocument("ab", "c"),
        IndexedDocument("a", "bd"),
        IndexedDocument("a", "bc"),
    ):
        _, client = start(ServedIndex(index, {0: document}))
        versions.add(client.describe().version)
    assert len(versions) == 3


def test_a_client_sees_that_the_server_has_other_documents(served: ServedIndex, start: Start):
    _, client = start(served)
    before = client.describe()
    index = faiss.IndexFlatL2(2)
    index.add(np.eye(2, dtype=np.float32))
    served.__dict__.update(ServedIndex(index, documents_of(range(2))).__dict__)
    list(client.stages([0.0, 1.0], 1))
    assert client.describe() != before
    assert client.describe().vectors == 2


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "error"),
    [
        ([10**400], QueryShapeError),
        ([1.0] * (DIMENSIONS + 1), QueryShapeError),
        ([1.0, float("nan")], QueryShapeError),
        (["one", "two"], QueryShapeError),
        ([], QueryShapeError),
        ("a text", InvalidArgument),
        ("x" * 10_001, InvalidArgument),
    ],
)
def test_what_cannot_be_searched_is_refused_by_name(
    question: Any, error: type[Exception], listening: tuple[Any, IndexServer]
):
    _, client = listening
    with pytest.raises(error):
        list(client.stages(question, 4))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"k": 4}', 400),
        (b'{"k": 0, "text": "a"}', 400),
        (b'{"k": 201, "text": "a"}', 400),
        (b'{"k": 4, "text": "a", "vector": [1.0]}', 400),
        (b'{"k": 4, "vector": [1.0], "stages": 65}', 400),
        (b'{"k": 4, "vector": [1.0], "more": 1}', 400),
        (b'{"k": 4, "vector": [[1.0]]}', 400),
        (b'{"k": 4, "vector": [1e999]}', 400),
        (b'{"k": 4, "text": "%s"}' % (b"x" * 60_000), 413),
    ],
)
def test_a_body_that_says_something_else_is_refused(
    body: bytes, status: int, listening: tuple[Any, IndexServer]
):
    server, _ = listening
    told = {"Content-Type": "application/json"}
    answer = httpx2.post(f"{server.url}/search", content=body, headers=told)
    assert answer.status_code == status
    assert answer.json()["error"]["kind"]


def test_a_page_of_another_site_cannot_send_a_search(listening: tuple[Any, IndexServer]):
    server, _ = listening
    told = {"Content-Type": "text/plain"}
    assert httpx2.post(f"{server.url}/search", content=b"{}", headers=told).status_code == 400


@pytest.mark.parametrize(("method", "path"), [("GET", "/search"), ("POST", "/index"), ("GET", "/")])
def test_other_paths_do_not_exist(method: str, path: str, listening: tuple[Any, IndexServer]):
    server, _ = listening
    assert httpx2.request(method, server.url + path).status_code == 404


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[tenants]\nshop = ["{KEY}"]\n[operators]\nanna = ["the key of an operator"]\n'
    )
    return path


@pytest.mark.parametrize("key", [KEY, "the key of an operator"])
def test_a_key_opens_the_index(key: str, keys: Path, served: ServedIndex, start: Start):
    _, client = start(served, keys, key)
    assert client.describe().vectors == VECTORS


@pytest.mark.parametrize("key", [None, OTHER])
def test_without_a_key_nothing_is_told_but_health(
    key: str | None, keys: Path, served: ServedIndex, start: Start
):
    server, client = start(served, keys, key)
    for ask in (
        client.describe,
        lambda: list(client.documents()),
        lambda: list(client.stages([0.0] * DIMENSIONS, 1)),
        lambda: client.neighbours(["d1"], 1),
    ):
        with pytest.raises(KeyRefused):
            ask()
    assert httpx2.get(f"{server.url}/health").status_code == 200


# -- load and faults -------------------------------------------------------------------------------


class Held(ServedIndex):
    """An index whose searches wait for an event after their first stage."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.goes_on = threading.Event()
        self.open = 0

    async def search(self, vector: Any, k: int, stages: int) -> AsyncGenerator[FoundRows, None]:
        self.open += 1
        try:
            yield FoundRows((1,), (0.5,), 0.5, is_final=False)
            while not self.goes_on.is_set():
                await asyncio.sleep(0.01)
                # As a search that goes on writes, so that a reader who left is noticed.
                yield FoundRows((1,), (0.5,), 0.5, is_final=False)
            yield FoundRows((1,), (0.5,), 1.0, is_final=True)
        finally:
            self.open -= 1


@pytest.fixture
def held(build: Callable[[str], Any]) -> Held:
    return Held(build("Flat"), documents_of(range(VECTORS)))


def test_a_stage_comes_before_the_search_has_ended(held: Held, start: Start):
    _, client = start(held)
    with closing(client.stages([0.0] * DIMENSIONS, 1)) as stages:
        assert not next(stages).is_final
        held.goes_on.set()
        *_, last = stages
    assert last.is_final


def test_a_reader_who_leaves_ends_the_search(held: Held, start: Start):
    _, client = start(held)
    stages = client.stages([0.0] * DIMENSIONS, 1)
    next(stages)
    assert held.open == 1
    stages.close()
    assert eventually(lambda: held.open == 0)


def test_searches_of_readers_who_left_take_no_further_threads(
    build: Callable[[str], Any], start: Start, monkeypatch: pytest.MonkeyPatch
):
    """A search runs to the end of its part; until then it keeps its place among those that run."""
    goes_on, running, most = threading.Event(), set[int](), [0]

    def slow(*given: Any, **named: Any) -> Iterator[Any]:
        running.add(threading.get_ident())
        most[0] = max(most[0], len(running))
        goes_on.wait(20)
        running.discard(threading.get_ident())
        yield from stages(*given, **named)

    stages = served_module.stages
    monkeypatch.setattr(served_module, "stages", slow)
    server, _ = start(ServedIndex(build("Flat"), documents_of(range(VECTORS))))
    body = {"vector": [0.0] * DIMENSIONS, "k": 1, "stages": 1}
    for _ in range(3 * (os.cpu_count() or 1)):
        with (
            httpx2.Client(base_url=server.url, timeout=0.2) as hasty,
            suppress(httpx2.TransportError),
        ):
            hasty.post("/search", json=body)
    goes_on.set()
    assert httpx2.post(f"{server.url}/search", json=body).status_code == 200
    assert most[0] <= (os.cpu_count() or 1)


def test_whoever_waits_long_gets_signs_of_life(
    held: Held, start: Start, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ragcache_engine.serving.routes.ALIVE_S", 0.05)

    async def silent(*_: Any) -> AsyncGenerator[FoundRows, None]:
        await asyncio.sleep(0.4)
        yield FoundRows((1,), (0.5,), 1.0, is_final=True)

    monkeypatch.setattr(held, "search", silent)
    server, client = start(held)
    answer = httpx2.post(f"{server.url}/search", json={"vector": [0.0] * DIMENSIONS, "k": 1})
    assert answer.text.startswith("\n\n")
    *_, last = client.stages([0.0] * DIMENSIONS, 1)
    assert last.is_final


def test_more_searches_than_there_is_room_for_are_refused(held: Held, start: Start):
    server, client = start(held, requests=1)
    stages = client.stages([0.0] * DIMENSIONS, 1)
    next(stages)
    body = {"vector": [0.0] * DIMENSIONS, "k": 1}
    refused = httpx2.post(f"{server.url}/search", json=body)
    assert refused.status_code == 429
    assert refused.headers["retry-after"]
    held.goes_on.set()
    *_, last = stages
    assert last.is_final


def test_whoever_was_refused_for_want_of_room_asks_again(held: Held, start: Start):
    server, client = start(held, requests=1)
    stages = client.stages([0.0] * DIMENSIONS, 1)
    next(stages)
    other = IndexServer(server.url)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(other.stages([0.0] * DIMENSIONS, 1)))
    waiting.start()
    held.goes_on.set()
    list(stages)
    waiting.join(20)
    assert found[-1].is_final


def test_readers_who_do_not_read_hold_up_nobodys_search(build: Callable[[str], Any], start: Start):
    documents = documents_of(range(VECTORS))
    documents[0] = IndexedDocument("d0", "x" * (32 << 20))
    server, client = start(ServedIndex(build("Flat"), documents))
    vector = build("Flat").reconstruct(0).tolist()
    body = {"vector": vector, "k": 1}
    with ExitStack() as open_answers, httpx2.Client(base_url=server.url) as lazy:
        for _ in range((os.cpu_count() or 1) + 1):
            answer = lazy.stream("POST", "/search", json=body)
            assert open_answers.enter_context(answer).status_code == 200
        *_, last = client.stages([-one for one in vector], 1)
        assert last.is_final


def test_many_searches_at_once_all_end(questions: Any, listening: tuple[Any, IndexServer]):
    _, client = listening
    found: list[Any] = [None] * len(questions)

    def ask(at: int) -> None:
        *_, found[at] = client.stages(questions[at].tolist(), 3)

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(len(questions))]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert all(one is not None and len(one.documents) == 3 for one in found)


def test_a_search_that_fails_midway_is_named_and_the_server_goes_on(
    served: ServedIndex, questions: Any, start: Start, monkeypatch: pytest.MonkeyPatch
):
    async def fail(*_: Any) -> AsyncGenerator[FoundRows, None]:
        yield FoundRows((1,), (0.5,), 0.5, is_final=False)
        raise RuntimeError("secrets of the house")

    _, client = start(served)
    with monkeypatch.context() as patched:
        patched.setattr(served, "search", fail)
        with pytest.raises(EngineError, match="RuntimeError") as caught:
            list(client.stages(questions[0].tolist(), 1))
        assert "secrets" not in str(caught.value)
    *_, last = client.stages(questions[0].tolist(), 1)
    assert last.is_final


def test_a_server_that_dies_in_the_middle_is_named(held: Held, start: Start):
    server, client = start(held)
    stages = client.stages([0.0] * DIMENSIONS, 1)
    next(stages)
    server.end()
    with pytest.raises(ServerLost):
        list(stages)


def test_nobody_at_the_address_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ragcache_engine.backends.server.connection.RETRY_WAITS_S", (0.01,))
    with pytest.raises(ServerUnreachable):
        list(IndexServer("http://127.0.0.1:9").stages([0.0], 1))


def test_another_kind_of_server_is_named():
    with serve(MemoryBackend(), operator_key=None) as other:
        for ask in (
            IndexServer(other.url).describe,
            lambda: list(IndexServer(other.url).stages([0.0], 1)),
        ):
            with pytest.raises(ServerUnreachable, match="no index server"):
                ask()


def test_what_is_no_address_is_refused_at_once():
    for url in ("host:8100", "ftp://host", "http://"):
        with pytest.raises(InvalidArgument):
            IndexServer(url)
