"""The demo's rounds: every side gets every question, in every order in turn."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from ragcache_cli import chain_comparison
from ragcache_cli.chain_comparison import (
    ask_round,
    keep_fitting,
    questions_about,
    warn_of_full_host,
)
from ragcache_cli.errors import CommandError
from ragcache_cli.measurements import Asked
from ragcache_cli.passages import Passage
from ragcache_cli.prompts import CHATML
from ragcache_cli.questions import STATEMENT_QUESTIONS
from ragcache_engine import CachedTokens, EngineConfig, RAGCacheEngine

QUESTIONS = [f"Question {n}?" for n in range(6)]


class Echo:
    """A chain that writes down who was asked what."""

    def __init__(
        self, name: str, diary: list[tuple[str, str]], prompt: str = "{}", model: object = None
    ) -> None:
        self.name, self._diary, self._prompt = name, diary, prompt
        self.model = model or self

    def ask(self, question: str, say: Callable[[str], None]) -> Asked:
        self._diary.append((question, self.name))
        say(f"I am {self.name}.")
        prompt = self._prompt.format(question)
        return Asked(question, prompt, f"I am {self.name}.", 0.5, 100, CachedTokens())


def quiet() -> Console:
    return Console(file=io.StringIO(), width=100)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_question_goes_to_all_sides_before_the_next_one():
    diary: list[tuple[str, str]] = []
    made = ask_round("new", [Echo(name, diary) for name in "abc"], QUESTIONS, quiet())
    assert [question for question, _ in diary] == [q for q in QUESTIONS for _ in "abc"]
    assert [run.name for run in made.runs] == list("abc")
    assert [asked.question for asked in made.run("b").asked] == QUESTIONS


def test_each_side_comes_first_second_and_last_equally_often():
    diary: list[tuple[str, str]] = []
    ask_round("new", [Echo(name, diary) for name in "abc"], QUESTIONS, quiet())
    places = Counter((at % 3, name) for at, (_, name) in enumerate(diary))
    assert set(places.values()) == {2}
    assert len(places) == 9


def test_a_later_round_goes_on_with_the_orders():
    diary: list[tuple[str, str]] = []
    chains = [Echo(name, diary) for name in "abc"]
    ask_round("new", chains, QUESTIONS[:2], quiet())
    ask_round("again", chains, QUESTIONS[:1], quiet(), asked=2)
    orders = ["".join(name for _, name in diary[at : at + 3]) for at in range(0, 9, 3)]
    assert orders == ["abc", "acb", "bac"]


def test_a_side_waits_for_rest_where_another_model_answered_before(
    monkeypatch: pytest.MonkeyPatch,
):
    diary: list[tuple[str, str]] = []
    monkeypatch.setattr(
        chain_comparison, "wait_for_rest", lambda taken_s: diary.append(("", "wait"))
    )
    shared = object()
    chains = [Echo("a", diary), Echo("b", diary, model=shared), Echo("c", diary, model=shared)]
    ask_round("new", chains, QUESTIONS[:3], quiet())
    heard = " ".join(name for _, name in diary)
    assert heard == "wait a wait b c wait a wait c b b wait a wait c"


def test_sides_that_sent_different_prompts_cannot_be_compared():
    chains = [Echo("a", []), Echo("b", [], prompt="other {}"), Echo("c", [])]
    with pytest.raises(CommandError, match="different prompts"):
        ask_round("new", chains, QUESTIONS[:1], quiet())


def test_a_folder_needs_its_questions_and_questions_their_folder(tmp_path: Path):
    questions = tmp_path / "log.txt"
    questions.write_text("What about apples?\n\nWhat about pears?\n")
    assert questions_about(None, None) == STATEMENT_QUESTIONS
    assert questions_about(tmp_path, questions) == ["What about apples?", "What about pears?"]
    with pytest.raises(CommandError, match="go together"):
        questions_about(tmp_path, None)


def test_questions_whose_prompts_are_too_long_are_left_out_and_the_others_keep_their_order():
    with RAGCacheEngine(EngineConfig(model="x", backend="memory")) as engine:
        long = "word " * engine.limits.context_tokens
        found = {
            "short?": [Passage("a:0", "a", "a", "Few words.")],
            "long?": [Passage("b:0", "b", "b", long)],
        }
        console = quiet()
        kept = keep_fitting(["short?", "long?", "short?"], found, engine, CHATML, 8, console)
        assert kept == ["short?", "short?"]
        assert "left out 1 of 3 questions" in said(console)
        with pytest.raises(CommandError, match="no prompt of 5 passages"):
            keep_fitting(["long?"], found, engine, CHATML, 8, console)


@pytest.mark.parametrize(("host_cache", "is_warned"), [("1GiB", False), ("8MiB", True)])
def test_a_host_memory_that_cannot_keep_all_that_was_prefilled_is_told(
    host_cache: str, is_warned: bool
):
    config = EngineConfig(model="x", backend="memory", device_cache="64MiB", host_cache=host_cache)
    with RAGCacheEngine(config) as engine:
        for number in range(40):
            engine.generate(f"Prompt {number}. " + "It goes on. " * 60)
        console = quiet()
        warn_of_full_host(engine, console)
    assert ("--host-cache" in said(console)) is is_warned
