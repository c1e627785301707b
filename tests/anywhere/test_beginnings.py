"""How prompts begin, and the prompts that prepare documents behind that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine import Document, MemoryBackend, sets_of_each
from ragcache_engine.anywhere.beginnings import MOST_BEGINNINGS, Beginning, Beginnings
from ragcache_engine.prompt import find_documents, token_segments
from ragcache_engine.protocols import BackendRequest
from ragcache_engine.values import ONE_TOKEN

MOON = Document("moon", "The moon pulls the oceans.")
SALT = Document("salt", "Rivers carry salt into the sea.")
SYSTEM = "You know the sea.\n\n"
NAMES = st.lists(st.text(min_size=1), min_size=2, max_size=9, unique=True)
BACKEND = MemoryBackend()


def request_of(text: str, *documents: Document, tenant: str | None = None) -> BackendRequest:
    tokens, spans = BACKEND.tokenize(text), find_documents(text, documents)
    segments = token_segments(tokens, spans)
    return BackendRequest("asked", tokens, segments, ONE_TOKEN, tenant, spans=spans)


def asked(*documents: Document, tenant: str | None = None) -> BackendRequest:
    texts = "\n\n".join(one.text for one in documents)
    return request_of(f"{SYSTEM}{texts}\n\nWhy?", *documents, tenant=tenant)


def test_a_prompt_begins_with_all_up_to_the_end_of_its_first_document():
    beginning = Beginning.of(asked(MOON, SALT))
    assert beginning is not None
    assert beginning.text == SYSTEM + MOON.text
    assert beginning.first == MOON


def test_a_prompt_without_documents_tells_no_beginning():
    assert Beginning.of(request_of("Why?")) is None


def test_documents_are_written_with_what_stood_between_two_of_them():
    text = f"Read:\n[1] {MOON.text}\n[2] {SALT.text}\n\nWhy?"
    beginning = Beginning.of(request_of(text, MOON, SALT))
    assert beginning is not None
    written = beginning.write(BACKEND, [SALT, MOON], None, "warm").tokens.text
    assert written == f"Read:\n[1] {SALT.text}\n[2] {MOON.text}"


def test_other_documents_are_written_where_the_first_one_stood():
    beginning = Beginning.of(asked(MOON))
    assert beginning is not None
    written = beginning.write(BACKEND, [SALT, MOON], "shop", "warm")
    assert written.tokens.text == f"{SYSTEM}{SALT.text}\n\n{MOON.text}"
    assert written.document_ids == ["salt", "moon"]
    assert (written.tenant, written.options.max_tokens) == ("shop", 1)
    assert written.request_id == "warm"


def test_a_document_has_the_tokens_that_it_has_in_the_prompt_itself():
    beginning = Beginning.of(asked(SALT, MOON))
    assert beginning is not None
    whole, written = asked(MOON, SALT), beginning.write(BACKEND, [MOON], None, "warm")
    count = len(written.tokens) - 1  # behind the last one something else may follow
    assert written.tokens.token_ids[:count] == whole.tokens.token_ids[:count]


def test_each_tenants_latest_prompt_is_remembered_until_its_document_is_forgotten():
    beginnings = Beginnings()
    beginnings.note(asked(SALT, tenant="press"))
    beginnings.note(asked(SALT, tenant="shop"))
    beginnings.note(asked(MOON, tenant="press"))
    assert beginnings.tenants() == ["press", "shop"]
    found = beginnings.get("press")
    assert found is not None
    assert found.first == MOON
    beginnings.forget(["moon"])
    assert beginnings.get("press") is None
    assert beginnings.tenants() == ["shop"]


def test_only_so_many_tenants_are_remembered():
    beginnings = Beginnings()
    for number in range(MOST_BEGINNINGS + 5):
        beginnings.note(asked(MOON, tenant=f"tenant {number}"))
    assert len(beginnings.tenants()) == MOST_BEGINNINGS
    assert beginnings.get("tenant 0") is None


@given(NAMES)
def test_for_borrowing_each_document_comes_first_once_and_second_once(names: list[str]):
    sets = sets_of_each(names, borrows=True)
    assert sorted(first for first, _ in sets) == sorted(names)
    assert sorted(second for _, second in sets) == sorted(names)
    assert all(first != second for first, second in sets)


@given(NAMES)
def test_for_exact_reuse_each_document_comes_first(names: list[str]):
    assert sets_of_each(names, borrows=False) == [[name] for name in names]


def test_a_single_document_is_a_set_of_its_own():
    assert sets_of_each(["a"], borrows=True) == [["a"]]
