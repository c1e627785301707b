"""The simulated disk takes its time, in the order asked, and keeps what was in the slots."""

from __future__ import annotations

import pytest

from ragcache_engine.simulation.clock import VirtualClock
from ragcache_engine.simulation.disk import SimulatedDisk
from ragcache_engine.tiers.disk.transfers import BlockCopy, DiskTransfers


class World:
    """A disk of 100 bytes a second below two slots, with blocks of 100 bytes."""

    def __init__(self, *slots: bytes | None) -> None:
        self.slots: list[bytes | None] = list(slots)
        self.clock = VirtualClock()
        self.disk = SimulatedDisk(self.slots, 100, 100.0, self.clock)

    def after(self, seconds: float) -> list[tuple[str, str | None]]:
        """What has ended when so many seconds have passed: file names and failures."""
        self.clock.run_model(seconds)
        return [(done.copy.name, done.failure) for done in self.disk.take_finished()]


def test_a_file_is_there_when_its_write_has_ended_and_holds_what_the_slot_held():
    world = World(b"one", None)
    world.disk.write(BlockCopy("file", 0))
    assert world.after(0.9) == []
    assert not world.disk.holds("file")
    assert world.after(0.1) == [("file", None)]
    assert world.disk.holds("file")
    world.disk.read(BlockCopy("file", 1))
    assert world.after(1.0) == [("file", None)]
    assert world.slots == [b"one", b"one"]


def test_copies_in_one_direction_wait_for_each_other():
    world = World(b"one", b"two")
    world.disk.write(BlockCopy("first", 0))
    world.disk.write(BlockCopy("second", 1))
    assert world.disk.pending_writes == 2
    assert world.disk.next_end_s() == 1.0
    assert world.after(1.0) == [("first", None)]
    assert world.disk.next_end_s() == 2.0
    assert world.after(1.0) == [("second", None)]
    assert (world.disk.pending_writes, world.disk.next_end_s()) == (0, None)


def test_a_removed_file_counts_as_gone_at_once():
    world = World(b"one")
    world.disk.write(BlockCopy("file", 0))
    world.after(1.0)
    world.disk.remove("file")
    assert not world.disk.holds("file")
    world.after(0.0)
    assert world.disk.files == {}


def test_a_file_removed_and_written_again_is_there():
    world = World(b"one")
    world.disk.write(BlockCopy("file", 0))
    world.disk.remove("file")
    world.disk.write(BlockCopy("file", 0))
    assert world.after(2.0) == [("file", None), ("file", None)]
    assert world.disk.holds("file")


def test_a_read_of_a_file_that_is_not_there_fails():
    world = World(None)
    world.disk.read(BlockCopy("file", 0))
    assert world.after(1.0) == [("file", "missing")]


def test_a_disk_that_copies_nothing_is_refused():
    with pytest.raises(ValueError, match="some progress"):
        SimulatedDisk([], 100, 0.0, VirtualClock())


def test_it_has_all_that_the_tree_asks_of_a_disk():
    asked = {name for name in vars(DiskTransfers) if not name.startswith("_")}
    of_real_threads = {"look_soon", "close"}
    assert asked - of_real_threads <= {*dir(World(None).disk)}
