"""Which donors served prompts leave, and which of them a prompt chooses (Cache-Craft, 3.1 to 3.3)."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine.tiers.borrowing import served as module
from ragcache_engine.tiers.borrowing.donor import Donor
from ragcache_engine.tiers.borrowing.plan import (
    BorrowPlan,
    DocumentSpan,
    Lenders,
    Room,
    WhyExact,
    plan_borrowing,
)
from ragcache_engine.tiers.borrowing.served import ServedDocuments, Variant

BLOCK = 4
SYSTEM = [1, 2, 3, 4, 5]
TEXTS = {name: [100 * at + n for n in range(10)] for at, name in enumerate("abcdef", 1)}
QUESTION = [7] * 9


def prompt_of(*names: str) -> tuple[list[int], list[DocumentSpan], int]:
    tokens, spans = list(SYSTEM), []
    for name in names:
        spans.append(DocumentSpan(name, len(tokens), len(tokens) + 10))
        tokens += TEXTS[name]
    return tokens + QUESTION, spans, len(SYSTEM)


def serve(store: ServedDocuments, *names: str, tenant: str | None = None) -> None:
    store.add(tenant, *prompt_of(*names))


def choose(
    store: ServedDocuments,
    *names: str,
    tenant: str | None = None,
    exact: int = 0,
    is_held: Callable[[Donor], bool] = lambda donor: True,
) -> tuple[int, dict[int, Donor]]:
    """exact: how many of the prompt's tokens some tier has."""
    chosen = store.choose(
        tenant, *prompt_of(*names), is_exact=lambda end: end <= exact, is_held=is_held
    )
    return chosen.exact_documents, dict(chosen.served)


def names_in(donor: Donor) -> str:
    return "".join(name for _, name in donor.segments if name)


@pytest.fixture
def store() -> ServedDocuments:
    return ServedDocuments(BLOCK)


def test_documents_that_were_in_no_prompt_are_computed_where_they_stand(store: ServedDocuments):
    assert choose(store, "a", "b", "c") == (3, {})


def test_a_document_is_borrowed_from_the_prompt_it_was_in(store: ServedDocuments):
    serve(store, "a", "b", "c")
    exact, donors = choose(store, "d", "c", "b")
    assert exact == 1
    assert {place: names_in(donor) for place, donor in donors.items()} == {1: "abc", 2: "ab"}
    tokens, spans, _ = prompt_of("a", "b", "c")
    assert donors[1].start == spans[2].start
    lent = donors[1].token_ids[donors[1].start : donors[1].start + 9]
    assert list(lent) == TEXTS["c"][:9]
    whole = len(donors[1].token_ids) - 1
    assert whole % BLOCK == 0
    assert whole >= spans[2].known_end
    assert list(donors[1].token_ids) == tokens[: whole + 1], "a path that is in the tree"


def test_what_is_new_is_exact_only_as_long_as_all_before_it_is(store: ServedDocuments):
    serve(store, "a", "b")
    exact, donors = choose(store, "c", "d", "b", "e")
    assert exact == 2  # e stands behind a borrowed document
    assert list(donors) == [2]


def test_what_stands_here_as_before_is_exact(store: ServedDocuments):
    serve(store, "a", "b", "c")
    end_of_b = prompt_of("a", "b")[1][1].known_end
    exact, donors = choose(store, "a", "b", "d", "c", exact=end_of_b)
    assert exact == 3  # and d is new
    assert list(donors) == [3]


def test_of_several_variants_the_one_behind_the_most_alike_documents_lends(store: ServedDocuments):
    for before in ("ab", "de", "ba"):
        serve(store, *before, "c")
    assert names_in(choose(store, "d", "e", "c")[1][2]) == "dec"
    assert names_in(choose(store, "a", "b", "c")[1][2]) == "abc"  # not bac: the other order
    assert names_in(choose(store, "b", "a", "c")[1][2]) == "bac"
    assert names_in(choose(store, "f", "c")[1][1]) == "bac", "the latest, of equally unlike ones"


@given(
    before=st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 50)), max_size=7),
    now=st.lists(st.sampled_from("abcdef"), max_size=7),
    end=st.integers(0, 7),
)
def test_how_alike_two_prompts_are_is_cache_crafts_figure(
    before: list[tuple[str, int]], now: list[str], end: int
):
    """As its equations 6 to 8 say, pair by pair."""
    names = now[:end]
    common = [(name, tokens) for name, tokens in before if name in names]
    pairs = list(combinations([names.index(name) for name, _ in common], 2))
    ordered = sum(left < right for left, right in pairs) / len(pairs) if pairs else 1.0
    expected = ordered * sum(n for _, n in common) / sum(n for _, n in before) if common else 0.0
    places: dict[str, int] = {}
    for place, name in enumerate(now):
        places.setdefault(name, place)
    variant = Variant(array("q"), (), 0, tuple(before))
    assert variant.measure_overlap(places, end) == pytest.approx(expected)


def test_a_variant_whose_tensors_are_gone_is_dropped(store: ServedDocuments):
    serve(store, "a", "c")
    serve(store, "b", "c")
    donors = choose(store, "d", "c", is_held=lambda donor: "a" in names_in(donor))[1]
    assert names_in(donors[1]) == "ac"
    assert choose(store, "d", "c", is_held=lambda donor: False) == (2, {})
    assert choose(store, "d", "c") == (2, {}), "it was dropped, and not only passed over"


def test_tenants_and_other_texts_of_the_same_name_have_their_own(store: ServedDocuments):
    serve(store, "a", "b", tenant="x")
    assert choose(store, "c", "b", tenant="y") == (2, {})
    assert choose(store, "c", "b", tenant="x")[1]
    tokens, spans, system = prompt_of("c", "b")
    tokens[spans[1].start] += 1
    changed = store.choose(
        "x", tokens, spans, system, is_exact=lambda _: False, is_held=lambda _: True
    )
    assert changed == Lenders(2, {})


def test_nobody_borrows_from_a_prompt_with_a_forgotten_document(store: ServedDocuments):
    serve(store, "a", "b", "c")
    serve(store, "d", "c")
    store.forget(["b"])
    assert names_in(choose(store, "e", "c")[1][1]) == "dc"
    assert choose(store, "e", "b") == (2, {})
    store.forget(["d"])
    assert len(store) == 1  # a, which stood before b


def test_it_keeps_a_bounded_number_of_variants_and_tokens(
    store: ServedDocuments, monkeypatch: pytest.MonkeyPatch
):
    for name in ("a", "b", "d", "e", "f", "ab", "ad"):
        serve(store, *name, "c")
    assert names_in(choose(store, "b", "c")[1][1]) != "bc", "the oldest of more than five"
    monkeypatch.setattr(module, "MOST_TOKENS", 100)
    serve(store, "f", "e", "d")
    assert store._tokens <= 100


def test_the_end_of_a_document_in_a_block_that_is_not_full_is_not_lent(store: ServedDocuments):
    tokens, spans, system = prompt_of("a", "b")
    store.add(None, tokens[: spans[1].known_end], spans, system)
    planned = plan(store, "c", "b")
    assert isinstance(planned, BorrowPlan)
    start = planned.documents[1].start
    (copy,) = (one for one in planned.copies if one.donor == 1)
    assert (copy.target, copy.tokens) == (
        start,
        20 - 15,
    )  # 24 tokens, of which vLLM computes the last
    assert planned.end == start + copy.tokens, "the rest is computed with the question"
    store.add(None, tokens[: spans[1].start + 3], spans, system)
    assert names_in(choose(store, "c", "b")[1][1]) == "ab", (
        "a second one with no full block is none"
    )


def plan(store: ServedDocuments, *names: str) -> BorrowPlan | WhyExact:
    tokens, spans, _ = prompt_of(*names)
    segments = [(len(SYSTEM), None), *((span.end, span.document) for span in spans)]
    return plan_borrowing(
        tokens,
        segments,
        Room(BLOCK, 1000, 1000),
        contexts={},
        ratio=0.0,
        lenders=Lenders(*choose(store, *names)),
    )


def test_a_plan_takes_new_documents_exactly_and_lends_the_others_from_served_prompts(
    store: ServedDocuments,
):
    assert plan(store, "a", "b", "c") is WhyExact.NOTHING_SERVED
    serve(store, "a", "b", "c")
    planned = plan(store, "d", "e", "c", "b")
    assert isinstance(planned, BorrowPlan)
    _, spans, _ = prompt_of("d", "e", "c", "b")
    assert planned.exact_documents == 2
    assert planned.exact_blocks == spans[1].known_end // BLOCK
    assert [names_in(donor) for donor in planned.donors] == ["de", "abc", "ab"]
    assert [planned.lent_document(place).document for place in range(3)] == ["e", "c", "b"]
    lent = {(copy.donor, copy.target): copy.tokens for copy in planned.copies}
    assert lent[1, spans[2].start] == 10
    assert lent[2, spans[3].start] == 9, (
        "the last token of b was in no block that all prompts share"
    )
    for copy in planned.copies:
        donor = planned.donors[copy.donor].token_ids
        tokens = prompt_of("d", "e", "c", "b")[0]
        assert (
            list(donor[copy.source : copy.source + copy.tokens])
            == (tokens[copy.target : copy.target + copy.tokens])
        )


def test_a_prompt_that_borrowed_leaves_its_exact_documents_and_donors_made_for_it(
    store: ServedDocuments,
):
    serve(store, "a", "b")
    planned = plan(store, "c", "b", "d")
    assert isinstance(planned, BorrowPlan)
    assert [names_in(donor) for donor in planned.donors] == ["c", "ab", "d"]
    store.add_plan(None, planned)
    assert names_in(choose(store, "e", "d")[1][1]) == "d"
    assert names_in(choose(store, "e", "c")[1][1]) == "c"
