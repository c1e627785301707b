"""Keeps the numbers of the host tier's slots: which are free, and which are being copied."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ragcache_engine.tiers.node_record import Key


class HostSlots:
    """`count` slots of one block each. A slot that is being copied is not given away.

    A block may leave the tier while its slot is copied. Its slot becomes free when the copy ends.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._copies: dict[int, int] = {}  # how many copies each slot has
        self._orphaned: set[int] = set()  # still being copied, but without a node
        self._filling: dict[Key, int] = {}  # slots that blocks are copied to

    @property
    def free(self) -> int:
        """How many slots are free now."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Give away `count` slots to be copied to, and hold them. Fewer if there are not enough."""
        free, copies = self._free, self._copies
        slots = [free.pop() for _ in range(min(count, len(free)))]
        for slot in slots:
            copies[slot] = 1  # the coming one; a free slot has no other
        return slots

    def give_back(self, slots: Iterable[int]) -> None:
        """Free slots whose blocks the tier no longer keeps; a slot being copied, after the copy."""
        for slot in slots:
            if slot in self._copies:
                self._orphaned.add(slot)
            else:
                self._free.append(slot)

    def hold(self, slot: int) -> None:
        """Keep a slot while a copy to or from it runs. Call `release` once for each call."""
        self._copies[slot] = self._copies.get(slot, 0) + 1

    def release(self, slot: int) -> None:
        """Note that a copy to or from the slot has ended."""
        self._copies[slot] -= 1
        if not self._copies[slot]:
            del self._copies[slot]
            if slot in self._orphaned:
                self._orphaned.discard(slot)
                self._free.append(slot)

    # -- blocks on their way into a slot -----------------------------------------------------------

    def begin_fill(self, key: Key, slot: int) -> None:
        """Note that a block is being copied to a slot that `take` gave."""
        self._filling[key] = slot

    def is_filling(self, key: Key) -> bool:
        """Return whether the block is on its way into a slot."""
        return key in self._filling

    def count_filling(self, keys: Sequence[Key]) -> int:
        """Return how many of these blocks are on their way into slots."""
        return sum(key in self._filling for key in keys) if self._filling else 0

    def is_filling_slot(self, key: Key, slot: int) -> bool:
        """Return whether the block is on its way into this slot."""
        return self._filling.get(key) == slot

    def end_fill(self, key: Key) -> bool:
        """Release the slot that the block has now reached. Return False if none was being filled."""
        slot = self._filling.pop(key, None)
        if slot is None:
            return False
        self.release(slot)
        return True

    def abandon_fills(self, except_keys: set[Key]) -> list[int]:
        """Forget the blocks on their way, except for these; return their slots, which stay held."""
        abandoned = [key for key in self._filling if key not in except_keys]
        return [self._filling.pop(key) for key in abandoned]

    # -- checking ----------------------------------------------------------------------------------

    def check(self, kept: list[int]) -> None:
        """Raise AssertionError unless these are the slots that nodes keep. For tests."""
        assert len(kept) == len(set(kept)), "two blocks in one slot"
        assert not set(kept) & set(self._free), "a slot that a node keeps is free"
        assert len(self._free) + len(kept) + len(self._orphaned) == self.count, "a slot is lost"

    def check_idle(self) -> None:
        """Raise AssertionError if any copy is under way. For tests."""
        assert not self._copies
        assert not self._orphaned
        assert not self._filling
