"""Observing real vLLM: the tree is shown to who may see it, and looking changes no figure."""

from __future__ import annotations

import asyncio

import pytest
from innermost import innermost_backend

pytest.importorskip("vllm")

from ragcache_engine import Document, EngineDied, RAGCacheEngine
from ragcache_engine.backends.vllm.backend import VLLMBackend
from ragcache_engine.tiers.counters import Counters
from ragcache_engine.tiers.wire import RequestMessage

pytestmark = pytest.mark.vllm

TUNDRA = Document("tundra", "In the tundra the ground stays frozen for most of the year. " * 12)


def ask(engine: RAGCacheEngine) -> None:
    engine.generate(f"{TUNDRA.text}\n\nHow long is it frozen?", [TUNDRA])


def test_a_snapshot_shows_a_document_where_it_is(vllm_engine: RAGCacheEngine):
    ask(vllm_engine)
    snapshot = vllm_engine.snapshot()
    assert snapshot is not None
    (tundra,) = [one for one in snapshot.documents if "tundra" in one.documents]
    assert tundra.blocks["device"] > 3
    assert tundra.uses >= 1
    assert snapshot.held["device"] <= snapshot.capacity["device"]
    assert snapshot.block_tokens == vllm_engine.limits.block_tokens
    last = snapshot.requests[-1]
    assert 0 <= last.waited_s <= (last.first_token_s or 0) <= last.total_s
    assert last.documents[0].name == "tundra"


def test_to_look_is_no_request_and_no_use(vllm_engine: RAGCacheEngine):
    ask(vllm_engine)
    before = vllm_engine.stats()
    seen = [vllm_engine.snapshot() for _ in range(3)]
    after = vllm_engine.stats()
    assert all(seen)
    assert after.tiers.computed_tokens == before.tiers.computed_tokens
    assert after.finished == before.finished
    uses = {one.documents: one.uses for one in seen[0].documents}  # type: ignore[union-attr]
    assert uses == {one.documents: one.uses for one in seen[-1].documents}  # type: ignore[union-attr]
    assert len(seen[0].requests) == len(seen[-1].requests)  # type: ignore[union-attr]


def test_only_the_engines_own_messages_are_told_of_others_documents(vllm_engine: RAGCacheEngine):
    ask(vllm_engine)
    backend = innermost_backend(vllm_engine)
    assert isinstance(backend, VLLMBackend)
    for is_trusted in (False, True):
        message = RequestMessage(snapshot=10, is_trusted=is_trusted)
        asked = backend._tell_scheduler(backend._require_llm(), message, None)
        answer = asyncio.run_coroutine_threadsafe(asked, vllm_engine._runtime._thread.loop).result(
            60
        )
        assert answer is not None
        assert (answer.tree is not None) is is_trusted
        assert (answer.sources is not None) is is_trusted
        assert answer.counters != Counters()


def test_a_dead_process_shows_nothing(vllm_engine: RAGCacheEngine):
    stopped = VLLMBackend.__new__(VLLMBackend)
    stopped._has_tiers, stopped._llm = True, None
    with pytest.raises(EngineDied):
        asyncio.run(stopped.snapshot(10))
