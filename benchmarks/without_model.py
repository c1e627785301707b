"""Runs vLLM's real scheduler, connector and block pool around a model that computes nothing.

Each slot of the cache holds a hash of all tokens up to its own. So the engine notices a tensor in the
wrong place, and thousands of requests take seconds. What a request borrows is copied slot by slot, as a
worker copies tensors. benchmarks/scheduling.py, tier_hits.py and tests use it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from comparing.stock_offload import stock_offload
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
)
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutput
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
)
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from ragcache_engine.backends.vllm.arguments import build_vllm_config
from ragcache_engine.backends.vllm.borrowing.job import BlockCopy
from ragcache_engine.backends.vllm.budget import TierBudget
from ragcache_engine.knowledge import CostProfile
from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.tiers.speed import ComputingSpeed
from ragcache_engine.tiers.wire import LookedUp, RequestMessage

BLOCK_TOKENS = 16
STEP_TOKENS = 512
PAGE_BYTES = 4096
SLOT_BYTES = 16
NO_CONNECTOR = {"kv_transfer_config": None}
TOKEN_S = 1e-3
"""Seconds that the assumed model takes for one prompt token."""
ANSWER = 7
"""The token that every answer repeats."""


class _OfAModel(ComputingSpeed):
    """Pretends a real model's times: with those of the empty model, no load would ever pay."""

    def record_step(self, cached_tokens: int, computed_tokens: int, seconds: float) -> None:
        super().record_step(cached_tokens, computed_tokens, TOKEN_S * computed_tokens)


class WrongTensors(AssertionError):
    """A request computes with a block that does not hold the tensors of the request's tokens."""


class LateCopies(OffloadingWorker):
    """Copies as late as a GPU may: beside the steps, not when a copy is submitted.

    A copy is carried out when somebody waits for it, else after a random number of further steps.
    copying: carries the copies out, at once.
    """

    def __init__(self, copying: OffloadingWorker, seed: int) -> None:
        self._copying = copying
        self._dice = random.Random(seed)
        # A GPU keeps the order of the copies to the host, and of those from it, but not between them.
        self._stores: list[tuple[int, Any, Any]] = []
        self._loads: list[tuple[int, Any, Any]] = []

    @property
    def is_copying(self) -> bool:
        return bool(self._stores or self._loads)

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self._stores.append((job_id, src_spec, dst_spec))
        return True

    def submit_load(
        self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False
    ) -> bool:
        self._loads.append((job_id, src_spec, dst_spec))
        return True

    def wait(self, job_ids: set[int]) -> None:
        def count(jobs: Sequence[tuple[int, Any, Any]]) -> int:
            return max((n for n, job in enumerate(jobs, start=1) if job[0] in job_ids), default=0)

        self._carry_out(count(self._stores), count(self._loads))

    def get_finished(self) -> list[TransferResult]:
        self._carry_out(
            self._dice.randint(0, len(self._stores)), self._dice.randint(0, len(self._loads))
        )
        return self._copying.get_finished()

    def shutdown(self) -> None:
        self._copying.shutdown()

    def _carry_out(self, stores: int, loads: int) -> None:
        for _ in range(stores):
            self._copying.submit_store(*self._stores.pop(0))
        for _ in range(loads):
            self._copying.submit_load(*self._loads.pop(0))


class ModellessEngine:
    """Runs vLLM's scheduler step by step, around a model that computes nothing.

    model: a folder; only its configuration is read. scheduler: the class, vLLM's or RAGCache's.
    host_blocks: the host tier's size, for vLLM's own offload or RAGCache's tiers, as the scheduler has
      it.
    check: whether to compare, in each step, all slots that a request builds on with the request's
      tokens.
    recompute_ratio: with RAGCache's scheduler, the share of borrowed documents to compute anew; None
      borrows nothing. any_donors: whether served prompts lend as well. donors_later: whether a prompt is
      answered exactly if that computes less than its missing donors. packs_donors: whether donors are
      packed: then two tokens' hashes stand in each slot of a block but the last.
    block_tokens: tokens in a block, 16 or a multiple.
    late_copies: a seed, to carry out copies as late as a GPU may; None carries them out at once.
    arguments: further arguments for vLLM.
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
        block_tokens: int = BLOCK_TOKENS,
        recompute_ratio: float | None = None,
        any_donors: bool = False,
        donors_later: bool = False,
        packs_donors: bool = False,
        late_copies: int | None = None,
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        with_tiers = scheduler.__name__ == "TierScheduler"
        budget = TierBudget(
            policy=policy,
            host_bytes=host_blocks * PAGE_BYTES,
            disk_bytes=disk_bytes,
            disk_folder=disk_folder,
            reorder_window=reorder_window,
            recompute_ratio=recompute_ratio,
            any_donors=any_donors,
            donors_later=donors_later,
            packs_donors=packs_donors,
        )
        chosen: dict[str, Any] = {
            "block_size": block_tokens,
            "max_num_seqs": at_once,
            "max_num_batched_tokens": step_tokens,
            "max_model_len": 8192,
            "dtype": "bfloat16",  # two bytes, as in _cache_config
        }
        if not with_tiers:
            chosen |= (
                stock_offload(stock_policy, host_blocks * PAGE_BYTES, on_cpu=True)
                if host_blocks
                else NO_CONNECTOR
            )
        chosen |= arguments
        self.config: VllmConfig = build_vllm_config(model, 8 << 30, budget, chosen)
        self._check = check
        self._device = torch.zeros((device_blocks, PAGE_BYTES), dtype=torch.int8)
        self._block_tokens = block_tokens
        by_slot = self._device.numpy().reshape(device_blocks * block_tokens, -1)
        self._slots = by_slot[:, :SLOT_BYTES]
        self._packed = by_slot.reshape(len(by_slot), -1, SLOT_BYTES)[:, :2]
        cache = _cache_config(device_blocks, block_tokens)
        self.config.cache_config.num_gpu_blocks = device_blocks
        hash_tokens = get_hash_fn_by_name(self.config.cache_config.prefix_caching_hash_algo)
        init_none_hash(hash_tokens)
        self._hasher = get_request_block_hasher(block_tokens, hash_tokens)
        self.scheduler = scheduler(
            vllm_config=self.config,
            kv_cache_config=cache,
            structured_output_manager=StructuredOutputManager(self.config),
            block_size=block_tokens,
            hash_block_size=block_tokens,
        )
        self._worker = self._make_worker() if with_tiers or host_blocks else None
        self._late = LateCopies(self._worker, late_copies) if late_copies is not None else None
        self._worker = self._late or self._worker
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
        self.recomputed_tokens = 0  # of borrowed documents, and between them
        self.packed_donors = 0

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
        is_trusted: bool = True,
        is_exact: bool = False,
        contexts: Mapping[str, Context] = MappingProxyType({}),
        makes_donors: bool = False,
        looked_up: Iterable[LookedUp] = (),
        withdrawn: Iterable[str] = (),
        stop: Sequence[str] = (),
    ) -> None:
        """Add a request to the queue. Its segments and the rest travel as in tiers.wire."""
        params = SamplingParams(
            max_tokens=answer_tokens, temperature=0, ignore_eos=True, stop=list(stop)
        )
        message = RequestMessage(
            tuple(segments),
            tuple(forget),
            guess,
            is_provisional,
            tuple(adopted),
            is_trusted=is_trusted,
            is_exact=is_exact,
            contexts=contexts,
            makes_donors=makes_donors,
            looked_up=tuple(looked_up),
            withdrawn=tuple(withdrawn),
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
        return {
            one.request_id: (one.kv_transfer_params or {}).get("ragcache") or {}
            for one in self.end_step(*self.begin_step())
            if one.finish_reason is not None
        }

    def begin_step(self) -> tuple[SchedulerOutput, list[list[int]]]:
        """Schedule a step, begin its copies and compute it. Returns it with the tokens it samples."""
        start = time.perf_counter()
        output = self.scheduler.schedule()
        self.scheduling_s += time.perf_counter() - start
        self._begin_copies(output)
        self._borrow(output)
        sampled = self._compute(output)
        self._pack(output)
        return output, sampled

    def end_step(
        self, output: SchedulerOutput, sampled: list[list[int]]
    ) -> Iterator[EngineCoreOutput]:
        """Tell the scheduler what a step has done. Returns what it tells of each request."""
        names = list(output.num_scheduled_tokens)
        copied = self._take_copied()
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
        return (one for each in outputs.values() for one in each.outputs)

    def run(self, most_steps: int = 100_000) -> dict[str, dict[str, Any]]:
        """Step until no request waits or runs, and all copies are done."""
        ended: dict[str, dict[str, Any]] = {}
        for _ in range(most_steps):
            is_copying = self._stores or (self._late and self._late.is_copying)
            if not self.scheduler.has_requests() and not is_copying:
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

    def _begin_copies(self, output: SchedulerOutput) -> None:
        """Begin a step's copies as vLLM's worker side does: stores wait for the next step."""
        if self._worker is None:
            return
        jobs = output.kv_connector_metadata
        assert isinstance(jobs, OffloadingConnectorMetadata)
        for job in jobs.jobs_to_flush or ():
            if job in jobs.store_jobs:
                store = jobs.store_jobs.pop(job)
                self._stores.append((job, store.src_spec, store.dst_spec))
        for job, source, target in self._stores:
            self._worker.submit_store(job, source, target)
        self._worker.wait(jobs.jobs_to_flush or set())
        self._stores = [
            (job, store.src_spec, store.dst_spec) for job, store in jobs.store_jobs.items()
        ]
        for job, load in jobs.load_jobs.items():
            self._loads[job] = load.req_id
            self._worker.submit_load(job, load.src_spec, load.dst_spec)

    def _take_copied(self) -> KVConnectorOutput | None:
        """Return what the worker side would report at the end of a step."""
        if self._worker is None:
            return None
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
            if not self._is_packed(request):
                self.computed_tokens += min(end, asked) - min(start, asked)
            if self._check and self._is_packed(request):
                if self._slots[self._slots_of(name, range(start))].any():
                    raise WrongTensors(f"{name} computes with packed tensors")
            elif self._check:
                self._write(name, request, start, end)
            sampled.append([ANSWER] if end >= request.num_tokens else [])
        return sampled

    def _write(self, name: str, request: Request, start: int, end: int) -> None:
        contents = self._contents_of(request, end)
        slots = self._slots_of(name, range(end))
        held = self._slots[slots]
        wrong = (held[:start] != contents[:start]).any(axis=1)
        if wrong.any():
            raise WrongTensors(f"{name} builds on token {wrong.argmax()}, whose slot holds another")
        self._slots[slots[start:]] = contents[start:]

    def _slots_of(self, name: str, positions: Sequence[int]) -> Any:
        (blocks,) = self.scheduler.kv_cache_manager.get_block_ids(name)
        return self._slots_in(blocks, positions)

    def _slots_in(self, blocks: Sequence[int], positions: Sequence[int]) -> Any:
        at, size = np.asarray(positions, dtype=np.int64), self._block_tokens
        return np.asarray(blocks, dtype=np.int64)[at // size] * size + at % size

    def _contents_of(self, request: Request, end: int) -> Any:
        """Return what the slots of a request's first `end` tokens must hold; shape (end, SLOT_BYTES)."""
        borrowing = self.scheduler.connector.borrowing if self.cache else None
        borrower = borrowing.get(request) if borrowing else None
        tokens, salt = list(request.all_token_ids[:end]), request.cache_salt or ""
        if borrower is None:
            return _contents(salt, tokens)
        plan = borrower.plan
        contents = _contents(f"{salt} {plan.digest.hex()}", tokens)
        exact = min(end, plan.exact_blocks * self._block_tokens)
        contents[:exact] = _contents(salt, tokens[:exact])
        for copy in plan.copies:
            donor = plan.donors[copy.donor]
            lent = _contents(salt, (donor.packs or donor).token_ids)[donor.first :]
            upto = max(0, min(copy.tokens, end - copy.target))
            contents[copy.target : copy.target + upto] = lent[copy.source : copy.source + upto]
        return contents

    def _borrow(self, output: SchedulerOutput) -> None:
        """Copy and recompute what requests borrow, before the step itself is computed."""
        for job in getattr(output.kv_connector_metadata, "pack_jobs", ()):
            tokens = range(len(job.blocks) * self._block_tokens)
            self._packed[self._slots_in(job.blocks, tokens)] = 0
        jobs = getattr(output.kv_connector_metadata, "borrow_jobs", ())
        copies = [(job, copy) for job in jobs for copy in job.copies]
        lent = [self._lent_by(copy) for _, copy in copies]
        for (job, copy), contents in zip(copies, lent, strict=True):
            written = self._slots_in(job.blocks, range(copy.target, copy.target + copy.tokens))
            self._slots[written] = contents
        for job in jobs:
            request = self.scheduler.requests[job.name]
            self.recomputed_tokens += len(job.recomputed)
            if job.recomputed:
                contents = self._contents_of(request, job.recomputed[-1] + 1)[job.recomputed]
                self._slots[self._slots_in(job.blocks, job.recomputed)] = contents

    def _is_packed(self, request: Request) -> bool:
        borrowing = self.scheduler.connector.borrowing if self.cache else None
        is_donor = borrowing is not None and borrowing.describe_donor(request) is not None
        if is_donor and borrowing.is_packed(request):
            assert not any(request.prompt_token_ids), "the model has no such tokens"
            return True
        return False

    def _lent_by(self, copy: BlockCopy) -> Any:
        """Return what the slots of a donor hold, or the places of a packed one; (tokens, SLOT_BYTES)."""
        positions = range(copy.source, copy.source + copy.tokens)
        if copy.packed_first is None:
            return self._slots[self._slots_in(copy.donor_blocks, positions)]
        slots, halves = self._places_in(copy.donor_blocks, positions)
        return self._packed[slots, halves]

    def _pack(self, output: SchedulerOutput) -> None:
        """Pack donors, once the step has been computed."""
        for job in getattr(output.kv_connector_metadata, "pack_jobs", ()):
            tokens = range(job.start, job.start + job.tokens)
            slots, halves = self._places_in(job.blocks, range(job.tokens))
            self._packed[slots, halves] = self._slots[self._slots_in(job.donor_blocks, tokens)]
            self.packed_donors += 1

    def _places_in(self, blocks: Sequence[int], positions: Sequence[int]) -> tuple[Any, Any]:
        """Return where packed tokens are: their slots, and which half of each."""
        at, size = np.asarray(positions, dtype=np.int64), 2 * (self._block_tokens - 1)
        inside = at % size
        slots = np.asarray(blocks, dtype=np.int64)[at // size] * self._block_tokens + inside // 2
        return slots, inside % 2


def _contents(salt: str, tokens: Sequence[int]) -> Any:
    """Return, for each token, a hash of all tokens up to it; shape (tokens, SLOT_BYTES)."""
    reached = blake2b(salt.encode(), digest_size=SLOT_BYTES)
    hashes = bytearray()
    for token in tokens:
        reached.update(token.to_bytes(4, "little"))
        hashes += reached.digest()
    return np.frombuffer(hashes, dtype=np.int8).reshape(len(tokens), SLOT_BYTES)


def connector_spec_config(config: VllmConfig, cache: KVCacheConfig) -> Any:
    """Return the configuration from which vLLM makes an OffloadingSpec."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import (
        build_offloading_config,
    )

    return build_offloading_config(config, cache)


def _cache_config(blocks: int, block_tokens: int) -> KVCacheConfig:
    # 16 tokens of one head of 64 in two bytes, keys and values: 4 KiB.
    spec = FullAttentionSpec(
        block_size=block_tokens,
        num_kv_heads=1,
        head_size=64 * BLOCK_TOKENS // block_tokens,
        dtype=torch.float16,
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
