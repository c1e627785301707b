"""Engines of several hosts share a store on real vLLM: equal tokens, nothing forgotten, no wait for it.

A host is an engine with a folder of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from shared_stores import RedisServer, running_redis, running_s3

from ragcache_engine import Document, EngineConfig, RAGCacheEngine, SamplingOptions
from ragcache_engine.tiers.shared.object_store import ObjectBlocks
from ragcache_engine.tiers.shared.opening import open_store
from ragcache_engine.tiers.shared.store import StoredBlock

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

REPORT_BYTES = 20_000_000
"""A report takes as much in float32, at least."""
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


def share(engine: RAGCacheEngine, document: Document) -> str:
    """Ask until the store has all of a report; return the answer."""
    before = engine.stats().tiers.shared_written_bytes
    text, _ = ask(engine, document)
    deadline = time.monotonic() + 60
    while engine.stats().tiers.shared_written_bytes < before + REPORT_BYTES:
        assert time.monotonic() < deadline, "it is not stored"
        time.sleep(0.1)
        ask(engine, document)  # results are told with answers
    return text


def list_blocks(url: str) -> set[str]:
    """Return the keys of all blocks in a store."""
    store = open_store(url)
    if not isinstance(store, ObjectBlocks):
        with redis.Redis.from_url(url) as client:
            found = {
                key.decode().removeprefix("ragcache:b:") for key in client.keys("ragcache:b:*")
            }
    else:
        paths = [str(each["path"]) for some in store._list("blocks/") for each in some]
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


def check_that_hosts_share(
    first: RAGCacheEngine, second: RAGCacheEngine, url: str, expected: dict[str, str]
) -> None:
    """expected: answers of the first host; of "rains" every block in the store is damaged."""
    for name in ("tides", "winds"):
        answer, cached = ask(second, report(name))
        assert answer == expected[name]
        assert cached > 300
    tiers = second.stats().tiers
    assert tiers.shared_tokens > 600
    assert tiers.shared_read_bytes > 2 * REPORT_BYTES
    assert tiers.computed_tokens < 400
    assert ask(second, report("rains"))[0] == expected["rains"]
    assert second.stats().tiers.damaged > 0

    # What one host forgets, no other one serves.
    first.forget(["tides"])
    store = open_store(url)
    assert len(store.tombstones()) == 1
    store.close()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and second.stats().tiers.forgotten < 1:
        ask(second, report("winds"))
        time.sleep(0.2)
    answer, cached = ask(second, report("tides"))
    assert answer == expected["tides"]
    assert cached < 100
    assert ask(second, report("winds"))[1] > 300


@contextmanager
def two_hosts(
    model: str, folder: Path, url: str, **settings: Any
) -> Iterator[tuple[RAGCacheEngine, RAGCacheEngine, dict[str, str]]]:
    """Two hosts, the second of which starts when the first one has computed three reports."""
    with host(model, folder / "first", url, **settings) as first:
        expected = {name: share(first, report(name)) for name in ("tides", "winds")}
        whole = list_blocks(url)
        expected["rains"] = share(first, report("rains"))
        damage(url, list_blocks(url) - whole)
        with host(model, folder / "second", url, **settings) as second:
            yield first, second, expected


def test_hosts_share_an_encrypted_object_store_to_the_same_token(
    demo_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("THE_KEY", "ab" * 32)
    with (
        running_s3() as url,
        two_hosts(demo_model, tmp_path, url, disk_cache_key="env:THE_KEY") as (
            first,
            second,
            expected,
        ),
    ):
        check_that_hosts_share(first, second, url, expected)


def test_hosts_share_a_redis_that_hangs_dies_and_comes_back_empty_and_lose_no_answer(
    demo_model: str, tmp_path: Path
):
    with (
        running_redis() as server,
        two_hosts(demo_model, tmp_path, server.url) as (first, second, expected),
    ):
        check_that_hosts_share(first, second, server.url, expected)
        server.pause()
        for number in range(3):
            assert ask(second, report(f"while it hangs {number}"))[0]
        server.kill()
        assert ask(second, report("winds"))[0] == expected["winds"]
        assert ask(second, report("while it is gone"))[0]
        again = RedisServer(port=server.port)
        try:
            # What it had lost is stored again, and other hosts find it there.
            deadline = time.monotonic() + 120
            while not list_blocks(again.url):
                assert time.monotonic() < deadline, "nothing is stored any more"
                assert ask(second, report("winds"))[0] == expected["winds"]
                time.sleep(0.5)
            assert len(open_store(again.url).tombstones()) == 1, "the hosts told it again"
        finally:
            again.kill()
