"""The host tier's memory and its copying worker, on a CPU, on a GPU and without a host tier."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("vllm")

import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, CanonicalKVCacheTensor, GPULoadStoreSpec
from vllm.v1.kv_offload.config import (
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.cpu import shared_offload_region
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

from ragcache_engine.backends.vllm import shared_memory
from ragcache_engine.backends.vllm.tiers import spec as spec_module
from ragcache_engine.backends.vllm.tiers.host_copy import HostCopyWorker, IdleWorker
from ragcache_engine.backends.vllm.tiers.settings import TierSettings
from ragcache_engine.backends.vllm.tiers.spec import TierSpec

pytestmark = pytest.mark.vllm

PAGE = os.sysconf("SC_PAGE_SIZE")
BLOCK_BYTES = 4 * PAGE


def spec_with(
    *, host_blocks: int, engine_id: str = "", rank: int = 0, workers: int = 1
) -> TierSpec:
    host_bytes = host_blocks * workers * BLOCK_BYTES
    return TierSpec(
        OffloadingConfig(
            groups=(OffloadingGroupConfig(16, ("layer",), 0),),
            worker_kv_bytes_per_block=BLOCK_BYTES,
            enable_kv_cache_events=False,
            extra_config=TierSettings(policy="pgdsf", host_bytes=host_bytes).to_extra_config(),
            engine_id=engine_id or uuid4().hex,
            model=OffloadingModelConfig("any", "float32"),
            cache=OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
            parallel=OffloadingParallelConfig(rank, workers, workers, 1, 1, 1, 0, 1, None, False),
        )
    )


def caches(device: str = "cpu", blocks: int = 4) -> CanonicalKVCaches:
    tensor = torch.zeros((blocks, BLOCK_BYTES), dtype=torch.int8, device=device)
    return CanonicalKVCaches([CanonicalKVCacheTensor(tensor, BLOCK_BYTES)], [[]])


def file_of(spec: TierSpec) -> Path:
    return shared_memory.FOLDER / f"{shared_memory.PREFIX}{spec.config.engine_id}.mmap"


@contextmanager
def removed_after(*specs: TierSpec) -> Iterator[None]:
    try:
        yield
    finally:
        for spec in specs:
            shared_memory.remove(spec.config.engine_id)


def test_the_schedulers_process_maps_the_memory_and_fills_no_page_of_it():
    spec = spec_with(host_blocks=64)
    with removed_after(spec):
        manager = spec.get_manager()
        found = file_of(spec).stat()
        assert found.st_size == 64 * BLOCK_BYTES
        assert found.st_blocks * 512 <= PAGE, (
            "vLLM 0.33 tries a page, to see whether it can fill any"
        )
        manager.shutdown()


def test_a_worker_fills_the_pages_that_it_copies_to():
    spec = spec_with(host_blocks=64)
    with removed_after(spec):
        worker = spec.get_worker(caches())
        assert file_of(spec).stat().st_blocks * 512 == 64 * BLOCK_BYTES
        worker.shutdown()


def test_several_workers_share_one_memory_each_in_its_own_part():
    first = spec_with(host_blocks=8, engine_id="shared" + uuid4().hex, workers=2)
    second = spec_with(
        host_blocks=8, engine_id=first.config.engine_id.removeprefix("ragcache."), rank=1, workers=2
    )
    with removed_after(first):
        assert file_of(first) == file_of(second)
        copying = [spec.get_worker(caches()) for spec in (first, second)]
        copying[0].submit_store(1, GPULoadStoreSpec([2], (1,), (0,)), CPULoadStoreSpec([5]))
        assert [len(worker.get_finished()) for worker in copying] == [1, 0]
        for worker in copying:
            worker.shutdown()


class Recorded:
    """Stands for vLLM's worker on a GPU: keeps what it was made with."""

    def __init__(self, **made_with: Any) -> None:
        self.made_with = made_with


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(spec_module.current_platform), "is_cpu", lambda self: False)
    monkeypatch.setattr(spec_module, "CPUOffloadingWorker", Recorded)


@pytest.mark.usefixtures("on_a_gpu")
def test_on_a_gpu_vllms_worker_copies_to_the_one_file_that_was_claimed(
    monkeypatch: pytest.MonkeyPatch,
):
    # vLLM 0.33 would cut memory of 2 GiB and more into several files, of which the claim has made one.
    monkeypatch.setattr(shared_offload_region, "_MIN_SEGMENT_BYTES", PAGE, raising=False)
    spec = spec_with(host_blocks=64)
    with removed_after(spec):
        worker = spec.get_worker(caches())
        assert isinstance(worker, Recorded)
        region = worker.made_with["mmap_region"]
        assert region.mmap_path == str(file_of(spec))
        assert (
            region.total_size_bytes
            == 64 * BLOCK_BYTES
            == worker.made_with["num_cpu_chunks"] * (BLOCK_BYTES)
        )
        assert not list(shared_memory.FOLDER.glob(f"{file_of(spec).name}.*"))
        region.cleanup()


@pytest.mark.usefixtures("on_a_gpu")
def test_memory_is_released_where_vllms_worker_cannot_be_made(monkeypatch: pytest.MonkeyPatch):
    def fail(**made_with: Any) -> None:
        regions.append(made_with["mmap_region"])
        raise RuntimeError("CUDA error")

    regions: list[Any] = []
    monkeypatch.setattr(spec_module, "CPUOffloadingWorker", fail)
    spec = spec_with(host_blocks=8)
    with removed_after(spec):
        with pytest.raises(RuntimeError, match="CUDA error"):
            spec.get_worker(caches())
        assert regions[0].mmap_obj is None


@pytest.mark.usefixtures("on_a_gpu")
def test_without_host_tier_nothing_asks_a_gpus_tensors_for_their_numbers():
    spec = spec_with(host_blocks=0)
    worker = spec.get_worker(caches(device="meta"))  # like CUDA tensors, they have no numpy()
    assert isinstance(worker, IdleWorker)
    assert not file_of(spec).exists()
    worker.wait(set())
    assert worker.get_finished() == []
    with pytest.raises(RuntimeError, match="no host tier"):
        worker.submit_store(1, GPULoadStoreSpec([0], (1,), (0,)), CPULoadStoreSpec([0]))
    worker.shutdown()


def test_blocks_come_back_as_they_were_stored_also_in_a_hurry():
    spec = spec_with(host_blocks=8)
    with removed_after(spec):
        cache = caches()
        worker = spec.get_worker(cache)
        assert isinstance(worker, HostCopyWorker)
        cache.tensors[0].tensor[1] = 7
        worker.submit_store(1, GPULoadStoreSpec([1], (1,), (0,)), CPULoadStoreSpec([3]))
        worker.submit_load(2, CPULoadStoreSpec([3]), GPULoadStoreSpec([2], (1,), (0,)), True)
        assert bool((cache.tensors[0].tensor[2] == 7).all())
        assert [done.job_id for done in worker.get_finished()] == [1, 2]
        worker.shutdown()


def test_vllms_own_settings_of_its_manager_are_not_announced_as_ours():
    assert TierSpec.config_info_keys({}) == ()
