"""What the tests of both frameworks share: six documents, an embedding, engines without a model."""

import threading
import time
from contextlib import ExitStack
from zlib import crc32

import http_servers
import pytest

import ragcache_engine.search
from ragcache_engine import EngineConfig, RAGCacheEngine
from ragcache_engine.backends.memory import MemoryBackend, Stall
from ragcache_engine.speculation import Pipeline

CORPUS = {
    "sky": "The sky looks blue because the gases of the air scatter short waves of sunlight far "
    "more than long ones, so that blue light reaches the eye from everywhere.",
    "tides": "The tides rise and fall twice a day because the moon pulls the near side of the "
    "ocean harder than the far side, and the earth turns below the two bulges.",
    "bread": "Bread rises when yeast eats the sugar of the flour and breathes out gas, which the "
    "gluten of the kneaded dough holds in bubbles until the oven sets them.",
    "glass": "Glass is made of sand that is molten with soda and lime, and is cooled so quickly "
    "that its atoms find no time to settle into the order of a crystal.",
    "bees": "Bees tell each other where the flowers are with a dance on the comb, whose angle "
    "gives the direction to the sun and whose length gives the distance.",
    "steel": "Steel is iron with a little carbon, which keeps the layers of the metal from sliding "
    "past each other, so that it bends less than pure iron does.",
}


@pytest.fixture
def corpus():
    return dict(CORPUS)


@pytest.fixture
def bag_of_words():
    """text -> vector of length 1: each word is hashed to one of `size` dimensions."""

    def embed(text, size=64):
        vector = [0.0] * size
        for word in text.lower().replace("?", " ").replace(".", " ").replace(",", " ").split():
            vector[crc32(word.encode()) % size] += 1.0
        norm = sum(number * number for number in vector) ** 0.5 or 1.0
        return [number / norm for number in vector]

    return embed


class RecordingBackend(MemoryBackend):
    """Keeps the prompts and options of its requests, in order."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked = []

    def generate(self, request):
        self.asked.append((request.prompt.text, request.options))
        return super().generate(request)


SERVED_TOO = (
    "_chain",
    "_chat",
    "_llm",
    "_retriever",
    "_query_engine",
    "_events",
    "_conversations",
    "_structured",
    "_tools",
    "_stages",
    "_cancellation",
    "_cancelling",
    "_leaving",
    "_document_order",
    "_accelerate_models",
)
"""The files without a model whose names end so run their tests a second time, on a client of a server."""


def pytest_generate_tests(metafunc):
    """Run tests a second time on a client: those with a model, and some of those without one."""
    names, hidden = metafunc.fixturenames, pytest.HIDDEN_PARAM
    if "make_engine" in names:
        is_served = metafunc.definition.path.stem.endswith(SERVED_TOO)
        ways = ["here", "served"] if is_served else ["here"]
        ids = [hidden, "served"][: len(ways)]
        metafunc.parametrize("make_engine", ways, indirect=True, ids=ids)
    if "model_engine" in names:
        ways = ["vllm_engine", "server_engine"]
        metafunc.parametrize("model_engine", ways, indirect=True, ids=[hidden, "server"])


@pytest.fixture
def make_engine(request):
    """Makes engines without a model, which are closed after the test.

    "served" puts a server and HTTP between the engine and its backend.
    """
    with ExitStack() as opened:

        def make(backend):
            if getattr(request, "param", "here") == "here":  # some tests ask for it by name
                config = EngineConfig(model="any", backend="memory")
                return opened.enter_context(RAGCacheEngine(config, backend=backend))
            server = opened.enter_context(http_servers.serve(backend))
            key = http_servers.OPERATOR
            return opened.enter_context(RAGCacheEngine.connect(server.url, api_key=key))

        yield make


@pytest.fixture
def model_engine(request):
    """An engine with the small model: one in this process, and a client of `ragcache serve`."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def recording():
    """The class RecordingBackend, for tests that subclass it."""
    return RecordingBackend


@pytest.fixture
def backend():
    return RecordingBackend()


@pytest.fixture
def recorded(backend):
    """(prompt, options) of each request that reached the engine's backend."""
    return backend.asked


@pytest.fixture
def engine(make_engine, backend):
    return make_engine(backend)


@pytest.fixture
def speculating():
    """An engine that guesses at every stage of a search."""
    config = EngineConfig(model="any", backend="memory", speculation="on")
    with RAGCacheEngine(config, backend=MemoryBackend()) as engine:
        yield engine


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch):
    """The candidates that the engine was told of, by their ids."""
    told = []
    tell = Pipeline.candidates

    def note(self, search, documents, *further):
        told.append([one.id for one in documents])
        tell(self, search, documents, *further)

    monkeypatch.setattr(Pipeline, "candidates", note)
    return told


@pytest.fixture
def endless(make_engine):
    """An engine whose answers pause after a few tokens and never end by themselves."""

    def stall(step):
        if step > 5:
            raise Stall

    return make_engine(MemoryBackend(lambda prompt: "and on " * 1000, fault=stall))


class Gate:
    """Blocks a worker until the event loop opens the gate.

    If the worker itself blocks the loop, nothing can open the gate.
    """

    def __init__(self):
        self._open = threading.Event()
        self.reached = threading.Event()
        self.was_opened = False

    def pass_through(self):
        self.reached.set()
        self.was_opened = self._open.wait(2)

    def open(self):
        self._open.set()


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def waiting_search(monkeypatch):
    """engine -> list. Each search waits after its first stage until the engine speculates on it.

    For each search, the list says whether all its stages found the same. Searches before the
    engine's first answer do not wait, because the engine has no template yet.
    """

    def wait_for(engine):
        steady = []

        def waits(*args, stages_of=ragcache_engine.search.stages, **kwargs):
            before, found = engine.stats(), []
            for stage in stages_of(*args, **kwargs):
                found.append(stage.ids.tobytes())
                if stage.final and before.finished:
                    steady.append(len(set(found)) == 1)
                yield stage
                if len(found) > 1 or not before.finished:
                    continue
                deadline = time.monotonic() + 10
                while engine.stats().speculation.started == before.speculation.started:
                    assert time.monotonic() < deadline
                    time.sleep(0.001)

        monkeypatch.setattr(ragcache_engine.search, "stages", waits)
        return steady

    return wait_for
