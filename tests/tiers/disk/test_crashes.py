"""Whatever a process was doing to the folder when it died, the next one finds it in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from ragcache_engine.tiers.disk import block_file
from ragcache_engine.tiers.disk.block_file import Origin
from ragcache_engine.tiers.disk.folder import (
    DiskFolder,
    DocumentForgotten,
    FolderFull,
    forget_documents,
)
from ragcache_engine.tiers.disk.naming import PLAIN
from ragcache_engine.tiers.disk.tombstones import leave_tombstones

ORIGIN = Origin("weights", "configuration", "float32", 16, "layout", "software")
SIZE = 700
QUOTA = 4_000
"""Room for three blocks."""
NO_PROCESS = 1 << 23
"""Beyond every process id: processes with such ids are dead."""

CALLS = (
    "open",
    "write",
    "fsync",
    "replace",
    "mkdir",
    "unlink",
    "utime",
    "chmod",
    "readv",
    "scandir",
)
"""The system calls that the folder makes, as far as they change something or can fail half way."""

Step = tuple[str, int]
STEPS: list[Step] = [
    ("write", 1),
    ("write", 2),
    ("read", 1),
    ("write", 3),
    ("write", 4),  # one must leave
    ("forget", 3),
    ("write", 3),
    ("remove", 4),
    ("write", 1),
    ("read", 3),
]


class Crash(BaseException):
    """The process is dead: from now on each of its system calls fails."""


@contextmanager
def dying_at(call: int) -> Iterator[list[int]]:
    """Let the process die at its so-many-eth system call. Yields how many calls were made."""
    made = [0]

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call_or_die(*given: Any, **named: Any) -> Any:
            made[0] += 1
            if made[0] > call:
                raise Crash
            if made[0] == call and real is os_write:
                real(given[0], bytes(given[1])[: len(given[1]) // 2])  # half of it reached the disk
                raise Crash
            return real(*given, **named)

        return call_or_die

    os_write = os.write
    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, dying(getattr(os, name)))
        yield made


def name_of(number: int) -> str:
    return f"{number:02x}" + "0" * 38


def do(disk: DiskFolder, step: Step, known: set[str]) -> None:
    action, number = step
    name, content = name_of(number), bytes([number]) * SIZE
    documents = [PLAIN.mark(f"d{number}")]
    if action == "write":
        with suppress(FolderFull, DocumentForgotten):
            disk.write(name, documents, memoryview(content), known.__contains__)
    elif action == "read":
        target = bytearray(SIZE)
        try:
            disk.read(name, memoryview(target))
        except FileNotFoundError:
            return
        assert target == content
    elif action == "remove":
        disk.remove(name)
    else:
        times = leave_tombstones(disk.folder, documents)
        disk.note_forgotten(times)
        forget_documents(disk.folder, [f"d{number}"])


def check(folder: Path, forgotten: set[int]) -> None:
    """Open the folder as the next process does, and look at all of it."""
    disk = DiskFolder(folder, ORIGIN, QUOTA)
    try:
        for number in range(10):
            if disk.holds(name_of(number)):
                assert number not in forgotten, "a forgotten document came back"
                target = bytearray(SIZE)
                try:
                    disk.read(name_of(number), memoryview(target))
                except FileNotFoundError:  # it died after the tombstone, before it removed the file
                    assert not disk.holds(name_of(number))
                    assert (folder / "forgotten" / PLAIN.mark(f"d{number}")).exists()
                else:
                    assert target == bytes([number]) * SIZE
        kept = list(folder.rglob("*.kv"))
        assert disk.used_bytes == sum(path.stat().st_size for path in kept)
        assert not list(folder.rglob(f"*{block_file.UNFINISHED_SUFFIX}")), "half a file stayed"
        for number in range(5, 9):  # and it can be written to
            disk.write(name_of(number), [], memoryview(bytes([number]) * SIZE), lambda name: False)
        assert disk.holds(name_of(8))
    finally:
        disk.close()


def live(folder: Path, steps: list[Step], dies_at: int, process: int) -> tuple[bool, set[int]]:
    """Do the steps until the process dies; return whether it died, and what it had forgotten by then."""
    forgotten: set[int] = set()
    disk = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: NO_PROCESS + process)
        try:
            with dying_at(dies_at):
                disk = DiskFolder(folder, ORIGIN, QUOTA)
                for step in steps:
                    do(disk, step, set())
                    if step[0] == "forget":
                        forgotten.add(step[1])
                    elif step[0] == "write":
                        forgotten.discard(step[1])
        except Crash:
            # A write that died may have come after a `forget` of the same document.
            return True, forgotten - {number for action, number in steps if action == "write"}
        finally:
            if disk is not None:
                disk.close()  # as the system does for a dead process's locks
    return False, forgotten


@pytest.mark.slow
def test_a_process_may_die_at_any_system_call(tmp_path: Path):
    call = 0
    has_died = True
    while has_died:
        call += 1
        has_died, forgotten = live(tmp_path / str(call), STEPS, call, call)
        check(tmp_path / str(call), forgotten)
    assert call > 60, "so few calls cannot be all"


@given(
    lives=st.lists(
        st.tuples(
            st.lists(
                st.tuples(
                    st.sampled_from(["write", "read", "remove", "forget"]), st.integers(0, 5)
                ),
                max_size=12,
            ),
            st.integers(1, 150),
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=examples(30))
def test_life_after_life_may_end_at_any_system_call(
    tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[list[Step], int]]
):
    folder = tmp_path_factory.mktemp("lives") / "kv"
    forgotten: set[int] = set()
    for process, (steps, dies_at) in enumerate(lives):
        written = {number for action, number in steps if action == "write"}
        _, now_forgotten = live(folder, steps, dies_at, process)
        forgotten = (forgotten - written) | now_forgotten
    check(folder, forgotten)
