"""Corpora: tenants apart, room for everybody, and what is found in whose prompts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ragcache_engine.checks import LONGEST_ID
from ragcache_engine.corpora import Registered
from ragcache_engine.corpora.document import Change
from ragcache_engine.corpora.registered import Corpora
from ragcache_engine.errors import CorpusTooLarge, InvalidArgument, UnknownDocument

TIDES = "The moon pulls the oceans, and the tides follow it, twice a day."
SALT = "Rivers carry salt into the sea, and the sun takes the water away again."
MIB = 1 << 20


@pytest.fixture
def corpora() -> Corpora:
    return Corpora()


def found(corpora: Corpora, tenant: str | None, prompt: str) -> list[str]:
    return [span.document_id for span in corpora.find(tenant, prompt)]


def test_a_document_is_added_stays_the_same_or_changes(corpora):
    assert corpora.put(None, "sea", Registered("salt", SALT)) is Change.ADDED
    assert corpora.put(None, "sea", Registered("salt", SALT)) is Change.SAME
    assert corpora.put(None, "sea", Registered("salt", SALT, {"page": 3})) is Change.CHANGED
    assert corpora.owed() == {}, "its text is the same"
    assert corpora.document(None, "sea", "salt").metadata == {"page": 3}
    assert corpora.put(None, "sea", Registered("salt", TIDES)) is Change.CHANGED
    assert found(corpora, None, SALT) == []
    assert found(corpora, None, TIDES) == ["sea/salt"]


def test_a_tenants_documents_are_found_in_its_own_prompts_and_everybodys_in_all(corpora):
    corpora.put("shop", "sea", Registered("salt", SALT))
    corpora.put(None, "all", Registered("tides", TIDES))
    prompt = f"{SALT}\n{TIDES}"
    assert found(corpora, "shop", prompt) == ["shop:sea/salt", "all/tides"]
    assert found(corpora, "press", prompt) == ["all/tides"]
    assert found(corpora, None, prompt) == ["all/tides"]


def test_where_texts_overlap_the_tenants_own_is_found(corpora):
    corpora.put(None, "all", Registered("both", f"{SALT} {TIDES}"))
    corpora.put("shop", "sea", Registered("salt", SALT))
    assert found(corpora, "shop", f"{SALT} {TIDES}") == ["shop:sea/salt"]
    assert found(corpora, "press", f"{SALT} {TIDES}") == ["all/both"]
    corpora.put(None, "all", Registered("tides", TIDES))
    own_and_rest = ["shop:sea/salt", "all/tides"]
    assert found(corpora, "shop", f"{SALT} {TIDES}") == own_and_rest, "in the gap beside its own"


def test_documents_of_one_text_are_found_in_turn(corpora):
    for name in ("one", "two"):
        corpora.put(None, "sea", Registered(name, SALT))
    assert found(corpora, None, f"{SALT}\n{SALT}\n{SALT}") == ["sea/one", "sea/two", "sea/two"]


def test_no_two_documents_have_one_name_in_the_tree(corpora):
    corpora.put("a", "b", Registered("c", SALT))
    corpora.put(None, "a", Registered("b/c", SALT))
    corpora.put(None, "b", Registered("c", SALT))
    names = {*found(corpora, "a", SALT), *found(corpora, None, f"{SALT} {SALT}")}
    assert len(names) == 3


def test_what_is_removed_is_found_no_more(corpora):
    for name, text in (("salt", SALT), ("tides", TIDES)):
        corpora.put("shop", "sea", Registered(name, text))
    assert corpora.remove("shop", "sea", ["salt", "unknown"]) == 1
    assert found(corpora, "shop", f"{SALT} {TIDES}") == ["shop:sea/tides"]
    assert corpora.drop("shop", "sea") == 1
    assert not corpora.has_some_for("shop")
    assert corpora.summaries("shop") == {}


@pytest.mark.parametrize("owner", ["press", None])
def test_nobody_removes_anothers_document(corpora, owner):
    corpora.put("shop", "sea", Registered("salt", SALT))
    assert corpora.remove(owner, "sea", ["salt"]) == 0
    assert corpora.drop(owner, "sea") == 0
    assert corpora.owed() == {}
    with pytest.raises(UnknownDocument):
        corpora.document(owner, "sea", "salt")
    assert found(corpora, "shop", SALT) == ["shop:sea/salt"]


def test_documents_beyond_the_room_are_refused_and_change_nothing():
    corpora = Corpora(most_bytes=MIB)
    corpora.put(None, "sea", Registered("salt", SALT))
    with pytest.raises(CorpusTooLarge, match="--max-corpora"):
        corpora.put(None, "sea", Registered("salt", "x" * 2 * MIB))
    assert corpora.document(None, "sea", "salt").text == SALT
    with pytest.raises(CorpusTooLarge):
        corpora.put(None, "sea", Registered("tides", "x" * 2 * MIB))
    assert [one.id for one in corpora.documents(None, "sea")] == ["salt"]


def test_one_tenant_leaves_room_for_the_next():
    corpora = Corpora(most_bytes=10 * MIB)
    for number in range(20):
        try:
            corpora.put("shop", "sea", Registered(str(number), "x" * MIB))
        except CorpusTooLarge:
            break
    assert 5 < number < 9
    corpora.put("press", "sea", Registered("first", "y" * MIB))


def test_removed_documents_make_room():
    corpora = Corpora(most_bytes=3 * MIB)
    for _ in range(10):
        corpora.put("shop", "sea", Registered("large", "x" * 2 * MIB))
        corpora.remove("shop", "sea", ["large"])


@pytest.mark.parametrize("document_id", ["", ".", ".."])
def test_an_id_that_means_another_place_in_a_url_is_refused(corpora, document_id):
    with pytest.raises(InvalidArgument, match="id is a name"):
        corpora.put("shop", "sea", Registered(document_id, SALT))


def test_what_is_removed_or_changes_is_owed_until_it_was_forgotten(corpora):
    for name, text in (("salt", SALT), ("tides", TIDES)):
        corpora.put("shop", "sea", Registered(name, text))
    corpora.put("shop", "sea", Registered("salt", SALT + " Or not."))
    corpora.remove("shop", "sea", ["tides"])
    owed = corpora.owed()
    assert [*owed] == ["shop:sea/salt", "shop:sea/tides"]
    corpora.put("shop", "sea", Registered("salt", SALT))
    corpora.pay(owed)
    assert [*corpora.owed()] == ["shop:sea/salt"], "it changed once more since"


def test_what_a_prompt_under_way_may_store_is_forgotten_when_it_has_ended(corpora):
    corpora.put("shop", "sea", Registered("salt", SALT))
    with corpora.using(["shop:sea/salt"], corpora.moment()) as is_well:
        assert is_well
        corpora.remove("shop", "sea", ["salt"])
        assert corpora.owed() == {}
        late = corpora.using(["shop:sea/salt", "shop:sea/tides"], corpora.moment())
        with late as is_well:
            assert not is_well, "a prompt that comes now is not to name it"
    assert [*corpora.owed()] == ["shop:sea/salt"]


def test_a_prompt_does_not_name_what_was_removed_since_it_was_found(corpora):
    corpora.put("shop", "sea", Registered("salt", SALT))
    moment = corpora.moment()
    corpora.remove("shop", "sea", ["salt"])
    corpora.pay(corpora.owed())
    with corpora.using(["shop:sea/salt"], moment) as is_well:
        assert not is_well


def test_several_threads_fill_and_drop_one_corpus():
    corpora = Corpora()

    def fill(number: int) -> None:
        for round_ in range(30):
            name = f"{number}-{round_}"
            vector = [1.0, number + 1.0]
            corpora.put(None, "sea", Registered(name, f"{name} {SALT}", vector=vector))
            corpora.neighbour(f"sea/{name}")
            assert corpora.remove(None, "sea", [name]) == 1

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(fill, range(4)))
    assert corpora.summaries(None) == {}
    assert corpora.totals()[:2] == (0, 0)
    assert not corpora.has_some_for(None)


def test_an_id_that_is_too_long_with_its_corpus_is_refused(corpora):
    with pytest.raises(InvalidArgument, match="too long"):
        corpora.put("shop", "sea", Registered("x" * (LONGEST_ID - 5), SALT))


def test_totals_are_of_all_tenants_and_count_what_was_found(corpora):
    corpora.put("shop", "sea", Registered("salt", SALT))
    corpora.put(None, "all", Registered("tides", TIDES))
    corpora.find("shop", f"{SALT}\n{TIDES}")
    corpora.find("press", f"{SALT}\n{TIDES}")
    told = corpora.totals()
    assert (told.documents, told.recognised) == (2, 3)
    assert told.size_bytes > len(SALT) + len(TIDES)


def near(corpora: Corpora, name: str) -> str | None:
    found = corpora.neighbour(name)
    return found and found.id


def test_a_documents_neighbour_is_the_nearest_with_another_text(corpora):
    vectors = {"salt": [1, 0], "copy of salt": [1, 0.01], "tides": [0.9, 0.2], "bread": [-1, 0]}
    texts = {"salt": SALT, "copy of salt": SALT, "tides": TIDES, "bread": "Of bread. " * 9}
    for name, vector in vectors.items():
        corpora.put("shop", "sea", Registered(name, texts[name], vector=vector))
    assert near(corpora, "shop:sea/salt") == "shop:sea/tides"
    corpora.remove("shop", "sea", ["tides"])
    assert near(corpora, "shop:sea/salt") == "shop:sea/bread"
    corpora.put("shop", "sea", Registered("tides", TIDES, vector=[1, 0.1]))
    assert near(corpora, "shop:sea/salt") == "shop:sea/tides"
    corpora.put("shop", "sea", Registered("salt", SALT))
    assert near(corpora, "shop:sea/salt") is None, "it has no vector any more"
    assert near(corpora, "shop:sea/unknown") is None
    assert near(corpora, "sea/salt") is None


def test_a_long_document_is_no_neighbour_and_an_old_one_holds_until_it_is_searched_again(corpora):
    corpora.put(None, "sea", Registered("salt", SALT, vector=[1, 0]))
    corpora.put(None, "sea", Registered("book", "Of the sea. " * 1_000, vector=[1, 0]))
    assert near(corpora, "sea/salt") is None
    corpora.put(None, "sea", Registered("tides", TIDES, vector=[0, 1]))
    assert corpora.neighbour("sea/salt", may_search=False) is None
    assert near(corpora, "sea/salt") == "sea/tides"
    corpora.remove(None, "sea", ["tides"])
    assert corpora.neighbour("sea/salt", may_search=False) is None, "it is gone"


@pytest.mark.parametrize(
    ("vector", "why"),
    [
        ([], "finite"),
        ([0, 0], "not all 0"),
        ([float("nan"), 1], "finite"),
        ([1, 2, 3], "3 numbers"),
    ],
)
def test_a_vector_that_cannot_be_compared_is_refused_and_changes_nothing(corpora, vector, why):
    corpora.put(None, "sea", Registered("tides", TIDES, vector=[1, 0]))
    with pytest.raises(InvalidArgument, match=why):
        corpora.put(None, "sea", Registered("salt", SALT, vector=vector))
    assert [one.id for one in corpora.documents(None, "sea")] == ["tides"]


def test_a_summary_counts_what_is_too_short_to_be_found(corpora):
    corpora.put(None, "sea", Registered("salt", SALT))
    corpora.put(None, "sea", Registered("short", "Salt."))
    told = corpora.summaries(None)["sea"]
    assert (told.documents, told.too_short) == (2, 1)
    assert told.size_bytes > len(SALT)
