"""What a command writes is there whole or not at all; where it cannot be written, one line says so."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("faiss")
pytest.importorskip("matplotlib")

from word_bags import WordBags

from ragcache_cli import embedding
from ragcache_cli.errors import CannotWrite
from ragcache_cli.folders import make_folder, whole_file
from ragcache_cli.main import main


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes, as on a disk that is nearly full.

    Nor may the log of the tests, so leave this before a test ends.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(embedding, "load_embedder", WordBags)
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("apples", "pears", "plums"):
        (folder / f"{name}.txt").write_text(f"All that is known about {name}. " * 200)
    return folder


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[..., int]:
    trace = tmp_path / "trace.jsonl"
    requests = [{"documents": [f"d{n % 7}", f"d{n % 5}"], "tokens": [100, 100]} for n in range(50)]
    trace.write_text("\n".join(map(json.dumps, requests)))
    return lambda *more: main(["simulate", str(trace), *map(str, more)])


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the error, which is the last line of standard error."""
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("more", [(), ("--replicas", "2")])
def test_a_simulation_that_can_be_written_nowhere_ends_before_it_begins(
    simulate: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
):
    (tmp_path / "file").touch()
    assert simulate(*more, "--output", tmp_path / "file" / "out") == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert "cannot be written (Not a directory); choose with --output" in captured.err
    assert "Replaying" not in captured.out


@pytest.mark.parametrize(("more", "size"), [((), 300), ((), 10_000), (("--replicas", "2"), 9_000)])
def test_of_a_simulation_on_a_full_disk_no_half_file_stays(
    simulate: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    size: int,
):
    with full_disk(size):
        assert simulate(*more, "--output", tmp_path / "out") == 1
    assert "cannot be written (File too large); choose with --output" in error_of(capsys)
    for written in (tmp_path / "out").iterdir():
        assert json.loads(written.read_text())  # the figures may have come before the picture


def test_an_older_result_stays_when_the_new_one_finds_no_room(tmp_path: Path):
    result = tmp_path / "result.txt"
    result.write_text("the old one")
    with (
        full_disk(20),
        pytest.raises(CannotWrite, match="choose another"),
        whole_file(result, "choose another") as new,
    ):
        new.write_text("the new one " * 100)
    assert [path.name for path in tmp_path.iterdir()] == ["result.txt"]
    assert result.read_text() == "the old one"


def test_a_private_folder_is_this_users_alone(tmp_path: Path):
    make_folder(tmp_path / "kv", "choose another", is_private=True)
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700


def test_an_index_that_finds_no_room_is_one_line(corpus: Path, capsys: pytest.CaptureFixture[str]):
    with full_disk(1_000):
        assert main(["ask", "Apples?", "--corpus", str(corpus), "--backend", "memory"]) == 1
    said = error_of(capsys)
    assert f"{corpus}/.ragcache/index cannot be written (File too large)" in said
    assert list((corpus / ".ragcache").iterdir()) == []


def test_a_small_index_is_not_cut_short_unnoticed(corpus: Path, capsys: pytest.CaptureFixture[str]):
    for path in corpus.iterdir():
        path.write_text("Short.")
    with full_disk(700):  # room for manifest and passages, and for half of the vectors
        assert main(["ask", "Apples?", "--corpus", str(corpus), "--backend", "memory"]) == 1
    assert "cannot be written" in error_of(capsys)


@pytest.mark.parametrize("command", ["ask", "simulate"])
def test_without_a_writable_home_it_says_how_to_name_another(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # a superuser may write anywhere
    monkeypatch.setattr(WordBags, "embed", lambda *_: pytest.fail("it begins to index"))
    log = tmp_path / "log.txt"
    log.write_text("Apples?\n")
    arguments = ["--corpus", str(corpus)]
    arguments += (
        ["Apples?", "--backend", "memory"] if command == "ask" else ["--questions", str(log)]
    )
    assert main([command, *arguments]) == 1
    said = error_of(capsys)
    assert "home/indexes cannot be written" in said
    assert "set RAGCACHE_HOME to another folder" in said


def test_what_a_library_cannot_write_is_one_line_too(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def no_room() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/their/cache")

    monkeypatch.setattr(embedding, "load_embedder", no_room)
    assert main(["ask", "Apples?", "--corpus", str(corpus), "--backend", "memory"]) == 1
    said = error_of(capsys)
    assert said.startswith("error: ")
    assert "No space left on device: '/their/cache'" in said


def test_an_error_of_the_system_that_is_not_about_room_keeps_its_traceback(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken() -> None:
        raise OSError(errno.EBADF, "a mistake of ours")

    monkeypatch.setattr(embedding, "load_embedder", broken)
    with pytest.raises(OSError, match="a mistake of ours"):
        main(["ask", "Apples?", "--corpus", str(corpus), "--backend", "memory"])


def test_a_picture_that_cannot_be_written_is_named_and_the_answers_stand(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "file").touch()
    picture = str(tmp_path / "file" / "one.png")
    asked = ["ask", "Apples?", "Pears?", "--corpus", str(corpus), "--backend", "memory"]
    assert main([*asked, "--timeline", picture]) == 1
    captured = capsys.readouterr()
    assert captured.out.count("prompt tokens") == 2
    assert captured.err.count("cannot be written (File exists); name another place") == 2
