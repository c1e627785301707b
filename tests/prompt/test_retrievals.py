"""A prompt is joined to the search it was made from by its text, whoever sends it."""

from __future__ import annotations

from dataclasses import replace

from ragcache_engine import Document
from ragcache_engine.prompt.retrievals import Retrieval, RetrievalLog


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


def test_of_two_retrievals_of_the_same_documents_each_prompt_claims_its_own_question():
    first, second = retrieval("Why sleep?", "cats"), retrieval("Why purr?", "cats")
    log = log_of(first, second)
    assert log.match(prompt("Why sleep?", "cats")).retrieval is first
    assert log.match(prompt("Why purr?", "cats")).retrieval is second


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
