"""The slots of the host tier: which block of which node lies in which."""

from __future__ import annotations

from collections.abc import Sequence

from ragcache_engine.knowledge import Node
from ragcache_engine.tiers.ledger import PerBlock


class HostSlots:
    """`count` slots of one block each. A slot somebody copies to or from is not given away.

    So a block may leave the tier while it is copied: its slot becomes free when the copy ends.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._busy: dict[int, int] = {}
        self._left: set[int] = set()  # busy, and nobody's
        self._slots: PerBlock[int] = PerBlock()

    @property
    def free(self) -> int:
        """Slots that can be given away now."""
        return len(self._free)

    def of(self, node: Node) -> Sequence[int | None]:
        return self._slots.of(node)

    def fill(self, node: Node, start: int, end: int) -> list[int]:
        """Slots for the node's blocks [start, end), to be copied to, and so held.

        As many as there are: fewer if all others are taken or still copied from.
        """
        free, busy = self._free, self._busy
        slots = [free.pop() for _ in range(min(end - start, len(free)))]
        if slots:
            self._slots.line(node)[start : start + len(slots)] = slots
            for slot in slots:
                busy[slot] = 1  # nobody holds a free one
        return slots

    def freed(self, node: Node, start: int, end: int) -> None:
        """The node's blocks [start, end) are not kept any more."""
        for slot in self._slots.take_all(node, start, end):
            self._leave(slot)

    def hold(self, slot: int) -> None:
        """Somebody copies to or from the slot. To be released as often as it is held."""
        self._busy[slot] = self._busy.get(slot, 0) + 1

    def release(self, slot: int) -> None:
        self._busy[slot] -= 1
        if not self._busy[slot]:
            del self._busy[slot]
            if slot in self._left:
                self._left.discard(slot)
                self._free.append(slot)

    def split(self, upper: Node, lower: Node) -> None:
        self._slots.split(upper, lower)

    def forget(self, node: Node) -> None:
        for slot in self._slots.forget(node):
            self._leave(slot)

    def _leave(self, slot: int) -> None:
        if slot in self._busy:
            self._left.add(slot)
        else:
            self._free.append(slot)
