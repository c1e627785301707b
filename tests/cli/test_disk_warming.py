from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("faiss")

from word_bags import WordBags

from ragcache_cli import disk_warming, embedding
from ragcache_cli.disk_warming import describe_written, most_wanted
from ragcache_cli.errors import CannotWrite
from ragcache_cli.main import main
from ragcache_cli.prompts import plain_form
from ragcache_engine import DiskState, TierCounters


def test_the_sets_asked_for_most_are_chosen_each_once_and_those_alike_stand_together():
    found = [["b", "a"], ["c", "d"], ["b", "a"], ["c", "e"], ["c", "d"], ["f", "g"], []]
    assert most_wanted(found, 2) == [["b", "a"], ["c", "d"]]
    assert most_wanted(found, 10) == [["b", "a"], ["c", "d"], ["c", "e"], ["f", "g"]]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three files, which are embedded without a model."""
    monkeypatch.setattr(embedding, "load_embedder", WordBags)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name in ("apples", "pears", "plums"):
        (corpus / f"{name}.txt").write_text(f"All that is known about {name}. " * 8)
    return corpus


def test_a_query_log_is_searched_and_its_documents_prefilled(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
):
    log = tmp_path / "log.txt"
    log.write_text("What about apples?\nWhat about pears?\nWhat about apples?\n")
    arguments = ["warm", "--corpus", str(corpus), "--questions", str(log)]
    code = main(
        [*arguments, "--backend", "memory", "--top-k", "1", "--disk-cache-dir", str(tmp_path)]
    )
    assert code == 0
    said = capsys.readouterr().out
    assert "2 sets of documents, asked for by 3 questions" in said
    assert "nothing is written without a model" in said
    assert "MiB" not in said


def test_what_was_written_is_said_with_its_folder():
    written = TierCounters(written_bytes=3 << 20, disk=DiskState.ON)
    assert describe_written(written, Path("/kv"), "auto") == "3 MiB written to /kv"


@pytest.mark.parametrize("state", [DiskState.OFF, DiskState.READ_ONLY])
def test_a_disk_cache_that_cannot_be_written_is_an_error(state: DiskState):
    with pytest.raises(CannotWrite, match=f"/kv is {state}.*--disk-cache-dir"):
        describe_written(TierCounters(written_bytes=3 << 20, disk=state), Path("/kv"), "vllm")


def test_a_disk_cache_that_cannot_be_made_is_refused_before_the_engine_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(embedding, "load_embedder", WordBags)
    monkeypatch.setattr(disk_warming, "prepare_model", lambda *_: ("a model", plain_form("")))
    monkeypatch.setattr(disk_warming, "choose_dtype", lambda dtype, *_: dtype)
    (tmp_path / "apples.txt").write_text("All that is known about apples.")
    (tmp_path / "log.jsonl").write_text("What about apples?")
    arguments = ["warm", "--corpus", str(tmp_path), "--questions", str(tmp_path / "log.jsonl")]
    place = tmp_path / "apples.txt" / "kv"
    assert main([*arguments, "--backend", "vllm", "--disk-cache-dir", str(place)]) == 1
    said = capsys.readouterr().err
    assert f"{place} cannot be written (Not a directory)" in said
    assert "--disk-cache-dir" in said
    assert "Starting the engine" not in said


def test_without_a_query_log_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a.txt").write_text("text")
    code = main(["warm", "--corpus", str(tmp_path), "--questions", str(tmp_path / "nothing")])
    assert code == 1
    assert "cannot be read" in capsys.readouterr().err


def test_with_reuse_anywhere_every_document_is_prefilled_without_a_query_log(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["warm", "--corpus", str(corpus), "--backend", "memory", "--reuse", "anywhere"]
    arguments += ["--recompute-ratio", "0.1", "--disk-cache-dir", str(tmp_path)]
    assert main(arguments) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "3 documents: at most " in said
    assert "tokens to compute" in said
    assert "of them computed now" in said


def test_exact_warming_without_a_query_log_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["warm", "--corpus", str(tmp_path), "--backend", "memory"]) == 1
    assert "--questions is missing" in " ".join(capsys.readouterr().err.split())
