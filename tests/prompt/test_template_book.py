"""What the last prompt of a chain, or a given template, says about the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from ragcache_engine import Document, SamplingOptions
from ragcache_engine.prompt import Render, Template, TemplateBook
from ragcache_engine.prompt.template_book import MOST_CHAINS, MOST_CHARACTERS

GREEDY, OTHER = SamplingOptions(), SamplingOptions(max_tokens=7)


@dataclass(frozen=True)
class Pipeline:
    """A pipeline's way to write prompts, to be found out from one of its prompts.

    wrap: what stands around each document, with its number (from `first`) and how many there are.
    """

    before: str = "Use these texts.\n\n"
    wrap: tuple[str, str] = ("", "")
    separator: str = "\n\n"
    after: str = "\n\nQuestion: <q>\nAnswer:"
    first: int = 1
    trims: bool = False
    drops_blanks: bool = False
    reverses: bool = False

    def __call__(self, question: str, documents: Sequence[Document]) -> str:
        texts = [d.text.strip() if self.trims else d.text for d in documents]
        if self.drops_blanks:
            texts = [text for text in texts if text.strip()]
        if self.reverses:
            texts = texts[::-1]

        def fixed(text: str, number: int = 0) -> str:
            return (
                text.replace("<i>", str(number))
                .replace("<n>", str(len(texts)))
                .replace("<q>", question)
            )

        shown = [
            fixed(self.wrap[0], at) + text + fixed(self.wrap[1], at)
            for at, text in enumerate(texts, self.first)
        ]
        return fixed(self.before) + self.separator.join(shown) + fixed(self.after)


def documents(*texts: str) -> list[Document]:
    return [Document(f"{at}:{text}", text) for at, text in enumerate(texts)]


CATS, DOGS, BEES, OWLS = documents("Cats sleep a lot.", "Dogs bark.", "Bees {dance}.", "Owls see.")


class Learner:
    """A book that watches one chain."""

    def __init__(self, *pipelines: Pipeline, explicit: Render | None = None) -> None:
        self.book, self.pipelines, self.explicit = TemplateBook(), pipelines, explicit

    def saw(
        self, question: str, *found: Document, by: int = 0, prompt: str | None = None
    ) -> Learner:
        prompt = self.pipelines[by](question, found) if prompt is None else prompt
        self.book.remember("chain", question, found, prompt, GREEDY, self.explicit)
        return self

    def whole(self, question: str, *found: Document) -> str | None:
        guess = self.book.guess("chain", question, found, self.explicit)
        return guess.text if guess and guess.is_whole else None

    def knows(self, question: str, *found: Document, by: int = 0) -> bool:
        """Whether it writes the prompt of that pipeline; it must not write another."""
        guess = self.whole(question, *found)
        assert guess in (None, self.pipelines[by](question, found))
        return guess is not None


FORMS = {
    "chat": Pipeline("<|im_start|>user\n", after="\n<q><|im_end|>\n<|im_start|>assistant\n"),
    "question first": Pipeline("Question: <q>\n", after="\nAnswer:"),
    "question twice": Pipeline("Think of <q>\n", after="\nAnswer <q>:"),
    "numbered": Pipeline(wrap=("[<i>] ", "")),
    "numbered from 0, closed": Pipeline(wrap=("<doc <i>>", "</doc <i>>"), first=0),
    "source of so many": Pipeline("There are <n> texts.\n", wrap=("Source <i> of <n>: ", "\n")),
    "trimmed": Pipeline(trims=True),
    "reversed": Pipeline(reverses=True, wrap=("(<i>) ", "")),
    "braces": Pipeline("{context}{0}", after="}}<q>{{"),
}


def test_the_second_question_of_every_usual_form_is_known():
    for name, form in {"plain": Pipeline(), **FORMS}.items():
        learner = Learner(form).saw("Why do cats sleep?", CATS, DOGS, BEES)
        assert learner.knows("What do bees do?", BEES, OWLS, CATS), name


def test_another_number_of_documents_is_known_where_one_text_joins_all():
    learner = Learner(Pipeline()).saw("Why do cats sleep?", CATS, DOGS)
    assert learner.knows("And the bees?", BEES, CATS, OWLS, DOGS)
    assert learner.knows("What is an owl?", OWLS)
    learner.saw("What is an owl?", OWLS)  # which shows nothing of what joins them
    assert learner.knows("And the bees?", BEES, CATS, OWLS)
    numbered = Learner(FORMS["numbered"]).saw("Why do cats sleep?", CATS, DOGS, BEES)
    assert not numbered.knows("And the bees?", BEES, CATS, OWLS, DOGS)
    assert not Learner(Pipeline()).saw("What is an owl?", OWLS).knows("Who?", OWLS, CATS)


def test_the_options_are_those_of_the_last_prompt():
    book = TemplateBook()
    assert book.guess("chain", "Why?", [CATS]) is None
    for question, options in (("What do cats do?", GREEDY), ("Why do dogs bark?", OTHER)):
        book.remember("chain", question, [CATS, DOGS], Pipeline()(question, [CATS, DOGS]), options)
    guess = book.guess("chain", "What do owls do?", [OWLS, BEES])
    assert guess is not None
    assert guess.options == OTHER


def test_chains_do_not_learn_from_each_other():
    learner = Learner(Pipeline()).saw("Why do cats sleep?", CATS, DOGS)
    assert learner.book.guess("another chain", "Why?", [CATS, DOGS]) is None


def remember(book: TemplateBook, tenant: str | None, chain: str, before: str = "") -> None:
    prompt = Pipeline(before)("Why is it?", [CATS, DOGS])
    book.remember(chain, "Why is it?", [CATS, DOGS], prompt, GREEDY, tenant=tenant)


def test_what_a_tenants_prompts_teach_stays_with_the_tenant():
    book = TemplateBook()
    remember(book, "A", "chain")
    assert book.may_guess("chain", tenant="A")
    for other in ("B", None):
        assert not book.may_guess("chain", tenant=other)
        assert book.guess("chain", "Who?", [BEES, OWLS], tenant=other) is None


def test_however_many_tenants_there_are_each_ones_chain_is_known():
    book, tenants = TemplateBook(), [f"tenant {number}" for number in range(200)]
    for tenant in tenants:
        remember(book, tenant, "chain")
    assert all(book.may_guess("chain", tenant=tenant) for tenant in tenants)


def test_of_more_chains_than_there_is_room_for_those_of_the_latest_prompts_are_known():
    book = TemplateBook()
    remember(book, None, "kept")
    for number in range(MOST_CHAINS - 1):
        remember(book, None, f"chain {number}")
    remember(book, None, "kept")
    remember(book, None, "one more")
    assert book.may_guess("kept")
    assert not book.may_guess("chain 0")
    assert book.may_guess("chain 1")


def test_a_form_that_takes_much_memory_is_not_remembered():
    book = TemplateBook()
    remember(book, None, "chain", before="And so on. " * MOST_CHARACTERS)
    assert not book.may_guess("chain")
    assert book.last_options() == GREEDY


def test_a_text_that_stands_everywhere_is_no_question_to_be_replaced():
    """Or the next question, of any length, would be written so many times."""
    chatty = Pipeline(before="Please see these texts, even here: ", after="\n\nAnswer <q>:")
    guess = Learner(chatty).saw("e", CATS, DOGS).book.guess("chain", "x" * 1000, [CATS, DOGS], None)
    assert guess
    assert not guess.is_whole
    assert "xx" not in str(guess.text)


def test_a_question_that_stands_in_a_document_is_no_slot_there():
    quoting = Document("q", "Some ask: Why do cats sleep? Nobody knows.")
    learner = Learner(Pipeline()).saw("Why do cats sleep?", quoting, DOGS)
    assert learner.knows("What do bees do?", quoting, CATS)


def test_documents_may_contain_each_other():
    long = Document("long", f"More. {DOGS.text} And more.")
    for found in ([long, DOGS], [DOGS, long]):
        learner = Learner(Pipeline()).saw("What do dogs do?", *found)
        assert learner.knows("What do owls do?", OWLS, long)


def test_one_document_twice_is_written_twice():
    learner = Learner(Pipeline()).saw("Why do cats sleep?", CATS, DOGS)
    assert learner.knows("What do owls do?", OWLS, OWLS)
    # Such a prompt does not tell which is which, and shows nothing.
    assert not Learner(Pipeline()).saw("Why do cats sleep?", CATS, CATS).knows("Who?", OWLS, CATS)


def test_what_becomes_of_a_blank_document_is_not_guessed():
    learner = Learner(Pipeline()).saw("Why do cats sleep?", CATS, DOGS)
    assert not learner.knows("And the bees?", BEES, Document("blank", " "))


def test_whether_texts_are_trimmed_is_taken_from_the_prompt_that_shows_it():
    edged = [Document("a", "An edge.\n"), Document("b", "Another.\n")]
    for trims in (True, False):
        learner = Learner(Pipeline(trims=trims)).saw("Why do cats sleep?", CATS, DOGS)
        learner.saw("What edges?", *edged)
        assert learner.knows("Whose edges?", *edged[::-1])
        learner.saw("What do dogs do?", DOGS, CATS)
        assert learner.knows("Whose edges?", *edged[::-1])


def test_a_template_that_no_longer_fits_is_forgotten_and_the_new_one_learned():
    learner = Learner(Pipeline(), Pipeline("Be brief.\n", separator="\n", after="\n<q>"))
    learner.saw("Why do cats sleep?", CATS, DOGS)
    learner.saw("What do dogs do?", DOGS, CATS, by=1)
    # Prompts have had two forms, so which one comes next is open.
    assert learner.book.guess("chain", "What do owls do?", [OWLS, CATS]) is None
    learner.saw("What do owls do?", OWLS, CATS, by=1)
    assert learner.knows("And bees?", BEES, CATS, by=1)


def test_after_a_prompt_without_its_documents_nothing_is_guessed_until_one_has_them():
    learner = Learner(Pipeline()).saw("Why do cats sleep?", CATS, DOGS)
    learner.saw("And now?", CATS, DOGS, prompt="Something else.")
    assert learner.book.guess("chain", "What do owls do?", [OWLS, CATS]) is None
    learner.saw("What do owls do?", OWLS, CATS)
    assert learner.knows("And bees?", BEES, CATS)


def test_a_chain_whose_form_holds_a_forgotten_document_is_learned_anew():
    """A chain of one search leaves the documents of another one in the text around its own."""
    learner = Learner(Pipeline())
    prompt = f"{OWLS.text}\n\n{CATS.text}\n\nQuestion: Why?"
    learner.book.remember("chain", "Why?", [CATS], prompt, GREEDY, others=[OWLS.id])
    learner.saw("Who?", BEES, prompt=f"{OWLS.text}\n\n{BEES.text}\n\nQuestion: Who?")
    learner.book.forget([CATS.id])
    assert OWLS.text in (learner.whole("Where?", DOGS) or "")
    learner.book.forget([OWLS.id])
    assert learner.book.guess("chain", "Where?", [DOGS]) is None


def test_a_history_before_the_documents_is_guessed_once_and_never_again():
    learner, history = Learner(Pipeline()), ""
    for question in ("Why do cats sleep?", "What do dogs do?", "And bees?", "Where are owls?"):
        prompt = f"Talk:\n{history}\nTexts:\n{CATS.text}\n{DOGS.text}\nNow: {question}"
        guess = learner.whole(question, CATS, DOGS)
        assert (guess is not None) == (history.count("\n") == 1)
        learner.saw(question, CATS, DOGS, prompt=prompt)
        history += f"{question} Because.\n"


def test_before_a_history_that_changes_the_prompt_is_known_up_to_its_documents():
    learner, history = Learner(Pipeline()), ""
    for question in ("Why do cats sleep?", "What do dogs do?", "And bees?", "Where are owls?"):
        head = f"Texts:\n{CATS.text}\n{DOGS.text}"
        learner.saw(question, CATS, DOGS, prompt=f"{head}\nTalk:\n{history}\nNow: {question}")
        history += f"{question} Because.\n"
    guess = learner.book.guess("chain", "Who?", [BEES, OWLS])
    assert guess is not None
    assert not guess.is_whole
    assert guess.text == f"Texts:\n{BEES.text}\n{OWLS.text}"


def test_a_prompt_that_puts_the_question_in_other_words_is_known_up_to_its_documents():
    learner = Learner(Pipeline(after="\nTell me of cats."), Pipeline(after="\nAnd of dogs."))
    learner.saw("Why do cats sleep?", CATS, DOGS).saw("What of dogs?", DOGS, CATS, by=1)
    guess = learner.book.guess("chain", "Who?", [BEES, OWLS])
    assert guess is not None
    assert (guess.is_whole, guess.text.endswith(OWLS.text)) == (False, True)


def test_of_a_chain_that_chooses_among_its_documents_only_the_chosen_ones_prompt_is_known():
    book, pipeline = TemplateBook(), Pipeline()
    documents = [Document(f"d{n}", f"This is what text {n} tells.") for n in range(5)]
    chosen = [documents[3], documents[1]]
    book.remember("chain", "Why?", chosen, pipeline("Why?", chosen), GREEDY, is_choice=True)
    assert not book.may_guess("chain")
    assert book.guess("chain", "When?", documents) is None
    guess = book.guess("chain", "When?", documents[:3], are_chosen=True)
    assert guess
    assert guess.text == pipeline("When?", documents[:3])


def test_a_given_template_makes_the_first_question_known():
    given_one = Template("Use these texts.\n\n", "\n\n", "\n\nQuestion: {question}\nAnswer:")
    learner = Learner(Pipeline(), explicit=given_one)
    assert learner.knows("Why do cats sleep?", CATS, DOGS)


def test_a_given_template_that_was_wrong_gives_way_to_the_last_prompt():
    learner = Learner(Pipeline(), explicit=Template("", "\n", "{question}"))
    learner.saw("Why do cats sleep?", CATS, DOGS)
    assert learner.knows("And bees?", BEES, CATS)


def test_a_given_template_that_raises_counts_as_wrong():
    def broken(question: str, documents: Sequence[Document]) -> str:
        raise KeyError("history")

    learner = Learner(Pipeline(), explicit=broken).saw("Why do cats sleep?", CATS, DOGS)
    assert learner.knows("And bees?", BEES, CATS)


fixed_text = st.text("ab1 \n{}", max_size=6)
wraps = st.sampled_from(["", "[<i>] ", "#<i>/<n> ", "- ", "\n", "a", "7"])
question = st.text("abc 1", min_size=1, max_size=6)
text = st.text("abc 1\n", min_size=1, max_size=8)


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    asks_first = draw(st.booleans())
    return Pipeline(
        before=draw(fixed_text) + ("<q>" if asks_first else "") + draw(fixed_text),
        wrap=(draw(wraps), draw(wraps)),
        separator=draw(fixed_text),
        after=draw(fixed_text) + ("" if asks_first else "<q>") + draw(fixed_text),
        first=draw(st.sampled_from([0, 1])),
        drops_blanks=draw(st.booleans()),
        reverses=draw(st.booleans()),
    )


found = st.lists(text, min_size=1, max_size=4).map(lambda texts: documents(*texts))


@settings(max_examples=examples(120))
@given(
    pipeline=pipelines(),
    seen=st.lists(st.tuples(question, found), min_size=1, max_size=4),
    asked=question,
    got=found,
)
def test_whatever_the_prompts_a_guess_has_the_documents(
    pipeline: Pipeline, seen: list[tuple[str, list[Document]]], asked: str, got: list[Document]
):
    """Texts of a tiny alphabet, so that all of them occur in each other by chance."""
    learner = Learner(pipeline)
    for one, these in seen:
        learner.saw(one, *these)
    guess = learner.book.guess("chain", asked, got)
    assert guess is None or all(one.text.strip() in guess.text for one in got)


words = st.text("abcdefghijklmnop", min_size=4, max_size=9)
sentence = st.lists(words, min_size=4, max_size=8).map(" ".join)


@settings(max_examples=examples(80))
@given(
    pipeline=pipelines(),
    asked=st.lists(sentence.map(lambda s: f"{s}?"), min_size=2, max_size=2, unique=True),
    texts=st.lists(sentence.map(lambda s: f"{s}."), min_size=6, max_size=6, unique=True),
)
def test_whatever_the_template_one_ordinary_prompt_is_enough(
    pipeline: Pipeline, asked: list[str], texts: list[str]
):
    learner = Learner(pipeline).saw(asked[0], *documents(*texts[:3]))
    assert learner.knows(asked[1], *documents(*texts[3:]))


@pytest.mark.parametrize("name", ["squad", "nq_open"])
@pytest.mark.parametrize("form", FORMS)
def test_of_real_questions_all_but_a_few_are_known(
    read_data: Callable[[str], list[dict[str, Any]]], name: str, form: str
):
    texts = {row["doc_id"]: row["text"] for row in read_data(f"{name}/corpus.jsonl.gz")}
    queries = {row["query_id"]: row["query"] for row in read_data(f"{name}/queries.jsonl.gz")}
    learner, unknown = Learner(FORMS[form]), 0
    for row in read_data(f"{name}/retrieval_topk.jsonl.gz")[:150]:
        got = [Document(doc_id, texts[doc_id]) for doc_id in row["doc_ids"][:5]]
        unknown += not learner.knows(queries[row["query_id"]], *got)
        learner.saw(queries[row["query_id"]], *got)
    assert unknown <= 2
