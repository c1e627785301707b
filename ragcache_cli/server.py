"""`ragcache serve`: vLLM's OpenAI-compatible server, with the knowledge tree and its tiers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from pydantic import ValidationError

from ragcache_engine import ConfigError, EngineConfig
from ragcache_engine.backends.choice import budget_of
from ragcache_engine.backends.vllm.installed import require_vllm

OPERATOR_KEY = "RAGCACHE_OPERATOR_KEY"
"""The environment variable with the key that a request needs to make the server forget documents."""


def build_server_command(settings: dict[str, object], given: Sequence[str]) -> list[str]:
    """Return the command that starts the server. settings: fields of EngineConfig. given: further
    arguments of `vllm serve`.

    Raises BackendUnavailable, ConfigError, ModelNotFound.
    """
    require_vllm()
    from ragcache_engine.backends.vllm.serving import server_command

    try:
        config = EngineConfig.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "the tiers"
        raise ConfigError(f"{name}: {first['msg']}") from error
    budget = budget_of(config)
    if key := os.environ.get(OPERATOR_KEY):
        budget = replace(budget, operator_key=key)
    return server_command(config.model, budget, given)


def become_server(settings: dict[str, object], given: Sequence[str]) -> None:
    """Replace this process by the server. Does not return. Raises as `build_server_command` does."""
    command = build_server_command(settings, given)
    if (os.cpu_count() or 1) == 2:
        # vLLM keeps a core free for its scheduler; on two cores that halves the speed of a prefill.
        os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
    os.execv(command[0], command)
