"""The memory backend's cache is production's: tiers, policies and the order of waiting requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ragcache_engine import (
    ConfigError,
    Document,
    EngineConfig,
    PromptTooLong,
    RAGCacheEngine,
    SamplingOptions,
)
from ragcache_engine.backends.memory import MemoryBackend, Stall
from ragcache_engine.knowledge import CostProfile
from ragcache_engine.simulation.sizes import NOMINAL_TOKEN_BYTES
from ragcache_engine.values import CachedTokens

EngineOn = Callable[..., RAGCacheEngine]

SHORT = SamplingOptions(max_tokens=2)
BLOCK_BYTES = 16 * NOMINAL_TOKEN_BYTES


def words(letter: str, count: int) -> Document:
    """A document of so many tokens."""
    return Document(letter, " ".join([letter] * count))


A, B, C = words("a", 64), words("b", 64), words("c", 64)
FILLER = words("f", 230)


def ask(
    engine: RAGCacheEngine, *documents: Document, question: str = "Why?", tenant: str | None = None
) -> CachedTokens:
    """Ask about documents; where the prompt's cached tokens came from."""
    prompt = "\n".join(document.text for document in documents) + f"\n{question}"
    answer = engine.generate(prompt, documents=documents, options=SHORT, tenant=tenant)
    return answer.usage.cached


# -- tiers -----------------------------------------------------------------------------------------


def test_a_document_that_the_device_has_evicted_comes_back_from_the_host(engine_on: EngineOn):
    engine = engine_on(MemoryBackend(block_tokens=4, device_blocks=60, host_blocks=200))
    assert ask(engine, A) == CachedTokens()
    ask(engine, FILLER)
    cached = ask(engine, A)
    assert cached.host > 50
    assert cached.disk == 0
    assert engine.stats().tiers.host_tokens == cached.host
    assert engine.stats().tiers.evicted["device"] > 0


def test_what_the_host_has_evicted_too_comes_back_from_the_disk(engine_on: EngineOn):
    backend = MemoryBackend(block_tokens=4, device_blocks=60, host_blocks=70, disk_blocks=500)
    engine = engine_on(backend)
    ask(engine, A)
    engine.clear_cache()
    assert ask(engine, A).disk > 50
    assert engine.stats().tiers.read_bytes > 0


def test_without_slower_tiers_what_the_device_has_evicted_is_computed_again(engine_on: EngineOn):
    engine = engine_on(MemoryBackend(block_tokens=4, device_blocks=60))
    ask(engine, A)
    ask(engine, FILLER)
    assert ask(engine, A).total < 50


def test_loading_from_the_host_is_quicker_than_computing_and_takes_time(engine_on: EngineOn):
    def again_s(**tiers: Any) -> float:
        backend = MemoryBackend(block_tokens=4, device_blocks=60, host_blocks=200, **tiers)
        engine = engine_on(backend)
        ask(engine, A)
        ask(engine, FILLER)
        began_s = backend.now()
        ask(engine, A)
        return backend.now() - began_s

    cold = MemoryBackend(block_tokens=4, device_blocks=60)
    ask(engine_on(cold), A)
    assert again_s() < again_s(host_bytes_per_s=1e9) < cold.now()


def test_the_answer_of_a_conversation_is_found_on_the_device(engine_on: EngineOn):
    engine = engine_on(MemoryBackend(lambda prompt: " and" * 40, block_tokens=4))
    prompt = "Tell me more"
    answer = engine.generate(prompt, options=SamplingOptions(max_tokens=40)).text
    cached = engine.generate(f"{prompt}{answer} Go on", options=SHORT).usage.cached
    assert cached.device >= 36


def test_tenants_do_not_share(engine_on: EngineOn):
    engine = engine_on(MemoryBackend(block_tokens=4))
    ask(engine, A, tenant="one")
    assert ask(engine, A, tenant="two") == CachedTokens()
    assert ask(engine, A, tenant="one").device > 50


def test_only_so_many_documents_are_kept_as_the_cache_is_deep(engine_on: EngineOn):
    def from_host(depth: int | None) -> int:
        backend = MemoryBackend(
            block_tokens=4, device_blocks=60, host_blocks=200, cache_depth=depth
        )
        engine = engine_on(backend)
        ask(engine, A, B)
        ask(engine, FILLER)
        return ask(engine, A, B).total

    assert from_host(1) == pytest.approx(64, abs=4)
    assert from_host(None) > 100


# -- who leaves ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "kept", "evicted"), [("lru", B, A), ("pgdsf", A, B)])
def test_the_policy_decides_which_document_leaves(
    engine_on: EngineOn, policy: str, kept: Document, evicted: Document
):
    engine = engine_on(MemoryBackend(block_tokens=4, device_blocks=60, policy=policy))
    for document in (A, A, A, A, B):  # one is wanted often, the other was wanted last
        ask(engine, document)
    ask(engine, words("f", 172))  # takes all blocks but those of one document
    assert ask(engine, kept).device > 50
    assert ask(engine, evicted).device < 10


def test_a_forgotten_document_is_in_no_tier(engine_on: EngineOn):
    backend = MemoryBackend(block_tokens=4, device_blocks=60, host_blocks=100, disk_blocks=100)
    engine = engine_on(backend)
    ask(engine, A, B)
    ask(engine, B)
    engine.forget(["a"])
    assert ask(engine, A, B) == CachedTokens()
    assert ask(engine, B).total > 50


def test_a_cleared_cache_keeps_what_is_on_disk(engine_on: EngineOn):
    engine = engine_on(
        MemoryBackend(block_tokens=4, device_blocks=60, host_blocks=100, disk_blocks=100)
    )
    ask(engine, A)
    engine.clear_cache()
    cached = ask(engine, A)
    assert (cached.device, cached.host) == (0, 0)
    assert cached.disk > 50


# -- who goes first --------------------------------------------------------------------------------


class Gated(MemoryBackend):
    """Makes no step until the gate is opened, so that several requests are sure to wait."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(fault=self._wait, **sizes)
        self.gate = threading.Event()
        self.gate.set()

    def _wait(self, step: int) -> None:
        if not self.gate.is_set():
            raise Stall


def first_served(engine: RAGCacheEngine, backend: Gated) -> str:
    """Of two prompts that wait, an unknown one that came first and a known one: which is served first."""
    rest = " x" * 450
    ask(engine, A, B)
    backend.gate.clear()
    times: dict[str, float] = {}

    def asked(name: str, *documents: Document) -> None:
        prompt = "\n".join(document.text for document in documents) + rest
        answer = engine.generate(prompt, documents=documents, options=SHORT)
        times[name] = answer.usage.ttft_s

    threads = []
    for name, documents in (("unknown", (C, words("d", 64))), ("known", (A, B))):
        threads.append(threading.Thread(target=asked, args=(name, *documents)))
        threads[-1].start()
        while backend.running < len(threads):
            time.sleep(0.001)
    backend.gate.set()
    for thread in threads:
        thread.join(10)
    return min(times, key=lambda name: times[name])


@pytest.mark.parametrize(("window", "first"), [(1, "unknown"), (32, "known")])
def test_of_those_that_wait_the_one_with_most_cached_goes_first(
    engine_on: EngineOn, window: int, first: str
):
    backend = Gated(block_tokens=4, reorder_window=window)
    assert first_served(engine_on(backend), backend) == first


def test_requests_that_need_more_than_the_device_has_take_turns(engine_on: EngineOn):
    backend = MemoryBackend(lambda prompt: "on and " * 40, block_tokens=4, device_blocks=40)
    engine = engine_on(backend)
    threads = [
        threading.Thread(target=engine.generate, args=(f"{'a b c d ' * 15} {number}",))
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert (engine.stats().finished, backend.running) == (4, 0)


# -- as configured ---------------------------------------------------------------------------------


@pytest.fixture
def configured() -> Iterator[EngineOn]:
    """Makes engines that choose their backend by their configuration."""
    with ExitStack() as engines:

        def make(**settings: Any) -> RAGCacheEngine:
            config = EngineConfig(model="any", backend="memory", **settings)
            return engines.enter_context(RAGCacheEngine(config))

        yield make


def test_bytes_of_a_configuration_become_blocks_of_a_nominal_size(configured: EngineOn):
    engine = configured(device_cache=100 * BLOCK_BYTES, host_cache=70 * BLOCK_BYTES)
    assert (engine.limits.block_tokens, engine.limits.device_blocks) == (16, 100)
    assert engine.limits.host_blocks == 70
    assert engine.limits.context_tokens == 1600
    assert configured().limits.device_blocks == 1024


def test_a_configured_host_cache_is_used(configured: EngineOn):
    def from_host(**settings: Any) -> int:
        engine = configured(device_cache=20 * BLOCK_BYTES, **settings)
        ask(engine, A, B)
        ask(engine, FILLER, C)
        return ask(engine, A, B).host

    assert from_host(host_cache="1GiB") > 60
    assert from_host() == 0


def test_a_configured_disk_cache_has_a_host_cache_above_it(configured: EngineOn, tmp_path: Path):
    engine = configured(disk_cache="1GiB", disk_cache_dir=tmp_path)
    ask(engine, A, B)
    engine.clear_cache()
    assert ask(engine, A, B).disk > 60
    assert list(tmp_path.iterdir()) == [], "the memory backend's disk is no folder"


@pytest.mark.parametrize(("policy", "kept"), [("lru", 0), ("pgdsf", 64)])
def test_the_configured_policy_is_used(configured: EngineOn, policy: str, kept: int):
    engine = configured(device_cache=16 * BLOCK_BYTES, policy=policy)
    for document in (A, A, A, A, B):
        ask(engine, document)
    ask(engine, words("f", 180))
    assert ask(engine, A).device == kept


def test_the_configured_depth_is_used(configured: EngineOn):
    def cached(**settings: Any) -> int:
        engine = configured(device_cache=20 * BLOCK_BYTES, host_cache="1GiB", **settings)
        ask(engine, A, B)
        ask(engine, words("f", 300))
        return ask(engine, A, B).total

    assert (cached(), cached(cache_depth=1)) == (128, 64)


@pytest.mark.parametrize(("window", "first"), [(1, "unknown"), (32, "known")])
def test_the_configured_window_is_used(
    configured: EngineOn, monkeypatch: pytest.MonkeyPatch, window: int, first: str
):
    made: list[Gated] = []

    def gated(**sizes: Any) -> Gated:
        made.append(Gated(**sizes))
        return made[-1]

    monkeypatch.setattr("ragcache_engine.backends.memory.budgeted.MemoryBackend", gated)
    engine = configured(reorder_window=window)
    assert first_served(engine, made[0]) == first


def test_prefills_take_the_time_of_the_configured_profile(configured: EngineOn, tmp_path: Path):
    profile = CostProfile("m", "", "", "", 16, (0,), (1, 1001), ((2.0, 2.0),))
    path = tmp_path / "profile.json"
    path.write_text(profile.to_json(), encoding="utf-8")
    answer = configured(cost_profile=path).generate("a b c", options=SHORT)
    assert answer.usage.ttft_s == pytest.approx(2.0)


def test_a_cache_without_room_for_a_block_is_refused(configured: EngineOn):
    with pytest.raises(ConfigError, match="device_cache is 1,000 bytes"):
        configured(device_cache=1000)


def test_a_prompt_longer_than_the_device_is_refused_as_one_beyond_the_context(
    engine_on: EngineOn,
):
    engine = engine_on(MemoryBackend(block_tokens=4, device_blocks=10))
    with pytest.raises(PromptTooLong, match="context of 40"):
        ask(engine, A)


def test_a_tenant_that_needs_more_than_its_quota_evicts_its_own(engine_on: EngineOn):
    engine = engine_on(
        MemoryBackend(block_tokens=4, device_blocks=60, host_blocks=200, host_quota_blocks=40)
    )
    ask(engine, A, tenant="press")
    for letter in "ghijklmnopqrst":
        ask(engine, words(letter, 64), tenant="shop::anna")
        ask(engine, words(letter, 64), tenant="shop::ben")
    assert ask(engine, A, tenant="press").host > 50, "others' documents stay"
    assert ask(engine, words("t", 64), tenant="shop::ben").total > 50, "its own latest, too"
    assert ask(engine, words("n", 64), tenant="shop::ben").total == 0
