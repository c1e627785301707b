"""How alike two answers are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine.anywhere.rouge import rouge_l

WORDS = st.lists(st.sampled_from("abcde"), max_size=12).map(" ".join)


@given(WORDS, WORDS)
@pytest.mark.slow
def test_it_is_that_of_rouge_score(said: str, wanted: str):
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"])
    if said or wanted:
        assert rouge_l(said, wanted) == pytest.approx(scorer.score(wanted, said)["rougeL"].fmeasure)


@given(WORDS, WORDS)
def test_it_is_the_same_both_ways(one: str, other: str):
    assert rouge_l(one, other) == rouge_l(other, one)


def test_case_and_punctuation_do_not_count():
    assert rouge_l("In Paris, in 1889!", "in paris in 1889") == 1


def test_answers_without_words_are_alike():
    assert rouge_l("", "...") == 1
    assert rouge_l("", "something") == 0


def test_words_of_every_script_count():
    assert rouge_l("Луна тянет океаны", "Луна тянет реки") == pytest.approx(2 / 3)
    assert rouge_l("月が海を引く", "月が川を引く") == pytest.approx(5 / 6)
