"""A disk that lives in this process: files in memory, read and written at a given bandwidth."""

from __future__ import annotations

from collections import Counter, deque

from ragcache_engine.simulation.clock import VirtualClock
from ragcache_engine.simulation.copy_lane import CopyLane, has_passed
from ragcache_engine.tiers.disk.transfers import Done, Wanted
from ragcache_engine.tiers.ledger import Key


class SimulatedDisk:
    """Has the methods of DiskTransfers that the cache manager calls.

    slots: what lies in each slot of the host tier, which copies read and write.
    files: what lies in each file, by its name.
    """

    def __init__(
        self, slots: list[Key | None], block_bytes: int, bytes_per_s: float, clock: VirtualClock
    ) -> None:
        self.files: dict[str, Key | None] = {}
        self.is_writable = True
        self.reading = self.writing = 0
        self._slots = slots
        self._block_bytes = block_bytes
        self._clock = clock
        self._read_lane, self._write_lane = CopyLane(bytes_per_s), CopyLane(bytes_per_s)
        # Each with the time at which it ends. A name alone is a file to be removed.
        self._reads: deque[tuple[float, Wanted]] = deque()
        self._writes: deque[tuple[float, Wanted | str]] = deque()
        self._leaving: Counter[str] = Counter()  # removals that were asked for and are still due

    def read(self, wanted: Wanted) -> None:
        """Copy a file into a host slot."""
        self.reading += 1
        self._reads.append((self._read_lane.begin(self._block_bytes, self._clock.now()), wanted))

    def write(self, wanted: Wanted) -> None:
        """Copy a host slot into a file."""
        self.writing += 1
        self._leaving.pop(wanted.name, None)
        ends_s = self._write_lane.begin(self._block_bytes, self._clock.now())
        self._writes.append((ends_s, wanted))

    def remove(self, name: str) -> None:
        """Remove a file, after the writes asked for before. From now on it counts as gone."""
        self._leaving[name] += 1
        self._writes.append((self._write_lane.begin(0, self._clock.now()), name))

    def holds(self, name: str) -> bool:
        """Return whether there is a file of this name, and it is to stay."""
        return name in self.files and not self._leaving[name]

    def next_end_s(self) -> float | None:
        """The time at which the next copy ends; None if none is under way."""
        return min((queue[0][0] for queue in (self._reads, self._writes) if queue), default=None)

    def finished(self) -> list[Done]:
        """Return the copies that have ended since the last call."""
        now_s, done = self._clock.now(), []
        while self._reads and has_passed(self._reads[0][0], now_s):
            done.append(self._end_read(self._reads.popleft()[1]))
        while self._writes and has_passed(self._writes[0][0], now_s):
            wanted = self._writes.popleft()[1]
            if isinstance(wanted, str):
                self._end_removal(wanted)
            else:
                done.append(self._end_write(wanted))
        return done

    def _end_read(self, wanted: Wanted) -> Done:
        self.reading -= 1
        if wanted.name not in self.files:
            return Done(wanted, True, 0, 0.0, "missing")
        self._slots[wanted.slot] = self.files[wanted.name]
        return Done(wanted, True, self._block_bytes, self._read_lane.copy_s(self._block_bytes))

    def _end_write(self, wanted: Wanted) -> Done:
        self.writing -= 1
        self.files.setdefault(wanted.name, self._slots[wanted.slot])
        return Done(wanted, False, self._block_bytes, self._write_lane.copy_s(self._block_bytes))

    def _end_removal(self, name: str) -> None:
        self.files.pop(name, None)
        self._leaving[name] -= 1
        if self._leaving[name] < 1:
            self._leaving.pop(name, None)
