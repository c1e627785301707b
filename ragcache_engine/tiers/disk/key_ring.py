"""The keys that a disk cache's files are encrypted with: one for each tenant, below a master key.

    <folder>/keys/<id of the master key>/names              the secret in all names; see naming.py
    <folder>/keys/<id of the master key>/tenant-<owner>     the key of a tenant and its users
    <folder>/keys/<id of the master key>/earlier-<id>       a master key that this one took over from

Each of these files is random bytes, encrypted with the master key, which lies nowhere in the folder. So
another master key costs a few short files, not all tensors; and without its file, what a tenant stored
cannot be read any more. Hosts that share a store share the first two kinds of files through it, under
`<id of the master key>-<name of the file>`. A tenant's key has behind it the stamp of the tombstone that
the tenant had there when the key was made: with a later one it is outdated, whoever gives it back.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Collection, Container, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

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

_FileStamp = tuple[int, int] | None
"""What changes with a file; None if there is none."""

NO_STAMPS: Mapping[str, str] = {}

ASK_AGAIN_S = 5.0
"""A store that could not say a tenant's key is not asked for one again for so many seconds."""


class KeyAway(Exception):
    """The key of a tenant cannot be had now, as the store that has it does not say."""


class OtherKey(Exception):
    """Something was encrypted with a key that its tenant has no more: nobody can read it."""


class TenantKey(NamedTuple):
    """A tenant's key. id: stands for it in the headers of files, and tells nothing of it."""

    id: str
    cipher: AESGCM


class KeyRing:
    """The keys of one folder. Any thread may call its methods.

    masters: the master key, and before it was changed earlier ones, whose files are encrypted anew. Those
      of the earlier ones go once nobody names them any more: engines that still have one go on.
    shared: where hosts share the secret and tenants' keys. The secret there counts before that of this
      folder; a tenant's key is asked for where this folder has none, or another one was used.
    is_agreed: whether the hosts have the same secret.
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
        self._known: dict[str, tuple[_FileStamp, TenantKey]] = {}
        self._finding, self._buffers = Lock(), threading.local()
        self._shared = shared
        self._ask_again_s: dict[str, float] = {}  # by owner, of keys that could not be had
        self._compared_s: dict[
            str, float
        ] = {}  # by owner: when its key was compared with the store's
        self.is_new = not self._place.is_dir()
        for made in (folder, keys, self._place):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        named = {_id_of(earlier): earlier for earlier in masters[1:]}
        self._earlier = {name: _cipher(earlier) for name, earlier in named.items()}
        for name, cipher in self._earlier.items():
            self._take_over(keys / name, cipher)
        self._remove_earlier(keys, named)
        self.is_agreed = shared is not None and self._agree(shared)
        self.naming = Naming(self._find(NAMES)[:KEY_BYTES])
        self.id = blake2b(
            b"", digest_size=8, key=self.naming.secret, person=b"key ring"
        ).hexdigest()

    def key_of(self, owner: str) -> TenantKey:
        """Return an owner's key; a new one if it has none. owner: as from Naming.owner.

        Costs a look at its file: another process may have thrown it away. Raises OSError, KeyAway.
        """
        path, known = self._place / f"{TENANT}{owner}", self._known.get(owner)
        if known is not None and known[0] == _stamp(path):
            return known[1]
        while True:
            before = _stamp(path)
            with self._finding:
                secret = self._find_tenants(path.name)
            key = TenantKey(_key_id(secret), _cipher(secret[:KEY_BYTES]))
            if before is not None and before == _stamp(path):
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
            self._compare(owner)
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
        """Throw away this host's keys of the tenants with these marks, below whatever master key.

        stamps: of their tombstones in the store: a key that was made since then stays. Returns the marks
        of those that had a key. Raises OSError.
        """
        doomed: dict[Path, str] = {}
        for path in self._place.parent.glob(f"*/{TENANT}*"):
            mark = path.name.removeprefix(TENANT).partition(".")[0]  # of unfinished ones, too
            if mark not in marks:
                continue
            with contextlib.suppress(FileNotFoundError):
                secret = _open(self._master, path.name, path.read_bytes())
                if secret is None or mark not in stamps or _is_outdated(secret, stamps[mark]):
                    doomed[path] = mark
        for path in doomed:
            path.unlink(missing_ok=True)
        for place in {path.parent for path in doomed}:
            _sync(place)
        return [*dict.fromkeys(doomed.values())]

    def remove_shared(self, stamps: Mapping[str, str]) -> None:
        """Throw away the store's keys of tenants that are older than these stamps of their tombstones.

        Below those master keys that this ring knows. Raises StoreAway.
        """
        if self._shared is None or not self.is_agreed:
            return
        for mark, stamp in stamps.items():
            for master, cipher in ((self._place.name, self._master), *self._earlier.items()):
                name = f"{TENANT}{mark}"
                content = self._shared.read_key(f"{master}-{name}")
                secret = None if content is None else _open(cipher, name, content)
                if content is not None and (secret is None or _is_outdated(secret, stamp)):
                    self._shared.remove_key(f"{master}-{name}")

    def buffer(self, size_bytes: int) -> memoryview:
        """Return this thread's memory for what is encrypted: new memory takes longer than reading."""
        memory: bytearray | None = getattr(self._buffers, "memory", None)
        if memory is None or len(memory) < size_bytes:
            memory = self._buffers.memory = bytearray(size_bytes)
        return memoryview(memory)[:size_bytes]

    def _compare(self, owner: str) -> None:
        """Take the key that the hosts share now, if they do: this host's may be an older one.

        Once in some seconds; callers that come meanwhile wait for it. Raises KeyAway if the store does
        not say, OSError.
        """
        if self._shared is None or not self.is_agreed:
            return
        with self._finding:
            now_s = time.monotonic()
            if now_s < self._compared_s.get(owner, 0.0) + ASK_AGAIN_S:
                return
            self._share_or_wait(self._shared, f"{TENANT}{owner}")
            self._compared_s[owner] = now_s

    def _find_tenants(self, name: str) -> bytes:
        """Return the key of this name: this host's, else that of all hosts, else a new one.

        Raises KeyAway, OSError.
        """
        if self._shared is None or not self.is_agreed or (self._place / name).exists():
            return self._find(name)
        return self._share_or_wait(self._shared, name)

    def _share_or_wait(self, shared: SharedStore, name: str) -> bytes:
        """Return the key that all hosts have by this name. Raises KeyAway, and soon after again."""
        owner, now_s = name.removeprefix(TENANT), time.monotonic()
        if now_s < self._ask_again_s.get(owner, 0.0):
            raise KeyAway("the store that has a tenant's key did not say it lately")
        try:
            key = self._share(shared, name)
        except StoreAway as error:
            self._ask_again_s[owner] = now_s + ASK_AGAIN_S
            raise KeyAway("the store that has a tenant's key does not answer") from error
        if key is None:
            self._ask_again_s[owner] = now_s + ASK_AGAIN_S
            logger.warning("the key %s in the store cannot be opened", self._shared_name(name))
            raise KeyAway(f"the key {self._shared_name(name)} in the store cannot be opened")
        return key

    def is_shared_with(self, shared: SharedStore) -> bool:
        """Return whether the other hosts have the same secret; give it back to them if it was lost.

        Raises StoreAway, OSError.
        """
        name, content = self._shared_name(NAMES), (self._place / NAMES).read_bytes()
        if self.is_agreed and (found := shared.read_key(name)) != content:
            if found is None:
                shared.add_key(name, content)
                self._give_back(shared)
                found = shared.read_key(name)
            return _open(self._master, NAMES, found or b"") == self.naming.secret
        return self.is_agreed

    def _give_back(self, shared: SharedStore) -> None:
        """Give the store the keys of tenants that it lost."""
        for path in self._place.glob(f"{TENANT}*"):
            with contextlib.suppress(FileNotFoundError):
                content = path.read_bytes()
                secret = _open(self._master, path.name, content)
                [stamp] = shared.stamps([path.name.removeprefix(TENANT)])
                if secret is not None and not _is_outdated(secret, stamp):
                    shared.add_key(self._shared_name(path.name), content)

    def _shared_name(self, name: str) -> str:
        return f"{self._place.name}-{name}"

    def _find(self, name: str, stamp: str = "") -> bytes:
        """Return the key of this name; make one if there is none, or none that can be read.

        stamp: goes behind a new one.
        """
        path = self._place / name
        with contextlib.suppress(FileNotFoundError):
            if (key := _open(self._master, name, path.read_bytes())) is not None:
                return key
            logger.warning("%s is damaged: what was encrypted with it is computed again", path)
            path.unlink(missing_ok=True)
        self._write(name, os.urandom(KEY_BYTES) + stamp.encode())
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
        stamp = None if name == NAMES else shared.stamps([name.removeprefix(TENANT)])[0]
        content = shared.read_key(shared_name)
        key = None if content is None else _open(self._master, name, content)
        if key is not None and _is_outdated(key, stamp):
            shared.remove_key(shared_name)
            content = None
        if content is None:
            if path.exists() and _is_outdated(self._find(name), stamp):
                path.unlink(missing_ok=True)
            if not path.exists():
                key = self._find_below_earlier(shared, name)
                if key is not None and not _is_outdated(key, stamp):
                    self._write(name, key)
            self._find(name, stamp or "")
            shared.add_key(shared_name, path.read_bytes())
            content = shared.read_key(shared_name)
            key = None if content is None else _open(self._master, name, content)
        if key is not None and not path.exists():
            self._write(name, key)
        elif key is not None and self._find(name) != key:
            path.unlink(missing_ok=True)
            self._write(name, key)
        return key

    def _find_below_earlier(self, shared: SharedStore, name: str) -> bytes | None:
        """Return the key that the store has of this name below an earlier master key; None if none."""
        for master, cipher in self._earlier.items():
            content = shared.read_key(f"{master}-{name}")
            if content is not None and (key := _open(cipher, name, content)) is not None:
                return key
        return None

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


def _stamp(path: Path) -> _FileStamp:
    """Return what changes with a key's file; None if there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _is_outdated(secret: bytes, stamp: str | None) -> bool:
    """Return whether a key is older than its tenant's tombstone with this stamp; None: there is none."""
    return stamp is not None and secret[KEY_BYTES:] != stamp.encode()


def _key_id(secret: bytes) -> str:
    return blake2b(b"", digest_size=8, key=secret[:KEY_BYTES], person=b"tenant key").hexdigest()


def _sync(place: Path) -> None:
    """Let the removal of files outlive a crash."""
    opened = os.open(place, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


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
