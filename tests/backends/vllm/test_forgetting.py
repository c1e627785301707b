"""Documents are forgotten by every rank of vLLM, or the caller hears why not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ragcache_engine import EngineDied, EngineError, GenerationFailed

pytest.importorskip("vllm")

from vllm.v1.engine.exceptions import EngineDeadError

from ragcache_engine.backends.vllm.backend import VLLMBackend
from ragcache_engine.backends.vllm.budget import TierBudget
from ragcache_engine.tiers.counters import Counters
from ragcache_engine.tiers.disk.naming import PLAIN
from ragcache_engine.tiers.wire import FinishMessage, RequestMessage

pytestmark = pytest.mark.vllm


class LLM:
    """The part of AsyncLLM that forgetting uses, with some ranks."""

    def __init__(self, ranks: int = 1, *, has_tiers: bool = True, is_dead: bool = False) -> None:
        parallel = SimpleNamespace(data_parallel_size=ranks)
        self.vllm_config = SimpleNamespace(parallel_config=parallel)
        self.has_tiers, self.is_dead = has_tiers, is_dead
        self.told: list[tuple[int | None, RequestMessage]] = []
        self.resets = 0
        self.is_busy = self.errored = False

    async def generate(
        self, prompt: Any, params: Any, name: str, data_parallel_rank: int | None = None
    ) -> AsyncIterator[Any]:
        if self.is_dead:
            raise EngineDeadError
        sent = RequestMessage.from_dict(params.extra_args["kv_transfer_params"])
        self.told.append((data_parallel_rank, sent))
        answer = FinishMessage(None, Counters()).to_dict() if self.has_tiers else None
        yield SimpleNamespace(kv_transfer_params=answer)

    async def reset_prefix_cache(self, *, reset_connector: bool) -> bool:
        assert not reset_connector
        self.resets += 1
        while self.errored:
            await asyncio.sleep(1)  # vLLM never ends such a call
        return not self.is_busy


def backend_on(llm: LLM, *, disk: Path | None = None) -> VLLMBackend:
    budget = TierBudget(policy="lru", disk_bytes=1000 if disk else 0, disk_folder=disk)
    backend = VLLMBackend("model", None, budget, {})
    backend._llm, backend._has_tiers = llm, True  # type: ignore[assignment]
    return backend


def test_every_data_parallel_rank_hears_of_it():
    llm = LLM(ranks=3)
    asyncio.run(backend_on(llm).forget(["d1"]))
    assert sorted(rank for rank, _ in llm.told if rank is not None) == [0, 1, 2]
    assert all(message.forget == ("d1",) and message.is_trusted for _, message in llm.told)


def test_an_engine_that_dies_while_its_own_cache_forgets_ends_the_call():
    llm = LLM(has_tiers=False)
    llm.errored = True
    with pytest.raises(EngineDied, match="forget them again"):
        asyncio.run(backend_on(llm).forget(["d1"]))


def test_a_single_rank_is_told_as_any_request_is():
    llm = LLM()
    asyncio.run(backend_on(llm).forget(["d1"]))
    assert [rank for rank, _ in llm.told] == [None]
    assert llm.resets == 0


def test_where_the_tiers_fell_back_vllms_own_cache_is_emptied():
    llm = LLM(has_tiers=False)
    asyncio.run(backend_on(llm).forget(["d1"]))
    assert llm.resets == 1
    llm.is_busy = True
    with pytest.raises(GenerationFailed, match="wait for them to end"):
        asyncio.run(backend_on(llm).forget(["d1"]))


def test_a_dead_vllm_is_an_error_of_ours():
    with pytest.raises(EngineDied, match="forget them again"):
        asyncio.run(backend_on(LLM(is_dead=True)).forget(["d1"]))


def test_engines_that_share_the_folder_are_told_by_tombstones(tmp_path: Path):
    llm = LLM()
    asyncio.run(backend_on(llm, disk=tmp_path).forget(["d1"]))
    mark = PLAIN.mark("d1")
    assert llm.told[0][1].tombstones == {mark: (tmp_path / "forgotten" / mark).stat().st_mtime_ns}


def test_where_no_tombstone_can_be_left_this_engine_forgets_and_says_so(tmp_path: Path):
    (tmp_path / "forgotten").write_text("")
    llm = LLM()
    with pytest.raises(EngineError, match="could not tell other engines"):
        asyncio.run(backend_on(llm, disk=tmp_path).forget(["d1"]))
    assert len(llm.told) == 1


def test_a_disk_that_hangs_keeps_no_thread_that_others_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hangs, answers = threading.Event(), threading.Event()

    def hang(*_: Any) -> dict[str, int]:
        hangs.set()
        answers.wait(60)
        return {}

    monkeypatch.setattr("ragcache_engine.backends.vllm.backend.leave_tombstones", hang)
    llm = LLM()
    backend = backend_on(llm, disk=tmp_path)

    async def forget_often() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        forgetting = [asyncio.create_task(backend.forget(["d1"])) for _ in range(20)]
        while not hangs.is_set():
            await asyncio.sleep(0.01)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: 7), 20) == 7
        assert llm.told == [], "what is on disk is withdrawn before anybody is told"
        for waiting in forgetting[10:]:
            waiting.cancel()
        answers.set()
        await asyncio.gather(*forgetting, return_exceptions=True)

    try:
        asyncio.run(forget_often())
    finally:
        answers.set()
    assert len(llm.told) == 10
