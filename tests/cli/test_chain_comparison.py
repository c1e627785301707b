"""The demo's rounds: every side gets every question, in every order in turn."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable

import pytest
from rich.console import Console

from ragcache_cli import chain_comparison
from ragcache_cli.chain_comparison import ask_round
from ragcache_cli.errors import CommandError
from ragcache_cli.measurements import Asked
from ragcache_engine import CachedTokens

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
