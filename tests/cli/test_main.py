import builtins
import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import pytest

from ragcache_cli import __main__ as module_main
from ragcache_cli import embedding, logging_setup
from ragcache_cli.errors import MissingExtra
from ragcache_cli.extras import needed
from ragcache_cli.folders import cache_home, create_folder, replace_folder
from ragcache_cli.main import main


class WordBags:
    name = "word-bags"

    def embed(self, texts: Sequence[str], done=None):
        import numpy as np

        vectors = np.full((len(texts), 64), 1e-3, dtype=np.float32)
        for row, text in enumerate(texts):
            for word in text.lower().split():
                vectors[row, crc32(word.strip(".?").encode()) % 64] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def count_tokens(self, text: str) -> int:
        return len(text.split())


@pytest.fixture(autouse=True)
def _a_home_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("RAGCACHE_HOME", str(tmp_path / "home"))
    for name in [*logging_setup.QUIET, "VLLM_CPU_NUM_OF_RESERVED_CPU"]:
        monkeypatch.setenv(name, os.environ.get(name, "1"))  # so that changes are undone
        monkeypatch.delenv(name)
    monkeypatch.setattr(embedding, "load_embedder", WordBags)


@pytest.fixture
def corpus(tmp_path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "cats.txt").write_text("Cats purr when they are content.")
    (folder / "dogs.md").write_text("# On dogs\n\nDogs bark at strangers.")
    return folder


def ask(*arguments: str | Path) -> int:
    return main(["ask", "--backend", "memory", *map(str, arguments)])


faiss = pytest.importorskip("faiss")


def test_ask_answers_names_its_sources_and_says_what_it_cost(corpus, capsys):
    assert ask("Why do dogs bark?", "--corpus", corpus, "--top-k", "1") == 0
    out = capsys.readouterr().out
    assert "You asked: Answer:" in out
    assert "[1] On dogs (dogs.md:0)" in out
    assert "prompt tokens, 0 cached" in out


def test_ask_shows_the_timeline_of_each_answer_and_draws_it(corpus, capsys, tmp_path):
    asked = ("Why do dogs bark?", "Do cats purr?", "--corpus", corpus, "--timeline")
    assert ask(*asked) == 0
    out = capsys.readouterr().out
    assert out.count("first token after") == out.count("speculation: ") == 2
    assert "final: " in out
    assert ask(*asked, tmp_path / "drawn.png") == 0
    assert (tmp_path / "drawn.png").exists()
    assert (tmp_path / "drawn-2.png").exists()


def test_a_question_after_timeline_is_not_taken_for_a_picture(corpus, capsys):
    with pytest.raises(SystemExit):
        ask("--corpus", corpus, "--timeline", "Why do dogs bark?")
    assert "questions go before --timeline" in capsys.readouterr().err


def test_ask_keeps_its_index_beside_the_files_and_uses_it_again(corpus, capsys, monkeypatch):
    assert ask("Why?", "--corpus", corpus) == 0
    assert (corpus / ".ragcache" / "index" / "manifest.json").is_file()
    embedded: list[str] = []
    embed = WordBags.embed
    monkeypatch.setattr(
        WordBags,
        "embed",
        lambda self, texts, done=None: embedded.extend(texts) or embed(self, texts),
    )
    assert ask("Why?", "--corpus", corpus) == 0
    assert embedded == ["Why?"]


def test_several_questions_are_answered_in_turn_and_the_second_is_partly_cached(corpus, capsys):
    (corpus / "cats.txt").write_text("Cats purr. " + "They are content. " * 30)
    assert ask("Why do cats purr?", "Do cats purr?", "--corpus", corpus, "--top-k", "1") == 0
    out = capsys.readouterr().out
    assert out.index("Why do cats purr?") < out.index("Do cats purr?")
    assert "from device" in out


def test_without_a_question_lines_are_read_from_standard_input(corpus, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Why do dogs bark?\n\nWhy do cats purr?\n"))
    assert ask("--corpus", corpus) == 0
    assert capsys.readouterr().out.count("prompt tokens") == 2


def test_an_unwritable_folders_index_is_kept_under_the_cache_home(corpus, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # a superuser may write anywhere
    assert ask("Why?", "--corpus", corpus) == 0
    assert "is not writable" in capsys.readouterr().err
    assert not (corpus / ".ragcache").exists()
    assert list((cache_home() / "indexes").glob("*/manifest.json"))


def test_files_left_out_are_named_and_the_others_answered_from(corpus, capsys):
    (corpus / "broken.jsonl").write_text("nonsense")
    assert ask("Why?", "--corpus", corpus) == 0
    assert "left out broken.jsonl: line 1 is no JSON" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--corpus", "{corpus}/absent"], "is no folder"),
        (["--corpus", "{empty}"], "holds no file of a kind that can be read"),
        (["--corpus", "{corpus}", "--top-k", "0"], "--top-k must be at least 1"),
    ],
)
def test_an_error_is_one_line_on_standard_error(corpus, tmp_path, capsys, arguments, says):
    empty = tmp_path / "empty"
    empty.mkdir()
    filled = [argument.format(corpus=corpus, empty=empty) for argument in arguments]
    assert ask("Why?", *filled) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert says in captured.err
    assert len(captured.err.splitlines()) == 1


def test_one_question_that_fails_leaves_the_others_answered(corpus, capsys):
    long = "why " * 9000
    assert ask(long, "Why do dogs bark?", "--corpus", corpus) == 1
    captured = capsys.readouterr()
    assert "tokens, and the model's context" in captured.err
    assert "prompt tokens" in captured.out


def test_an_interrupt_ends_with_130(corpus, capsys, monkeypatch):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(embedding, "load_embedder", interrupted)
    assert ask("Why?", "--corpus", corpus) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    "arguments",
    [[], ["unknown"], ["ask", "Why?"], ["demo", "--first", "0"]],
)
def test_arguments_that_make_no_sense_end_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "usage: ragcache" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["demo", "ask", "doctor"])
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert "--model" in capsys.readouterr().out


def test_a_missing_extra_is_one_line_that_says_what_to_install(corpus, capsys, monkeypatch):
    real_import = builtins.__import__

    def without_faiss(name, *arguments, **options):
        if name == "faiss":
            raise ModuleNotFoundError("No module named 'faiss'", name="faiss")
        return real_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_faiss)
    assert ask("Why?", "--corpus", corpus) == 1
    err = capsys.readouterr().err
    assert "needs the package faiss" in err
    assert "pip install 'ragcache-integrations[demo]'" in err
    assert "Traceback" not in err


def test_an_import_error_that_is_no_missing_extra_is_not_disguised():
    with pytest.raises(ImportError) as error, needed("something"):
        raise ImportError("cannot import name 'x' from 'theirs'", name="theirs")
    assert not isinstance(error.value, MissingExtra)


def test_importing_the_command_line_is_quick_and_loads_nothing_heavy():
    code = (
        "import sys, ragcache_cli.main as m; m.parser();"
        "heavy = {'torch', 'vllm', 'faiss', 'numpy', 'transformers', 'langchain_core',"
        " 'llama_index', 'matplotlib', 'sentence_transformers'};"
        "sys.exit(sorted(heavy & set(sys.modules)) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_module_and_the_script_are_the_same_program():
    assert module_main.main is main


def test_what_the_user_set_is_left_alone():
    environment = {"VLLM_LOGGING_LEVEL": "DEBUG", "TOKENIZERS_PARALLELISM": "true"}
    assert not logging_setup.is_log_level_ours(environment)
    logging_setup.silence_libraries(environment)
    assert environment["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert environment["TOKENIZERS_PARALLELISM"] == "true"
    assert environment["VLLM_NO_USAGE_STATS"] == "1"
    assert logging_setup.is_log_level_ours({})


def test_a_server_is_not_silenced_with_what_the_user_did_not_set():
    environment = {"TQDM_DISABLE": "1"}
    logging_setup.silence_libraries(environment)
    logging_setup.let_libraries_speak(environment)
    assert "VLLM_LOGGING_LEVEL" not in environment
    assert environment["TQDM_DISABLE"] == "1"
    assert environment["VLLM_NO_USAGE_STATS"] == "1"


def test_what_goes_straight_to_standard_error_goes_to_the_log(tmp_path, capfd):
    log = tmp_path / "logs" / "log"
    with logging_setup.send_stderr_to(log):
        os.write(2, b"chatter\n")
    os.write(2, b"heard\n")
    assert log.read_text() == "chatter\n"
    assert capfd.readouterr().err == "heard\n"


def test_a_log_that_cannot_be_written_redirects_nothing(tmp_path, capfd):
    (tmp_path / "file").touch()
    with logging_setup.send_stderr_to(tmp_path / "file" / "log") as log:
        os.write(2, b"heard\n")
    assert log is None
    assert capfd.readouterr().err == "heard\n"


def test_the_cache_home_is_where_the_user_says_else_where_the_desktop_does():
    assert cache_home({"RAGCACHE_HOME": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_home({"XDG_CACHE_HOME": "/b"}) == Path("/b/ragcache")
    assert cache_home({}) == Path.home() / ".cache" / "ragcache"


def test_a_process_without_a_home_is_told_what_to_set(corpus, capsys, monkeypatch):
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", unknown)  # as of a container's user without a name
    for name in ("HOME", "RAGCACHE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert ask("Why?", "--corpus", corpus) == 1
    assert "set RAGCACHE_HOME" in capsys.readouterr().err


@pytest.mark.parametrize("write", [create_folder, replace_folder])
def test_a_folder_is_there_whole_or_not_at_all(tmp_path, write):
    target = tmp_path / "deep" / "target"
    with pytest.raises(NotADirectoryError), write(target) as folder:
        _touch_below_a_file(folder / "half")
    assert not target.exists()
    with write(target) as folder:
        (folder / "whole").touch()
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    assert [path.name for path in target.iterdir()] == ["whole"]


def test_of_two_processes_that_make_a_folder_the_first_ones_stays(tmp_path):
    target = tmp_path / "target"
    with create_folder(target) as second:
        (second / "second").touch()
        with create_folder(target) as first:
            (first / "first").touch()
    assert [path.name for path in target.iterdir()] == ["first"]


def test_a_replaced_folder_holds_nothing_of_the_old_one(tmp_path):
    for name in ("old", "new"):
        with replace_folder(tmp_path / "target") as folder:
            (folder / name).touch()
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["new"]


def _touch_below_a_file(path: Path) -> None:
    path.touch()
    (path / "below").touch()
