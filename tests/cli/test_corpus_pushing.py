"""`ragcache corpus`: what it reads, and what it says of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path

import httpx2
import pytest
from http_servers import MemoryServer, serve
from rich.console import Console

from ragcache_cli import corpus_pushing
from ragcache_cli.corpus_pushing import read_documents, write_corpora
from ragcache_cli.errors import CommandError
from ragcache_cli.main import main
from ragcache_cli.terminal import Phases
from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.corpora.registered import Corpora
from ragcache_engine.serving.corpus_routes import read_corpora

SALT = "Rivers carry salt into the sea, and the sun takes the water away again."


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "the sea.jsonl"
    path.write_text(json.dumps({"id": "salt", "text": SALT, "metadata": {"page": 3}}) + "\n\n")
    return path


@pytest.fixture
def server() -> Iterator[MemoryServer]:
    with serve(MemoryBackend(), operator_key=None) as server:
        yield server


def quiet() -> Console:
    return Console(file=StringIO())


def test_a_file_of_lines_is_pushed_listed_and_removed(lines, server, capsys):
    to = ["--server", server.url]
    assert main(["corpus", "push", str(lines), *to]) == 0
    assert "The corpus the-sea: 1 added" in capsys.readouterr().out
    assert main(["corpus", "push", str(lines), "--name", "sea", *to]) == 0
    assert main(["corpus", "list", *to]) == 0
    assert "the-sea" in capsys.readouterr().out
    assert main(["corpus", "remove", "the-sea", *to]) == 0
    assert "Removed 1 documents" in capsys.readouterr().out


def test_a_watched_file_is_pushed_again_when_it_has_changed(lines, server, capsys, monkeypatch):
    changes = iter(
        [
            lambda: None,
            lambda: lines.write_text(json.dumps({"id": "salt", "text": f"{SALT} Again."})),
            lambda: lines.write_text("no JSON"),
            lambda: lines.write_text(json.dumps({"id": "tides", "text": SALT})),
        ]
    )

    def change_instead_of_waiting(seconds: float) -> None:
        if seconds != corpus_pushing.WATCH_S:
            return  # of another thread, or of a client whose server was busy
        if (change := next(changes, None)) is None:
            raise KeyboardInterrupt
        change()

    monkeypatch.setattr(corpus_pushing.time, "sleep", change_instead_of_waiting)
    told = ["corpus", "push", str(lines), "--watch", "--server", server.url]
    with contextlib.suppress(KeyboardInterrupt):
        main(told)
    said = capsys.readouterr().out.splitlines()
    said = [line for line in said if line.startswith("The corpus") or "trying again" in line]
    told = ["1 added", "1 changed", "no JSON", "1 added, 0 changed, 1 removed"]
    assert len(said) == len(told), "nothing is pushed while nothing has changed"
    assert all(what in line for what, line in zip(told, said, strict=True))


def test_what_is_hidden_in_a_watched_folder_is_no_change(tmp_path):
    (tmp_path / "notes.md").write_text("The sea is salty.")
    before = corpus_pushing.look_at_files(tmp_path)
    (tmp_path / ".ragcache").mkdir()
    (tmp_path / ".ragcache" / "index").write_text("of the notes")
    assert corpus_pushing.look_at_files(tmp_path) == before
    (tmp_path / "more.md").write_text("Rivers are not.")
    assert corpus_pushing.look_at_files(tmp_path) != before


def test_a_corpus_is_warmed_once_a_question_was_asked(lines, server, capsys):
    to = ["--server", server.url]
    main(["corpus", "push", str(lines), *to])
    assert main(["corpus", "warm", "the-sea", *to]) == 1
    assert "ask one question" in capsys.readouterr().err
    prompt = f"Answer from this text: {SALT}"
    assert httpx2.post(f"{server.url}/v1/completions", json={"prompt": prompt}).is_success
    assert main(["corpus", "warm", "the-sea", *to]) == 0
    assert "1 documents computed, 0 were cached, 0 left out" in capsys.readouterr().out


def test_a_corpus_is_kept_listed_and_released(lines, capsys):
    with serve(MemoryBackend(host_blocks=64), operator_key=None) as server:
        to = ["--server", server.url]
        main(["corpus", "push", str(lines), *to])
        prompt = f"Answer from this text: {SALT}"
        httpx2.post(f"{server.url}/v1/completions", json={"prompt": prompt})
        assert main(["corpus", "keep", "the-sea", "--list", *to]) == 0
        assert "Nothing of the corpus the-sea is kept" in capsys.readouterr().out
        assert main(["corpus", "keep", "the-sea", "--tier", "host", "--for", "90min", *to]) == 0
        assert "0 left out" in capsys.readouterr().out
        assert main(["corpus", "keep", "the-sea", "--list", *to]) == 0
        said = capsys.readouterr().out
        assert "salt" in said
        assert f"{datetime.now() + timedelta(minutes=90):%Y-%m-%d}" in said
        assert main(["corpus", "release", "the-sea", *to]) == 0
        assert "1 sets of documents are kept no longer" in capsys.readouterr().out
        assert main(["corpus", "keep", "the-sea", *to]) == 1
        assert "no disk tier" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["soon", "3", "-1h", "0d", "1week", ""])
def test_a_time_that_is_none_is_refused(wrong: str, capsys):
    with pytest.raises(SystemExit):
        main(["corpus", "keep", "the-sea", f"--for={wrong}"])
    assert "90min, 12h or 30d" in capsys.readouterr().err


def test_a_document_that_cannot_be_warmed_is_named(lines, server, capsys):
    long = json.dumps({"id": "long", "text": SALT * 2000})
    lines.write_text(lines.read_text() + long)
    to = ["--server", server.url]
    main(["corpus", "push", str(lines), *to])
    prompt = f"Answer from this text: {SALT}"
    httpx2.post(f"{server.url}/v1/completions", json={"prompt": prompt})
    assert main(["corpus", "warm", "the-sea", *to]) == 0
    told = capsys.readouterr().out
    assert "1 left out" in told
    assert "'long': with the prompt's beginning it has" in told


def test_a_server_without_a_corpus_says_how_to_push_one(server, capsys):
    assert main(["corpus", "list", "--server", server.url]) == 0
    assert "ragcache corpus push" in capsys.readouterr().out


def test_a_missing_key_is_named(server, capsys):
    told = ["--server", server.url, "--api-key-env", "NO_SUCH_KEY"]
    assert main(["corpus", "list", *told]) == 1
    assert "NO_SUCH_KEY is not set" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "line 2 is no JSON"),
        ("[1]", "line 2 is no object"),
        ('{"id": 1, "text": "x"}', "line 2"),
    ],
)
def test_a_wrong_line_is_named(lines, line, why):
    lines.write_text(json.dumps({"id": "salt", "text": SALT}) + f"\n{line}\n")
    with pytest.raises(CommandError, match=why):
        read_documents(lines, Phases(quiet()))


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(CommandError, match="is no folder"):
        read_documents(tmp_path / "nowhere", Phases(quiet()))


def test_a_server_begins_with_the_corpora_that_were_written_for_it(lines, tmp_path, monkeypatch):
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path / "home"))
    folder = write_corpora([lines], quiet())
    assert write_corpora([lines], quiet()) == folder
    corpora = Corpora()
    read_corpora(folder, corpora)
    assert corpora.document(None, "the-sea", "salt").metadata == {"page": 3}


def test_a_folder_whose_name_gives_no_corpus_a_name_asks_for_one(lines, server, capsys):
    path = lines.rename(lines.with_name("文档.jsonl"))
    assert main(["corpus", "push", str(path), "--server", server.url]) == 1
    assert "--name" in capsys.readouterr().err


def test_two_corpora_of_one_name_are_refused(lines, tmp_path, monkeypatch):
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / lines.name
    other.write_bytes(lines.read_bytes())
    with pytest.raises(CommandError, match="two corpora are named the-sea"):
        write_corpora([lines, other], quiet())
