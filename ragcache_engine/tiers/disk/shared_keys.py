"""Lets hosts that share a store have the same keys.

The store has the secret in all names and the keys of tenants, as the files have them, under
`<id of the master key>-<name of the file>`. A tenant's key has behind it the stamp of the tombstone that
the tenant had there when the key was made: with a later one it is outdated, whoever gives it back.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping

from ragcache_engine.tiers.disk.key_files import NAMES, TENANT, KeyFiles, is_outdated
from ragcache_engine.tiers.shared.store import SharedStore, StoreAway

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 5.0
"""A store that could not say a tenant's key is not asked for one again for so many seconds."""


class KeyAway(Exception):
    """The key of a tenant cannot be had now, as the store that has it does not say."""


class SharedKeys:
    """The keys of a folder, as far as the hosts of a store share them.

    The caller lets one call of `find` and `compare` in at a time.
    is_agreed: whether the hosts have the same secret in names, which is the store's; if not, nothing is
      shared. is_other: whether the folder had another one.
    Raises OSError.
    """

    def __init__(self, files: KeyFiles, store: SharedStore) -> None:
        self._files, self._store = files, store
        self._ask_again_s: dict[str, float] = {}  # by name, of keys that could not be had
        self._compared_s: dict[str, float] = {}  # by name: when a key was compared with the store's
        self.is_other = False
        self.is_agreed = self._agree()

    def find(self, name: str) -> bytes:
        """Return the key that all hosts have by this name.

        Raises KeyAway, also for some seconds after the store could not say; OSError.
        """
        now_s = time.monotonic()
        if now_s < self._ask_again_s.get(name, 0.0):
            raise KeyAway("the store that has a tenant's key did not say it lately")
        try:
            key = self._share(name)
        except StoreAway as error:
            self._ask_again_s[name] = now_s + ASK_AGAIN_S
            raise KeyAway("the store that has a tenant's key does not answer") from error
        if key is None:
            self._ask_again_s[name] = now_s + ASK_AGAIN_S
            logger.warning("the key %s in the store cannot be opened", self._shared_name(name))
            raise KeyAway(f"the key {self._shared_name(name)} in the store cannot be opened")
        return key

    def compare(self, name: str) -> None:
        """Take the key that the hosts have now: this host's may be an older one. Once in some seconds.

        Raises KeyAway if the store does not say, OSError.
        """
        now_s = time.monotonic()
        if now_s >= self._compared_s.get(name, 0.0) + ASK_AGAIN_S:
            self.find(name)
            self._compared_s[name] = now_s

    def remove(self, stamps: Mapping[str, str]) -> None:
        """Throw away the store's keys of tenants that are older than these stamps of their tombstones.

        Below those master keys that the files know. Raises StoreAway.
        """
        for mark, stamp in stamps.items():
            for master in self._files.masters:
                name = f"{TENANT}{mark}"
                content = self._store.read_key(f"{master}-{name}")
                key = None if content is None else self._files.decrypt(name, content, master)
                if content is not None and (key is None or is_outdated(key, stamp)):
                    self._store.remove_key(f"{master}-{name}")

    def is_common(self, secret: bytes, store: SharedStore) -> bool:
        """Return whether the other hosts have this secret in names; give it back to them if it was lost.

        Raises StoreAway, OSError.
        """
        name, content = self._shared_name(NAMES), self._files.read(NAMES)
        if (found := store.read_key(name)) != content:
            if found is None:
                store.add_key(name, content)
                self._give_back(store)
                found = store.read_key(name)
            return self._files.decrypt(NAMES, found or b"") == secret
        return True

    def _give_back(self, store: SharedStore) -> None:
        """Give the store the keys of tenants that it lost."""
        for name in self._files.tenants():
            with contextlib.suppress(FileNotFoundError):
                content = self._files.read(name)
                key = self._files.decrypt(name, content)
                [stamp] = store.stamps([name.removeprefix(TENANT)])
                if key is not None and not is_outdated(key, stamp):
                    store.add_key(self._shared_name(name), content)

    def _shared_name(self, name: str) -> str:
        return f"{self._files.name}-{name}"

    def _agree(self) -> bool:
        """Take the secret in names from the other hosts, or give them this one's; False if neither works.

        One in the store that cannot be opened counts as another one.
        """
        before = self._files.find(NAMES) if NAMES in self._files else None
        try:
            key = self._share(NAMES)
        except StoreAway as error:
            logger.warning("the hosts that share a store could not agree on their keys: %s", error)
            return False
        if key is None:
            logger.warning(
                "the key %s in the shared cache cannot be opened", self._shared_name(NAMES)
            )
            return False
        self.is_other = before is not None and before != key
        return True

    def _share(self, name: str) -> bytes | None:
        """Return the key that all hosts have by this name: theirs, or else this one's from now on.

        None if it cannot be opened. Raises StoreAway, OSError.
        """
        files, shared_name = self._files, self._shared_name(name)
        stamp = None if name == NAMES else self._store.stamps([name.removeprefix(TENANT)])[0]
        content = self._store.read_key(shared_name)
        key = None if content is None else files.decrypt(name, content)
        if key is not None and is_outdated(key, stamp):
            self._store.remove_key(shared_name)
            content = None
        if content is None:
            if name in files and is_outdated(files.find(name), stamp):
                files.drop(name)
            if name not in files:
                key = self._find_below_earlier(name)
                if key is not None and not is_outdated(key, stamp):
                    files.add(name, key)
            files.find(name, stamp or "")
            self._store.add_key(shared_name, files.read(name))
            content = self._store.read_key(shared_name)
            key = None if content is None else files.decrypt(name, content)
        if key is not None:
            files.replace(name, key)
        return key

    def _find_below_earlier(self, name: str) -> bytes | None:
        """Return the key that the store has of this name below an earlier master key; None if none."""
        for master in self._files.masters[1:]:
            content = self._store.read_key(f"{master}-{name}")
            if (
                content is not None
                and (key := self._files.decrypt(name, content, master)) is not None
            ):
                return key
        return None
