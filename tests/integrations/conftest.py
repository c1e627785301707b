"""A small world for both frameworks: six documents, an embedding and engines without a model."""

import threading
import time
from zlib import crc32

import pytest

import ragcache_engine.search
from ragcache_engine import EngineConfig, RAGCacheEngine
from ragcache_engine.backends.memory import MemoryBackend, Stall

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
    """text -> vector: each word is hashed to one of `size` dimensions, and the length is 1."""

    def embed(text, size=64):
        vector = [0.0] * size
        for word in text.lower().replace("?", " ").replace(".", " ").replace(",", " ").split():
            vector[crc32(word.encode()) % size] += 1.0
        norm = sum(number * number for number in vector) ** 0.5 or 1.0
        return [number / norm for number in vector]

    return embed


class RecordingBackend(MemoryBackend):
    """Remembers the prompts and options it was asked with, in order."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.asked = []

    def generate(self, request):
        self.asked.append((request.prompt.text, request.options))
        return super().generate(request)


@pytest.fixture
def make_engine():
    """Engines in memory, closed after the test."""
    engines = []

    def make(backend):
        config = EngineConfig(model="any", backend="memory")
        engines.append(RAGCacheEngine(config, backend=backend))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture
def recording():
    """The class of the backend that remembers, for tests that change it."""
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
def endless(make_engine):
    """An engine whose answers stop coming after a few tokens, and never end by themselves."""

    def stall(step):
        if step > 5:
            raise Stall

    return make_engine(MemoryBackend(lambda prompt: "and on " * 1000, fault=stall))


class Gate:
    """Holds a worker until the event loop opens it; if the worker holds the loop, nobody can."""

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
    """engine -> list. From now on a search goes on after its first stage only when the engine has begun
    on that; the list tells of each whether all its stages found the same. Those before the engine's first
    answer are left alone: it has no template to begin with."""

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
