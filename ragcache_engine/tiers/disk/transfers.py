"""Copies between host slots and files, on threads of their own, so that the scheduler never waits."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from ragcache_engine.tiers.disk.block_file import UnusableFile
from ragcache_engine.tiers.disk.folder import (
    DiskFolder,
    DocumentForgotten,
    FolderFull,
    NotOurFile,
)
from ragcache_engine.tiers.disk.kept_files import KeptFile
from ragcache_engine.tiers.disk.read_queue import ReadQueue
from ragcache_engine.tiers.disk.shared_keys import KeyAway

logger = logging.getLogger(__name__)

READERS = 4
"""Threads that read. One that hangs holds up no other, and a disk serves several at once faster."""

STALLED_S = 2.0
"""A disk whose oldest read has run for so many seconds is asked for nothing more until it ends."""

LOOK_S = 5.0
"""Seconds between two looks at what other engines have done in the folder."""

FAILED_WRITES_TO_STOP = 8
"""After this many failed writes in a row, write nothing more to the disk."""


class SlotMemory(Protocol):
    """The host tier's memory."""

    def __call__(self, slot: int) -> memoryview:
        """Return a slot's bytes."""
        ...


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """A copy of one block, between a file and a host slot.

    name: the file's name. marks: for a write, those of the documents the block was computed from.
    """

    name: str
    slot: int
    marks: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class FinishedCopy:
    """A copy that has ended.

    size_bytes: bytes read or written; 0 if the copy failed, or if the file was there already.
    seconds: how long the copy took; for a read, its share of the time in which several ran at once.
    failure: None if the copy succeeded. Else, for a read: "missing", "damaged" or "unreadable"; for a
      write: "full", "forgotten" or "unwritable".
    """

    copy: BlockCopy
    is_read: bool
    size_bytes: int
    seconds: float
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class _Forgetting:
    documents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Marking:
    names: tuple[str, ...]
    marks: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Releasing:
    entries: Sequence[str]


class _Looking:
    pass


class _NotWritten(Exception):
    """Nothing is written to the disk any more."""


_LOOK = _Looking()


class DiskTransfers:
    """Runs copies on threads: several that read, and one that writes, in the order of the calls.

    Call it from one thread, and leave a slot alone until `take_finished` returns its copy.

    folder: where the files are. slots: the host tier's memory.
    is_known: tells whether the tree decides over the file of this name; called from the writing thread.
    pending_reads, pending_writes: how many copies `take_finished` has yet to return.
    is_writable: False once too many writes in a row have failed.
    """

    def __init__(
        self, folder: DiskFolder, slots: SlotMemory, is_known: Callable[[str], bool]
    ) -> None:
        self._folder = folder
        self._slots = slots
        self._is_known = is_known
        self._reads: ReadQueue[BlockCopy] = ReadQueue()
        self._writes: SimpleQueue[
            BlockCopy
            | str
            | Mapping[str, int]
            | _Forgetting
            | _Marking
            | KeptFile
            | _Releasing
            | _Looking
            | None
        ] = SimpleQueue()
        self._forgotten: SimpleQueue[dict[str, int]] = SimpleQueue()
        self._finished: SimpleQueue[FinishedCopy] = SimpleQueue()
        self.pending_reads = self.pending_writes = 0
        self.is_writable = True
        self._failed_writes = 0
        self._pending_removals: Counter[str] = Counter()  # by file name
        self._warned: set[str] = set()
        self._threads = [
            threading.Thread(target=run, name=name, daemon=True)
            for run, name in (
                *((self._run_reads, f"ragcache-read-{number}") for number in range(READERS)),
                (self._run_writes, "ragcache-write"),
            )
        ]
        for thread in self._threads:
            thread.start()

    def read(self, copy: BlockCopy, *, is_urgent: bool = False) -> None:
        """Start copying a file into a slot. is_urgent: whether a request waits for nothing else."""
        self.pending_reads += 1
        self._reads.put(copy.name, copy, is_urgent=is_urgent)

    def hasten(self, name: str) -> None:
        """Make the read of this file urgent, if it has not begun."""
        self._reads.hasten(name)

    def cancel_read(self, name: str) -> bool:
        """Take the read of this file back; return False if it has begun. `take_finished` skips it."""
        is_cancelled = self._reads.cancel(name)
        self.pending_reads -= is_cancelled
        return is_cancelled

    @property
    def queued_reads(self) -> int:
        """How many reads wait for others to end."""
        return len(self._reads)

    @property
    def is_stalled(self) -> bool:
        """Whether the disk has not answered for so long that no request should wait for it."""
        return self._reads.longest_running_s() > STALLED_S

    def holds(self, name: str) -> bool:
        """Whether there is a file of this name that is not going to be removed."""
        return not self._pending_removals[name] and self._folder.holds(name)

    def write(self, copy: BlockCopy) -> None:
        """Start copying a slot into a file."""
        self.pending_writes += 1
        self._pending_removals.pop(copy.name, None)
        self._writes.put(copy)

    def add_marks(self, names: Iterable[str], marks: Sequence[str]) -> None:
        """Start letting files carry these marks besides their own, after the writes started before."""
        self._writes.put(_Marking(tuple(names), marks))

    def remove(self, name: str) -> None:
        """Start removing a file, after the writes started before. From now on `holds` is False for it."""
        self._pending_removals[name] += 1
        self._writes.put(name)

    def take_forgotten(self) -> dict[str, int]:
        """Return the marks of documents that other engines have forgotten lately, with times.

        Forget them, and then call `note_forgotten`. Until then, no block is written that was computed
        from one of them.
        """
        times: dict[str, int] = {}
        while not self._forgotten.empty():
            times |= self._forgotten.get_nowait()
        return times

    def note_forgotten(self, times: Mapping[str, int]) -> None:
        """Note that from now on no write is asked for that was computed before these times."""
        self._writes.put(times)

    def forget_files(self, documents: Sequence[str]) -> None:
        """Start removing every file of the folder that was computed from these documents.

        For callers that do not do it themselves. Other engines on the folder learn of it too.
        """
        self._writes.put(_Forgetting(tuple(documents)))

    def keep_files(self, kept: KeptFile) -> None:
        """Keep these files: no engine on the folder removes them to make room for others."""
        if self._folder.kept.note(kept):
            self._writes.put(kept)

    def release_files(self, name: str) -> None:
        """Keep the files of the set of this name no longer; nor do earlier processes."""
        if entries := self._folder.kept.drop(name):
            self._writes.put(_Releasing(entries))

    def count_kept_elsewhere(self, but: Iterable[str]) -> int:
        """Return how many blocks others keep in the folder, and processes before this one kept.

        but: names of sets that this engine is about to keep.
        """
        return self._folder.kept.count_of_others(but)

    def look_soon(self) -> None:
        """Look around in the folder now. Any thread."""
        self._writes.put(_LOOK)

    def take_finished(self) -> list[FinishedCopy]:
        """Return the copies that have ended since the last call, in the order in which they ended."""
        ended: list[FinishedCopy] = []
        while not self._finished.empty():
            done = self._finished.get_nowait()
            if done.is_read:
                self.pending_reads -= 1
            else:
                self.pending_writes -= 1
            ended.append(done)
        return ended

    def close(self, timeout_s: float = 10.0) -> None:
        """Let the copies under way end, then end the threads; give up after the timeout."""
        self._reads.close()
        self._writes.put(None)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._folder.close()

    def _run_reads(self) -> None:
        while (copy := self._reads.take()) is not None:
            start = time.perf_counter()
            size_bytes, failure = 0, None
            try:
                size_bytes = self._folder.read(copy.name, self._slots(copy.slot))
            except FileNotFoundError:
                failure = "missing"
            except UnusableFile as error:
                failure = "damaged"
                self._warn_once("is unusable and was removed", error)
            except Exception as error:
                failure = "unreadable"
                self._warn_once("cannot be read", error)
            seconds = time.perf_counter() - start
            sharing = max(1, self._reads.running)  # those that run at once share the disk
            self._finished.put(FinishedCopy(copy, True, size_bytes, seconds / sharing, failure))

    def _warn_once(self, what: str, error: Exception) -> None:
        """Log the first failure of its kind. Only count later ones."""
        if what not in self._warned:
            self._warned.add(what)
            logger.warning(
                "a block of the disk tier %s, and is computed again: %s (others like it are not "
                "logged but counted, in stats().tiers)",
                what,
                error,
            )

    def _run_writes(self) -> None:
        looked_s = time.monotonic()
        while True:
            if time.monotonic() - looked_s > LOOK_S:
                self._look_around()
                looked_s = time.monotonic()
            try:
                copy = self._writes.get(timeout=LOOK_S)
            except Empty:
                continue
            if copy is None:
                return
            if isinstance(copy, _Looking):
                self._look_around()
                continue
            if isinstance(copy, Mapping):
                self._folder.note_forgotten(copy)
                continue
            if isinstance(copy, _Forgetting):
                self._remove_documents(copy.documents)
                continue
            if isinstance(copy, _Marking):
                self._add_marks(copy)
                continue
            if isinstance(copy, (KeptFile, _Releasing)):
                self._keep(copy)
                continue
            if isinstance(copy, str):
                self._folder.give_up(copy)
                self._pending_removals[copy] -= 1
                if self._pending_removals[copy] < 1:
                    self._pending_removals.pop(copy, None)
                continue
            start = time.perf_counter()
            size_bytes, failure = 0, None
            try:
                if not self.is_writable:
                    raise _NotWritten
                size_bytes = self._folder.write(
                    copy.name, copy.marks, self._slots(copy.slot), self._is_known
                )
                self._failed_writes = 0
            except FolderFull:
                failure = "full"
            except DocumentForgotten:
                failure = "forgotten"
            except (
                NotOurFile,
                KeyAway,
                _NotWritten,
            ):  # the disk itself works: other blocks can be written
                failure = "unwritable"
            except Exception as error:
                failure = "unwritable"
                self._count_failure(error)
            self._finished.put(
                FinishedCopy(copy, False, size_bytes, time.perf_counter() - start, failure)
            )

    def _remove_documents(self, documents: Sequence[str]) -> None:
        try:
            self._folder.forget(documents)
        except OSError as error:
            logger.error(
                "documents were forgotten here, and their files may still lie in %s: %s. Make it "
                "writable and forget them again",
                self._folder.folder,
                error,
            )

    def _add_marks(self, marking: _Marking) -> None:
        for name in marking.names:
            try:
                self._folder.add_marks(name, marking.marks)
            except Exception as error:  # the file is gone, if anything can be removed
                self._warn_once("cannot be given the id of its document", error)

    def _keep(self, what: KeptFile | _Releasing) -> None:
        try:
            if isinstance(what, KeptFile):
                self._folder.keep(what)
            else:
                self._folder.kept.remove(what.entries)
        except OSError as error:
            logger.warning(
                "what is kept in %s cannot be noted there (%s): it is kept until this process ends",
                self._folder.folder,
                error,
            )

    def _look_around(self) -> None:
        """See what other engines have done in the folder since the last look."""
        try:
            self._folder.refresh()
            self._folder.tidy()
            if times := self._folder.find_forgotten():
                self._forgotten.put(times)
        except Exception as error:  # this thread must go on writing
            self._warn_once("cannot be looked for", error)

    def _count_failure(self, error: Exception) -> None:
        self._failed_writes += 1
        if self._failed_writes == FAILED_WRITES_TO_STOP:
            self.is_writable = False
            logger.warning(
                "the disk tier cannot be written to (%s), and is only read from now on; requests are "
                "still answered. Make room in its folder, or choose another one, and restart",
                error,
            )
