"""A block's file gives back exactly what was written under its name, or says that it cannot."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thoroughness import examples

from ragcache_engine.tiers.disk import block_file
from ragcache_engine.tiers.disk.block_file import Origin, UnusableFile
from ragcache_engine.tiers.disk.key_ring import KeyRing

OURS = Origin("weights", "configuration", "bfloat16", 16, "NHD", "vllm")
NAME = "ab" + "0" * 38
CONTENT = bytes(range(64))


def write(
    path: Path, content: bytes = CONTENT, *documents: str, keys: KeyRing | None = None
) -> int:
    return block_file.write(path, OURS, NAME, documents, memoryview(content), keys)


def read(
    path: Path,
    origin: Origin = OURS,
    name: str = NAME,
    size: int = 64,
    keys: KeyRing | None = None,
) -> bytes:
    target = bytearray(size)
    assert block_file.read(path, origin, name, memoryview(target), keys) == path.stat().st_size
    return bytes(target)


@pytest.fixture(params=["plain", "encrypted"])
def keys(request: pytest.FixtureRequest, tmp_path: Path) -> KeyRing | None:
    """Return what files are encrypted with; None for those that are not."""
    if request.param == "plain":
        return None
    pytest.importorskip("cryptography")
    return KeyRing(tmp_path / "home", [b"m" * 32])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ab" / f"{NAME}.kv"


def test_what_was_written_comes_back(path: Path, keys: KeyRing | None):
    size_bytes = block_file.file_bytes(OURS, NAME, ["d1", "d2"], memoryview(CONTENT), keys)
    assert write(path, CONTENT, "d1", "d2", keys=keys) == path.stat().st_size == size_bytes
    assert read(path, keys=keys) == CONTENT
    assert block_file.read_document_marks(path, keys) == {"d1", "d2"}
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_part_of_a_larger_memory_is_written_and_read(path: Path):
    memory = bytearray(b"before") + bytearray(CONTENT) + bytearray(b"after")
    block_file.write(path, OURS, NAME, (), memoryview(memory)[6:70])
    assert read(path) == CONTENT
    target = bytearray(80)
    block_file.read(path, OURS, NAME, memoryview(target)[8:72])
    assert bytes(target) == bytes(8) + CONTENT + bytes(8)


def test_a_file_of_no_tensors_is_still_a_file(path: Path):
    write(path, b"")
    assert read(path, size=0) == b""


def test_writing_again_replaces(path: Path):
    write(path)
    write(path, CONTENT[::-1])
    assert read(path) == CONTENT[::-1]


def test_a_file_that_is_not_there_is_not_found(path: Path):
    with pytest.raises(FileNotFoundError):
        read(path)
    with pytest.raises(FileNotFoundError):
        block_file.read_document_marks(path)


def test_a_file_cut_short_anywhere_is_unusable(path: Path, keys: KeyRing | None):
    write(path, keys=keys)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(UnusableFile):
            read(path, keys=keys)


def test_a_file_with_something_behind_its_end_is_unusable(path: Path):
    write(path)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(UnusableFile, match="longer"):
        read(path)


def test_a_byte_changed_anywhere_is_found_out(path: Path, keys: KeyRing | None):
    write(path, CONTENT, "d1", keys=keys)
    whole = path.read_bytes()
    for at in range(len(whole)):
        for change in (0x01, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[at] ^= change
            path.write_bytes(damaged)
            with pytest.raises(UnusableFile):
                read(path, keys=keys)


def test_an_encrypted_file_holds_nothing_of_its_tensors(path: Path, keys: KeyRing | None):
    write(path, CONTENT, "d1", keys=keys)
    first = path.read_bytes()
    write(path, CONTENT, "d1", keys=keys)
    assert (CONTENT[:16] in first) == (keys is None)
    assert (path.read_bytes() == first) == (keys is None), (
        "the same block looks otherwise each time"
    )


def test_files_that_are_encrypted_otherwise_are_unusable(tmp_path: Path):
    pytest.importorskip("cryptography")
    rings = [None, KeyRing(tmp_path, [b"m" * 32]), KeyRing(tmp_path, [b"n" * 32])]
    for at, own in enumerate(rings):
        path = tmp_path / f"{at}.kv"
        write(path, CONTENT, "d1", keys=own)
        for other in rings:
            if other is not own:
                with pytest.raises(UnusableFile):
                    read(path, keys=other)
                with pytest.raises(UnusableFile):
                    block_file.read_document_marks(path, other)


def test_a_block_of_one_tenant_cannot_stand_in_for_anothers(tmp_path: Path):
    pytest.importorskip("cryptography")
    keys = KeyRing(tmp_path, [b"m" * 32])
    path, names = tmp_path / "file", [NAME + "a" * 16, NAME + "b" * 16]
    block_file.write(path, OURS, names[0], (), memoryview(CONTENT), keys)
    assert read(path, name=names[0], keys=keys) == CONTENT
    content = path.read_bytes().replace(names[0].encode(), names[1].encode())
    path.write_bytes(content)
    with pytest.raises(UnusableFile, match="another key of its tenant"):
        read(path, name=names[1], keys=keys)


@given(damage=st.data())
@settings(
    max_examples=examples(80),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@pytest.mark.slow
def test_no_damage_gives_other_content(tmp_path: Path, damage: st.DataObject):
    path = tmp_path / f"{NAME}.kv"
    write(path, CONTENT, "d1")
    whole = path.read_bytes()
    start = damage.draw(st.integers(0, len(whole)))
    end = damage.draw(st.integers(start, len(whole)))
    path.write_bytes(whole[:start] + damage.draw(st.binary(max_size=200)) + whole[end:])
    try:
        content = read(path)
    except UnusableFile:
        assert path.read_bytes() != whole
    else:
        assert content == CONTENT
    try:
        block_file.read_document_marks(path)
    except UnusableFile:
        assert path.read_bytes() != whole


def test_any_bytes_are_no_block_file(path: Path):
    path.parent.mkdir()
    for content in (b"", b"\0" * 200, b"RAGCKV\x00\x02" + bytes(200), b"{}" * 100):
        path.write_bytes(content)
        with pytest.raises(UnusableFile):
            read(path)
        with pytest.raises(UnusableFile):
            block_file.read_document_marks(path)


@pytest.mark.parametrize("header", [b"[]", b"null", b"\xff\xfe", b"{", b"{}", b'{"documents": 7}'])
def test_a_header_that_says_nothing_is_unusable(path: Path, header: bytes):
    path.parent.mkdir()
    path.write_bytes(block_file.MAGIC + len(header).to_bytes(4, "little") + header + bytes(80))
    with pytest.raises(UnusableFile):
        read(path)
    with pytest.raises(UnusableFile):
        block_file.read_document_marks(path)


def test_a_header_longer_than_any_is_not_read(path: Path):
    path.parent.mkdir()
    length = block_file.LONGEST_HEADER_BYTES + 1
    path.write_bytes(block_file.MAGIC + length.to_bytes(4, "little") + bytes(100))
    with pytest.raises(UnusableFile, match="too long"):
        read(path)


def test_a_header_nested_beyond_reason_is_unusable(path: Path):
    path.parent.mkdir()
    header = b"[" * 200_000
    path.write_bytes(block_file.MAGIC + len(header).to_bytes(4, "little") + header)
    with pytest.raises(UnusableFile):
        block_file.read_document_marks(path)


@pytest.mark.parametrize(
    "other",
    [
        replace(OURS, weights="others"),
        replace(OURS, dtype="float16"),
        replace(OURS, configuration="yarn"),
        replace(OURS, block_tokens=32),
        replace(OURS, layout="HND 64"),
        replace(OURS, software="vllm 2"),
    ],
)
def test_tensors_of_another_origin_are_refused_and_kept_apart(path: Path, other: Origin):
    write(path)
    with pytest.raises(UnusableFile, match="another block"):
        read(path, other)
    assert other.digest() != OURS.digest()


def test_a_file_under_anothers_name_is_refused(tmp_path: Path):
    first, second = "aa" + "0" * 38, "aa" + "1" * 38
    for name, content in ((first, CONTENT), (second, CONTENT[::-1])):
        block_file.write(tmp_path / name, OURS, name, (), memoryview(content))
    (tmp_path / first).rename(tmp_path / "kept")
    (tmp_path / second).rename(tmp_path / first)
    (tmp_path / "kept").rename(tmp_path / second)
    for name in (first, second):
        with pytest.raises(UnusableFile, match="another block"):
            read(tmp_path / name, name=name)


@pytest.mark.parametrize("size", [0, 63, 65])
def test_a_block_of_another_size_is_refused(path: Path, size: int):
    write(path)
    with pytest.raises(UnusableFile, match="another size"):
        read(path, size=size)


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path):
    path = tmp_path / "taken"
    (path / "by a folder").mkdir(parents=True)
    with pytest.raises(OSError, match="taken"):
        write(path)
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]


@pytest.mark.slow
def test_many_processes_may_write_one_block_at_once(path: Path):
    """What is read meanwhile is one of the blocks written, from its first byte to its last."""
    program = (
        "import sys; from pathlib import Path; from ragcache_engine.tiers.disk import block_file\n"
        f"origin = block_file.Origin({', '.join(map(repr, OURS.as_dict().values()))})\n"
        "for turn in range(60):\n"
        "    content = bytes([int(sys.argv[2]) * 60 + turn]) * 64\n"
        f"    block_file.write(Path(sys.argv[1]), origin, {NAME!r}, (), memoryview(content))\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(path), str(number)])
        for number in range(3)
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        try:
            content = bytearray(64)
            block_file.read(path, OURS, NAME, memoryview(content))
        except FileNotFoundError:
            continue
        assert len(set(content)) == 1
        seen.add(content[0])
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert seen
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_two_writers_with_one_process_number_do_not_disturb_each_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    sync, both_wrote = block_file.os.fsync, threading.Barrier(2, timeout=10)

    def sync_when_both_wrote(descriptor: int) -> None:
        both_wrote.wait()
        sync(descriptor)

    monkeypatch.setattr(block_file.os, "fsync", sync_when_both_wrote)
    failures: list[Exception] = []

    def run(*documents: str) -> None:
        try:
            write(path, CONTENT, *documents)
        except Exception as error:
            failures.append(error)

    writers = [threading.Thread(target=run, args=marks) for marks in ((), ("d1", "d2"))]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    monkeypatch.undo()
    if failures:
        raise failures[0]
    assert read(path) == CONTENT
