"""Kept files: no engine on the folder removes them for room, until their time or their document ends."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ragcache_engine.tiers.disk.block_file import Origin, UnusableFile
from ragcache_engine.tiers.disk.folder import DiskFolder, FolderFull, forget_documents
from ragcache_engine.tiers.disk.kept_files import KeptFile, KeptFiles, forget_kept
from ragcache_engine.tiers.disk.naming import PLAIN

ORIGIN = Origin("weights", "configuration", "float32", 16, "layout", "software")
PAYLOAD = memoryview(bytes(1000))
A, B = PLAIN.kept(["a"], None), PLAIN.kept(["b"], None)


def name(number: int) -> str:
    return f"{number:040x}"


def kept(name: str, *files: str, until_s: float | None = None, document: str = "a") -> KeptFile:
    return KeptFile(name, until_s, (PLAIN.mark(document),), files)


def nobody(name: str) -> bool:
    return False


HOME, OTHER_HOME = "1" * 16, "2" * 16


class Engines:
    """Engines on one folder; those in `alive` run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.alive: set[str] = set()
        self.now_s = 100.0

    def start(self, home: str = HOME) -> KeptFiles:
        engine = f"{len(self.alive):016x}"
        self.alive.add(engine)
        return KeptFiles(self.folder, home, engine, self.alive.__contains__, lambda: self.now_s)

    def keep(self, files: KeptFiles, one: KeptFile) -> None:
        if files.note(one):
            files.write(one)

    def release(self, files: KeptFiles, name: str) -> None:
        files.remove(files.drop(name))

    def entries(self) -> int:
        return len(list((self.folder / "kept").iterdir()))


@pytest.fixture
def engines(tmp_path: Path) -> Engines:
    part = tmp_path / HOME / "on"
    part.mkdir(parents=True)
    (part / "one.kv").touch()
    return Engines(tmp_path)


def test_another_engine_sees_what_is_kept(engines: Engines):
    first, second = engines.start(), engines.start()
    engines.keep(first, kept(A, "one", "two"))
    second.refresh()
    for each in (first, second, engines.start()):
        assert each.protects(HOME, "one")
        assert not each.protects(HOME, "three")
        assert not each.protects(OTHER_HOME, "one")
    assert (first.count_of_others(), second.count_of_others()) == (0, 2)


def test_each_engine_keeps_and_releases_for_itself(engines: Engines):
    first, second, other_model = engines.start(), engines.start(), engines.start(OTHER_HOME)
    for each in (first, second, other_model):
        engines.keep(each, kept(A, "one"))
    assert engines.entries() == 3
    engines.release(first, A)
    for each in (first, second, other_model):
        each.refresh()
        assert each.protects(HOME, "one")
    engines.release(second, A)
    first.refresh()
    assert not first.protects(HOME, "one")
    assert first.protects(OTHER_HOME, "one")


def test_what_an_earlier_process_kept_stays_until_it_is_released_or_kept_anew(engines: Engines):
    engines.keep(engines.start(), kept(A, "one", "two"))
    engines.keep(engines.start(), kept(B, "one", document="b"))
    engines.alive = {"dead but counted", "too", "three"}
    later = engines.start()
    assert later.protects(HOME, "two")
    assert later.count_of_others() == 2
    assert later.count_of_others([A]) == 0, "they are about to be its own"
    engines.keep(later, kept(A, "one", "three"))
    assert not later.protects(HOME, "two")
    engines.release(later, B)
    engines.release(later, A)
    assert not later.protects(HOME, "one")
    assert engines.entries() == 0


def test_the_same_order_again_writes_nothing(engines: Engines):
    files = engines.start()
    assert files.note(kept(A, "one"))
    assert not files.note(kept(A, "one"))
    assert files.note(kept(A, "one", until_s=500.0))


def test_keeping_ends_at_its_time_and_the_later_order_holds(engines: Engines):
    files, other = engines.start(), engines.start()
    engines.keep(files, kept(A, "one", until_s=110.0))
    engines.keep(files, kept(A, "one", until_s=120.0))
    other.refresh()
    engines.now_s = 115.0
    for each in (files, other):
        each.refresh()
        assert each.protects(HOME, "one")
    engines.now_s = 120.0
    for each in (other, files):  # whoever looks first removes it, though its engine runs
        each.refresh()
        assert not each.protects(HOME, "one")
        assert engines.entries() == 0


def test_forgetting_ends_keeping_for_all_engines(engines: Engines):
    files, other = engines.start(), engines.start()
    engines.keep(files, kept(A, "one"))
    engines.keep(files, kept(B, "two", document="b"))
    forget_kept(engines.folder, [PLAIN.mark("a")])
    other.refresh()
    assert (other.protects(HOME, "one"), other.protects(HOME, "two")) == (False, True)


def test_entries_whose_files_are_all_gone_go_at_the_next_start(engines: Engines):
    engines.keep(engines.start(), kept(A, "one"))
    engines.keep(engines.start(), kept(B, "gone"))
    engines.alive = {"2", "3", "4"}
    engines.start()
    assert engines.entries() == 1


def test_a_folder_that_cannot_be_read_for_a_moment_still_keeps(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
):
    files, other = engines.start(), engines.start()
    engines.keep(files, kept(A, "one"))
    other.refresh()
    engines.keep(files, kept(B, "two"))

    def fail(place: object) -> Any:
        raise OSError("too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", fail)
        other.refresh()
    assert other.protects(HOME, "one")
    other.refresh()
    assert other.protects(HOME, "two")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"7",
        b'{"until_s": null}',
        b"[" * 10_000,
        json.dumps({"until_s": "x", "documents": [], "files": ["one"]}).encode(),
        json.dumps({"until_s": None, "documents": [1], "files": ["one"]}).encode(),
        b'{"until_s": NaN, "documents": [], "files": ["one"]}',
    ],
)
def test_what_no_engine_has_written_keeps_nothing_and_goes_with_any_forgetting(
    engines: Engines, content: bytes
):
    place = engines.folder / "kept"
    place.mkdir()
    (place / f"{HOME}-{A}-{'e' * 16}").write_bytes(content)
    (place / "notes.txt").write_bytes(b"mine")
    os.mkfifo(place / f"{HOME}-{B}-{'e' * 16}")
    files = engines.start()
    assert not files.protects(HOME, "one")
    forget_kept(engines.folder, [PLAIN.mark("z")])
    assert sorted(os.listdir(place)) == sorted([f"{HOME}-{B}-{'e' * 16}", "notes.txt"])


def note(folder: DiskFolder, one: KeptFile) -> None:
    assert folder.kept.note(one)
    folder.keep(one)


def test_a_full_folder_makes_room_with_other_files_than_kept_ones(tmp_path: Path):
    first = DiskFolder(tmp_path, ORIGIN, 1 << 20)
    for number in range(4):
        first.write(name(number), [PLAIN.mark("a")], PAYLOAD, nobody)
    note(first, kept(A, name(0), name(1)))
    used = first.used_bytes
    first.close()
    second = DiskFolder(tmp_path, ORIGIN, used)
    for number in (4, 5):
        second.write(
            name(number), [PLAIN.mark("b")], PAYLOAD, lambda one: one in (name(4), name(5))
        )
    second.refresh()
    assert [second.holds(name(number)) for number in range(6)] == [
        True,
        True,
        False,
        False,
        True,
        True,
    ]
    with pytest.raises(FolderFull):
        second.write(name(6), [], PAYLOAD, lambda one: True)
    second.give_up(name(0))
    second.give_up(name(4))
    assert (second.holds(name(0)), second.holds(name(4))) == (True, False)
    forget_documents(tmp_path, ["a"])
    second.refresh()
    assert not second.holds(name(0))
    assert second.kept.count_of_others() == 0
    second.close()


def test_a_damaged_file_goes_though_it_is_kept(tmp_path: Path):
    folder = DiskFolder(tmp_path, ORIGIN, 1 << 20)
    folder.write(name(0), [], PAYLOAD, nobody)
    note(folder, kept(A, name(0)))
    (path,) = tmp_path.rglob("*.kv")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UnusableFile):
        folder.read(name(0), memoryview(bytearray(1000)))
    assert not path.exists()
    folder.close()


def test_nothing_is_kept_of_a_document_that_was_forgotten_meanwhile(tmp_path: Path):
    first, second = (DiskFolder(tmp_path, ORIGIN, 1 << 20) for _ in range(2))
    assert first.kept.note(kept(A, name(0)))
    second.forget(["a"])
    first.keep(kept(A, name(0)))
    assert not first.kept.protects(ORIGIN.digest(), name(0))
    assert not [*tmp_path.glob("kept/*")]
    first.close()
    second.close()
