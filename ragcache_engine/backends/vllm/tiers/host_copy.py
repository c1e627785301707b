"""Copies blocks between vLLM's cache and the host tier on the CPU platform, where both are main memory.

vLLM's own worker, CPUOffloadingWorker, copies with CUDA streams and refuses the CPU platform. On a GPU it
does the copies. Where there is no host tier, nobody does.
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion

Rows = npt.NDArray[np.int8]


class HostCopyWorker(OffloadingWorker):
    """Copies at once, in the worker's own thread: a block of 32 tokens takes well under a millisecond.

    caches: vLLM's cache. region: the host tier's memory, mapped into this process.
    """

    def __init__(self, caches: CanonicalKVCaches, region: SharedOffloadRegion) -> None:
        self._region = region
        self._finished: list[TransferResult] = []
        # Each tensor as rows of bytes, one row for each block. They are numpy arrays, because torch would
        # spread a copy of some hundred kilobytes over threads that are busy with the model.
        self._device = [
            cache.tensor.view(torch.int8).view(-1, cache.page_size_bytes).numpy()
            for cache in caches.tensors
        ]
        self._host = [
            region.create_next_worker_view(cache.page_size_bytes).numpy()
            for cache in caches.tensors
        ]

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        return self._copy(job_id, self._device, _rows(src_spec), self._host, _rows(dst_spec))

    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        expedited: bool = False,  # from vLLM 0.33 on: whether it goes before others; here none waits
    ) -> bool:
        return self._copy(job_id, self._host, _rows(src_spec), self._device, _rows(dst_spec))

    def get_finished(self) -> list[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        pass  # every copy is done before `submit` returns

    def shutdown(self) -> None:
        self._host.clear()
        self._device.clear()
        self._region.cleanup()

    def _copy(
        self,
        job_id: int,
        sources: list[Rows],
        source_rows: list[int],
        targets: list[Rows],
        target_rows: list[int],
    ) -> bool:
        start = time.perf_counter()
        size_bytes = 0
        for source, target in zip(sources, targets, strict=True):
            for from_row, to_row in zip(source_rows, target_rows, strict=True):
                target[to_row] = source[from_row]
            size_bytes += source.shape[1] * len(source_rows)
        self._finished.append(TransferResult(job_id, True, size_bytes, time.perf_counter() - start))
        return True


class IdleWorker(OffloadingWorker):
    """The worker of an engine without a host tier, to which the scheduler submits nothing."""

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        raise RuntimeError(f"job {job_id} stores blocks, and there is no host tier")

    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        expedited: bool = False,
    ) -> bool:
        raise RuntimeError(f"job {job_id} loads blocks, and there is no host tier")

    def get_finished(self) -> list[TransferResult]:
        return []

    def wait(self, job_ids: set[int]) -> None:
        pass


def _rows(spec: LoadStoreSpec) -> list[int]:
    assert isinstance(spec, BlockIDsLoadStoreSpec)
    return [int(row) for row in spec.block_ids]
