"""What one host forgets, every other host that shares its store forgets, and forgets it once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from shared_stores import RedisServer, running_store

from ragcache_engine.tiers.disk.block_file import Origin
from ragcache_engine.tiers.disk.folder import DiskFolder
from ragcache_engine.tiers.disk.naming import PLAIN
from ragcache_engine.tiers.disk.tombstones import leave_tombstones
from ragcache_engine.tiers.shared.forgotten import ForgottenElsewhere
from ragcache_engine.tiers.shared.opening import open_store
from ragcache_engine.tiers.shared.store import TOMBSTONES_STAY_S, SharedStore

OURS = Origin("weights", "configuration", "bfloat16", 16, "NHD", "vllm")
D1, D2 = PLAIN.mark("d1"), PLAIN.mark("d2")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SharedStore]:
    with running_store("file", tmp_path) as url:
        store = open_store(url)
        yield store
        store.close()


class Host:
    """A host with a disk cache."""

    def __init__(self, folder: Path, store: SharedStore) -> None:
        self.folder = folder
        self.disk = DiskFolder(folder, OURS, 10**6)
        self.forgotten = ForgottenElsewhere(folder, store)

    def keep(self, number: int, mark: str) -> str:
        name = f"{number:040x}"
        self.disk.write(name, [mark], memoryview(bytes(100)), lambda name: False)
        return name

    def forget(self, mark: str) -> None:
        leave_tombstones(self.folder, [mark])
        self.disk.note_forgotten(self.forgotten.forget([mark]))

    def has(self, name: str) -> bool:
        self.disk.refresh()
        return self.disk.holds(name)


def test_another_host_removes_its_files_and_tells_its_engines(tmp_path: Path, store: SharedStore):
    here, there = Host(tmp_path / "here", store), Host(tmp_path / "there", store)
    gone, stays = there.keep(1, D1), there.keep(2, D2)
    here.forget(D1)
    assert there.forgotten.catch_up()
    assert not there.has(gone)
    assert there.has(stays)
    assert set(there.disk.find_forgotten()) == {D1}
    assert there.disk.forbids([D1])
    assert not there.disk.forbids([D2])


def test_each_forgetting_is_acted_upon_once_and_not_by_who_forgot(
    tmp_path: Path, store: SharedStore
):
    here, there = Host(tmp_path / "here", store), Host(tmp_path / "there", store)
    here.forget(D1)
    assert not here.forgotten.catch_up()
    assert here.disk.find_forgotten() == {}
    assert there.forgotten.catch_up()
    assert not there.forgotten.catch_up()
    there.disk.note_forgotten(there.disk.find_forgotten())
    fresh = there.keep(1, D1)  # computed since
    assert not there.forgotten.catch_up()
    assert there.has(fresh)
    here.forget(D1)
    assert there.forgotten.catch_up()
    assert not there.has(fresh)


def test_what_was_acted_upon_is_known_as_long_as_the_store_tells_of_it(
    tmp_path: Path, store: SharedStore
):
    here, there = Host(tmp_path / "here", store), Host(tmp_path / "there", store)
    here.forget(D1)
    assert there.forgotten.catch_up()
    there.disk.note_forgotten(there.disk.find_forgotten())
    fresh = there.keep(1, D1)  # computed since
    there.disk.close()
    days_ago = time.time() - TOMBSTONES_STAY_S + 3600
    for stamp in there.forgotten._place.iterdir():
        os.utime(stamp, (days_ago, days_ago))
    again = Host(tmp_path / "there", store)
    assert not again.forgotten.catch_up()
    assert again.has(fresh)


def test_engines_of_one_host_act_together(tmp_path: Path, store: SharedStore):
    here = Host(tmp_path / "here", store)
    one = ForgottenElsewhere(tmp_path / "there", store)
    other = ForgottenElsewhere(tmp_path / "there", store)
    here.forget(D1)
    assert one.catch_up()
    assert not other.catch_up()
    assert other.has_acted_upon([D1])


def test_a_host_that_was_away_catches_up(tmp_path: Path, store: SharedStore):
    there = Host(tmp_path / "there", store)
    gone = there.keep(1, D1)
    there.disk.close()
    Host(tmp_path / "here", store).forget(D1)
    ForgottenElsewhere(tmp_path / "there", store).catch_up()
    again = Host(tmp_path / "there", store)
    assert not again.has(gone)


def test_nothing_may_be_stored_before_the_host_has_acted(tmp_path: Path, store: SharedStore):
    here, there = Host(tmp_path / "here", store), Host(tmp_path / "there", store)
    assert there.forgotten.has_acted_upon([D1, D2])
    here.forget(D1)
    assert here.forgotten.has_acted_upon([D1, D2])
    assert not there.forgotten.has_acted_upon([D2, D1])
    assert there.forgotten.has_acted_upon([D2])
    there.forgotten.catch_up()
    assert there.forgotten.has_acted_upon([D2, D1])


def test_a_store_that_lost_everything_is_told_again(tmp_path: Path):
    server = RedisServer()
    store = open_store(server.url)
    here = Host(tmp_path / "here", store)
    here.forget(D1)
    server.kill()
    again = RedisServer(port=server.port)
    try:
        there = Host(tmp_path / "there", store)
        gone = there.keep(1, D1)
        assert not there.forgotten.catch_up(), "nobody can know"
        # By another process of the host, too.
        ForgottenElsewhere(tmp_path / "here", store).catch_up()
        assert here.disk.find_forgotten() == {}, "it has forgotten already"
        assert there.forgotten.catch_up()
        assert not there.has(gone)
    finally:
        store.close()
        again.kill()


def test_tombstones_that_were_lost_among_others_come_back(tmp_path: Path, store: SharedStore):
    here, there = Host(tmp_path / "here", store), Host(tmp_path / "there", store)
    here.forget(D1)
    (tmp_path / "objects" / "forgotten" / D1).unlink()
    there.forget(D2)
    assert set(store.tombstones()) == {D2}
    here.forgotten.catch_up()
    assert set(store.tombstones()) == {D1, D2}


def test_an_engine_that_fetched_a_block_while_it_was_removed_forgets_it_again(
    tmp_path: Path, store: SharedStore
):
    here, there = Host(tmp_path / "here", store), Host(tmp_path / "there", store)
    clear, kept = store.clear, []

    def and_meanwhile(marks: Sequence[str]) -> None:
        assert there.forgotten.catch_up()
        kept.append(there.keep(1, D1))
        clear(marks)

    there.disk.forbids = lambda marks: False  # type: ignore[method-assign]  # it has acted
    store.clear = and_meanwhile  # type: ignore[method-assign]
    here.forget(D1)
    assert there.has(kept[0])
    assert there.forgotten.catch_up()
    assert not there.has(kept[0])


def test_names_that_are_no_marks_are_passed_over(tmp_path: Path, store: SharedStore):
    here = Host(tmp_path / "here", store)
    store.leave_tombstones(["no mark", "x" * 16, D1])
    assert here.forgotten.catch_up()
    assert not here.forgotten.catch_up()


def test_a_tombstone_told_of_while_an_older_one_was_acted_upon_is_told_again(
    tmp_path: Path, store: SharedStore
):
    here = Host(tmp_path / "here", store)
    first = leave_tombstones(here.folder, [D1])
    assert set(here.disk.find_forgotten()) == {D1}
    leave_tombstones(here.folder, [D1])
    assert set(here.disk.find_forgotten()) == {D1}
    here.disk.note_forgotten(first)  # late
    assert here.disk.forbids([D1])
    again = here.disk.find_forgotten()
    here.disk.note_forgotten(again)
    assert not here.disk.forbids([D1])


def test_files_of_earlier_engines_are_hidden_until_the_store_has_told(tmp_path: Path):
    with running_store("file", tmp_path) as url:
        store = open_store(url)
        here = Host(tmp_path / "here", store)
        name = here.keep(1, D1)
        here.disk.hide_earlier()
        assert not here.has(name)
        fresh = here.keep(2, D2)
        assert here.has(fresh)
        here.disk.show_earlier()
        assert here.has(name)
        store.close()
