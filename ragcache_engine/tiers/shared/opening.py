"""Opens the store of a URL with the library behind it."""

from __future__ import annotations

import os

from ragcache_engine.errors import ConfigError
from ragcache_engine.tiers.shared.address import PASSWORD, REDIS_SCHEMES, read_address
from ragcache_engine.tiers.shared.store import SharedStore


def open_store(url: str) -> SharedStore:
    """Return the door to the store of this URL; it connects with the first call.

    Raises ConfigError for a wrong URL, or without the library behind it.
    """
    address = read_address(url)
    try:
        if address.scheme in REDIS_SCHEMES:
            from ragcache_engine.tiers.shared.redis_store import RedisStore

            return RedisStore(address, os.environ.get(PASSWORD))
        from ragcache_engine.tiers.shared.object_store import open_object_store

        return open_object_store(address)
    except ModuleNotFoundError as error:
        if error.name not in ("redis", "obstore"):
            raise
        raise ConfigError(
            f"shared_cache={address.url} needs the library {error.name}: "
            'pip install "ragcache-integrations[shared]"'
        ) from error
