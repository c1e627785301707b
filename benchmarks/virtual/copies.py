"""Copies between device and host that take virtual time; no byte moves."""

from __future__ import annotations

from dataclasses import dataclass

from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

from ragcache_engine.simulation.clock import VirtualClock
from ragcache_engine.simulation.copy_lane import CopyLane, has_passed


@dataclass(frozen=True, slots=True)
class _Copy:
    job_id: int
    size_bytes: int
    seconds: float
    ends_s: float


class VirtualCopies(OffloadingWorker):
    """Takes the place of a worker of vLLM's offload.

    block_bytes: of one copied block. bytes_per_s: in each direction.
    in_step: whether the model waits for copies, as on a CPU. Then `take_owed_s` tells for how long.
      Otherwise each direction is a lane beside the model.
    """

    def __init__(
        self, clock: VirtualClock, block_bytes: int, bytes_per_s: float, *, in_step: bool
    ) -> None:
        self._clock, self._block_bytes, self._in_step = clock, block_bytes, in_step
        self._stores, self._loads = CopyLane(bytes_per_s), CopyLane(bytes_per_s)
        self._under_way: list[_Copy] = []
        self._owed_s = 0.0

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        return self._begin(job_id, src_spec, self._stores)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return self._begin(job_id, src_spec, self._loads)

    def get_finished(self) -> list[TransferResult]:
        now_s = self._clock.now()
        done = [copy for copy in self._under_way if has_passed(copy.ends_s, now_s)]
        self._under_way = [copy for copy in self._under_way if not has_passed(copy.ends_s, now_s)]
        return [TransferResult(copy.job_id, True, copy.size_bytes, copy.seconds) for copy in done]

    def wait(self, job_ids: set[int]) -> None:
        """Let the model wait for these copies."""
        now_s = self._clock.now()
        for copy in self._under_way:
            if copy.job_id in job_ids and not self._in_step:
                self._owed_s = max(self._owed_s, copy.ends_s - now_s)

    def take_owed_s(self) -> float:
        """Return for how long the next step waits for copies, once."""
        owed_s, self._owed_s = self._owed_s, 0.0
        return owed_s

    def shutdown(self) -> None:
        self._under_way.clear()

    def _begin(self, job_id: int, blocks: LoadStoreSpec, lane: CopyLane) -> bool:
        assert isinstance(blocks, BlockIDsLoadStoreSpec)
        size_bytes = len(blocks.block_ids) * self._block_bytes
        seconds, now_s = lane.copy_s(size_bytes), self._clock.now()
        ends_s = now_s if self._in_step else lane.begin(size_bytes, now_s)
        if self._in_step:
            self._owed_s += seconds
        self._under_way.append(_Copy(job_id, size_bytes, seconds, ends_s))
        return True
