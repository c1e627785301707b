"""Builds vLLM's configuration from our settings, and chooses what the user leaves open."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import psutil
import torch
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext

from ragcache_engine.backends.vllm import cpu_defaults
from ragcache_engine.backends.vllm.borrowing.support import require_borrowable_engine
from ragcache_engine.backends.vllm.budget import TierBudget
from ragcache_engine.backends.vllm.core_executor import CORE_EXECUTOR, can_run_in_core
from ragcache_engine.backends.vllm.cpu_precision import is_slow_in_bfloat16
from ragcache_engine.backends.vllm.model_lookup import require_model
from ragcache_engine.backends.vllm.tier_arguments import BORROWING_WORKER, build_tier_arguments
from ragcache_engine.errors import ConfigError, ModelNotFound

logger = logging.getLogger(__name__)

GIB = 1 << 30


def build_vllm_config(
    model: str,
    device_cache_bytes: int | None,
    budget: TierBudget,
    vllm_args: Mapping[str, Any],
) -> VllmConfig:
    """Build vLLM's configuration and let vLLM check it. Starts nothing.

    device_cache_bytes: None leaves the choice to RAGCache on a CPU, and to vLLM on a GPU.
    vllm_args: the user's arguments for vLLM; they win over what RAGCache would choose.
    Raises ModelNotFound, or ConfigError for arguments that vLLM refuses and for a device cache too
    small for one request of the model's full context; CannotBorrow if the budget has a recompute ratio
    that the model or the arguments make impossible.
    """
    require_model(model)
    chosen = _choose_arguments(device_cache_bytes)
    if "model" in vllm_args:
        raise ConfigError("the model goes into EngineConfig(model=...), not into vllm_args")
    try:
        arguments = AsyncEngineArgs(model=model, **{**chosen, **vllm_args})
    except TypeError as error:
        raise ConfigError(f"vllm_args holds a name vLLM does not know: {error}") from error
    try:
        for name, value in build_tier_arguments(arguments, budget, set(vllm_args)).items():
            if name not in vllm_args:
                setattr(arguments, name, value)
        if can_run_in_core(arguments):
            arguments.distributed_executor_backend = CORE_EXECUTOR
        # Take the step and batch sizes of vLLM's LLM class, which users replace, not of its bare engine.
        config = arguments.create_engine_config(UsageContext.LLM_CLASS)
    except ConfigError:
        raise
    except OSError as error:
        raise ModelNotFound(
            f"no model {model!r}: it is not a folder, and the hub did not give it ({error})"
        ) from error
    except (ValueError, LookupError, RuntimeError) as error:  # the last two of a reasoning parser
        raise ConfigError(f"vLLM refuses this configuration: {error}") from error
    if budget.recompute_ratio is not None:
        require_borrowable_engine(config, BORROWING_WORKER)
    _require_room(config)
    _warn_of_slow_dtype(config)
    return config


def _choose_arguments(device_cache_bytes: int | None) -> dict[str, Any]:
    """Choose the arguments that differ from vLLM's own defaults on this platform."""
    arguments: dict[str, Any] = {"kv_cache_memory_bytes": device_cache_bytes}
    if current_platform.is_cpu():
        arguments["block_size"] = cpu_defaults.BLOCK_TOKENS
        # torch.compile needs a C++ compiler on the user's machine, and a minute at every start.
        arguments["enforce_eager"] = True
        if device_cache_bytes is None:
            free_bytes = psutil.virtual_memory().available
            arguments["kv_cache_memory_bytes"] = cpu_defaults.cache_bytes(free_bytes)
    return arguments


def _require_room(config: VllmConfig) -> None:
    """Raise ConfigError for a device cache too small for one request of the full context.

    vLLM would refuse it too, half a minute later and in its own process.
    """
    cache_bytes = config.cache_config.kv_cache_memory_bytes
    model = config.model_config
    token_bytes = kv_token_bytes(config)
    if cache_bytes is None or token_bytes is None:
        return
    needed = token_bytes * model.max_model_len
    if cache_bytes < needed:
        raise ConfigError(
            f"device_cache={cache_bytes / GIB:.2f} GiB holds {cache_bytes // token_bytes} tokens, "
            f"fewer than one request of {model.max_model_len}: raise device_cache to at least "
            f"{needed / GIB:.2f} GiB, or lower max_model_len in vllm_args"
        )


def _warn_of_slow_dtype(config: VllmConfig) -> None:
    """Log a warning for 16 bits on a CPU that has no fast product for them.

    The type stays vLLM's choice: another one may change answers.
    """
    dtype = config.model_config.dtype
    if not current_platform.is_cpu() or dtype not in (torch.bfloat16, torch.float16):
        return
    if is_slow_in_bfloat16():
        logger.warning(
            "The model runs in %s, and this CPU is many times faster in float32: "
            'set vllm_args={"dtype": "float32"} (or --dtype float32)',
            str(dtype).removeprefix("torch."),
        )


def kv_token_bytes(config: VllmConfig) -> int | None:
    """Return the bytes of key-value memory per token; None for models that keep other states."""
    model, parallel = config.model_config, config.parallel_config
    if model.use_mla or model.is_hybrid or model.get_sliding_window():
        return None
    dtype = model.dtype if config.cache_config.cache_dtype == "auto" else torch.int8  # fp8
    assert isinstance(dtype, torch.dtype)  # vLLM has resolved "auto" by now
    return (
        2  # a key and a value
        * model.get_num_layers(parallel)
        * model.get_num_kv_heads(parallel)
        * model.get_head_size()
        * dtype.itemsize
    )
