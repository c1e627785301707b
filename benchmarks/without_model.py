"""Runs vLLM's real scheduler, connector and block pool around a model that computes nothing.

A block of the cache holds a hash of all tokens up to its end. So the engine notices a block in the
wrong place, and thousands of requests take seconds. benchmarks/scheduling.py, tier_hits.py and tests
use it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
)
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
)
from vllm.v1.kv_offload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from ragcache_cli.bench.stock_offload import stock_offload
from ragcache_engine.backends.vllm.arguments import build_vllm_config
from ragcache_engine.backends.vllm.budget import TierBudget
from ragcache_engine.knowledge import CostProfile
from ragcache_engine.tiers.speed import ComputingSpeed
from ragcache_engine.tiers.wire import RequestMessage

BLOCK_TOKENS = 16
STEP_TOKENS = 512
PAGE_BYTES = 4096
NO_CONNECTOR = {"kv_transfer_config": None}
TOKEN_S = 1e-3
"""Seconds that the assumed model takes for one prompt token."""
OPERATOR_KEY = "operator"
ANSWER = 7
"""The token that every answer repeats."""


class _OfAModel(ComputingSpeed):
    """Pretends a real model's times: with those of the empty model, no load would ever pay."""

    def record_step(self, cached_tokens: int, computed_tokens: int, seconds: float) -> None:
        super().record_step(cached_tokens, computed_tokens, TOKEN_S * computed_tokens)


class WrongTensors(AssertionError):
    """A request computes with a block that does not hold the tensors of the request's tokens."""


class ModellessEngine:
    """Runs vLLM's scheduler step by step, around a model that computes nothing.

    model: a folder; only its configuration is read. scheduler: the class, vLLM's or RAGCache's.
    host_blocks: the host tier's size, for vLLM's own offload or RAGCache's tiers, as the scheduler has
      it.
    check: whether to compare, in each step, all blocks that a request builds on with the request's
      tokens.
    """

    def __init__(
        self,
        model: str,
        *,
        scheduler: type,
        device_blocks: int,
        host_blocks: int = 0,
        disk_bytes: int = 0,
        disk_folder: Path | None = None,
        policy: str = "halflife",
        reorder_window: int = 32,
        at_once: int = 16,
        check: bool = True,
        stock_policy: str = "lru",
        step_tokens: int = STEP_TOKENS,
    ) -> None:
        with_tiers = scheduler.__name__ == "TierScheduler"
        budget = TierBudget(
            policy=policy,
            host_bytes=host_blocks * PAGE_BYTES,
            disk_bytes=disk_bytes,
            disk_folder=disk_folder,
            reorder_window=reorder_window,
            operator_key=OPERATOR_KEY,
        )
        arguments: dict[str, Any] = {
            "block_size": BLOCK_TOKENS,
            "max_num_seqs": at_once,
            "max_num_batched_tokens": step_tokens,
            "max_model_len": 8192,
        }
        if not with_tiers:
            arguments |= (
                stock_offload(stock_policy, budget.host_bytes) if host_blocks else NO_CONNECTOR
            )
        self.config: VllmConfig = build_vllm_config(model, 8 << 30, budget, arguments)
        self._check = check
        self._device = torch.zeros((device_blocks, PAGE_BYTES), dtype=torch.int8)
        cache = _cache_config(device_blocks)
        self.config.cache_config.num_gpu_blocks = device_blocks
        hash_tokens = get_hash_fn_by_name(self.config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_tokens)
        self._hasher = get_request_block_hasher(BLOCK_TOKENS, hash_tokens)
        self.scheduler = scheduler(
            vllm_config=self.config,
            kv_cache_config=cache,
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=BLOCK_TOKENS,
            hash_block_size=BLOCK_TOKENS,
        )
        self._worker = self._make_worker() if with_tiers or host_blocks else None
        self.cache: Any = None
        if with_tiers:
            told = self.scheduler.connector.get_handshake_metadata()
            self.scheduler.connector.set_xfer_handshake_metadata_pp_aware({(0, 0): told})
            self.cache = self.scheduler.connector.cache
            self.cache.speeds.computing = _OfAModel(CostProfile.default())
        self._stores: list[tuple[int, Any, Any]] = []
        self._loads: dict[int, str] = {}
        self.scheduling_s = 0.0  # in the scheduler and the connector
        self.computed_tokens = 0  # of prompts

    def ask(
        self,
        name: str,
        token_ids: Sequence[int],
        segments: Iterable[tuple[int, str | None]] = (),
        *,
        answer_tokens: int = 1,
        tenant: str | None = None,
        forget: Iterable[str] = (),
        guess: str | None = None,
        is_provisional: bool = False,
        adopted: Iterable[str] = (),
        operator_key: str | None = OPERATOR_KEY,
    ) -> None:
        """Add a request to the queue. Its segments and the rest travel as in tiers.wire."""
        params = SamplingParams(max_tokens=answer_tokens, temperature=0, ignore_eos=True)
        message = RequestMessage(
            tuple(segments),
            tuple(forget),
            guess,
            is_provisional,
            tuple(adopted),
            operator_key=operator_key,
        )
        carried = {**message.to_dict(), "request": name}
        params.extra_args = {"kv_transfer_params": carried}
        request = Request(
            request_id=name,
            prompt_token_ids=list(token_ids),
            sampling_params=params,
            pooling_params=None,
            cache_salt=tenant,
            block_hasher=self._hasher,
        )
        start = time.perf_counter()
        self.scheduler.add_request(request)
        self.scheduling_s += time.perf_counter() - start

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    @property
    def unfinished(self) -> int:
        return int(self.scheduler.get_num_unfinished_requests())

    def step(self) -> dict[str, dict[str, Any]]:
        """Do one step. Returns, by name, the messages to the requests that ended with it."""
        start = time.perf_counter()
        output = self.scheduler.schedule()
        self.scheduling_s += time.perf_counter() - start
        copied = self._copy(output)
        sampled = self._compute(output)
        names = list(output.num_scheduled_tokens)
        start = time.perf_counter()
        outputs = self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: at for at, name in enumerate(names)},
                sampled_token_ids=sampled,
                kv_connector_output=copied,
            ),
        )
        self.scheduling_s += time.perf_counter() - start
        return {
            one.request_id: (one.kv_transfer_params or {}).get("ragcache") or {}
            for each in outputs.values()
            for one in each.outputs
            if one.finish_reason is not None
        }

    def run(self, most_steps: int = 100_000) -> dict[str, dict[str, Any]]:
        """Step until no request waits or runs, and all copies are done."""
        ended: dict[str, dict[str, Any]] = {}
        for _ in range(most_steps):
            if not self.scheduler.has_requests() and not self._stores:
                self._wait_for_disk()
                return ended
            ended.update(self.step())
        raise AssertionError(f"{self.unfinished} requests still wait after {most_steps} steps")

    def _wait_for_disk(self) -> None:
        while self.cache and self.cache.is_writing_disk:
            time.sleep(0.001)
            self.cache.step()

    def close(self) -> None:
        self.scheduler.shutdown()
        if self._worker:
            self._worker.shutdown()

    def _make_worker(self) -> Any:
        spec = OffloadingSpecFactory.create_spec(
            connector_spec_config(self.config, self.scheduler.kv_cache_config)
        )
        tensor = CanonicalKVCacheTensor(self._device, PAGE_BYTES)
        return spec.get_worker(CanonicalKVCaches([tensor], [[CanonicalKVCacheRef(0, PAGE_BYTES)]]))

    def _copy(self, output: SchedulerOutput) -> KVConnectorOutput | None:
        """Carry out a step's copy jobs as vLLM's worker side does: stores wait for the next step."""
        if self._worker is None:
            return None
        jobs = output.kv_connector_metadata
        assert isinstance(jobs, OffloadingConnectorMetadata)
        for job in jobs.jobs_to_flush or ():
            if job in jobs.store_jobs:
                store = jobs.store_jobs.pop(job)
                self._stores.append((job, store.src_spec, store.dst_spec))
        for job, source, target in self._stores:
            self._worker.submit_store(job, source, target)
        self._stores = [
            (job, store.src_spec, store.dst_spec) for job, store in jobs.store_jobs.items()
        ]
        for job, load in jobs.load_jobs.items():
            self._loads[job] = load.req_id
            self._worker.submit_load(job, load.src_spec, load.dst_spec)
        told, received = OffloadingWorkerMetadata(), set()
        for done in self._worker.get_finished():
            told.mark_completed(done.job_id)
            if done.job_id in self._loads:
                received.add(self._loads.pop(done.job_id))
                told.transfer_stats.load.record(done.transfer_size, done.transfer_time)
        return KVConnectorOutput(finished_recving=received, kv_connector_worker_meta=told)

    def _compute(self, output: SchedulerOutput) -> list[list[int]]:
        """Write the blocks of the scheduled tokens, and check the blocks that they build on."""
        sampled = []
        for name, count in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            end = request.num_computed_tokens  # advanced when the step was scheduled
            start = end - count
            asked = request.num_prompt_tokens
            self.computed_tokens += min(end, asked) - min(start, asked)
            if self._check:
                self._write(name, request, start, end)
            sampled.append([ANSWER] if end >= request.num_tokens else [])
        return sampled

    def _write(self, name: str, request: Request, start: int, end: int) -> None:
        (blocks,) = self.scheduler.kv_cache_manager.get_block_ids(name)
        tokens = request.all_token_ids
        reached = blake2b((request.cache_salt or "").encode(), digest_size=32)
        for at in range(end // BLOCK_TOKENS):
            part = tokens[at * BLOCK_TOKENS : (at + 1) * BLOCK_TOKENS]
            reached.update(repr(list(part)).encode())
            content = torch.frombuffer(bytearray(reached.digest()), dtype=torch.int8)
            row = self._device[blocks[at]]
            if (at + 1) * BLOCK_TOKENS > start:
                row[:32] = content
                row[-32:] = content
            elif not (torch.equal(row[:32], content) and torch.equal(row[-32:], content)):
                raise WrongTensors(f"{name} builds on block {at}, which holds something else")


def connector_spec_config(config: VllmConfig, cache: KVCacheConfig) -> Any:
    """Return the configuration from which vLLM makes an OffloadingSpec."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import (
        build_offloading_config,
    )

    return build_offloading_config(config, cache)


def _cache_config(blocks: int) -> KVCacheConfig:
    # 16 tokens of one head of 64 in two bytes, keys and values: 4 KiB.
    spec = FullAttentionSpec(
        block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=64, dtype=torch.float16
    )
    assert spec.page_size_bytes == PAGE_BYTES
    tensor = KVCacheTensor(
        size=blocks * PAGE_BYTES,
        layers=["layer"],
        layer_stride=blocks * PAGE_BYTES,
        block_stride=PAGE_BYTES,
    )
    return KVCacheConfig(
        num_blocks=blocks,
        kv_cache_tensors=[tensor],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
