"""Copies between slots and files happen elsewhere, in order, and always report how they ended."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ragcache_engine.tiers.disk.block_file import Origin
from ragcache_engine.tiers.disk.folder import DiskFolder, forget_documents
from ragcache_engine.tiers.disk.naming import PLAIN
from ragcache_engine.tiers.disk.transfers import (
    FAILED_WRITES_TO_STOP,
    READERS,
    BlockCopy,
    DiskTransfers,
    FinishedCopy,
)

OURS = Origin("weights", "configuration", "bfloat16", 16, "NHD", "vllm")
SLOT = 500


def name_of(number: int) -> str:
    return f"{number:02x}" + "0" * 38


class Host:
    """Ten slots over a folder, with threads for reading and writing."""

    def __init__(self, path: Path, quota_bytes: int = 100_000) -> None:
        self.memory = bytearray(10 * SLOT)
        self.folder = DiskFolder(path, OURS, quota_bytes)
        self.known: set[str] = set()
        self.transfers = DiskTransfers(self.folder, self.slot, self.known.__contains__)

    def slot(self, slot: int) -> memoryview:
        if slot >= 10:
            raise IndexError("there is no such slot")
        return memoryview(self.memory)[slot * SLOT : (slot + 1) * SLOT]

    def fill(self, slot: int, byte: int) -> None:
        self.slot(slot)[:] = bytes([byte]) * SLOT

    def write(self, number: int, slot: int, *documents: str) -> None:
        self.transfers.write(BlockCopy(name_of(number), slot, list(map(PLAIN.mark, documents))))

    def read(self, number: int, slot: int) -> None:
        self.transfers.read(BlockCopy(name_of(number), slot))

    def done(self, count: int) -> list[FinishedCopy]:
        """So many copies' ends, in the order in which they were reported."""
        ended: list[FinishedCopy] = []
        for _ in range(10_000):
            ended += self.transfers.take_finished()
            if len(ended) >= count:
                break
            time.sleep(0.001)
        assert len(ended) == count
        return ended


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.transfers.close()


def test_a_slot_goes_to_the_disk_and_comes_back_into_another(host: Host):
    host.fill(1, 7)
    host.write(1, 1, "d1")
    assert host.transfers.pending_writes == 1
    (written,) = host.done(1)
    assert (written.failure, written.is_read, host.transfers.pending_writes) == (None, False, 0)
    host.read(1, 2)
    assert host.transfers.pending_reads == 1
    (read,) = host.done(1)
    assert (read.failure, read.is_read, host.transfers.pending_reads) == (None, True, 0)
    assert read.size_bytes == written.size_bytes > SLOT
    assert read.seconds > 0
    assert bytes(host.slot(2)) == bytes([7]) * SLOT
    assert bytes(host.slot(3)) == bytes(SLOT)
    assert forget_documents(host.folder.folder, ["d1"]).files == 1


def test_writes_end_in_the_order_asked_and_reads_as_they_come(host: Host):
    for number in range(8):
        host.fill(number, number)
        host.write(number, number)
    assert [done.copy.slot for done in host.done(8)] == list(range(8))
    for number in range(8):
        host.read(number, 7 - number)
    assert {done.copy.name for done in host.done(8)} == set(map(name_of, range(8)))
    assert [host.slot(slot)[0] for slot in range(8)] == list(reversed(range(8)))


def test_a_read_that_hangs_holds_up_no_other(host: Host):
    host.fill(1, 1)
    host.write(1, 1)
    host.done(1)
    release, read = threading.Event(), host.folder.read

    def hang(name: str, target: memoryview) -> int:
        if name == name_of(2):
            release.wait(30)
        return read(name, target)

    host.folder.read = hang  # type: ignore[method-assign]
    host.read(2, 2)
    host.read(1, 3)
    (done,) = host.done(1)
    assert (done.copy.slot, done.failure) == (3, None)
    release.set()
    host.done(1)


def test_a_block_that_is_not_there_is_reported_missing(host: Host):
    host.read(1, 1)
    (done,) = host.done(1)
    assert (done.failure, done.size_bytes) == ("missing", 0)


def test_a_damaged_block_is_reported_removed_and_warned_of(
    host: Host, caplog: pytest.LogCaptureFixture
):
    host.write(1, 1)
    host.done(1)
    path = next(host.folder.folder.rglob("*.kv"))
    path.write_bytes(path.read_bytes()[:-1])
    host.read(1, 2)
    assert [done.failure for done in host.done(1)] == ["damaged"]
    assert not path.exists()
    assert "unusable and was removed" in caplog.text


def test_what_cannot_be_read_for_another_reason_is_reported_too(host: Host):
    host.write(1, 1)
    host.done(1)
    host.read(1, 99)
    assert [done.failure for done in host.done(1)] == ["unreadable"]
    host.read(1, 2)
    assert [done.failure for done in host.done(1)] == [None]


def test_a_file_is_removed_after_the_writes_asked_for_before(host: Host):
    for number in range(5):
        host.write(number, number)
    host.transfers.remove(name_of(3))
    host.write(5, 5)
    host.done(6)
    assert not host.folder.holds(name_of(3))
    assert host.folder.holds(name_of(4))


def test_a_file_asked_to_be_removed_counts_as_gone_until_it_is_written_again(host: Host):
    host.write(1, 1)
    host.done(1)
    assert host.transfers.holds(name_of(1))
    assert not host.transfers.holds(name_of(2))
    host.transfers.remove(name_of(1))
    assert not host.transfers.holds(name_of(1))
    host.write(1, 1)
    host.done(1)
    assert host.transfers.holds(name_of(1))


def test_a_block_without_room_is_reported_and_no_failure_of_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    host = Host(tmp_path, quota_bytes=10)
    for number in range(2 * FAILED_WRITES_TO_STOP):
        host.write(number, 1)
    assert {done.failure for done in host.done(2 * FAILED_WRITES_TO_STOP)} == {"full"}
    assert host.transfers.is_writable
    assert not caplog.records
    host.transfers.close()


def test_what_lies_under_a_blocks_name_and_is_no_file_is_no_failure_of_the_disk(host: Host):
    blocked = range(2 * FAILED_WRITES_TO_STOP)
    for number in blocked:
        name = name_of(number)
        (host.folder.folder / OURS.digest() / name[:2] / f"{name}.kv").mkdir(parents=True)
        host.write(number, 1)
    assert {done.failure for done in host.done(len(blocked))} == {"unwritable"}
    assert host.transfers.is_writable
    host.write(99, 1)
    assert [done.failure for done in host.done(1)] == [None]


def break_folder(host: Host) -> Path:
    """Put a file where the folder was: nothing can be written any more, by root neither."""
    home = host.folder.folder / OURS.digest()
    home.rename(host.folder.folder / "away")
    home.write_bytes(b"")
    return home


def mend_folder(host: Host, home: Path) -> None:
    home.unlink()
    (host.folder.folder / "away").rename(home)


def test_a_disk_that_fails_again_and_again_is_written_to_no_more_and_still_read(
    host: Host, caplog: pytest.LogCaptureFixture
):
    host.fill(1, 7)
    host.write(1, 1)
    host.done(1)
    home = break_folder(host)
    for number in range(2, 2 + FAILED_WRITES_TO_STOP):
        assert host.transfers.is_writable
        host.write(number, 1)
        assert [done.failure for done in host.done(1)] == ["unwritable"]
    assert not host.transfers.is_writable
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "choose another one" in warning.message
    mend_folder(host, home)
    host.write(99, 1)
    assert [done.failure for done in host.done(1)] == ["unwritable"], "no other block has to go"
    assert not host.folder.holds(name_of(99))
    host.read(1, 2)
    assert [done.failure for done in host.done(1)] == [None]
    assert bytes(host.slot(2)) == bytes([7]) * SLOT


def test_failures_that_are_not_in_a_row_are_forgiven(host: Host):
    number = 0
    for _ in range(3):
        host.write(number := number + 1, 1)
        assert [done.failure for done in host.done(1)] == [None]
        home = break_folder(host)
        for _ in range(FAILED_WRITES_TO_STOP - 1):
            host.write(number := number + 1, 1)
        assert {done.failure for done in host.done(FAILED_WRITES_TO_STOP - 1)} == {"unwritable"}
        mend_folder(host, home)
    assert host.transfers.is_writable


def test_a_failing_copy_does_not_end_its_thread(host: Host):
    host.write(1, 99)
    host.read(1, 99)
    assert {done.failure for done in host.done(2)} == {"unwritable", "unreadable"}
    host.write(1, 1)
    assert [done.failure for done in host.done(1)] == [None]


def test_closing_ends_the_threads_after_the_copies_asked_for(tmp_path: Path):
    before = set(threading.enumerate())
    host = Host(tmp_path)
    ours = set(threading.enumerate()) - before
    assert len(ours) == READERS + 1
    for number in range(10):
        host.write(number, number)
    host.transfers.close()
    assert not any(thread.is_alive() for thread in ours)
    assert [done.failure for done in host.done(10)] == [None] * 10
    host.transfers.close()


def test_closing_does_not_wait_for_ever_for_a_disk_that_hangs(tmp_path: Path):
    host, release = Host(tmp_path), threading.Event()
    slot = host.slot

    def hangs(number: int) -> memoryview:
        release.wait(30)
        return slot(number)

    host.transfers._slots = hangs
    host.write(1, 1)
    host.transfers.close(timeout_s=0.05)
    assert host.transfers.take_finished() == []
    release.set()
    assert [done.failure for done in host.done(1)] == [None]
