"""What a shared store has to do, whatever library is behind it.

A store holds blocks under `<digest of the origin>/<name>`, byte for byte as a disk cache's files are, and
marks of documents that were forgotten. It loses what it likes, at any time: a block that is gone is a
miss. Only the marks must stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class StoreAway(Exception):
    """The store does not answer, or not in time, or not as it should. Blocks in it count as missing."""


class StoreFull(StoreAway):
    """The store takes nothing more. What it holds can be read."""


TOMBSTONES_STAY_S = 60 * 86_400
"""How long the store keeps tombstones: twice as long as hosts remember to have acted upon them."""


class StoredBlock(NamedTuple):
    """A block on its way to the store.

    key: `<digest of the origin>/<name>`. marks: of all documents that it was computed from. content: as a
    disk cache's file has it; None for one that is there, and only gets further marks.
    """

    key: str
    marks: Sequence[str]
    content: bytes | None


class SharedStore(Protocol):
    """The door to a store. Any thread may call any method; each raises StoreAway.

    label: what to call the store in messages; without secrets. identity: the same for all hosts that see
      the same blocks.
    blocks_at_once: how many blocks one read or write should ask for. readers: how many reads should run
      at once. look_s: seconds between two looks at its tombstones.
    """

    label: str
    identity: str
    blocks_at_once: int
    readers: int
    look_s: float

    def holds(self, keys: Sequence[str]) -> list[bool]:
        """Return for each block whether the store has it."""
        ...

    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the blocks' contents; None for each that the store lacks."""
        ...

    def write(self, blocks: Sequence[StoredBlock]) -> None:
        """Store blocks, and first by which marks `clear` finds them. Raises StoreFull."""
        ...

    def remove(self, keys: Sequence[str]) -> None:
        """Remove blocks."""
        ...

    def leave_tombstones(self, marks: Sequence[str]) -> dict[str, str]:
        """Leave a tombstone for each mark, in place of an earlier one; return their stamps.

        A stamp says nothing but that another one differs: the clocks of hosts do.
        """
        ...

    def clear(self, marks: Sequence[str]) -> None:
        """Remove all blocks that were computed from documents of these marks, whatever their origin."""
        ...

    def tombstones(self) -> Mapping[str, str]:
        """Return the stamps of all tombstones, by mark."""
        ...

    def stamps(self, marks: Sequence[str]) -> list[str | None]:
        """Return the stamps of these marks' tombstones; None for each that has none."""
        ...

    def read_key(self, name: str) -> bytes | None:
        """Return the file of an encryption key, which is encrypted itself; None if there is none."""
        ...

    def add_key(self, name: str, content: bytes) -> None:
        """Keep the file of an encryption key, unless there is one of this name."""
        ...

    def remove_key(self, name: str) -> None:
        """Remove the file of an encryption key."""
        ...

    def describe_risk(self) -> str | None:
        """Return what to change if the store may lose tombstones; None if nothing seems wrong."""
        ...

    def tidy(self) -> None:
        """Remove what is older than its time, or more than the quota, unless the store does so itself."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...
