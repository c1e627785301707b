"""Documents that searches found wait to be prepared: those found most often first, once each."""

from __future__ import annotations

from ragcache_engine import Corpus, Document
from ragcache_engine.anywhere.found_documents import MOST_WAITING, FoundDocuments

A, B, C = (Document(name, f"About {name}.") for name in "abc")
SEA = Corpus(1, lambda asked: [None for _ in asked])


def found(*documents: Document, tenant: str | None = None) -> FoundDocuments:
    documents_found = FoundDocuments()
    for document in documents:
        documents_found.note([document], SEA, tenant, planned=0)
    return documents_found


def order(waiting: FoundDocuments, tenant: str | None = None) -> list[str]:
    return [one.document.id for one in iter(lambda: waiting.take(tenant), None) if one]


def test_those_found_most_often_come_first_and_of_others_the_latest():
    assert order(found(A, B, A, C)) == ["a", "c", "b"]


def test_each_is_prepared_once():
    waiting = found(A)
    assert order(waiting) == ["a"]
    waiting.note([A, B], SEA, None, planned=0)
    assert order(waiting) == ["b"]


def test_one_that_was_not_prepared_waits_again():
    waiting = found(A)
    one = waiting.take(None)
    assert one
    waiting.put_back(one)
    assert order(waiting) == ["a"]


def test_what_everybody_found_and_one_tenant_could_not_prepare_is_still_everybodys():
    waiting = found(A)
    one = waiting.take("ada")
    assert one
    waiting.put_back(one)
    assert order(waiting, "ben") == ["a"]


def test_what_stands_in_a_prompt_need_not_wait():
    waiting = found(A, B)
    waiting.note_prompt(["a", "c"], None)
    waiting.note([C], SEA, None, planned=0)
    assert order(waiting) == ["b"]


def test_each_tenant_has_its_own():
    waiting = found(A, tenant="ada")
    waiting.note_prompt(["a"], None)
    assert waiting.has_some("ada")
    assert not waiting.has_some(None)
    assert order(waiting) == []
    assert order(waiting, "ada") == ["a"]


def test_forgotten_documents_wait_no_more_and_may_be_found_again():
    waiting = found(A, B)
    waiting.forget(["a"])
    assert len(waiting) == 1
    assert order(waiting) == ["b"]
    waiting.forget(["b"])
    waiting.note([A, B], SEA, None, planned=0)
    assert order(waiting) == ["b", "a"]


def test_only_those_found_last_wait():
    many = [Document(str(number), "text") for number in range(MOST_WAITING + 3)]
    assert len(found(*many)) == MOST_WAITING
