"""The keys that a disk cache's files are encrypted with: one for each tenant, below a master key.

They lie in files of the disk's folder (key_files.py). So another master key costs a few short files, not
all tensors; and without its key, what a tenant stored cannot be read any more. Hosts that share a store
have the same keys (shared_keys.py).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from ragcache_engine.tiers.disk.key_files import (
    NAMES,
    NO_STAMPS,
    TENANT,
    FileStamp,
    KeyFiles,
    cipher_of,
)
from ragcache_engine.tiers.disk.master_keys import KEY_BYTES, read_master_keys
from ragcache_engine.tiers.disk.naming import Naming
from ragcache_engine.tiers.disk.shared_keys import SharedKeys
from ragcache_engine.tiers.shared.opening import open_store
from ragcache_engine.tiers.shared.store import SharedStore

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM


class OtherKey(Exception):
    """Something was encrypted with a key that its tenant has no more: nobody can read it."""


class TenantKey(NamedTuple):
    """A tenant's key. id: stands for it in the headers of files, and tells nothing of it."""

    id: str
    cipher: AESGCM


class KeyRing:
    """The keys of one folder. Any thread may call its methods.

    masters: as in KeyFiles. shared: where hosts share keys. A tenant's key is asked for there where this
      folder has none, or another one was used.
    is_agreed: whether the hosts have the same secret in names.
    naming: names this folder's files. id: stands for its secret in the headers of files.
    is_new: whether the folder had no keys below these master keys, or other ones.
    Raises OSError if the folder cannot be read or written to, ConfigError without the library for it.
    """

    def __init__(
        self, folder: Path, masters: Sequence[bytes], shared: SharedStore | None = None
    ) -> None:
        self._files = KeyFiles(folder, masters)
        self._known: dict[str, tuple[FileStamp, TenantKey]] = {}
        self._finding, self._buffers = Lock(), threading.local()
        made = None if shared is None else SharedKeys(self._files, shared)
        self._shared = made if made is not None and made.is_agreed else None
        self.is_agreed = self._shared is not None
        self.is_new = self._files.is_new or (made is not None and made.is_other)
        self.naming = Naming(self._files.find(NAMES)[:KEY_BYTES])
        self.id = blake2b(
            b"", digest_size=8, key=self.naming.secret, person=b"key ring"
        ).hexdigest()

    def key_of(self, owner: str) -> TenantKey:
        """Return an owner's key; a new one if it has none. owner: as from Naming.owner.

        Costs a look at its file: another process may have thrown it away. Raises OSError, KeyAway.
        """
        name, known = f"{TENANT}{owner}", self._known.get(owner)
        if known is not None and known[0] == self._files.stamp(name):
            return known[1]
        while True:
            before = self._files.stamp(name)
            with self._finding:
                secret = self._find(name)
            key = TenantKey(_id_of(secret), cipher_of(secret[:KEY_BYTES]))
            if before is not None and before == self._files.stamp(name):
                self._known[owner] = before, key
                return key

    def decrypt(
        self,
        owner: str,
        key_id: str,
        nonce: bytes,
        content: memoryview,
        head: bytes,
        target: memoryview,
    ) -> bool:
        """Write what was encrypted into `target`; return False if any bit is another one.

        owner: as from Naming.owner. key_id: of the key that it was encrypted with. nonce: NONCE_BYTES
        bytes. head: what the tag vouches for, too. `target` has 16 bytes less than content, and is
        undefined after False. Raises OtherKey, KeyAway, OSError.
        """
        from cryptography.exceptions import InvalidTag

        key = self.key_of(owner)
        if key.id != key_id:
            self._take_common(owner)
            key = self.key_of(owner)
        if key.id != key_id:
            raise OtherKey("it was encrypted with another key of its tenant")
        try:
            key.cipher.decrypt_into(nonce, content, head, target)
        except (InvalidTag, ValueError):
            return False
        return True

    def throw_away(
        self, marks: Collection[str], stamps: Mapping[str, str] = NO_STAMPS
    ) -> list[str]:
        """Throw away this host's keys of the tenants with these marks: see KeyFiles."""
        return self._files.throw_away(marks, stamps)

    def remove_shared(self, stamps: Mapping[str, str]) -> None:
        """Throw away the store's keys of tenants: see SharedKeys.remove. Raises StoreAway."""
        if self._shared is not None:
            self._shared.remove(stamps)

    def is_shared_with(self, shared: SharedStore) -> bool:
        """Return whether the other hosts have the same secret; give it back to them if it was lost.

        Raises StoreAway, OSError.
        """
        return self._shared is not None and self._shared.is_common(self.naming.secret, shared)

    def buffer(self, size_bytes: int) -> memoryview:
        """Return this thread's memory for what is encrypted: new memory takes longer than reading."""
        memory: bytearray | None = getattr(self._buffers, "memory", None)
        if memory is None or len(memory) < size_bytes:
            memory = self._buffers.memory = bytearray(size_bytes)
        return memoryview(memory)[:size_bytes]

    def _find(self, name: str) -> bytes:
        """Return the key of this name: this host's, else that of all hosts, else a new one.

        Raises KeyAway, OSError.
        """
        if self._shared is None or name in self._files:
            return self._files.find(name)
        return self._shared.find(name)

    def _take_common(self, owner: str) -> None:
        """Take the key that the hosts share now, if they do. Callers that come meanwhile wait for it.

        Raises KeyAway, OSError.
        """
        if self._shared is not None:
            with self._finding:
                self._shared.compare(f"{TENANT}{owner}")


@lru_cache(maxsize=8)
def open_key_ring(folder: Path, source: str, shared_cache: str | None = None) -> KeyRing:
    """Return the keys of a folder, once for a process.

    source: as in `read_master_keys`. shared_cache: the URL of a store through which hosts share them.
    Raises ConfigError, OSError.
    """
    masters = read_master_keys(source)
    # The store stays open as long as the process: tenants come at any time.
    return KeyRing(folder, masters, None if shared_cache is None else open_store(shared_cache))


def _id_of(secret: bytes) -> str:
    return blake2b(b"", digest_size=8, key=secret[:KEY_BYTES], person=b"tenant key").hexdigest()
