"""Finds the folder that keeps models, indexes, logs, tensors and measurements between runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Return $RAGCACHE_HOME, else $XDG_CACHE_HOME/ragcache, else ~/.cache/ragcache. Makes no folder."""
    if home := environment.get("RAGCACHE_HOME"):
        return Path(home).expanduser()
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "ragcache"
