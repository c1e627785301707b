"""What the tests share: above all one real engine, since each takes half a minute to start."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from http_servers import OPERATOR, PRESS, SHOP

from ragcache_engine import EngineConfig, RAGCacheEngine
from ragcache_engine.backends.memory import MemoryBackend, echo
from ragcache_engine.backends.vllm.installed import installed_vllm

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
# vLLM keeps one core free for its scheduler; on two cores that halves the speed of a prefill.
os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0" if os.cpu_count() == 2 else "1")

# Other work on the machine decides how long an example takes.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

# With several workers, each has cores of its own: models that spin on the same ones starve each other.
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    cores = sorted(os.sched_getaffinity(0))[int(worker.removeprefix("gw")) :: workers]
    if cores:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))

DATA = Path(os.environ.get("RAGCACHE_DATA", Path(__file__).parents[2] / "shared" / "data"))

SHARED_ENGINES = {
    "vllm_engine",
    "stock_vllm",
    "engine",
    "client",
    "model_engine",
    "ragcache_server",
    "server_engine",
    "stock_server",
    "stock_client",
}
"""Fixtures that start an engine for the whole session, or a server for all tests of a file."""

FLOAT32 = {"dtype": "float32", "max_model_len": 4096}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of several workers (`-n 2 --dist loadgroup`) one has the tests that share an engine, so that it is
    started once; one has those that start their own; and the rest go to whoever is free."""
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            if item.get_closest_marker("vllm"):
                asked = {*getattr(item, "fixturenames", ()), *_names_in_parameters(item)}
                shares = SHARED_ENGINES & asked or "integrations" in item.path.parts
                item.add_marker(pytest.mark.xdist_group("shared" if shares else "own"))
            elif item.get_closest_marker("fleet"):
                item.add_marker(pytest.mark.xdist_group("fleet"))


def _names_in_parameters(item: pytest.Item) -> list[str]:
    """Return the texts among a test's parameters: some are names of the fixtures that it asks for."""
    called = getattr(item, "callspec", None)
    return [value for value in called.params.values() if isinstance(value, str)] if called else []


@pytest.fixture(scope="session")
def demo_model() -> str:
    """The folder of the small real model; converted once, then kept."""
    if installed_vllm() is None:
        pytest.skip("vLLM is not installed")
    models = pytest.importorskip("ragcache_cli.models")
    return str(models.demo_model())


@pytest.fixture(scope="session")
def vllm_engine(demo_model: str) -> Iterator[RAGCacheEngine]:
    """The one real engine: real vLLM, the real small model, float32 so that tokens are repeatable."""
    config = EngineConfig(
        model=demo_model, backend="vllm", device_cache="800MiB", vllm_args=FLOAT32
    )
    with RAGCacheEngine(config) as engine:
        yield engine


@pytest.fixture(scope="session")
def stock_vllm(demo_model: str) -> Iterator[Any]:
    """vLLM's own LLM class on the small model, in the numbers of `vllm_engine`: the answers to equal."""
    from vllm import LLM

    llm = LLM(
        model=demo_model,
        dtype="float32",
        max_model_len=4096,
        kv_cache_memory_bytes=400 << 20,
        enforce_eager=True,
    )
    yield llm
    llm.llm_engine.engine_core.shutdown()


@pytest.fixture
def engine_on() -> Iterator[Callable[..., RAGCacheEngine]]:
    """Makes engines over a MemoryBackend of the test's own; they are closed after it."""
    with ExitStack() as engines:

        def make(backend: MemoryBackend, **settings: Any) -> RAGCacheEngine:
            config = EngineConfig(model="any", backend="memory", **settings)
            return engines.enter_context(RAGCacheEngine(config, backend=backend))

        yield make


@pytest.fixture
def memory_engine(engine_on: Callable[..., RAGCacheEngine]) -> RAGCacheEngine:
    return engine_on(MemoryBackend(lambda p: "on and " * 4000 if "for ever" in p else echo(p)))


@pytest.fixture
def served_engine() -> Iterator[RAGCacheEngine]:
    """`memory_engine`, with HTTP between the engine and its backend."""
    from http_servers import OPERATOR, serve

    backend = MemoryBackend(lambda p: "on and " * 4000 if "for ever" in p else echo(p))
    with serve(backend) as server, RAGCacheEngine.connect(server.url, api_key=OPERATOR) as engine:
        yield engine


@pytest.fixture(scope="session")
def ragcache_server(demo_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real `ragcache serve`, in the numbers of `vllm_engine`, with keys of two tenants."""
    from http_servers import OPERATOR
    from real_servers import ragcache_serve

    folder = tmp_path_factory.mktemp("server")
    keys = folder / "keys.toml"
    keys.write_text(
        '[tenants]\nshop = ["the key of the shop"]\npress = ["the key of the press"]\n'
        f'[operators]\nanna = ["{OPERATOR}"]\n'
    )
    small = ("--dtype", "float32", "--max-model-len", "4096")
    with ragcache_serve(
        demo_model,
        folder / "log",
        *("--keys", str(keys), "--host-cache", "100MiB"),
        vllm=(*small, "--kv-cache-memory-bytes", str(800 << 20)),
    ) as server:
        yield server


@pytest.fixture(scope="session")
def server_engine(ragcache_server: Any) -> Iterator[RAGCacheEngine]:
    """An operator's client of the real server."""
    from http_servers import OPERATOR

    with RAGCacheEngine.connect(ragcache_server.url, api_key=OPERATOR) as engine:
        yield engine


@pytest.fixture(
    params=[
        "memory",
        "served",
        pytest.param("vllm", marks=pytest.mark.vllm),
        pytest.param("server", marks=pytest.mark.vllm),
    ]
)
def engine(request: pytest.FixtureRequest) -> RAGCacheEngine:
    """Every backend: what is written against this fixture holds for all of them.

    "served" is memory behind HTTP, and "server" a client of a real `ragcache serve`.
    """
    chosen = request.getfixturevalue(f"{request.param}_engine")
    assert isinstance(chosen, RAGCacheEngine)
    return chosen


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    """A server's file with the keys of two tenants, shop and press, and of an operator."""
    path = tmp_path / "keys.toml"
    path.write_text(
        f'[tenants]\nshop = ["{SHOP}"]\npress = ["{PRESS}"]\n[operators]\nanna = ["{OPERATOR}"]\n'
    )
    return path


@pytest.fixture(scope="session")
def read_data() -> Callable[[str], list[dict[str, Any]]]:
    """Reads a file of the question sets, such as "squad/corpus.jsonl.gz"."""

    def read(name: str) -> list[dict[str, Any]]:
        path = DATA / name
        if not path.is_file():
            pytest.skip(f"the question sets are not at {DATA} (RAGCACHE_DATA names another folder)")
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    return read
