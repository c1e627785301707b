"""Builds vLLM's arguments for the knowledge tree: a scheduler, a connector, and their settings."""

from __future__ import annotations

import logging
from collections.abc import Set
from typing import Any

import psutil
from vllm.config import KVTransferConfig, ModelConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform

from ragcache_engine.backends.vllm import cpu_defaults, shared_memory
from ragcache_engine.backends.vllm.borrowing.support import require_borrowable_model
from ragcache_engine.backends.vllm.budget import QUEUES_BYTES, TierBudget
from ragcache_engine.backends.vllm.tiers.settings import TierSettings
from ragcache_engine.errors import CannotBorrow
from ragcache_engine.tiers.disk.key_files import require_library
from ragcache_engine.tiers.disk.master_keys import read_master_keys
from ragcache_engine.tiers.shared.opening import open_store

logger = logging.getLogger(__name__)

TIER_ARGUMENTS = ("scheduler_cls", "kv_transfer_config")
"""The arguments of vLLM that the knowledge tree needs."""

MIB = 1 << 20
PACKAGE = "ragcache_engine.backends.vllm.tiers"
BORROWING_WORKER = "ragcache_engine.backends.vllm.borrowing.workers.BorrowingWorker"


def build_tier_arguments(
    arguments: AsyncEngineArgs, budget: TierBudget, given: Set[str]
) -> dict[str, Any]:
    """Return what to add to vLLM's arguments to switch the knowledge tree on.

    given: names of the arguments that the user chose.
    Returns nothing, and logs a warning, if the user chose one of TIER_ARGUMENTS or the tree does not
    support the model. Raises CannotBorrow if documents are to be borrowed, and the model or a worker of
    the user's own forbids it; ConfigError if the disk tier is to be encrypted and there is no key, or if
    the library of the shared store is missing.
    """
    if budget.disk_key is not None:
        require_library()
        read_master_keys(budget.disk_key)
    if budget.shared is not None:
        open_store(budget.shared).close()
    model = arguments.create_model_config()
    if budget.recompute_ratio is not None:
        require_borrowable_model(model)
        if "worker_cls" in given:
            raise CannotBorrow(
                'reuse="anywhere" needs a worker of its own, which computes borrowed tokens anew: leave '
                'worker_cls out, or use reuse="prefix"'
            )
    if taken := [name for name in TIER_ARGUMENTS if name in given]:
        logger.warning(
            "vLLM is given %s, so its own cache is used, without knowledge tree and tiers",
            " and ".join(taken),
        )
        return {}
    if reason := _unsupported(model):
        logger.warning(
            "vLLM's own cache is used, without knowledge tree and tiers: the model %s", reason
        )
        return {}
    host_bytes, disk_bytes = _lower_tiers(budget)
    settings = TierSettings(
        policy=budget.policy,
        host_bytes=host_bytes,
        disk_bytes=disk_bytes,
        disk_folder=str(budget.folder()) if disk_bytes else None,
        disk_key=budget.disk_key,
        shared=budget.shared if disk_bytes else None,
        host_quota_bytes=budget.host_quota_bytes,
        disk_quota_bytes=budget.disk_quota_bytes,
        reorder_window=budget.reorder_window,
        cache_depth=budget.cache_depth,
        recompute_ratio=budget.recompute_ratio,
        any_donors=budget.any_donors,
        donors_later=budget.donors_later,
        packs_donors=budget.packs_donors,
        recheck_share=budget.recheck_share,
        least_rouge_l=budget.least_rouge_l,
        profile=budget.cost_profile.read_text(encoding="utf-8") if budget.cost_profile else None,
        provisional_step_tokens=(
            cpu_defaults.PROVISIONAL_STEP_TOKENS if current_platform.is_cpu() else 0
        ),
    )
    worker = {} if budget.recompute_ratio is None else {"worker_cls": BORROWING_WORKER}
    return {
        **worker,
        # For models without tiers vLLM decides.
        "enable_prefix_caching": True,
        "scheduler_cls": f"{PACKAGE}.scheduler.TierScheduler",
        "kv_transfer_config": KVTransferConfig(
            kv_connector="TierConnector",
            kv_connector_module_path=f"{PACKAGE}.connector",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config=settings.to_extra_config(),
        ),
    }


def _lower_tiers(budget: TierBudget) -> tuple[int, int]:
    """Return the bytes of the host tier and of the disk tier.

    Both are 0, with a warning, if shared memory has no room for the host tier: vLLM would not start, and
    blocks travel to and from the disk through the host.
    """
    wanted_bytes = budget.host_bytes_for(
        is_cpu=current_platform.is_cpu(), free_bytes=psutil.virtual_memory().available
    )
    shared_memory.remove_abandoned()  # first, as it takes room
    shared_bytes = shared_memory.free_bytes()
    host_bytes = budget.host_bytes_within(wanted_bytes, shared_bytes)
    if not wanted_bytes:
        return 0, budget.disk_bytes
    if host_bytes < wanted_bytes:
        logger.warning(
            "%s has %d MiB free, too little for a host tier of %d MiB and vLLM's queues: %s. Start the "
            "container with --shm-size=%dm or --ipc=host, or choose a smaller host cache",
            shared_memory.FOLDER,
            shared_bytes // MIB,
            wanted_bytes // MIB,
            f"the host tier has {host_bytes // MIB} MiB"
            if host_bytes
            else "the host tier is switched off, and the disk tier with it"
            if budget.disk_bytes
            else "the host tier is switched off",
            (wanted_bytes + 2 * QUEUES_BYTES) // MIB,
        )
    return host_bytes, budget.disk_bytes if host_bytes else 0


def _unsupported(model: ModelConfig) -> str | None:
    """Return why the tree does not support the model; None if it does.

    The tree needs blocks of one kind, each with the tensors of all its tokens.
    """
    if model.is_hybrid or model.is_attention_free:
        return "keeps states that are no key-value tensors"
    if model.get_sliding_window():
        return "attends through a sliding window"
    if model.is_encoder_decoder:
        return "is an encoder and decoder"
    return None
