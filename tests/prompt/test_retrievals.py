"""A prompt is joined to the search it was made from by its text, whoever sends it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import examples

from ragcache_engine import Document
from ragcache_engine.prompt import retrievals
from ragcache_engine.prompt.landmarks import words_of
from ragcache_engine.prompt.retrievals import (
    CLAIMED_WITHIN_S,
    PromptMatch,
    Retrieval,
    RetrievalLog,
)
from ragcache_engine.prompt.segments import Span, find_documents


def document(name: str) -> Document:
    return Document(name, f"All that is known about {name}, in one sentence.")


def retrieval(question: str, *names: str) -> Retrieval:
    return Retrieval(question, tuple(map(document, names)), started_s=1.0)


def log_of(*retrievals: Retrieval, capacity: int = 256) -> RetrievalLog:
    log = RetrievalLog(capacity)
    for one in retrievals:
        log.add(one)
    return log


def prompt(question: str, *names: str) -> str:
    return "\n".join([*(document(name).text for name in names), question])


def names_in(log: RetrievalLog, text: str) -> list[str]:
    return [span.document_id for span in log.match(text).spans]


def test_a_prompt_without_retrieved_documents_matches_nothing():
    match = log_of(retrieval("Why?", "cats")).match("A plain prompt.")
    assert match.spans == ()
    assert match.retrieval is None


def test_the_first_prompt_made_from_a_retrieval_claims_it_and_the_next_does_not():
    log = log_of(found := retrieval("Why?", "cats"))
    assert log.match(prompt("Why?", "cats")).retrieval is found
    again = log.match(prompt("Why?", "cats"))
    assert again.retrieval is None
    assert [span.document_id for span in again.spans] == ["cats"]


def test_a_retrieval_about_which_nobody_asked_soon_is_no_prompts_any_more():
    old, asked = retrieval("Why?", "cats"), retrieval("How?", "dogs")
    log = log_of(old, asked)
    late_s = old.started_s + CLAIMED_WITHIN_S + 1
    assert log.match(prompt("Something else?", "cats"), now_s=late_s).retrieval is None
    assert log.match(prompt("How?", "dogs"), now_s=late_s).retrieval is asked, "its own question"
    assert log.match(prompt("Something else?", "cats"), now_s=late_s - 2).retrieval is old


def test_a_look_that_claims_nothing_leaves_the_retrieval_to_the_next():
    log = log_of(found := retrieval("Why?", "cats"))
    looked = log.match(prompt("Why?", "cats"), claims=False)
    assert ([span.document_id for span in looked.spans], looked.retrieval) == (["cats"], None)
    assert log.match(prompt("Why?", "cats")).retrieval is found


def test_of_two_retrievals_of_the_same_documents_each_prompt_claims_its_own_question():
    first, second = retrieval("Why sleep?", "cats"), retrieval("Why purr?", "cats")
    log = log_of(first, second)
    assert log.match(prompt("Why sleep?", "cats")).retrieval is first
    assert log.match(prompt("Why purr?", "cats")).retrieval is second


def test_all_retrievals_that_led_to_a_prompt_are_claimed_by_it_and_none_by_what_follows():
    first, second = retrieval("Why sleep?", "cats"), retrieval("Why bark?", "dogs")
    log = log_of(first, second, other := retrieval("Why swim?", "fish"))
    history = prompt("Why sleep?", "cats") + prompt("Why bark?", "dogs")
    assert log.match(history).retrieval is second
    assert log.match(history + prompt("And then?")).retrieval is None
    assert log.match(prompt("Why swim?", "fish")).retrieval is other


def test_a_question_that_two_ask_leaves_each_prompt_its_own_retrieval():
    log = log_of(*(found := [retrieval("Why?", "cats"), retrieval("Why?", "cats")]))
    claimed = [log.match(prompt("Why?", "cats")).retrieval for _ in found]
    assert all(any(one is each for each in claimed) for one in found)


def test_documents_of_several_retrievals_may_stand_in_one_prompt():
    log = log_of(retrieval("a", "cats"), retrieval("b", "dogs"))
    assert names_in(log, prompt("both", "dogs", "cats")) == ["dogs", "cats"]


def test_the_oldest_retrieval_is_forgotten_first():
    log = log_of(*(retrieval(str(n), f"animal {n}") for n in range(5)), capacity=3)
    assert names_in(log, prompt("1", "animal 1")) == []
    assert names_in(log, prompt("2", "animal 2")) == ["animal 2"]


def test_a_tenants_retrieval_is_nobody_elses():
    log = log_of(replace(retrieval("Why?", "secret", "shared"), tenant="A"))
    text = prompt("Why?", "shared")
    for tenant in ("B", None):
        match = log.match(text, tenant)
        assert match.spans == ()
        assert match.retrieval is None
        assert log.documents(tenant) == []
    match = log.match(text, "A")
    assert match.retrieval is not None
    assert [span.document_id for span in match.spans] == ["shared"]
    assert [one.id for one in log.documents("A")] == ["secret", "shared"]


def test_a_retrieval_without_a_tenant_is_everybodys():
    log = log_of(retrieval("Why?", "cats"))
    assert [span.document_id for span in log.match(prompt("Why?", "cats"), "B").spans] == ["cats"]


def test_a_forgotten_document_is_known_no_longer():
    log = log_of(retrieval("Why?", "cats", "dogs"))
    log.forget(["cats", "unheard of"])
    assert [one.id for one in log.documents()] == ["dogs"]
    assert names_in(log, prompt("Why?", "cats", "dogs")) == ["dogs"]
    log.forget(["dogs"])
    assert not log._entries, "its question went with its last document"


def test_a_prompt_costs_no_search_for_documents_that_cannot_stand_in_it(
    monkeypatch: pytest.MonkeyPatch,
):
    searched: list[str] = []

    def find_and_count(
        prompt: str, documents: Iterable[Document], known: Sequence[Span] = ()
    ) -> tuple[Span, ...]:
        documents = list(documents)
        searched.extend(document.id for document in documents)
        return find_documents(prompt, documents, known)

    monkeypatch.setattr(retrievals, "find_documents", find_and_count)
    log = log_of(*(retrieval(f"Why {n}?", f"animal{n}", f"plant{n}") for n in range(256)))
    long_rest = "And much more, \\n, of which no retrieval knows. " * 50
    assert log.match(f"{long_rest} Why 7?").spans == ()
    assert searched == []
    text = f"{prompt('', 'animal7')}\n{long_rest}Why 7?"
    match = log.match(text)
    assert match.retrieval is not None
    assert match.retrieval.question == "Why 7?"
    assert searched == ["animal7"]


def test_what_is_no_longer_remembered_is_not_in_the_index_either():
    log = log_of(*(retrieval("Why?", f"animal{n}") for n in range(9)), capacity=2)
    log.forget(["animal8"])
    assert log._index.find(words_of(prompt("", "animal7"))) == {7}
    assert log._index.find(words_of(prompt("", "animal6", "animal8"))) <= {7}
    log.forget(["animal7"])
    assert not log._index._with_word


class PlainScan:
    """What RetrievalLog does, without its index: every document is searched in every prompt."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: dict[int, Retrieval] = {}
        self.unclaimed: set[int] = set()
        self.added = 0

    def add(self, one: Retrieval) -> None:
        self.entries[self.added] = one
        self.unclaimed.add(self.added)
        self.added += 1
        for number in list(self.entries)[: -self.capacity]:
            del self.entries[number]
            self.unclaimed.discard(number)

    def forget(self, gone: Sequence[str]) -> None:
        for number, entry in self.entries.items():
            left = tuple(one for one in entry.documents if one.id not in gone)
            self.entries[number] = replace(entry, documents=left)

    def match(self, prompt: str, tenant: str | None) -> PromptMatch:
        spans: tuple[Span, ...] = ()
        scores: list[tuple[bool, int, int]] = []
        for number, entry in reversed(self.entries.items()):
            if not entry.is_visible_to(tenant):
                continue
            spans = find_documents(prompt, entry.documents, known=spans)
            present = {span.document_id for span in spans}
            found = sum(document.id in present for document in entry.documents)
            if number in self.unclaimed and found:
                has_question = bool(entry.question) and entry.question in prompt
                scores.append((has_question, found, number))
        if not scores:
            return PromptMatch(spans)
        *_, best = max(scores)
        self.unclaimed.discard(best)
        return PromptMatch(spans, self.entries[best])


some_words = st.sampled_from(["tide", "moon", "salt", "sea", "Wind", "tidemoon", "n", "é", "海水"])
glue = st.sampled_from([" ", " ", "\n", ", ", "\\", '"', "\t", "", "。", "_", "\u2028"])
some_text = st.lists(st.tuples(glue, some_words), min_size=3, max_size=7).map(
    lambda parts: "".join(space + word for space, word in parts)
)
edges = st.sampled_from(["", "\n", "  ", "\u00a0"])
texts = st.lists(
    st.tuples(edges, some_text, edges).map("".join), min_size=1, max_size=6, unique=True
)
tenants = st.sampled_from([None, "A", "B"])
forms = st.sampled_from([str, str.strip, lambda text: json.dumps(text, ensure_ascii=False)])


@settings(max_examples=examples(120))
@given(texts=texts, data=st.data())
@pytest.mark.slow
def test_whatever_was_retrieved_the_index_changes_no_match(texts: list[str], data: st.DataObject):
    """Texts of few words, so that they occur in each other; the same id may have several texts."""
    log, plain = RetrievalLog(capacity=4), PlainScan(capacity=4)
    one_document = st.builds(Document, st.sampled_from("abcd"), st.sampled_from(texts))
    questions = st.sampled_from(["", "Why?", "Why so, moon?", texts[0]])
    for _ in range(data.draw(st.integers(1, 8))):
        match data.draw(st.sampled_from(["add", "add", "match", "match", "match", "forget"])):
            case "add":
                found = tuple(data.draw(st.lists(one_document, min_size=1, max_size=3)))
                new = Retrieval(data.draw(questions), found, 1.0, tenant=data.draw(tenants))
                log.add(new)
                plain.add(new)
            case "forget":
                gone = data.draw(st.lists(st.sampled_from("abcd"), max_size=2))
                log.forget(gone)
                plain.forget(gone)
            case _:
                parts = data.draw(st.lists(st.tuples(forms, st.sampled_from(texts)), max_size=4))
                between, tenant = data.draw(glue), data.draw(tenants)
                text = between.join(form(one) for form, one in parts) + data.draw(questions)
                assert log.match(text, tenant) == plain.match(text, tenant)
    assert log.documents("A") == [
        document
        for entry in plain.entries.values()
        if entry.is_visible_to("A")
        for document in entry.documents
    ]
