"""Carries tombstones between a shared store and the folder of a host's disk cache.

    <folder>/shared/<digest of the store's URL>/<mark>     the stamp that this host has acted upon

Whoever finds a tombstone in the store that the host has not acted upon leaves one in the folder, where
every engine of the host sees it, removes the document's files, and then writes the stamp down.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from ragcache_engine.tiers.disk.folder import forget_marks
from ragcache_engine.tiers.disk.key_ring import KeyRing
from ragcache_engine.tiers.disk.tombstones import KEPT_S, leave_tombstones
from ragcache_engine.tiers.shared.store import SharedStore

FOLDER = "shared"


class ForgottenElsewhere:
    """What one host has done about the tombstones of a store.

    folder: of its disk cache. keys: what that is encrypted with.

    Each call may come from any process of the host. Raises OSError, and what the store raises.
    """

    def __init__(self, folder: Path, store: SharedStore, keys: KeyRing | None = None) -> None:
        self._folder, self._store, self._keys = folder, store, keys
        digest = blake2b(store.label.encode(), digest_size=8).hexdigest()
        self._place = folder / FOLDER / digest
        self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._acted: dict[str, str] = {}

    def catch_up(self) -> bool:
        """Act upon the tombstones that this host has not acted upon; return whether there were any."""
        tombstones = self._store.tombstones()
        new = {mark for mark, stamp in tombstones.items() if self._acted.get(mark) != stamp}
        if new:
            self._acted |= self._read(new)
            new = {mark for mark in new if self._acted.get(mark) != tombstones[mark]}
        if new:
            leave_tombstones(self._folder, new)
            forget_marks(self._folder, new, self._keys)
            self._write({mark: tombstones[mark] for mark in new})
        elif self._acted and not tombstones:
            self._restore()
        return bool(new)

    def forget(self, marks: Sequence[str]) -> None:
        """Tell all hosts that documents are forgotten, and remove their blocks from the store.

        Call it once this host's folder has its tombstones.
        """
        self._write(self._store.forget(marks))

    def has_acted_upon(self, marks: Iterable[str]) -> bool:
        """Return whether this host has acted upon every tombstone of these documents in the store."""
        asked = list(marks)
        stamps = {
            mark: stamp
            for mark, stamp in zip(asked, self._store.stamps(asked), strict=True)
            if stamp is not None
        }
        if any(self._acted.get(mark) != stamp for mark, stamp in stamps.items()):
            self._acted |= self._read(stamps)
        return all(self._acted.get(mark) == stamp for mark, stamp in stamps.items())

    def _restore(self) -> None:
        """Give its tombstones back to a store that has lost everything: not all hosts may know them."""
        oldest = time.time() - KEPT_S
        marks = []
        with contextlib.suppress(OSError), os.scandir(self._place) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime > oldest:
                        marks.append(entry.name)
                    else:
                        os.unlink(entry.path)
        self._acted.clear()
        if marks:
            self.forget(marks)

    def _read(self, marks: Iterable[str]) -> dict[str, str]:
        found = {}
        for mark in marks:
            with contextlib.suppress(OSError, ValueError):
                found[mark] = (self._place / mark).read_text()
        return found

    def _write(self, stamps: Mapping[str, str]) -> None:
        for mark, stamp in stamps.items():
            written = self._place / f"{mark}.{os.urandom(4).hex()}"
            written.write_text(stamp)
            written.replace(self._place / mark)
        self._acted |= stamps
