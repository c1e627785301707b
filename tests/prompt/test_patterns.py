"""The texts around documents: filled where examples leave no doubt, and nowhere else."""

from __future__ import annotations

from ragcache_engine.prompt.patterns import Example, LearnedText, Place, learn_text


def examples(*seen: tuple[int, int, str, str]) -> list[Example]:
    """(rank, count, text, question); the question is taken to stand in the prompt once."""
    return [
        Example(Place(rank, count), text, question, True) for rank, count, text, question in seen
    ]


def text_of(*seen: tuple[int, int, str, str]) -> LearnedText:
    found = learn_text(examples(*seen))
    assert found is not None
    return found


def test_one_example_is_enough_where_nothing_else_stands():
    text = text_of((0, 3, "\n\nQuestion: Why?\nAnswer:", "Why?"))
    assert text.fill("Who?", Place(0, 3)) == "\n\nQuestion: Who?\nAnswer:"


def test_another_number_of_documents_is_a_place_not_seen():
    text = text_of((0, 3, "Here are 3 texts.", "Why?"))
    assert text.fill("Why?", Place(0, 4)) is None


def test_numbers_that_count_the_documents_are_learned_from_two_counts():
    text = text_of(
        (0, 3, "Here are 3 of 10 texts.", "Why?"), (0, 5, "Here are 5 of 10 texts.", "?")
    )
    assert text.fill("Who?", Place(0, 12)) == "Here are 12 of 10 texts."


def test_numbers_that_follow_the_rank_are_learned_from_one_prompt():
    text = text_of((1, 3, "\n[2] ", "Why?"), (2, 3, "\n[3] ", "Why?"))
    assert text.fill("Why?", Place(2, 3)) == "\n[3] "
    assert text.fill("Why?", Place(9, 3)) == "\n[10] "
    assert text.fill("Why?", Place(3, 4)) is None  # as in "[3 of 3]", the count may matter


def test_rank_and_count_are_told_apart():
    text = text_of((1, 2, " (1/2) ", "?"), (1, 3, " (1/3) ", "?"), (2, 3, " (2/3) ", "?"))
    assert text.fill("?", Place(4, 7)) == " (4/7) "


def test_a_number_that_could_follow_either_is_not_guessed():
    text = text_of((1, 2, "[2]", "?"), (2, 3, "[3]", "?"))
    assert text.fill("?", Place(1, 3)) is None


def test_words_that_count_are_not_guessed():
    text = text_of((1, 4, "\nB: ", "?"), (2, 4, "\nC: ", "?"), (3, 4, "\nD: ", "?"))
    assert text.fill("?", Place(2, 4)) == "\nC: "
    assert text.fill("?", Place(4, 5)) is None


def test_a_question_that_is_a_word_of_the_template_is_settled_by_the_next_question():
    doubtful = Example(Place(0, 1), "To answer, answer: answer", "answer", has_question_once=False)
    found = learn_text([doubtful])
    assert found is not None
    assert found.fill("ask", Place(0, 1)) is None
    settled = learn_text([doubtful, Example(Place(0, 1), "To answer, answer: Why?", "Why?", True)])
    assert settled is not None
    assert settled.fill("Who?", Place(0, 1)) == "To answer, answer: Who?"


def test_examples_that_contradict_each_other_teach_nothing():
    assert learn_text(examples((0, 1, "one text", "?"), (0, 1, "another", "?"))) is None
    assert (
        learn_text(examples((0, 1, "Q: a. History: b", "a"), (0, 1, "Q: b. History: c", "b")))
        is None
    )
