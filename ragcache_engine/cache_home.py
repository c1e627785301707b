"""Finds the folder that keeps models, indexes, logs, tensors and measurements between runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ragcache_engine.errors import ConfigError


def cache_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return $RAGCACHE_HOME, else $XDG_CACHE_HOME/ragcache, else ~/.cache/ragcache. Makes no folder.

    Raises ConfigError if that begins with ~ and this user has no home.
    """
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    place = Path(environment.get("RAGCACHE_HOME") or f"{base}/ragcache")
    try:
        return place.expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{place} is in the home folder of this user, and the user has none: set RAGCACHE_HOME to a "
            f"folder that can be written"
        ) from error
