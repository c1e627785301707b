"""A disk that lives in this process: files in memory, read and written at a given bandwidth."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from ragcache_engine.simulation.clock import VirtualClock
from ragcache_engine.simulation.copy_lane import CopyLane, has_passed
from ragcache_engine.tiers.disk.kept_files import KeptFile
from ragcache_engine.tiers.disk.transfers import BlockCopy, FinishedCopy
from ragcache_engine.tiers.node_record import Key


class SimulatedDisk:
    """Has the methods of DiskTransfers that the cache manager calls.

    slots: the content of each slot of the host tier, which copies read and write.
    files: the content of each file, by name.
    """

    def __init__(
        self, slots: list[Key | None], block_bytes: int, bytes_per_s: float, clock: VirtualClock
    ) -> None:
        self.files: dict[str, Key | None] = {}
        self.is_writable = True
        self.is_stalled = False
        self.pending_reads = self.pending_writes = 0
        self._slots = slots
        self._block_bytes = block_bytes
        self._clock = clock
        self._read_lane, self._write_lane = CopyLane(bytes_per_s), CopyLane(bytes_per_s)
        # Each copy with the time at which it ends. A name alone stands for the removal of that file.
        self._reads: deque[tuple[float, BlockCopy]] = deque()
        self._writes: deque[tuple[float, BlockCopy | str]] = deque()
        self._leaving: Counter[str] = Counter()  # removals that are still due

    @property
    def queued_reads(self) -> int:
        """How many reads are under way: each but the first waits for others."""
        return len(self._reads)

    def hasten(self, name: str) -> None:
        """Do nothing: this disk reads in the order of the calls."""

    def cancel_read(self, name: str) -> bool:
        """Return False: a read of this disk cannot be taken back."""
        return False

    def take_forgotten(self) -> dict[str, int]:
        """Return nothing: no other engine uses this disk."""
        return {}

    def forget_files(self, documents: Sequence[str]) -> None:
        """Do nothing: the tree knows all files of this disk."""

    def note_forgotten(self, times: Mapping[str, int]) -> None:
        """Do nothing: no other engine uses this disk."""

    def add_marks(self, names: Iterable[str], marks: Sequence[str]) -> None:
        """Do nothing: no later process looks for the files of a document."""

    def keep_files(self, kept: KeptFile) -> None:
        """Do nothing: the tree alone removes files, and this disk ends with the process."""

    def release_files(self, name: str) -> None:
        """Do nothing, as `keep_files` does."""

    def count_kept_elsewhere(self, but: Iterable[str]) -> int:
        """Return 0: no other engine uses this disk."""
        return 0

    def read(self, copy: BlockCopy, *, is_urgent: bool = False) -> None:
        """Copy a file into a host slot."""
        self.pending_reads += 1
        self._reads.append((self._read_lane.begin(self._block_bytes, self._clock.now()), copy))

    def write(self, copy: BlockCopy) -> None:
        """Copy a host slot into a file."""
        self.pending_writes += 1
        self._leaving.pop(copy.name, None)
        ends_s = self._write_lane.begin(self._block_bytes, self._clock.now())
        self._writes.append((ends_s, copy))

    def remove(self, name: str) -> None:
        """Remove a file after the writes already under way. From now on `holds` is False for it."""
        self._leaving[name] += 1
        self._writes.append((self._write_lane.begin(0, self._clock.now()), name))

    def holds(self, name: str) -> bool:
        """Return whether there is a file of this name that is not going to be removed."""
        return name in self.files and not self._leaving[name]

    def next_end_s(self) -> float | None:
        """The time at which the next copy ends; None if none is under way."""
        return min((queue[0][0] for queue in (self._reads, self._writes) if queue), default=None)

    def take_finished(self) -> list[FinishedCopy]:
        """Return the copies that have ended since the last call."""
        now_s, done = self._clock.now(), []
        while self._reads and has_passed(self._reads[0][0], now_s):
            done.append(self._end_read(self._reads.popleft()[1]))
        while self._writes and has_passed(self._writes[0][0], now_s):
            copy = self._writes.popleft()[1]
            if isinstance(copy, str):
                self._end_removal(copy)
            else:
                done.append(self._end_write(copy))
        return done

    def _end_read(self, copy: BlockCopy) -> FinishedCopy:
        self.pending_reads -= 1
        if copy.name not in self.files:
            return FinishedCopy(copy, True, 0, 0.0, "missing")
        self._slots[copy.slot] = self.files[copy.name]
        return FinishedCopy(
            copy, True, self._block_bytes, self._read_lane.copy_s(self._block_bytes)
        )

    def _end_write(self, copy: BlockCopy) -> FinishedCopy:
        self.pending_writes -= 1
        self.files.setdefault(copy.name, self._slots[copy.slot])
        return FinishedCopy(
            copy, False, self._block_bytes, self._write_lane.copy_s(self._block_bytes)
        )

    def _end_removal(self, name: str) -> None:
        self.files.pop(name, None)
        self._leaving[name] -= 1
        if self._leaving[name] < 1:
            self._leaving.pop(name, None)
