"""`ragcache ask` with reuse at any position, on the engine without a model."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("faiss")

from word_bags import WordBags

from ragcache_cli import embedding
from ragcache_cli.main import main


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(embedding, "load_embedder", WordBags)
    for name in ("apples", "pears", "plums"):
        (tmp_path / f"{name}.txt").write_text(f"All that is known about {name}. " * 20 + "The end.")
    questions = ["What about apples?", "What of apples?"]
    return ["ask", "--corpus", str(tmp_path), "--backend", "memory", *questions]


def test_each_source_says_what_was_borrowed_of_it(
    asked: list[str], capsys: pytest.CaptureFixture[str]
):
    borrowing = ("--reuse", "anywhere", "--recompute-ratio", "0.25", "--missing-donors", "compute")
    assert main([*asked, *borrowing]) == 0
    first, second = capsys.readouterr().out.split("What of apples?", 1)
    assert "exact, computed now" in first
    assert "tokens borrowed (computed now)" in first
    assert "tokens borrowed (from device)" in second
    assert "approximate: " in second
    assert "recomputed" in second


def test_new_documents_may_be_prepared_after_the_answer(
    asked: list[str], capsys: pytest.CaptureFixture[str]
):
    borrowing = ("--reuse", "anywhere", "--recompute-ratio", "0.25")
    assert main([*asked, *borrowing]) == 0
    first = capsys.readouterr().out.split("What of apples?", 1)[0]
    assert "its donors are computed later" in first
    assert "borrowed" not in first


def test_exact_reuse_says_nothing_of_it(asked: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "borrowed" not in said
    assert "approximate" not in said


def test_a_model_that_is_not_there_is_missed_before_the_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("transformers")
    monkeypatch.setattr(embedding, "load_embedder", lambda: pytest.fail("it begins to index"))
    (tmp_path / "apples.txt").write_text("All that is known about apples.")
    model = str(tmp_path / "no-such-model")
    assert main(["ask", "--corpus", str(tmp_path), "--model", model, "What about apples?"]) == 1
    assert "no-such-model" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["ask", "warm", "simulate"])
def test_files_of_kinds_that_are_not_read_are_named(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
):
    (tmp_path / "report.odt").write_bytes(b"PK")
    (tmp_path / "minutes.pptx").write_bytes(b"PK")
    log = tmp_path / "log.txt"
    log.write_text("What about apples?\n")
    corpus = ["--corpus", str(tmp_path)]
    arguments = {
        "ask": asked,
        "warm": ["warm", *corpus, "--questions", str(log), "--backend", "memory"],
        "simulate": ["simulate", *corpus, "--questions", str(log), "--output", str(tmp_path / "o")],
    }
    assert main(arguments[command]) == 0
    said = capsys.readouterr()
    assert "1 .odt (report.odt), 1 .pptx (minutes.pptx)" in said.err + said.out
