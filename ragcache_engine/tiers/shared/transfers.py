"""Copies between host slots and a shared store, on threads of their own, so that nobody waits for it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from queue import Empty, SimpleQueue

from ragcache_engine.tiers.disk.block_file import Origin, UnusableFile, pack, unpack
from ragcache_engine.tiers.disk.key_ring import KeyRing
from ragcache_engine.tiers.disk.read_queue import ReadQueue
from ragcache_engine.tiers.disk.shared_keys import KeyAway
from ragcache_engine.tiers.disk.transfers import BlockCopy, FinishedCopy, SlotMemory
from ragcache_engine.tiers.shared.forgotten import ForgottenElsewhere
from ragcache_engine.tiers.shared.store import SharedStore, StoreAway, StoredBlock, StoreFull

logger = logging.getLogger(__name__)

TIDY_S = 3600.0
"""Seconds between two times of tidying the store up."""

AWAY_S, LONGEST_AWAY_S = 1.0, 60.0
"""For so many seconds a store that did not answer is asked for nothing. Twice as long each time."""

FULL_S = 60.0
"""For so many seconds a store that is full is given nothing."""

STALLED_S = 2.0
"""A store whose oldest read has run for so many seconds is asked for nothing more until it ends."""

MOST_KNOWN = 200_000
"""About how many blocks to remember whether the store has them."""

PRESENT_S, ABSENT_S = 600.0, 5.0
"""How long an answer holds. Others store blocks at any time, and remove few."""

MOST_PUSHES = 256
"""How many blocks may wait to be stored. A store that is too slow gets only as many as it can take."""

MOST_TO_REMOVE = 10_000
"""How many blocks to remember that have to go, and could not be removed."""


class SharedTransfers:
    """Asks, reads and writes blocks of one origin in a store.

    Call it from one thread, and leave a slot alone until `take_finished` returns its copy.

    slots: the host tier's memory. forbids: tells whether blocks computed from these documents are to be
    dropped, as this host has forgotten them since. forgotten: carries tombstones to and fro; look_soon:
    called when there are new ones in the host's folder. These are called from other threads.
    keys: what blocks are encrypted with; None: they are not.
    pending_reads, pending_writes: how many copies `take_finished` has yet to return.
    """

    def __init__(
        self,
        store: SharedStore,
        origin: Origin,
        slots: SlotMemory,
        *,
        forbids: Callable[[Sequence[str]], bool],
        forgotten: ForgottenElsewhere,
        look_soon: Callable[[], None],
        keys: KeyRing | None = None,
    ) -> None:
        self._store, self._origin, self._home = store, origin, origin.digest()
        self._slots, self._forbids, self._keys = slots, forbids, keys
        self._forgotten, self._look_soon = forgotten, look_soon
        self._known: OrderedDict[str, tuple[bool, float]] = OrderedDict()  # until when
        self._asked: set[str] = set()
        self._lost: dict[str, float] = {}
        self._stored: OrderedDict[str, float] = OrderedDict()  # when
        self._to_remove: set[str] = set()  # by name; for the thread that looks
        self._questions: SimpleQueue[Sequence[str] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Sequence[str], Sequence[bool]]] = SimpleQueue()
        self._reads: ReadQueue[BlockCopy] = ReadQueue()
        self._writes: SimpleQueue[BlockCopy | None] = SimpleQueue()
        self._begun: dict[str, int] = {}  # by name of a write: at which moment it was asked for
        self._withdrawn: dict[str, int] = {}  # by mark: at which moment the document was forgotten
        self._moment = 0
        self._finished: SimpleQueue[FinishedCopy] = SimpleQueue()
        self.pending_reads = self.pending_writes = 0
        self._away_until_s, self._away_s, self._write_again_s = 0.0, AWAY_S, 0.0
        self._closing, self._ends_s = threading.Event(), math.inf
        self._is_back = False  # after it was away
        self._warned: set[str] = set()
        self._threads = [
            threading.Thread(target=run, name=name, daemon=True)
            for run, name in (
                (self._run_questions, "ragcache-shared-ask"),
                *(
                    (self._run_reads, f"ragcache-shared-read-{number}")
                    for number in range(store.readers)
                ),
                (self._run_writes, "ragcache-shared-write"),
                (self._run_looks, "ragcache-shared-look"),
            )
        ]
        for thread in self._threads:
            thread.start()

    # -- asking ------------------------------------------------------------------------------------

    @property
    def is_usable(self) -> bool:
        """Whether the store answers. One that does not is asked for nothing for a while."""
        return (
            time.monotonic() >= self._away_until_s and self._reads.longest_running_s() < STALLED_S
        )

    def ask(self, names: Sequence[str]) -> None:
        """Start asking whether the store has these blocks. Those that are known are not asked for."""
        if not self.is_usable:
            return
        now_s = time.monotonic()
        wanted = [
            name for name in names if name not in self._asked and self._find(name, now_s) is None
        ]
        if wanted:
            self._asked.update(wanted)
            self._questions.put(wanted)

    def has(self, name: str) -> bool | None:
        """Return whether the store has a block, as far as is known; None while it is being asked."""
        if name in self._asked:
            return None if self.is_usable else False
        return bool(self._find(name, time.monotonic()))

    @property
    def is_asking(self) -> bool:
        """Whether answers are on their way that requests may wait for."""
        return bool(self._asked) and self.is_usable

    def _find(self, name: str, now_s: float) -> bool | None:
        known = self._known.get(name)
        return known[0] if known and known[1] > now_s else None

    def _note(self, name: str, is_there: bool) -> None:
        self._known[name] = is_there, time.monotonic() + (PRESENT_S if is_there else ABSENT_S)
        self._known.move_to_end(name)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)

    def find_lost(self, names: Sequence[str]) -> int | None:
        """Return the place of the first of these blocks that was missing when it was read; None if none
        was."""
        if not self._lost:
            return None
        return next((at for at, name in enumerate(names) if name in self._lost), None)

    def take_answers(self) -> None:
        """Take in the answers that have come."""
        while not self._answers.empty():
            names, found = self._answers.get_nowait()
            for name, is_there in zip(names, found, strict=True):
                self._asked.discard(name)
                self._note(name, is_there)
                if not is_there and name in self._stored:
                    self._stored.clear()  # it has lost some, or all

    # -- copying -----------------------------------------------------------------------------------

    def read(self, copy: BlockCopy, *, is_urgent: bool = False) -> None:
        """Start copying a block into a slot. is_urgent: whether a request waits for nothing else."""
        self.pending_reads += 1
        self._reads.put(copy.name, copy, is_urgent=is_urgent)

    def hasten(self, name: str) -> None:
        """Make the read of this block urgent, if it has not begun."""
        self._reads.hasten(name)

    def cancel_read(self, name: str) -> bool:
        """Take the read of this block back; return False if it has begun. `take_finished` skips it."""
        is_cancelled = self._reads.cancel(name)
        self.pending_reads -= is_cancelled
        return is_cancelled

    @property
    def queued_reads(self) -> int | None:
        """How many reads wait for others to end; None if nothing can be read now."""
        return len(self._reads) if self.is_usable else None

    def is_stored(self, name: str) -> bool:
        """Return whether this engine has stored a block lately, or is about to."""
        stored_s = self._stored.get(name)
        return stored_s is not None and stored_s > time.monotonic() - PRESENT_S

    @property
    def room(self) -> int:
        """How many more blocks may be written now."""
        if not self.is_usable or time.monotonic() < self._write_again_s:
            return 0
        return MOST_PUSHES - self.pending_writes

    def write(self, copy: BlockCopy) -> None:
        """Start storing a slot's block, unless the store has it; its marks are added in any case."""
        self.pending_writes += 1
        self._stored[copy.name] = time.monotonic()
        self._stored.move_to_end(copy.name)
        if len(self._stored) > MOST_KNOWN:
            self._stored.popitem(last=False)
        self._moment += 1
        self._begun[copy.name] = self._moment
        self._writes.put(copy)

    def note_marks(self, names: Iterable[str]) -> None:
        """Note that these blocks have got marks, which the store gets when they are next offered."""
        for name in names:
            self._stored.pop(name, None)

    def withdraw(self, marks: Iterable[str]) -> None:
        """Store nothing that is waiting to be stored and was computed from these documents.

        Call it when the engine forgets them. From then on `forbids` allows them, as what is computed anew
        may be stored; what waits has the tensors from before.
        """
        oldest = min(self._begun.values(), default=self._moment)
        still = {mark: moment for mark, moment in self._withdrawn.items() if moment > oldest}
        self._moment += 1
        self._withdrawn = still | dict.fromkeys(marks, self._moment)

    def take_finished(self) -> list[FinishedCopy]:
        """Return the copies that have ended since the last call, in the order in which they ended."""
        ended: list[FinishedCopy] = []
        if self._is_back:  # perhaps without what it had
            self._is_back = False
            self._stored.clear()
            self._known.clear()
        while not self._finished.empty():
            done = self._finished.get_nowait()
            if done.is_read:
                self.pending_reads -= 1
                self._note(done.copy.name, done.failure is None)
                if done.failure is not None:
                    self._lose(done.copy.name)
            else:
                self.pending_writes -= 1
                self._begun.pop(done.copy.name, None)
                if done.failure is None:
                    self._note(done.copy.name, True)
                    self._lost.pop(done.copy.name, None)
            if done.failure is not None:
                self._stored.pop(done.copy.name, None)
            ended.append(done)
        return ended

    def _lose(self, name: str) -> None:
        now_s = time.monotonic()
        self._lost = {each: until for each, until in self._lost.items() if until > now_s}
        self._lost[name] = now_s + ABSENT_S
        self._stored.clear()

    def close(self, timeout_s: float = 5.0) -> None:
        """Let the copies under way end, then end the threads; give up after the timeout."""
        self._ends_s = time.monotonic() + timeout_s
        self._closing.set()
        self._reads.take_more(len(self._reads))  # nobody wants them any more
        self._reads.close()
        self._questions.put(None)
        self._writes.put(None)
        for thread in self._threads:
            thread.join(max(0.0, self._ends_s - time.monotonic()))
        self._store.close()

    # -- threads -----------------------------------------------------------------------------------

    def _run_questions(self) -> None:
        while (names := self._questions.get()) is not None:
            found = [False] * len(names)
            try:
                if self.is_usable:
                    found = self._store.holds([self._key(name) for name in names])
                    self._note_back()
            except Exception as error:
                self._note_away(error)
            self._answers.put((names, found))

    def _run_reads(self) -> None:
        while (first := self._reads.take()) is not None:
            copies = [first, *self._reads.take_more(self._store.blocks_at_once - 1)]
            start = time.perf_counter()
            results: list[tuple[int, str | None]] = [(0, "missing")] * len(copies)
            try:
                contents = self._store.read([self._key(copy.name) for copy in copies])
                results = [
                    self._unpack(copy, content)
                    for copy, content in zip(copies, contents, strict=True)
                ]
                self._note_back()
            except Exception as error:
                self._note_away(error)
            sharing = len(copies) * max(1, self._reads.running)
            seconds = (time.perf_counter() - start) / sharing
            for copy, (size_bytes, failure) in zip(copies, results, strict=True):
                self._finished.put(FinishedCopy(copy, True, size_bytes, seconds, failure))
                seconds = 0.0  # one batch is one measurement

    def _unpack(self, copy: BlockCopy, content: bytes | None) -> tuple[int, str | None]:
        if content is None:
            return 0, "missing"
        try:
            unpack(content, self._origin, copy.name, self._slots(copy.slot), self._keys)
        except UnusableFile as error:
            self._warn("holds a block that is unusable", error)
            self._to_remove.add(copy.name)
            return 0, "damaged"
        except (KeyAway, OSError):
            return 0, "unreadable"
        return len(content), None

    def _run_writes(self) -> None:
        while (first := self._writes.get()) is not None and time.monotonic() < self._ends_s:
            copies: list[BlockCopy] = [first]
            while len(copies) < self._store.blocks_at_once:
                try:
                    more = self._writes.get_nowait()
                except Empty:
                    break
                if more is None:
                    self._writes.put(None)
                    break
                copies.append(more)
            start = time.perf_counter()
            try:
                results = self._write(copies)
            except StoreFull as error:
                results = [(0, "full")] * len(copies)
                self._write_again_s = time.monotonic() + FULL_S
                self._warn("is full", error)
            except Exception as error:  # reading may go on: some may only read
                results = [(0, "unwritable")] * len(copies)
                self._write_again_s = time.monotonic() + self._away_s
                self._warn("takes no blocks", error)
            seconds = (time.perf_counter() - start) / len(copies)
            for copy, (size_bytes, failure) in zip(copies, results, strict=True):
                self._finished.put(FinishedCopy(copy, False, size_bytes, seconds, failure))

    def _write(self, copies: Sequence[BlockCopy]) -> list[tuple[int, str | None]]:
        """Store the blocks that the store lacks; return the bytes of each, or why it was not stored."""
        if not self.is_usable:
            raise StoreAway("it did not answer lately")
        found = self._store.holds([self._key(copy.name) for copy in copies])
        there = {copy.name for copy, is_there in zip(copies, found, strict=True) if is_there}
        contents: dict[str, bytes | None] = {}
        without_key: set[str] = set()
        for copy in self._find_allowed(copies):
            try:
                contents[copy.name] = None if copy.name in there else self._pack(copy)
            except (KeyAway, OSError):  # of one tenant; others' blocks are stored
                without_key.add(copy.name)
        stay: set[str] = set()
        try:
            # Those that are there too: the same text may have been stored as another document.
            self._store.write(
                [
                    StoredBlock(self._key(copy.name), copy.marks, contents[copy.name])
                    for copy in copies
                    if copy.name in contents
                ]
            )
            # Whoever forgets leaves a tombstone and then removes blocks. If there is none now, these are
            # among those that they will find.
            stay = contents.keys() & {copy.name for copy in self._find_allowed(copies)}
        finally:
            self._to_remove |= contents.keys() - stay
        self._note_back()
        return [
            (len(contents[copy.name] or b""), None)
            if copy.name in stay
            else (0, "unwritable" if copy.name in without_key else "forgotten")
            for copy in copies
        ]

    def _pack(self, copy: BlockCopy) -> bytes:
        content = self._slots(copy.slot)
        return b"".join(pack(self._origin, copy.name, copy.marks, content, self._keys))

    def _find_allowed(self, copies: Sequence[BlockCopy]) -> Sequence[BlockCopy]:
        """Return the copies of blocks that were computed from no document that has been forgotten."""
        copies = [copy for copy in copies if not self._is_withdrawn(copy)]
        marks = tuple(dict.fromkeys(chain.from_iterable(copy.marks for copy in copies)))
        if self._may_store(marks):
            return copies
        return [copy for copy in copies if self._may_store(copy.marks)]

    def _is_withdrawn(self, copy: BlockCopy) -> bool:
        begun = self._begun.get(copy.name, 0)
        return any(self._withdrawn.get(mark, -1) > begun for mark in copy.marks)

    def _may_store(self, marks: Sequence[str]) -> bool:
        return self._forgotten.has_acted_upon(marks) and not self._forbids(marks)

    def _run_looks(self) -> None:
        tidied_s = time.monotonic()
        while not self._closing.wait(self._store.look_s):
            try:
                # Whether or not it answers others: nothing is as urgent.
                is_first = not self._forgotten.has_looked
                if self._forgotten.catch_up(self._look_soon) or is_first:
                    self._look_soon()
                self._note_back()
                self._remove_what_must_go()
                if time.monotonic() - tidied_s > TIDY_S:
                    tidied_s = time.monotonic()
                    self._store.tidy()
            except Exception as error:
                self._note_away(error)

    def _remove_what_must_go(self) -> None:
        names = list(self._to_remove)
        if names:
            self._store.remove([self._key(name) for name in names])
            self._to_remove.difference_update(names)
        while len(self._to_remove) > MOST_TO_REMOVE:
            self._to_remove.pop()

    def _key(self, name: str) -> str:
        return f"{self._home}/{name}"

    def _note_away(self, error: Exception) -> None:
        now_s = time.monotonic()
        if self._closing.is_set() or now_s < self._away_until_s:
            return  # several threads see the same
        self._away_until_s = now_s + self._away_s
        self._away_s = min(2 * self._away_s, LONGEST_AWAY_S)
        self._warn("does not answer, and is asked again from time to time", error)

    def _note_back(self) -> None:
        self._is_back = self._is_back or self._away_s > AWAY_S
        self._away_s = AWAY_S

    def _warn(self, what: str, error: Exception) -> None:
        """Log the first failure of its kind. Only count later ones."""
        if what not in self._warned:
            self._warned.add(what)
            logger.warning(
                "the shared cache %s %s; blocks that do not come from there are computed: %s (others "
                "like it are not logged but counted, in stats().tiers)",
                self._store.label,
                what,
                first_line(error),
            )


def first_line(error: Exception) -> str:
    """Return what an error says, without the pages that some libraries put behind it."""
    return (str(error).splitlines() or [type(error).__name__])[0]
