"""Makes the cache manager in the scheduler's process, and the copying worker in each worker's process."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    OffloadingManager,
    OffloadingMetricMetadata,
    OffloadingWorker,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from ragcache_engine.backends.vllm import shared_memory
from ragcache_engine.backends.vllm.differences import map_on_demand
from ragcache_engine.backends.vllm.tiers.host_copy import HostCopyWorker, IdleWorker
from ragcache_engine.backends.vllm.tiers.metrics import build_definitions
from ragcache_engine.backends.vllm.tiers.offloading import TierOffloadingManager, Workers
from ragcache_engine.backends.vllm.tiers.origin import NoOrigin, build_origin
from ragcache_engine.backends.vllm.tiers.settings import TierSettings
from ragcache_engine.backends.vllm.tiers.weights import UnknownWeights
from ragcache_engine.errors import ConfigError
from ragcache_engine.knowledge import CostProfile, Tier, policy_of_tiers
from ragcache_engine.tiers.disk.block_file import Origin
from ragcache_engine.tiers.disk.folder import DiskFolder
from ragcache_engine.tiers.disk.key_files import FOLDER as KEYS_FOLDER
from ragcache_engine.tiers.disk.key_ring import KeyRing
from ragcache_engine.tiers.disk.transfers import DiskTransfers, SlotMemory
from ragcache_engine.tiers.host_slots import HostSlots
from ragcache_engine.tiers.manager import CacheManager
from ragcache_engine.tiers.shared.forgotten import ForgottenElsewhere
from ragcache_engine.tiers.shared.opening import open_store
from ragcache_engine.tiers.shared.store import StoreAway
from ragcache_engine.tiers.shared.transfers import SharedTransfers, first_line

logger = logging.getLogger(__name__)

HEADER_BYTES, HEADER_BYTES_OF_WORKER = 1280, 96
"""What a block's file has besides its tensors, at most: encrypted, and computed from 32 documents."""


class TierSpec(TieringOffloadingSpec):
    """Makes the manager or the worker for one process of vLLM. vLLM makes one spec in each process."""

    @classmethod
    def build_metric_definitions(
        cls, extra_config: dict[str, Any]
    ) -> dict[str, OffloadingMetricMetadata]:
        return build_definitions()

    def __init__(self, config: OffloadingConfig) -> None:
        # vLLM names the memory after the engine.
        super().__init__(replace(config, engine_id=shared_memory.name_memory(config.engine_id)))
        self._claim: FileIO | None = None
        self._settings = TierSettings.from_extra_config(config.extra_config)
        self._tier_manager: TierOffloadingManager | None = None
        self._tier_worker: OffloadingWorker | None = None

    def get_manager(self) -> OffloadingManager:
        if self._tier_manager is None:
            self._tier_manager = self._make_manager()
        return self._tier_manager

    @classmethod
    def config_info_keys(cls, extra_config: dict[str, Any]) -> tuple[str, ...]:
        # vLLM 0.33 would announce the settings of its own manager, which ours does not have.
        return ()

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._tier_worker is None:
            self._tier_worker = self._make_worker(kv_caches)
        return self._tier_worker

    def _make_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if not self.num_chunks:
            return IdleWorker()
        self._claim_memory()
        region = self._map_region(self.config.parallel.rank)
        try:
            if current_platform.is_cpu():
                return HostCopyWorker(kv_caches, region)
            # Not by the parent's `create_worker`: it maps the memory in its own way, and where it does
            # so with several files, it misses those that the claim has not made.
            return CPUOffloadingWorker(
                kv_caches=kv_caches,
                blocks_per_chunk=self.blocks_per_chunk,
                num_cpu_chunks=self.num_chunks,
                mmap_region=region,
            )
        except Exception:
            region.cleanup()
            raise

    def _make_manager(self) -> TierOffloadingManager:
        settings = self._settings
        (group,) = self.config.groups  # find_obstacle has refused all else
        cache: CacheManager[KVCacheBlock] = CacheManager(
            policy=policy_of_tiers(settings.policy),
            block_tokens=group.tokens_per_block,
            block_bytes=self.kv_bytes_per_chunk,
            host=HostSlots(self.num_chunks),
            disk_blocks=self._disk_blocks(),
            profile=CostProfile.from_json(settings.profile) if settings.profile else None,
            protect=settings.reorder_window,
            quotas=self._quotas(),
        )
        with ExitStack() as undo:
            self._claim_memory()
            region = self._map_region(None) if self.num_chunks else None
            if region:
                undo.callback(region.cleanup)
            resources = undo.pop_all()

        def complete(config: VllmConfig, workers: Workers) -> None:
            shared_memory.remove(self.config.engine_id)  # every process has mapped it by now
            if region and settings.disk_bytes:
                self._attach_disk(cache, region, config, workers, resources)

        return TierOffloadingManager(cache, complete, resources.close)

    def _disk_blocks(self) -> int:
        """Count the blocks that the disk tier holds."""
        return self._settings.disk_bytes // self._file_bytes

    @property
    def _file_bytes(self) -> int:
        """The bytes of a block's file: its tensors, and a header that tells of every worker."""
        return self.kv_bytes_per_chunk + HEADER_BYTES + HEADER_BYTES_OF_WORKER * self._workers

    @property
    def _workers(self) -> int:
        return self.config.parallel.world_size

    def _quotas(self) -> dict[Tier, int]:
        """Count the blocks of a tier that one tenant may take, where that is limited."""
        settings = self._settings
        quotas = (
            (Tier.HOST, settings.host_quota_bytes, self.kv_bytes_per_chunk),
            (Tier.DISK, settings.disk_quota_bytes, self._file_bytes),
        )
        for tier, quota, size in quotas:
            if quota is not None and quota < size:
                logger.warning(
                    "%s_cache_per_tenant is %d bytes, and a block takes %d: tenants cache nothing there",
                    tier.value,
                    quota,
                    size,
                )
        return {tier: quota // size for tier, quota, size in quotas if quota is not None}

    def _attach_disk(
        self,
        cache: CacheManager[KVCacheBlock],
        region: SharedOffloadRegion,
        vllm_config: VllmConfig,
        workers: Workers,
        undo: ExitStack,
    ) -> None:
        """Give the manager a disk tier; log a warning and give none if that would be unsafe or fails."""
        settings, parallel = self._settings, self.config.parallel
        assert settings.disk_folder is not None
        place = Path(settings.disk_folder)
        try:
            origin = build_origin(
                vllm_config,
                workers,
                block_tokens=cache.block_tokens,
                block_layout=f"{self.config.kv_cache_layout} {self.kv_bytes_per_chunk} "
                f"tp{parallel.tp_size} of {parallel.world_size}",
                folder=place,
            )
            keys = settings.open_keys()
            if keys is None and (place / KEYS_FOLDER).is_dir():
                logger.warning(
                    "%s holds encrypted files, and this engine does not encrypt: set disk_cache_key, or "
                    "remove %s",
                    place,
                    place / KEYS_FOLDER,
                )
            folder = DiskFolder(place, origin, settings.disk_bytes, keys)
        except ConfigError as error:
            logger.warning("the disk tier is switched off: %s. Requests are still answered", error)
            return
        except (NoOrigin, UnknownWeights) as error:
            logger.warning(
                "the disk tier is switched off, because tensors from it could be others' unnoticed: %s. "
                "Requests are still answered",
                error,
            )
            return
        except OSError as error:
            logger.warning(
                "the disk tier is switched off, because its folder cannot be used: %s. Requests are "
                "still answered; choose another folder for the disk cache to have a disk tier",
                error,
            )
            return
        rows = region.create_kv_memoryview()
        undo.callback(rows.release)
        size = self.kv_bytes_per_chunk
        flat = rows.cast("B")
        undo.callback(flat.release)

        def slots(slot: int) -> memoryview:
            return flat[slot * size : (slot + 1) * size]

        transfers = DiskTransfers(folder, slots, cache.knows_file)
        undo.callback(transfers.close)
        shared = self._open_shared(folder, transfers, origin, slots, keys)
        if shared:
            undo.callback(shared.close)
        cache.attach_disk(transfers, folder.naming, shared)

    def _open_shared(
        self,
        folder: DiskFolder,
        transfers: DiskTransfers,
        origin: Origin,
        slots: SlotMemory,
        keys: KeyRing | None,
    ) -> SharedTransfers | None:
        """Return the copies to and from the shared store; None without one, or if it cannot be used."""
        url = self._settings.shared
        if url is None:
            return None
        try:
            if keys is not None and not keys.is_agreed:
                raise StoreAway("the hosts' keys could not be asked for")
            store = open_store(url)
            forgotten = ForgottenElsewhere(folder.folder, store, keys)
        except (ConfigError, OSError, StoreAway) as error:
            logger.warning(
                "the shared cache is switched off until the next start: %s. Requests are answered",
                error,
            )
            return None
        try:
            # First of all: this host may hold what others forgot while it was away.
            forgotten.catch_up()
            if warning := store.describe_risk():
                logger.warning("%s", warning)
        except Exception as error:
            logger.warning(
                "the shared cache does not answer yet: %s. Until it does, and tells what other hosts "
                "have forgotten, the files of earlier engines are not used",
                first_line(error),
            )
        if not forgotten.has_looked:
            folder.hide_earlier()

        def look_soon() -> None:
            folder.show_earlier()
            transfers.look_soon()

        return SharedTransfers(
            store,
            origin,
            slots,
            forbids=folder.forbids,
            forgotten=forgotten,
            look_soon=look_soon,
            keys=keys,
        )

    def _claim_memory(self) -> None:
        """Make the host tier's memory before vLLM would, so that it is locked from its first moment."""
        if self.num_chunks and self._claim is None:
            size_bytes = self.num_chunks * self.kv_bytes_per_chunk
            self._claim = shared_memory.claim(self.config.engine_id, size_bytes)

    def _map_region(self, rank: int | None) -> SharedOffloadRegion:
        """Map the host tier's memory into this process. rank: the worker's; None for the scheduler.

        Only workers touch all pages at once, each its own. The scheduler's process reads and writes slots
        of the disk tier alone, so its pages are mapped as they are needed: for all of them every start
        would wait 0.3 s a GiB.
        """
        return SharedOffloadRegion(
            engine_id=self.config.engine_id,
            num_chunks=self.num_chunks,
            rank=rank,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
            **(map_on_demand() if rank is None else {}),
        )
