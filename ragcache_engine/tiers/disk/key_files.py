"""Keys in files, each encrypted with a master key that lies nowhere in the folder.

    <folder>/keys/<id of the master key>/names              the secret in all names; see naming.py
    <folder>/keys/<id of the master key>/tenant-<owner>     the key of a tenant and its users
    <folder>/keys/<id of the master key>/earlier-<id>       a master key that this one took over from

Each key is random bytes. A tenant's key has behind it the stamp of the tombstone that the tenant had in
the store of several hosts when the key was made; see shared_keys.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from ragcache_engine.errors import ConfigError
from ragcache_engine.tiers.disk.master_keys import KEY_BYTES

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

logger = logging.getLogger(__name__)

FOLDER, NAMES, TENANT, EARLIER = "keys", "names", "tenant-", "earlier-"
NONCE_BYTES = 12

FileStamp = tuple[int, int] | None
"""What changes with a file; None if there is none."""

NO_STAMPS: Mapping[str, str] = {}


class KeyFiles:
    """The keys of one folder below one master key. One call of `find` or `replace` at a time.

    masters: the master key, and before it was changed earlier ones, whose files are encrypted anew. Those
      of the earlier ones go once nobody names them any more: engines that still have one go on.
    name: stands for the master key. is_new: whether the folder had no keys below these master keys.
    Raises OSError if the folder cannot be read or written to, ConfigError without the library for it.
    """

    def __init__(self, folder: Path, masters: Sequence[bytes]) -> None:
        self._master = cipher_of(masters[0])
        self.name = _id_of(masters[0])
        keys = folder / FOLDER
        self._place = keys / self.name
        self.is_new = not self._place.is_dir()
        for made in (folder, keys, self._place):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        named = {_id_of(earlier): earlier for earlier in masters[1:]}
        self._earlier = {name: cipher_of(earlier) for name, earlier in named.items()}
        for name, cipher in self._earlier.items():
            self._take_over(keys / name, cipher)
        self._remove_earlier(keys, named)

    @property
    def masters(self) -> Sequence[str]:
        """What stands for the master key and for the earlier ones, in this order."""
        return self.name, *self._earlier

    def decrypt(self, name: str, content: bytes, master: str | None = None) -> bytes | None:
        """Return the key in a file of this name; None if it is damaged, or another master key's.

        master: the name of an earlier master key; None: of this one.
        """
        cipher = self._earlier.get(master or "", self._master)
        return _open(cipher, name, content)

    def __contains__(self, name: str) -> bool:
        return (self._place / name).exists()

    def stamp(self, name: str) -> FileStamp:
        """Return what changes with a key's file; None if there is none."""
        return _stamp(self._place / name)

    def read(self, name: str) -> bytes:
        """Return a key's file as it is. Raises OSError."""
        return (self._place / name).read_bytes()

    def find(self, name: str, stamp: str = "") -> bytes:
        """Return the key of this name; make one if there is none, or none that can be read.

        stamp: goes behind a new one.
        """
        path = self._place / name
        with contextlib.suppress(FileNotFoundError):
            if (key := _open(self._master, name, path.read_bytes())) is not None:
                return key
            logger.warning("%s is damaged: what was encrypted with it is computed again", path)
            path.unlink(missing_ok=True)
        self.add(name, os.urandom(KEY_BYTES) + stamp.encode())
        key = _open(self._master, name, path.read_bytes())  # another engine's, if it was sooner
        if key is None:
            raise OSError(f"{path} cannot be written")
        return key

    def tenants(self) -> Iterator[str]:
        """Yield the names of tenants' keys."""
        for path in self._place.glob(f"{TENANT}*"):
            yield path.name

    def replace(self, name: str, key: bytes) -> None:
        """Let the file of this name have this key. Raises OSError."""
        if name in self:
            if self.find(name) == key:
                return
            self.drop(name)
        self.add(name, key)

    def drop(self, name: str) -> None:
        """Throw a key away, if it is there."""
        (self._place / name).unlink(missing_ok=True)

    def add(self, name: str, key: bytes) -> None:
        """Write a key's file, unless there is one. Raises OSError."""
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
                if secret is None or mark not in stamps or is_outdated(secret, stamps[mark]):
                    doomed[path] = mark
        for path in doomed:
            path.unlink(missing_ok=True)
        for place in {path.parent for path in doomed}:
            _sync(place)
        return [*dict.fromkeys(doomed.values())]

    def _take_over(self, place: Path, master: AESGCM) -> None:
        """Encrypt the keys below another master key with this one."""
        if not place.is_dir():
            return
        self.is_new = False
        for path in place.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if (key := _open(master, path.name, path.read_bytes())) is not None:
                    self.add(path.name, key)
        (self._place / f"{EARLIER}{place.name}").touch(mode=0o600)

    def _remove_earlier(self, keys: Path, named: Container[str]) -> None:
        """Remove the keys below those master keys that this one took over and that are named no more."""
        for mark in self._place.glob(f"{EARLIER}*"):
            name = mark.name.removeprefix(EARLIER)
            if name not in named:
                shutil.rmtree(keys / name, ignore_errors=True)
                mark.unlink(missing_ok=True)


def _open(master: AESGCM, name: str, content: bytes) -> bytes | None:
    """Return the key in a file; None if it is damaged, or another master key's."""
    from cryptography.exceptions import InvalidTag

    try:
        return master.decrypt(content[:NONCE_BYTES], content[NONCE_BYTES:], name.encode())
    except (InvalidTag, ValueError):
        return None


def _stamp(path: Path) -> FileStamp:
    """Return what changes with a key's file; None if there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def is_outdated(secret: bytes, stamp: str | None) -> bool:
    """Return whether a key is older than its tenant's tombstone with this stamp; None: there is none."""
    return stamp is not None and secret[KEY_BYTES:] != stamp.encode()


def _sync(place: Path) -> None:
    """Let the removal of files outlive a crash."""
    opened = os.open(place, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def require_library() -> None:
    """Raise ConfigError without the library that encrypts."""
    cipher_of(bytes(KEY_BYTES))


def _id_of(master: bytes) -> str:
    return blake2b(b"ragcache master key", digest_size=8, key=master).hexdigest()


def cipher_of(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigError(
            "an encrypted disk cache needs the library cryptography: "
            'pip install "ragcache-integrations[encryption]"'
        ) from None
    return AESGCM(key)
