"""Kept files: no engine on the folder removes them for room, until their time or their document ends."""

from __future__ import annotations

import json
import os
from pathlib import Path

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
    return KeptFile(name, until_s, [PLAIN.mark(document)], files)


def nobody(name: str) -> bool:
    return False


def test_another_engine_and_a_later_one_see_what_is_kept(tmp_path: Path):
    first, second = (KeptFiles(tmp_path, "home") for _ in range(2))
    first.keep(kept(A, "one", "two"))
    second.refresh()
    later = KeptFiles(tmp_path, "home")
    for each in (first, second, later):
        assert each.protects("home", "one")
        assert not each.protects("home", "three")
        assert not each.protects("elsewhere", "one")
    assert first.of_others == frozenset()
    assert second.of_others == later.of_others == {"one", "two"}
    later.release(A)  # whoever began
    first.refresh()
    assert not first.protects("home", "one")


def test_a_file_is_kept_as_long_as_one_document_needs_it(tmp_path: Path):
    files = KeptFiles(tmp_path, "home")
    files.keep(kept(A, "shared", "own"))
    files.keep(kept(B, "shared", document="b"))
    files.release(A)
    assert files.protects("home", "shared")
    assert not files.protects("home", "own")


def test_keeping_ends_at_its_time_and_the_later_order_holds(tmp_path: Path):
    now_s = 100.0
    files = KeptFiles(tmp_path, "home", clock=lambda: now_s)
    files.keep(kept(A, "one", until_s=110.0))
    files.keep(kept(A, "one", until_s=120.0))
    now_s = 115.0
    files.refresh()
    assert files.protects("home", "one")
    now_s = 120.0
    files.refresh()
    assert not files.protects("home", "one")
    assert not list((tmp_path / "kept").iterdir())


def test_forgetting_ends_keeping(tmp_path: Path):
    files = KeptFiles(tmp_path, "home")
    files.keep(kept(A, "one"))
    files.keep(kept(B, "two", document="b"))
    forget_kept(tmp_path, [PLAIN.mark("a")])
    files.refresh()
    assert (files.protects("home", "one"), files.protects("home", "two")) == (False, True)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"7",
        b'{"until_s": null}',
        b"[" * 10_000,
        json.dumps({"until_s": "x", "home": "home", "documents": [], "files": ["one"]}).encode(),
        json.dumps({"until_s": None, "home": "home", "documents": [1], "files": ["one"]}).encode(),
        json.dumps({"until_s": None, "home": 3, "documents": [], "files": ["one"]}).encode(),
    ],
)
def test_what_no_engine_has_written_keeps_nothing_and_goes_with_any_forgetting(
    tmp_path: Path, content: bytes
):
    place = tmp_path / "kept"
    place.mkdir()
    (place / A).write_bytes(content)
    (place / "notes.txt").write_bytes(b"mine")
    os.mkfifo(place / B)
    files = KeptFiles(tmp_path, "home")
    assert not files.protects("home", "one")
    forget_kept(tmp_path, [PLAIN.mark("z")])
    assert sorted(os.listdir(place)) == sorted([B, "notes.txt"])


def test_a_full_folder_makes_room_with_other_files_than_kept_ones(tmp_path: Path):
    first = DiskFolder(tmp_path, ORIGIN, 1 << 20)
    for number in range(4):
        first.write(name(number), [PLAIN.mark("a")], PAYLOAD, nobody)
    first.keep(kept(A, name(0), name(1)))
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
    assert second.kept_elsewhere == frozenset()
    second.close()


def test_a_damaged_file_goes_though_it_is_kept(tmp_path: Path):
    folder = DiskFolder(tmp_path, ORIGIN, 1 << 20)
    folder.write(name(0), [], PAYLOAD, nobody)
    folder.keep(kept(A, name(0)))
    (path,) = tmp_path.rglob("*.kv")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UnusableFile):
        folder.read(name(0), memoryview(bytearray(1000)))
    assert not path.exists()
    folder.close()
