"""Carries tombstones between a shared store and the folder of a host's disk cache.

    <folder>/shared/<digest of the store>/<mark>     the stamp that this host has acted upon

Whoever finds a tombstone in the store that the host has not acted upon leaves one in the folder, where
every engine of the host sees it, writes its stamp down, and removes the document's files.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from ragcache_engine.tiers.disk.folder import forget_marks
from ragcache_engine.tiers.disk.key_ring import KeyRing
from ragcache_engine.tiers.disk.tombstones import KEPT_S, leave_tombstones
from ragcache_engine.tiers.shared.store import TOMBSTONES_STAY_S, SharedStore, StoreAway

FOLDER = "shared"
OUR_MARK = re.compile("[0-9a-f]{16}")


class ForgottenElsewhere:
    """What one host has done about the tombstones of a store.

    folder: of its disk cache. keys: what that is encrypted with.
    has_looked: whether it has seen the store's tombstones since it was made.
    Each call may come from any process of the host. Raises OSError, and what the store raises.
    """

    def __init__(self, folder: Path, store: SharedStore, keys: KeyRing | None = None) -> None:
        self._folder, self._store, self._keys = folder, store, keys
        digest = blake2b(store.identity.encode(), digest_size=8).hexdigest()
        self._place = folder / FOLDER / digest
        self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.has_looked = False
        self._acted = self._read_all()

    def catch_up(self, tell: Callable[[], None] = lambda: None) -> bool:
        """Act upon the tombstones that this host has not acted upon; return whether there were any.

        tell: called once the folder has their tombstones, before files are removed.
        Tombstones that the store has lost it gets back: not all hosts may have seen them.
        """
        self._require_our_keys()
        tombstones = {
            mark: stamp
            for mark, stamp in self._store.tombstones().items()
            if OUR_MARK.fullmatch(mark)
        }
        new = {mark for mark, stamp in tombstones.items() if self._acted.get(mark) != stamp}
        if new:
            self._acted = {**self._acted, **self._read(new)}  # other threads read it
            new = {mark for mark in new if self._acted.get(mark) != tombstones[mark]}
        lost = self._find_young([mark for mark in self._acted if mark not in tombstones])
        if new:
            leave_tombstones(self._folder, new)
            tell()
            stamps = {mark: tombstones[mark] for mark in new}
            gone = forget_marks(self._folder, new, self._keys, stamps)
            if self._keys is not None and gone.keys:
                # This host may have given them back.
                self._keys.remove_shared({mark: stamps[mark] for mark in gone.keys})
            self._write(stamps)
        if lost:
            self._write(self._store.leave_tombstones(lost))
            self._store.clear(lost)
        self.has_looked = True
        return bool(new)

    def forget(self, marks: Sequence[str], tenants: Collection[str] = ()) -> dict[str, int]:
        """Tell all hosts that documents are forgotten, and remove their blocks from the store.

        tenants: those of the marks that stand for tenants, whose keys are thrown away.
        Call it once this host's folder has its tombstones. Returns the times of newer ones there: engines
        that heard of it at once may have fetched blocks before these were removed, so all act once more.
        """
        self._require_our_keys()
        self._leave(marks, tenants)
        self._store.clear(marks)
        times = leave_tombstones(self._folder, marks)
        # Somebody who had not heard of it may have made a key, or given an old one back, meanwhile.
        self._leave(marks, tenants)
        return times

    def _leave(self, marks: Sequence[str], tenants: Collection[str]) -> None:
        """Leave tombstones in the store, and throw away the keys there and here that are older."""
        stamps = self._store.leave_tombstones(marks)
        self._write(stamps)
        if self._keys is not None and tenants:
            of_tenants = {mark: stamps[mark] for mark in tenants}
            self._keys.throw_away(tenants, of_tenants)
            self._keys.remove_shared(of_tenants)

    def has_acted_upon(self, marks: Iterable[str]) -> bool:
        """Return whether this host has acted upon every tombstone of these documents in the store."""
        asked = list(marks)
        stamps = {
            mark: stamp
            for mark, stamp in zip(asked, self._store.stamps(asked), strict=True)
            if stamp is not None
        }
        if any(self._acted.get(mark) != stamp for mark, stamp in stamps.items()):
            self._acted = {**self._acted, **self._read(stamps)}
        return all(self._acted.get(mark) == stamp for mark, stamp in stamps.items())

    def _require_our_keys(self) -> None:
        """Raise StoreAway unless the other hosts have this one's keys: else no mark is theirs."""
        if self._keys is not None and not self._keys.is_shared_with(self._store):
            raise StoreAway(
                f"the hosts at {self._store.label} have other keys than this one: start it anew"
            )

    def _find_young(self, marks: Sequence[str]) -> list[str]:
        """Return those that the store must not have lost yet. The others are remembered no longer."""
        oldest, young = time.time() - KEPT_S, []
        for mark in marks:
            with contextlib.suppress(OSError):
                if (self._place / mark).stat().st_mtime > oldest:
                    young.append(mark)
        gone = set(marks) - set(young)
        if gone:
            self._acted = {mark: at for mark, at in self._acted.items() if mark not in gone}
        return young

    def _read_all(self) -> dict[str, str]:
        """Return what stands in the folder, and remove what the store has no tombstone of any more.

        Not sooner: to a host that has forgotten what it acted upon, an old tombstone is a new one.
        """
        oldest, marks = time.time() - TOMBSTONES_STAY_S - KEPT_S, []
        with contextlib.suppress(OSError), os.scandir(self._place) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < oldest:
                        os.unlink(entry.path)
                    elif OUR_MARK.fullmatch(entry.name):
                        marks.append(entry.name)
        return self._read(marks)

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
        self._acted = {**self._acted, **stamps}
