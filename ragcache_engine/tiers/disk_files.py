"""Keeps the names of the disk tier's files that the knowledge tree decides over."""

from __future__ import annotations

from collections.abc import Iterable

from ragcache_engine.tiers.disk.transfers import DiskTransfers


class DiskFiles:
    """The files that the tree knows. Files that the tree gives up are removed from the disk.

    transfers: copies and removes files on threads of their own; None without a disk tier.
    """

    def __init__(self) -> None:
        self.transfers: DiskTransfers | None = None
        self._known: set[str] = set()

    def knows(self, name: str) -> bool:
        """Return whether the tree decides over this file. Any thread."""
        return name in self._known

    def add(self, names: Iterable[str | None]) -> None:
        """Note that the tree decides over these files from now on."""
        self._known.update(name for name in names if name is not None)

    def remove(self, names: Iterable[str]) -> None:
        """Remove those of these files that the tree decided over, because it has given them up."""
        for name in names:
            if name in self._known and self.transfers is not None:
                self._known.discard(name)
                self.transfers.remove(name)

    def check(self, kept: set[str]) -> None:
        """Raise AssertionError unless these are the files of all nodes on disk. For tests."""
        assert self._known == kept
