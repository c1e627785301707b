"""Engines of several hosts share a store on real vLLM: equal tokens, nothing forgotten, no wait for it.

A host is an engine with a folder of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from shared_stores import RedisServer, running_redis, running_store

from ragcache_engine import Document, EngineConfig, RAGCacheEngine, SamplingOptions
from ragcache_engine.tiers.shared.opening import open_store
from ragcache_engine.tiers.shared.redis_store import RedisStore
from ragcache_engine.tiers.shared.store import StoredBlock

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

TEMPLATE = "Use the report.\n\n{context}\n\nQuestion: {question}\nAnswer:"


def report(name: str, lines: int = 40) -> Document:
    return Document(
        name, " ".join(f"Item {line} of {name} weighs {line} kg." for line in range(lines))
    )


@contextmanager
def host(model: str, folder: Path, url: str, **settings: Any) -> Iterator[RAGCacheEngine]:
    config = EngineConfig(
        model=model,
        backend="vllm",
        device_cache="100MiB",
        host_cache="100MiB",
        disk_cache="200MiB",
        disk_cache_dir=folder,
        shared_cache=url,
        vllm_args={"dtype": "float32", "max_model_len": 1536},
        **settings,
    )
    with RAGCacheEngine(config) as engine:
        yield engine


def ask(engine: RAGCacheEngine, document: Document) -> tuple[str, int]:
    """Return an answer, and how many of its prompt's tokens came from any tier."""
    prompt = TEMPLATE.format(context=document.text, question="Which item weighs most?")
    answer = engine.generate(prompt, [document], SamplingOptions(max_tokens=8))
    return answer.text, answer.usage.cached.total


def wait_until_stored(engine: RAGCacheEngine, url: str, blocks: int) -> None:
    """Wait until the engine has given the store so many blocks more; each step of vLLM offers some."""
    size = 0
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        ask(engine, Document("short", "Nothing else."))  # results are told with answers
        size = engine.stats().tiers.shared_written_bytes
        if size >= blocks * 300_000:
            return
        time.sleep(0.1)
    raise AssertionError(f"only {size} bytes were stored in {url}")


def list_blocks(url: str) -> set[str]:
    """Return the keys of all blocks in a store."""
    store = open_store(url)
    if isinstance(store, RedisStore):
        with redis.Redis.from_url(url) as client:
            found = {
                key.decode().removeprefix("ragcache:b:") for key in client.keys("ragcache:b:*")
            }
    else:
        paths = [str(each["path"]) for some in store._list("blocks/") for each in some]  # type: ignore[attr-defined]
        found = {path.removeprefix("blocks/") for path in paths}
    store.close()
    return found


def damage(url: str, keys: set[str]) -> None:
    """Flip a bit of half of these blocks, and cut the others short."""
    store = open_store(url)
    for place, key in enumerate(sorted(keys)):
        (content,) = store.read([key])
        harmed = bytearray(content or b"")
        harmed[len(harmed) // 2] ^= 1
        if place % 2:
            del harmed[len(harmed) // 2 :]
        store.write([StoredBlock(key, [], bytes(harmed))])
    store.close()


@pytest.mark.parametrize(("kind", "key"), [("redis", None), ("s3", "env:THE_KEY")])
def test_a_document_that_one_host_computed_is_fetched_by_another_to_the_same_token(
    demo_model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    key: str | None,
):
    """Encrypted in one store, plain in the other, and of a third document every block is damaged."""
    monkeypatch.setenv("THE_KEY", "ab" * 32)
    with ExitStack() as stack:
        url = stack.enter_context(running_store(kind, tmp_path))
        first = stack.enter_context(host(demo_model, tmp_path / "first", url, disk_cache_key=key))
        expected = {name: ask(first, report(name))[0] for name in ("tides", "winds")}
        wait_until_stored(first, url, 40)
        whole = list_blocks(url)
        expected["rains"] = ask(first, report("rains"))[0]
        wait_until_stored(first, url, 60)
        damage(url, list_blocks(url) - whole)
        second = stack.enter_context(host(demo_model, tmp_path / "second", url, disk_cache_key=key))
        for name in ("tides", "winds"):
            answer, cached = ask(second, report(name))
            assert answer == expected[name]
            assert cached > 300
        tiers = second.stats().tiers
        assert tiers.shared_tokens > 600
        assert tiers.shared_read_bytes > 10_000_000
        assert tiers.computed_tokens < 400
        assert ask(second, report("rains"))[0] == expected["rains"]
        assert second.stats().tiers.damaged > 0

        # What one host forgets, no other one serves.
        first.forget(["tides"])
        store = open_store(url)
        assert set(store.tombstones())
        store.close()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and second.stats().tiers.forgotten < 1:
            ask(second, report("winds"))
            time.sleep(0.2)
        answer, cached = ask(second, report("tides"))
        assert answer == expected["tides"]
        assert cached < 100
        assert ask(second, report("winds"))[1] > 300


def test_a_store_that_hangs_dies_and_comes_back_empty_costs_time_and_no_answer(
    demo_model: str, tmp_path: Path
):
    with running_redis() as server, host(demo_model, tmp_path, server.url) as engine:
        expected = ask(engine, report("tides"))[0]
        server.pause()
        for number in range(3):
            started = time.monotonic()
            ask(engine, report(f"while it hangs {number}"))
            assert time.monotonic() - started < 60
        server.kill()
        assert ask(engine, report("tides"))[0] == expected
        ask(engine, report("while it is gone"))
        again = RedisServer(port=server.port)
        try:
            deadline = time.monotonic() + 90
            written = engine.stats().tiers.shared_written_bytes
            number = 0
            while time.monotonic() < deadline:
                ask(engine, report(f"new {number}"))
                number += 1
                if engine.stats().tiers.shared_written_bytes > written:
                    break
            assert engine.stats().tiers.shared_written_bytes > written
            assert ask(engine, report("tides"))[0] == expected
        finally:
            again.kill()
