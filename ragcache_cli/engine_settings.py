"""Makes the engine's configuration from a command's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ragcache_engine import ConfigError, EngineConfig


def make_config(settings: Mapping[str, Any]) -> EngineConfig:
    """Make a configuration of these fields. Raises ConfigError, which names the field."""
    try:
        return EngineConfig.model_validate(dict(settings))
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":  # of our own, which names the field by itself
            raise ConfigError(str(first["ctx"]["error"])) from error
        raise ConfigError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def make_command_config(
    model: str, backend: str, dtype: str, engine: Mapping[str, Any]
) -> EngineConfig:
    """Make the configuration of a command that runs a model itself.

    engine: further fields, whose arguments for vLLM win over `dtype`. Raises ConfigError.
    """
    arguments = {"dtype": dtype, **engine.get("vllm_args", {})}
    chosen = {"model": model, "backend": backend, "vllm_log": "show"}
    return make_config({**chosen, **engine, "vllm_args": arguments})
