"""vLLM's own host offload on the CPU platform: its manager and policies, with our copying.

vLLM's offload worker copies with CUDA streams and refuses the CPU platform. All decisions are vLLM's
own.
"""

from __future__ import annotations

from typing import Any

from vllm.config import KVTransferConfig
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from ragcache_engine.backends.vllm.tiers.host_copy import HostCopyWorker


class StockHostSpec(CPUOffloadingSpec):
    """CPUOffloadingSpec with a worker that runs on the CPU platform."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        region = SharedOffloadRegion(
            engine_id=self.config.engine_id,
            num_chunks=self.num_chunks,
            rank=self.config.parallel.rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        return HostCopyWorker(kv_caches, region)


def stock_offload(policy: str, host_bytes: int, *, on_cpu: bool) -> dict[str, Any]:
    """Return vLLM's arguments for its own host offload. policy: "lru" or "arc"."""
    extra: dict[str, Any] = {"cpu_bytes_to_use": host_bytes, "eviction_policy": policy}
    if on_cpu:
        extra |= {"spec_name": "StockHostSpec", "spec_module_path": __name__}
    transfer = KVTransferConfig(
        kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra
    )
    return {"kv_transfer_config": transfer}
