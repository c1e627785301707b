"""The keys that a disk cache's files are encrypted with: one for each tenant, below a master key.

    <folder>/keys/<id of the master key>/names              the secret in all names; see naming.py
    <folder>/keys/<id of the master key>/tenant-<owner>     the key of a tenant and its users
    <folder>/keys/<id of the master key>/earlier-<id>       a master key that this one took over from

Each of these files is random bytes, encrypted with the master key, which lies nowhere in the folder. So
another master key costs a few short files, not all tensors; and without its file, what a tenant stored
cannot be read any more, from a backup either. Hosts that share a store share the first two kinds of files
through it, under `<id of the master key>-<name of the file>`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from ragcache_engine.errors import ConfigError
from ragcache_engine.tiers.disk.master_keys import KEY_BYTES, read_master_keys
from ragcache_engine.tiers.disk.naming import Naming
from ragcache_engine.tiers.shared.opening import open_store
from ragcache_engine.tiers.shared.store import SharedStore, StoreAway

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

logger = logging.getLogger(__name__)

FOLDER, NAMES, TENANT, EARLIER = "keys", "names", "tenant-", "earlier-"
NONCE_BYTES = 12

ASK_AGAIN_S = 5.0
"""A store that could not say a tenant's key is not asked for one again for so many seconds."""


class KeyAway(Exception):
    """The store through which hosts share a tenant's key does not answer, and this host lacks the key."""


class KeyRing:
    """The keys of one folder. Any thread may call its methods.

    masters: the master key, and before it was changed earlier ones, whose files are encrypted anew. Those
      of the earlier ones go once nobody names them any more: engines that still have one go on.
    shared: where hosts share the secret and tenants' keys; theirs count before those of this folder.
    is_agreed: whether they do.
    naming: names this folder's files. id: stands for its secret in the headers of files.
    is_new: whether the folder had no keys below these master keys, or other ones.
    Raises OSError if the folder cannot be read or written to, ConfigError without the library for it.
    """

    def __init__(
        self, folder: Path, masters: Sequence[bytes], shared: SharedStore | None = None
    ) -> None:
        self._master = _cipher(masters[0])
        keys = folder / FOLDER
        self._place = keys / _id_of(masters[0])
        self._ciphers: dict[str, AESGCM] = {}
        self._finding, self._buffers = Lock(), threading.local()
        self._shared, self._ask_again_s = shared, 0.0
        self.is_new = not self._place.is_dir()
        for made in (folder, keys, self._place):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        named = {_id_of(earlier): earlier for earlier in masters[1:]}
        for name, earlier in named.items():
            self._take_over(keys / name, _cipher(earlier))
        self._remove_earlier(keys, named)
        self.is_agreed = shared is not None and self._agree(shared)
        self.naming = Naming(self._find(NAMES))
        self.id = blake2b(
            b"", digest_size=8, key=self.naming.secret, person=b"key ring"
        ).hexdigest()

    def encrypt(self, owner: str, nonce: bytes, content: memoryview, head: bytes) -> bytes:
        """Return content encrypted with an owner's key, and behind it a tag of 16 bytes.

        owner: as from Naming.owner. nonce: NONCE_BYTES random bytes. head: what the tag vouches for, too.
        Raises OSError, KeyAway.
        """
        return self._cipher_of(owner).encrypt(nonce, content, head)

    def decrypt(
        self, owner: str, nonce: bytes, content: memoryview, head: bytes, target: memoryview
    ) -> bool:
        """Write what was encrypted into `target`; return False if any bit is another one, or the key.

        `target` is undefined then. It has 16 bytes less than content. Raises OSError, KeyAway.
        """
        cipher = self._cipher_of(owner)
        if _decrypt_into(cipher, nonce, content, head, target):
            return True
        # The key may have been thrown away meanwhile by another engine, and there is a new one.
        if not self._is_outdated(owner, cipher):
            return False
        return _decrypt_into(self._cipher_of(owner), nonce, content, head, target)

    def throw_away(self, marks: Iterable[str], *, for_all_hosts: bool = False) -> None:
        """Throw away the keys of the tenants with these marks: nobody reads their files again.

        for_all_hosts: whether the one that hosts share goes too. Raises OSError, StoreAway.
        """
        for mark in marks:
            name = f"{TENANT}{mark}"
            with self._finding:
                for earlier in self._place.parent.glob(f"*/{name}"):
                    earlier.unlink(missing_ok=True)
                self._ciphers.pop(mark, None)
            if for_all_hosts and self.is_agreed and self._shared is not None:
                self._shared.remove_key(self._shared_name(name))

    def buffer(self, size_bytes: int) -> memoryview:
        """Return this thread's memory for what is encrypted: new memory takes longer than reading."""
        memory: bytearray | None = getattr(self._buffers, "memory", None)
        if memory is None or len(memory) < size_bytes:
            memory = self._buffers.memory = bytearray(size_bytes)
        return memoryview(memory)[:size_bytes]

    def _cipher_of(self, owner: str) -> AESGCM:
        if (cipher := self._ciphers.get(owner)) is not None:
            return cipher
        with self._finding:  # a store may take long to say a key; other tenants' are at hand
            if (cipher := self._ciphers.get(owner)) is None:
                cipher = self._ciphers[owner] = _cipher(self._find_tenants(f"{TENANT}{owner}"))
            return cipher

    def _is_outdated(self, owner: str, cipher: AESGCM) -> bool:
        """Forget a tenant's key if its file has gone or changed; return whether it had."""
        path = self._place / f"{TENANT}{owner}"
        with self._finding:
            if self._ciphers.get(owner) is cipher:
                try:
                    key = _open(self._master, path.name, path.read_bytes())
                except FileNotFoundError:
                    key = None
                if key is not None and _are_equal(cipher, _cipher(key)):
                    return False
                del self._ciphers[owner]
        return True

    def _find_tenants(self, name: str) -> bytes:
        """Return a tenant's key: that of all hosts, if they share one. Raises KeyAway, OSError."""
        if not self.is_agreed or self._shared is None:
            return self._find(name)
        path = self._place / name
        if time.monotonic() >= self._ask_again_s:
            try:
                key = self._share(self._shared, name)
            except StoreAway:
                self._ask_again_s = time.monotonic() + ASK_AGAIN_S
            else:
                if key is None:
                    raise KeyAway(
                        f"the key {self._shared_name(name)} in the store cannot be opened"
                    )
                return key
        if path.exists():
            return self._find(name)
        raise KeyAway("the store that has a tenant's key does not answer")

    def is_shared_with(self, shared: SharedStore) -> bool:
        """Return whether the other hosts have the same secret; give it back to them if it was lost.

        Raises StoreAway, OSError.
        """
        name, content = self._shared_name(NAMES), (self._place / NAMES).read_bytes()
        if self.is_agreed and (found := shared.read_key(name)) != content:
            if found is None:
                shared.add_key(name, content)
                found = shared.read_key(name)
            return _open(self._master, NAMES, found or b"") == self.naming.secret
        return self.is_agreed

    def _shared_name(self, name: str) -> str:
        return f"{self._place.name}-{name}"

    def _find(self, name: str) -> bytes:
        """Return the key of this name; make one if there is none, or none that can be read."""
        path = self._place / name
        with contextlib.suppress(FileNotFoundError):
            if (key := _open(self._master, name, path.read_bytes())) is not None:
                return key
            logger.warning("%s is damaged: what was encrypted with it is computed again", path)
            path.unlink(missing_ok=True)
        self._write(name, os.urandom(KEY_BYTES))
        key = _open(self._master, name, path.read_bytes())  # another engine's, if it was sooner
        if key is None:
            raise OSError(f"{path} cannot be written")
        return key

    def _agree(self, shared: SharedStore) -> bool:
        """Take the secret in names from the other hosts, or give them this one's; False if neither works.

        One in the store that cannot be opened counts as another one.
        """
        before = self._find(NAMES) if (self._place / NAMES).exists() else None
        try:
            key = self._share(shared, NAMES)
        except StoreAway as error:
            logger.warning("the hosts that share a store could not agree on their keys: %s", error)
            return False
        if key is None:
            logger.warning(
                "the key %s in the shared cache cannot be opened", self._shared_name(NAMES)
            )
            return False
        self.is_new = self.is_new or (before is not None and before != key)
        return True

    def _share(self, shared: SharedStore, name: str) -> bytes | None:
        """Return the key that all hosts have by this name: theirs, or else this one's from now on.

        None if it cannot be opened. Raises StoreAway, OSError.
        """
        path, shared_name = self._place / name, self._shared_name(name)
        if (content := shared.read_key(shared_name)) is None:
            self._find(name)
            shared.add_key(shared_name, path.read_bytes())
            content = shared.read_key(shared_name)
        key = None if content is None else _open(self._master, name, content)
        if key is not None and not path.exists():
            self._write(name, key)
        elif key is not None and self._find(name) != key:
            path.unlink(missing_ok=True)
            self._write(name, key)
        return key

    def _write(self, name: str, key: bytes) -> None:
        """Write a key's file, unless there is one."""
        path, nonce = self._place / name, os.urandom(NONCE_BYTES)
        written = self._place / f"{name}.{os.urandom(4).hex()}.writing"
        try:
            with open(os.open(written, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(nonce + self._master.encrypt(nonce, key, name.encode()))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(written, path)
        finally:
            written.unlink(missing_ok=True)

    def _take_over(self, place: Path, master: AESGCM) -> None:
        """Encrypt the keys below another master key with this one."""
        if not place.is_dir():
            return
        self.is_new = False
        for path in place.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if (key := _open(master, path.name, path.read_bytes())) is not None:
                    self._write(path.name, key)
        (self._place / f"{EARLIER}{place.name}").touch(mode=0o600)

    def _remove_earlier(self, keys: Path, named: Container[str]) -> None:
        """Remove the keys below those master keys that this one took over and that are named no more."""
        for mark in self._place.glob(f"{EARLIER}*"):
            name = mark.name.removeprefix(EARLIER)
            if name not in named:
                shutil.rmtree(keys / name, ignore_errors=True)
                mark.unlink(missing_ok=True)


@lru_cache(maxsize=8)
def open_key_ring(folder: Path, source: str, shared_cache: str | None = None) -> KeyRing:
    """Return the keys of a folder, once for a process.

    source: as in `read_master_keys`. shared_cache: the URL of a store through which hosts share them.
    Raises ConfigError, OSError.
    """
    masters = read_master_keys(source)
    # The store stays open as long as the process: tenants come at any time.
    return KeyRing(folder, masters, None if shared_cache is None else open_store(shared_cache))


def _open(master: AESGCM, name: str, content: bytes) -> bytes | None:
    """Return the key in a file; None if it is damaged, or another master key's."""
    from cryptography.exceptions import InvalidTag

    try:
        return master.decrypt(content[:NONCE_BYTES], content[NONCE_BYTES:], name.encode())
    except (InvalidTag, ValueError):
        return None


def _decrypt_into(
    cipher: AESGCM, nonce: bytes, content: memoryview, head: bytes, target: memoryview
) -> bool:
    from cryptography.exceptions import InvalidTag

    try:
        cipher.decrypt_into(nonce, content, head, target)
    except (InvalidTag, ValueError):
        return False
    return True


def _are_equal(one: AESGCM, other: AESGCM) -> bool:
    """Return whether two ciphers have one key; they do not tell theirs."""
    nonce = bytes(NONCE_BYTES)
    return one.encrypt(nonce, b"", None) == other.encrypt(nonce, b"", None)


def require_library() -> None:
    """Raise ConfigError without the library that encrypts."""
    _cipher(bytes(KEY_BYTES))


def _id_of(master: bytes) -> str:
    return blake2b(b"ragcache master key", digest_size=8, key=master).hexdigest()


def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigError(
            'an encrypted disk cache needs the library cryptography: pip install "ragcache[encryption]"'
        ) from None
    return AESGCM(key)
