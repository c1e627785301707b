"""Keeps where the blocks of one node of the knowledge tree lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

Key = bytes
"""vLLM's name of a block: a hash over all tokens up to the block's end."""


class Block(Protocol):
    """A block of device memory. block_id: vLLM's number for it."""

    @property
    def block_id(self) -> int: ...


B = TypeVar("B", bound=Block)
T = TypeVar("T")

Places = Sequence[T | None]
"""One entry a block, None where nothing is known; empty as long as nothing is known of any block."""


class NodeRecord(Generic[B]):
    """Where the blocks of one node are, tier by tier.

    keys: the keys of the node's blocks, in order.
    device: the block of device memory that holds each of them. It stays listed while a request computes
      with it.
    slots: the host slot of each block.
    files: the name of each block's file on disk.
    marks: the marks of the documents that the blocks were computed from; every file carries them.
    forget_ids: of a node right below the root, those with which its tenant is forgotten.
    """

    __slots__ = ("device", "files", "forget_ids", "keys", "marks", "slots")

    def __init__(self, keys: list[Key]) -> None:
        self.keys = keys
        self.device: Places[B] = ()
        self.slots: Places[int] = ()
        self.files: Places[str] = ()
        self.marks: tuple[str, ...] = ()
        self.forget_ids: tuple[str, ...] = ()

    def writable_device(self) -> list[B | None]:
        """The device blocks as a list to write to."""
        places = self.device = _writable(self.device, len(self.keys))
        return places

    def writable_slots(self) -> list[int | None]:
        """The host slots as a list to write to."""
        places = self.slots = _writable(self.slots, len(self.keys))
        return places

    def writable_files(self) -> list[str | None]:
        """The file names as a list to write to."""
        places = self.files = _writable(self.files, len(self.keys))
        return places

    def split(self, blocks: int) -> NodeRecord[B]:
        """Move the first `blocks` blocks into a new record and return it; keep the rest here."""
        upper: NodeRecord[B] = NodeRecord(self.keys[:blocks])
        upper.device, self.device = self.device[:blocks], self.device[blocks:]
        upper.slots, self.slots = self.slots[:blocks], self.slots[blocks:]
        upper.files, self.files = self.files[:blocks], self.files[blocks:]
        upper.marks = self.marks
        self.keys = self.keys[blocks:]
        return upper


def clear_places(places: Places[T], start: int, end: int) -> list[T]:
    """Set places [start, end) to None; return the values that stood there."""
    if not isinstance(places, list):
        return []  # nothing is known
    taken = [place for place in places[start:end] if place is not None]
    places[start:end] = [None] * (end - start)
    return taken


def _writable(places: Places[T], blocks: int) -> list[T | None]:
    return places if isinstance(places, list) else [None] * blocks
