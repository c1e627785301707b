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
        name = ".".join(map(str, first["loc"])) or "the tiers"
        raise ConfigError(f"{name}: {first['msg']}") from error
