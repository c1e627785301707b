"""A folder of block files keeps within its bytes, whoever writes there, and survives its writers."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thoroughness import examples

from ragcache_engine.tiers.disk import block_file, folder, tombstones
from ragcache_engine.tiers.disk.block_file import Origin, UnusableFile
from ragcache_engine.tiers.disk.folder import (
    DiskFolder,
    DocumentForgotten,
    FolderFull,
    NotOurFile,
    forget_documents,
)
from ragcache_engine.tiers.disk.key_ring import KeyRing
from ragcache_engine.tiers.disk.naming import PLAIN
from ragcache_engine.tiers.disk.tombstones import KEPT_S, leave_tombstones

OURS = Origin("weights", "configuration", "bfloat16", 16, "NHD", "vllm")
THEIRS = replace(OURS, weights="others")
SIZE = 2000


def name_of(number: int) -> str:
    return f"{number:02x}" + "0" * 38


def content_of(number: int) -> bytes:
    return bytes([number]) * SIZE


def nothing_known(name: str) -> bool:
    return False


def all_known(name: str) -> bool:
    return True


def keep(
    disk: DiskFolder,
    number: int,
    *documents: str,
    is_known: Callable[[str], bool] = nothing_known,
) -> int:
    marks = list(map(PLAIN.mark, documents))
    return disk.write(name_of(number), marks, memoryview(content_of(number)), is_known)


def get(disk: DiskFolder, number: int) -> bytes:
    target = bytearray(SIZE)
    disk.read(name_of(number), memoryview(target))
    return bytes(target)


def size_on_disk(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*.kv"))


def numbers_in(disk: DiskFolder) -> set[int]:
    disk.refresh()
    return {number for number in range(256) if disk.holds(name_of(number))}


def age(disk: DiskFolder, number: int, seconds: float) -> None:
    path = next(disk.folder.rglob(f"{name_of(number)}.kv"))
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_block_comes_back_and_is_counted(tmp_path: Path):
    disk = DiskFolder(tmp_path / "new" / "folder", OURS, 10_000)
    assert not disk.holds(name_of(1))
    written = keep(disk, 1)
    assert disk.holds(name_of(1))
    assert get(disk, 1) == content_of(1)
    assert disk.used_bytes == written == size_on_disk(tmp_path)


def test_a_block_that_is_there_is_not_written_again(tmp_path: Path):
    disk = DiskFolder(tmp_path, OURS, 10_000)
    assert keep(disk, 1) > 0
    assert keep(disk, 1) == 0
    assert disk.used_bytes == size_on_disk(tmp_path)


def test_what_is_removed_is_gone_and_its_bytes_are_free(tmp_path: Path):
    disk = DiskFolder(tmp_path, OURS, 10_000)
    keep(disk, 1)
    disk.remove(name_of(1))
    disk.remove(name_of(1))
    disk.remove(name_of(2))
    assert disk.used_bytes == 0
    with pytest.raises(FileNotFoundError):
        get(disk, 1)


def test_a_damaged_file_is_a_miss_and_removed(tmp_path: Path):
    disk = DiskFolder(tmp_path, OURS, 10_000)
    keep(disk, 1)
    path = next(tmp_path.rglob("*.kv"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UnusableFile):
        get(disk, 1)
    assert not path.exists()
    assert not disk.holds(name_of(1))


def test_another_life_finds_the_blocks_and_counts_them(tmp_path: Path):
    keep(DiskFolder(tmp_path, OURS, 10_000), 1)
    again = DiskFolder(tmp_path, OURS, 10_000)
    assert get(again, 1) == content_of(1)
    assert again.used_bytes == size_on_disk(tmp_path)


def test_tensors_of_another_model_are_not_found(tmp_path: Path):
    keep(DiskFolder(tmp_path, OURS, 10_000), 1)
    assert not DiskFolder(tmp_path, THEIRS, 10_000).holds(name_of(1))


def test_a_full_folder_refuses_rather_than_remove_what_the_tree_knows(tmp_path: Path):
    disk = DiskFolder(tmp_path, OURS, 7_500)
    for number in (1, 2, 3):
        keep(disk, number, is_known=all_known)
    with pytest.raises(FolderFull, match="full"):
        keep(disk, 4, is_known=all_known)
    assert numbers_in(disk) == {1, 2, 3}


def test_a_block_larger_than_the_quota_is_refused(tmp_path: Path):
    disk = DiskFolder(tmp_path, OURS, 1_000)
    with pytest.raises(FolderFull):
        keep(disk, 1)
    assert size_on_disk(tmp_path) == 0


def test_strangers_leave_before_what_the_tree_knows_the_longest_unused_first(tmp_path: Path):
    disk = DiskFolder(tmp_path, OURS, 7_500)
    for number, seconds in ((1, 500), (2, 100), (3, 300)):
        keep(disk, number)
        age(disk, number, seconds)
    keep(disk, 4, is_known=name_of(1).__eq__)
    assert numbers_in(disk) == {1, 2, 4}
    keep(disk, 5, is_known={name_of(1), name_of(4)}.__contains__)
    assert numbers_in(disk) == {1, 4, 5}


def test_reading_is_a_use(tmp_path: Path):
    disk = DiskFolder(tmp_path, OURS, 7_500)
    for number, seconds in ((1, 500), (2, 100), (3, 300)):
        keep(disk, number)
        age(disk, number, seconds)
    get(disk, 1)
    keep(disk, 4)
    assert numbers_in(disk) == {1, 2, 4}


def test_blocks_of_other_models_are_strangers_under_any_name(tmp_path: Path):
    others = DiskFolder(tmp_path, THEIRS, 7_500)
    for number in (1, 2, 3):
        keep(others, number)
    disk = DiskFolder(tmp_path, OURS, 7_500)
    keep(disk, 1, is_known=all_known)
    assert numbers_in(disk) == {1}
    assert len(numbers_in(others)) == 2
    assert size_on_disk(tmp_path) <= 7_500


def test_a_stranger_that_is_removed_takes_no_file_of_the_same_name_along(tmp_path: Path):
    others = DiskFolder(tmp_path, THEIRS, 7_500)
    keep(others, 1)
    age(others, 1, 100)
    keep(ours := DiskFolder(tmp_path, OURS, 7_500), 1)
    then = time.time() - 60  # what is listed once is not listed again for nothing
    os.utime(ours._path(name_of(1)).parent, (then, then))
    disk = DiskFolder(tmp_path, OURS, 7_500)
    for name in ("d" * 40, "e" * 40):  # in other directories, which says nothing of this one
        disk.write(name, [], memoryview(content_of(4)), nothing_known)
    assert not others._path(name_of(1)).exists()
    disk.refresh()
    assert disk.holds(name_of(1))


def test_two_engines_over_one_folder_find_each_others_blocks(tmp_path: Path):
    first, second = (DiskFolder(tmp_path, OURS, 7_500) for _ in range(2))
    keep(first, 1)
    assert get(second, 1) == content_of(1)
    assert keep(second, 1) == 0
    second.remove(name_of(1))
    with pytest.raises(FileNotFoundError):
        get(first, 1)
    assert not first.holds(name_of(1))
    keep(second, 2)
    first.refresh()
    assert first.holds(name_of(2))


def test_whether_a_file_is_there_asks_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    disk = DiskFolder(tmp_path, OURS, 100_000)
    keep(disk, 1)
    for name in ("stat", "lstat", "open", "scandir", "listdir"):
        monkeypatch.setattr(os, name, lambda *given, **named: pytest.fail("the disk was asked"))
    held = (disk.holds(name_of(1)), disk.holds(name_of(2)))
    monkeypatch.undo()
    assert held == (True, False)


def test_a_smaller_quota_beside_a_larger_one_removes_nothing(tmp_path: Path):
    large = DiskFolder(tmp_path, OURS, 1_000_000)
    for number in range(20):
        keep(large, number)
    small = DiskFolder(tmp_path, THEIRS, 5_000)
    keep(small, 1)
    assert numbers_in(large) == set(range(20))
    large.close()
    keep(small, 2)
    assert size_on_disk(tmp_path) <= 5_000, "alone, its own quota counts"


def test_a_full_folder_is_not_counted_for_each_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    disk = DiskFolder(tmp_path, THEIRS, 200_000)
    for number in range(80):
        keep(disk, number)
    disk = DiskFolder(tmp_path, OURS, 200_000)
    counts = []
    count = disk._count
    monkeypatch.setattr(disk, "_count", lambda is_known: counts.append(count(is_known)))
    for number in range(80):
        keep(disk, number, is_known=lambda name: (tmp_path / "known").exists())
    assert 1 <= len(counts) <= 20
    counts.clear()
    for number in range(100, 120):
        with contextlib.suppress(FolderFull):
            keep(disk, number, is_known=all_known)
    assert len(counts) <= 5


def test_an_older_folder_that_others_could_read_is_closed_to_them(tmp_path: Path):
    home = tmp_path / OURS.digest()
    home.mkdir(mode=0o755)
    DiskFolder(tmp_path, OURS, 10_000)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


# -- documents that were forgotten -----------------------------------------------------------------


def test_what_another_engine_forgot_is_written_no_more_until_this_one_has_forgotten_it_too(
    tmp_path: Path,
):
    here, there = (DiskFolder(tmp_path, OURS, 100_000) for _ in range(2))
    times = leave_tombstones(tmp_path, [PLAIN.mark("d1")])
    here.note_forgotten(times)
    with pytest.raises(DocumentForgotten):
        keep(there, 1, "d1")
    keep(there, 2, "d2")
    keep(here, 3, "d1")
    assert there.find_forgotten() == times
    there.note_forgotten(times)
    assert there.find_forgotten() == {}
    keep(there, 1, "d1")
    assert numbers_in(there) == {1, 2, 3}


def forget_during_writes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another engine forget d1 whenever a file is about to be written."""
    write = block_file.write

    def write_while_another_forgets(*given: Any) -> int:
        leave_tombstones(folder, [PLAIN.mark("d1")])
        forget_documents(folder, ["d1"])
        return write(*given)

    monkeypatch.setattr(block_file, "write", write_while_another_forgets)


def test_a_write_under_way_while_a_document_is_forgotten_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    disk = DiskFolder(tmp_path, OURS, 100_000)
    forget_during_writes(tmp_path, monkeypatch)
    with pytest.raises(DocumentForgotten):
        keep(disk, 1, "d1")
    assert numbers_in(disk) == set()
    assert disk.used_bytes == 0


def test_what_another_engine_forgot_is_told_once(tmp_path: Path):
    disk = DiskFolder(tmp_path, OURS, 100_000)
    times = leave_tombstones(tmp_path, [PLAIN.mark("d1")])
    assert disk.find_forgotten() == times
    assert disk.find_forgotten() == {}  # else what was computed anew meanwhile would be forgotten
    with pytest.raises(DocumentForgotten):
        keep(disk, 1, "d1")  # nobody has acted upon it


def test_a_document_forgotten_twice_is_news_twice(tmp_path: Path):
    disk = DiskFolder(tmp_path, OURS, 100_000)
    for _ in range(2):
        times = leave_tombstones(tmp_path, ["0123456789abcdef"])
        assert disk.find_forgotten() == times
        disk.note_forgotten(times)


def test_a_later_life_knows_that_it_holds_nothing_forgotten(tmp_path: Path):
    DiskFolder(tmp_path, OURS, 100_000)
    leave_tombstones(tmp_path, [PLAIN.mark("d1")])
    disk = DiskFolder(tmp_path, OURS, 100_000)
    assert disk.find_forgotten() == {}
    keep(disk, 1, "d1")


def test_a_file_older_than_its_documents_tombstone_is_read_by_nobody(tmp_path: Path):
    disk = DiskFolder(tmp_path, OURS, 100_000)
    keep(disk, 1, "d1")
    target = memoryview(bytearray(SIZE))
    disk.read(name_of(1), target)
    leave_tombstones(tmp_path, [PLAIN.mark("d1")])
    for reader in (disk, DiskFolder(tmp_path, OURS, 100_000)):
        with pytest.raises(FileNotFoundError):
            reader.read(name_of(1), target)
    disk.note_forgotten(disk.find_forgotten())
    time.sleep(0.02)  # a filesystem's clock may be coarse
    keep(disk, 1, "d1")  # computed anew
    assert disk.read(name_of(1), target)


def test_old_tombstones_are_removed(tmp_path: Path):
    leave_tombstones(tmp_path, ["old", "new"])
    long_ago = time.time() - KEPT_S - 60
    os.utime(tmp_path / "forgotten" / "old", (long_ago, long_ago))
    DiskFolder(tmp_path, OURS, 100_000)
    assert [path.name for path in (tmp_path / "forgotten").iterdir()] == ["new"]


def test_so_they_are_while_an_engine_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    leave_tombstones(tmp_path, ["old", "new"])
    disk = DiskFolder(tmp_path, OURS, 100_000)
    long_ago = time.time() - KEPT_S - 60
    os.utime(tmp_path / "forgotten" / "old", (long_ago, long_ago))
    disk.tidy()
    assert len(list((tmp_path / "forgotten").iterdir())) == 2, "once an hour"
    monkeypatch.setattr(tombstones, "TIDIED_EVERY_S", 0.0)
    disk.tidy()
    assert [path.name for path in (tmp_path / "forgotten").iterdir()] == ["new"]


def test_two_engines_over_one_folder_keep_one_quota(tmp_path: Path):
    first, second = (DiskFolder(tmp_path, OURS, 7_500) for _ in range(2))
    for number in range(12):
        keep(first if number % 2 else second, number)
        assert size_on_disk(tmp_path) <= 7_500 + SIZE + 1024


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["write", "remove", "read", "age"]), st.integers(0, 9), st.booleans()
        ),
        max_size=40,
    ),
    known=st.sets(st.integers(0, 9)),
    quota=st.integers(0, 12_000),
)
@settings(
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_the_quota_holds_whatever_is_asked(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int, bool]],
    known: set[int],
    quota: int,
):
    disk = DiskFolder(tmp_path_factory.mktemp("disk"), OURS, quota)
    known_names = set(map(name_of, known))
    for verb, number, flag in steps:
        before = numbers_in(disk)
        if verb == "write":
            try:
                keep(disk, number, *(["d1"] if flag else []), is_known=known_names.__contains__)
            except FolderFull:
                assert before & known <= numbers_in(disk)
            else:
                assert number in numbers_in(disk)
                assert get(disk, number) == content_of(number)
        elif verb == "remove":
            disk.remove(name_of(number))
        elif number in before:
            if verb == "read":
                assert get(disk, number) == content_of(number)
            else:
                age(disk, number, 100.0 * number)
        if verb != "remove":
            assert before & known <= numbers_in(disk), "what the tree knows was removed"
        assert size_on_disk(disk.folder) == disk.used_bytes <= quota


def test_a_block_computed_from_many_documents_keeps_the_quota_too(tmp_path: Path):
    disk = DiskFolder(tmp_path, OURS, SIZE + 1024)
    with contextlib.suppress(FolderFull):
        keep(disk, 1, *(f"document {number}" for number in range(100)))
    assert size_on_disk(tmp_path) <= disk.quota_bytes


def unfinished(path: Path, process: int, *, age_s: float = 0) -> Path:
    file = (
        path / OURS.digest() / "ab" / f"{name_of(171)}.kv.{process}{block_file.UNFINISHED_SUFFIX}"
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"half")
    then = time.time() - age_s
    os.utime(file, (then, then))
    return file


def a_dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_a_dead_process_left_unfinished_is_removed(tmp_path: Path):
    left = unfinished(tmp_path, a_dead_process())
    disk = DiskFolder(tmp_path, OURS, 10_000)
    assert not left.exists()
    assert disk.used_bytes == 0


def test_what_a_living_process_is_writing_stays_unless_it_is_old(tmp_path: Path):
    young = unfinished(tmp_path, os.getpid())
    DiskFolder(tmp_path, OURS, 10_000)
    assert young.exists()
    old = unfinished(tmp_path, os.getpid(), age_s=folder.ABANDONED_AFTER_S + 60)
    DiskFolder(tmp_path, OURS, 10_000)
    assert not old.exists()


def test_files_that_are_not_ours_are_left_alone(tmp_path: Path):
    home = tmp_path / OURS.digest() / "ab"
    home.mkdir(parents=True)
    strangers = [tmp_path / "notes.txt", home / "notes.txt", tmp_path / "x.kv"]
    for path in strangers:
        path.write_bytes(bytes(9_000))
    disk = DiskFolder(tmp_path, OURS, 4_000)
    keep(disk, 1)
    forget_documents(tmp_path, ["d1"])
    assert all(path.exists() for path in strangers)
    assert disk.used_bytes < 4_000


def test_forgetting_a_document_removes_every_block_computed_from_it(tmp_path: Path):
    disk, others = (DiskFolder(tmp_path, origin, 100_000) for origin in (OURS, THEIRS))
    keep(disk, 1, "d1")
    keep(disk, 2, "d1", "d2")
    keep(disk, 3, "d3")
    keep(others, 4, "d2")
    keep(disk, 5)
    assert forget_documents(tmp_path, ["d2", "unheard of"]).files == 2
    assert numbers_in(disk) == {1, 3, 5}
    assert numbers_in(others) == set()
    assert forget_documents(tmp_path, ["d1", "d3"]).files == 2
    assert numbers_in(disk) == {5}


def test_forgetting_removes_what_cannot_say_what_it_holds(tmp_path: Path):
    disk = DiskFolder(tmp_path, OURS, 100_000)
    keep(disk, 1, "d1")
    next(tmp_path.rglob("*.kv")).write_bytes(b"damaged")
    assert forget_documents(tmp_path, ["d2"]).files == 1
    assert numbers_in(disk) == set()


def test_a_text_that_gets_another_id_is_forgotten_by_each_of_them(tmp_path: Path):
    disk = DiskFolder(tmp_path, OURS, 100_000)
    for number, documents in ((1, ()), (2, ("d1",)), (3, ("d1",))):
        keep(disk, number, *documents)
    age(disk, 1, 1000.0)
    disk.add_marks(name_of(1), [PLAIN.mark("d1")])
    disk.add_marks(name_of(2), [PLAIN.mark("d1"), PLAIN.mark("d2")])
    assert keep(disk, 3, "d3") == 0  # it is there, and gets what it lacks
    disk.add_marks(name_of(4), [PLAIN.mark("d1")])  # which nobody has written
    assert [get(disk, number) for number in (2, 3)] == [content_of(number) for number in (2, 3)]
    assert disk.used_bytes == size_on_disk(tmp_path)
    unused_s = time.time() - next(tmp_path.rglob(f"{name_of(1)}.kv")).stat().st_mtime
    assert unused_s > 900, "that is no use"
    for document, left in (("d3", {1, 2}), ("d2", {1}), ("d1", set())):
        disk.forget([document])
        assert numbers_in(disk) == left


def test_another_id_brings_nothing_back_that_was_forgotten(tmp_path: Path):
    here, there = (DiskFolder(tmp_path, OURS, 100_000) for _ in range(2))
    keep(here, 1, "d1")
    here.note_forgotten(leave_tombstones(tmp_path, [PLAIN.mark("d1")]))  # its files still lie there
    here.add_marks(name_of(1), [PLAIN.mark("d1"), PLAIN.mark("d2")])
    assert numbers_in(here) == set()
    keep(here, 2)
    leave_tombstones(tmp_path, [PLAIN.mark("d3")])
    here.add_marks(name_of(2), [PLAIN.mark("d3")])  # nobody here has acted upon that
    assert numbers_in(there) == set()


def test_another_id_that_is_forgotten_while_it_is_written_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    disk = DiskFolder(tmp_path, OURS, 100_000)
    keep(disk, 1)
    forget_during_writes(tmp_path, monkeypatch)
    disk.add_marks(name_of(1), [PLAIN.mark("d1")])
    assert numbers_in(disk) == set()
    assert disk.used_bytes == 0


def test_a_file_that_cannot_be_given_another_id_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    disk = DiskFolder(tmp_path, OURS, 100_000)
    keep(disk, 1)
    keep(disk, 2)
    path = next(tmp_path.rglob(f"{name_of(1)}.kv"))
    path.write_bytes(path.read_bytes()[:-1])
    disk.add_marks(name_of(1), [PLAIN.mark("d1")])

    def fail(*given: Any) -> int:
        raise OSError("no space left")

    monkeypatch.setattr(block_file, "write", fail)
    with pytest.raises(OSError, match="no space"):
        disk.add_marks(name_of(2), [PLAIN.mark("d1")])
    assert numbers_in(disk) == set()


def test_forgetting_in_a_folder_that_is_not_there_removes_nothing(tmp_path: Path):
    assert forget_documents(tmp_path / "none", ["d1"]).files == 0


def test_a_folder_that_cannot_be_made_or_written_is_an_error_at_once(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        DiskFolder(tmp_path / "file", OURS, 10_000)
    with pytest.raises(OSError, match="file"):
        DiskFolder(tmp_path / "file" / "below", OURS, 10_000)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_an_error_at_once(tmp_path: Path):
    home = tmp_path / OURS.digest()
    home.mkdir()
    home.chmod(0o500)
    try:
        with pytest.raises(OSError, match="denied"):
            DiskFolder(tmp_path, OURS, 10_000)
    finally:
        home.chmod(0o700)


WRITERS = f"""
import os, signal, sys
from pathlib import Path
from ragcache_engine.tiers.disk.block_file import Origin
from ragcache_engine.tiers.disk.folder import DiskFolder

signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are buried at once
origin = Origin({", ".join(map(repr, OURS.as_dict().values()))})
for start in map(int, sys.stdin):
    process = os.fork()
    if process:
        print(process, flush=True)
        continue
    disk = DiskFolder(Path(sys.argv[1]), origin, 3_000_000)
    turn = start
    while True:
        turn += 1
        number = turn % 256
        name = f"{{number:02x}}" + "0" * 38
        disk.remove(name)
        disk.write(name, [], memoryview(bytes([number]) * 100_000), lambda name: False)
"""
"""Starts a process that writes for ever with each line it reads, and says its number."""


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_a_folder_whose_writers_are_killed_at_any_moment_stays_loadable(tmp_path: Path):
    chance = random.Random(7)
    found_unfinished = 0
    with subprocess.Popen(
        [sys.executable, "-c", WRITERS, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writers:
        assert writers.stdin is not None
        assert writers.stdout is not None
        for kill in range(40):
            print(kill * 11, file=writers.stdin, flush=True)
            process = int(writers.stdout.readline())
            time.sleep(chance.uniform(0.005, 0.08))
            os.kill(process, signal.SIGKILL)
            while is_running(process):
                time.sleep(0.001)
            found_unfinished += len(list(tmp_path.rglob(f"*{block_file.UNFINISHED_SUFFIX}")))
            disk = DiskFolder(tmp_path, OURS, 3_000_000)
            assert not list(tmp_path.rglob(f"*{block_file.UNFINISHED_SUFFIX}"))
            assert disk.used_bytes == size_on_disk(tmp_path)
            for number in numbers_in(disk):
                target = bytearray(100_000)
                disk.read(name_of(number), memoryview(target))
                assert target == bytes([number]) * 100_000
    assert found_unfinished, "no writer was killed while it was writing"
    assert numbers_in(disk)


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "broken link", "socket"])
def test_only_plain_files_are_blocks_and_nothing_else_is_touched(tmp_path: Path, kind: str):
    disk = DiskFolder(tmp_path / "kv", OURS, 100_000)
    keep(disk, 1)
    path = next(tmp_path.rglob("*.kv"))
    path.unlink()
    target = tmp_path / "somebody's"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(path.parent):
            bound.bind(path.name)
    else:
        if kind == "link":
            target.write_bytes(b"precious")
        path.symlink_to(target)
    disk.refresh()
    assert not disk.holds(name_of(1))
    with pytest.raises(UnusableFile, match="not a plain file"):  # a pipe would block for ever
        get(disk, 1)
    with pytest.raises(NotOurFile, match="move it away"):
        keep(disk, 1)
    disk.remove(name_of(1))
    forget_documents(tmp_path / "kv", ["any"])
    assert os.path.lexists(path)
    assert kind != "link" or target.read_bytes() == b"precious"
    assert DiskFolder(tmp_path / "kv", OURS, 100_000).used_bytes == 0


@pytest.mark.parametrize(
    "place", ["notes.kv", "backup/ab/ab12.kv", f"{OURS.digest()}/ab/abc.kv", "0" * 16 + "/ab/cd.kv"]
)
def test_a_strangers_file_is_neither_counted_nor_removed(tmp_path: Path, place: str):
    stranger = tmp_path / place
    stranger.parent.mkdir(parents=True, exist_ok=True)
    stranger.write_bytes(bytes(9_000))
    disk = DiskFolder(tmp_path, OURS, 4_000)
    assert disk.used_bytes == 0
    for number in range(3):
        keep(disk, number)
    forget_documents(tmp_path, ["d1"])
    assert stranger.exists()


def test_what_documents_say_is_for_their_owner_only(tmp_path: Path):
    disk = DiskFolder(tmp_path / "kv", OURS, 100_000)
    keep(disk, 1)
    for path in [tmp_path / "kv", *(tmp_path / "kv").rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize(
    "name", ["letter.writing", "0" * 40 + ".kv.writing", "0" * 40 + ".kv.0badcafe.x.writing"]
)
def test_a_strangers_unfinished_file_stays_however_old(tmp_path: Path, name: str):
    home = tmp_path / OURS.digest() / "00"
    home.mkdir(parents=True)
    for folder_ in (home, tmp_path / "my" / "ab"):
        folder_.mkdir(parents=True, exist_ok=True)
        (folder_ / name).write_bytes(b"half a letter")
        os.utime(folder_ / name, (0, 0))
    DiskFolder(tmp_path, OURS, 10_000)
    assert len(list(tmp_path.rglob("*.writing"))) == 2


@pytest.mark.parametrize("linked", ["home", "shard"])
def test_a_file_behind_a_linked_folder_is_neither_counted_nor_removed(tmp_path: Path, linked: str):
    outside, cache = tmp_path / "outside", tmp_path / "kv"
    precious = outside / ("ab" if linked == "home" else "") / ("ab" + "0" * 38 + ".kv")
    precious.parent.mkdir(parents=True)
    precious.write_bytes(bytes(9_000))
    home = cache / ("0" * 16)
    if linked == "home":
        cache.mkdir()
        home.symlink_to(outside)
    else:
        home.mkdir(parents=True)
        (home / "ab").symlink_to(outside)
    disk = DiskFolder(cache, OURS, 4_000)
    assert disk.used_bytes == 0
    for number in range(3):
        keep(disk, number)
    forget_documents(cache, ["d1"])
    assert precious.exists()


@pytest.fixture
def keys(tmp_path: Path) -> KeyRing:
    pytest.importorskip("cryptography")
    return KeyRing(tmp_path, [b"m" * 32])


def keep_for(disk: DiskFolder, tokens: Sequence[int], tenant: str, *documents: str) -> str:
    """Write a block under the name that the folder's own naming gives it; return the name."""
    [name] = disk.naming.files(tokens, tenant, blocks=1, block_tokens=len(tokens))
    disk.write(name, list(map(disk.naming.mark, documents)), memoryview(content_of(7)), all_known)
    return name


def test_an_engine_with_another_key_removes_nothing_of_others(tmp_path: Path, keys: KeyRing):
    disk = DiskFolder(tmp_path, OURS, 10_000, keys)
    name = keep_for(disk, range(16), "shop", "d1")
    DiskFolder(tmp_path, OURS, 10_000, KeyRing(tmp_path, [b"n" * 32]))
    disk.refresh()
    assert disk.holds(name)


def test_what_is_written_without_a_key_is_removed_at_the_next_start_with_one(
    tmp_path: Path, keys: KeyRing
):
    DiskFolder(tmp_path, OURS, 10_000, keys)
    keep(DiskFolder(tmp_path, OURS, 10_000), 1, "d1")
    assert not numbers_in(DiskFolder(tmp_path, OURS, 10_000, KeyRing(tmp_path, [b"m" * 32])))
    assert size_on_disk(tmp_path) == 0


def test_with_keys_that_are_new_what_was_not_encrypted_is_removed(tmp_path: Path, keys: KeyRing):
    DiskFolder(tmp_path, OURS, 10_000).forget(["d3"])
    keep(DiskFolder(tmp_path, OURS, 10_000), 1, "d1")
    keep(DiskFolder(tmp_path, THEIRS, 10_000), 2, "d1")
    disk = DiskFolder(tmp_path, OURS, 10_000, keys)
    assert size_on_disk(tmp_path) == disk.used_bytes == 0
    assert not [*(tmp_path / "forgotten").iterdir()], "tombstones tell ids to those who guess them"
    name = keep_for(disk, range(16), "shop", "d1")
    again = DiskFolder(tmp_path, OURS, 10_000, KeyRing(tmp_path, [b"m" * 32]))
    target = bytearray(SIZE)
    again.read(name, memoryview(target))
    assert bytes(target) == content_of(7)


def test_no_file_tells_what_is_stored_or_of_what(tmp_path: Path, keys: KeyRing):
    disk = DiskFolder(tmp_path, OURS, 10_000, keys)
    keep_for(disk, range(16), "shop", "d1")
    disk.forget(["d2"])
    plain = [content_of(7)[:32], PLAIN.mark("d1").encode(), PLAIN.mark("d2").encode(), b"shop"]
    plain += [PLAIN.files(range(16), "shop", blocks=1, block_tokens=16)[0].encode()]
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        told = str(path.relative_to(tmp_path)).encode() + path.read_bytes()
        assert not any(one in told for one in plain), path


def test_encrypted_documents_are_forgotten_by_their_own_engines_and_others(
    tmp_path: Path, keys: KeyRing
):
    disk = DiskFolder(tmp_path, OURS, 10_000, keys)
    other = DiskFolder(tmp_path, THEIRS, 10_000, keys)
    first, second = (keep_for(disk, range(at, at + 16), "shop", f"d{at}") for at in (1, 2))
    other.forget(["d1"])
    disk.refresh()
    assert (disk.holds(first), disk.holds(second)) == (False, True)
    assert list(disk.find_forgotten()) == [keys.naming.mark("d1")]


def test_an_encrypted_text_that_gets_another_id_is_forgotten_by_it(tmp_path: Path, keys: KeyRing):
    disk = DiskFolder(tmp_path, OURS, 10_000, keys)
    name = keep_for(disk, range(16), "shop", "d1")
    disk.add_marks(name, [keys.naming.mark("d2")])
    target = bytearray(SIZE)
    disk.read(name, memoryview(target))
    assert bytes(target) == content_of(7)
    disk.forget(["d2"])
    assert not disk.holds(name)


def test_whoever_has_another_key_forgets_what_it_cannot_read(tmp_path: Path, keys: KeyRing):
    disk = DiskFolder(tmp_path, OURS, 10_000, keys)
    name = keep_for(disk, range(16), "shop", "d1")
    forget_documents(tmp_path, ["unheard of"])
    disk.refresh()
    assert not disk.holds(name), "it may have been of that document"


def test_without_its_tenants_key_a_block_is_a_miss(tmp_path: Path, keys: KeyRing):
    name = keep_for(DiskFolder(tmp_path, OURS, 10_000, keys), range(16), "shop", "d1")
    for path in (tmp_path / "keys").rglob("tenant-*"):
        path.unlink()
    again = DiskFolder(tmp_path, OURS, 10_000, KeyRing(tmp_path, [b"m" * 32]))
    with pytest.raises(UnusableFile):
        again.read(name, memoryview(bytearray(SIZE)))
    assert not again.holds(name)
