import pytest

from ragcache_integrations.langchain import InvalidFilter
from ragcache_integrations.langchain.faiss_store.filters import compile_filter

PAGE = {
    "topic": "tides",
    "year": 1687,
    "weight": 1.5,
    "draft": False,
    "tags": ["moon", "sea"],
    "author": {"name": "Isaac", "born": {"year": 1643}},
    "a.b": "dotted",
    "nothing": None,
}


@pytest.mark.parametrize(
    "filter",
    [
        {},
        {"topic": "tides"},
        {"topic": "tides", "year": 1687},
        {"year": 1687.0},
        {"nothing": None},
        {"topic": ["sky", "tides"]},
        {"topic": ("sky", "tides")},
        {"topic": {"$eq": "tides"}},
        {"topic": {"$ne": "sky"}},
        {"topic": {"$neq": "sky"}},
        {"year": {"$gt": 1686, "$lt": 1688}},
        {"year": {"$gte": 1687, "$lte": 1687}},
        {"topic": {"$gt": "sky"}},
        {"weight": {"$in": [1, 1.5]}},
        {"tags": {"$in": [["moon", "sea"], []]}},
        {"topic": {"$nin": ["sky"]}},
        {"tags": {"$eq": ["moon", "sea"]}},
        {"tags": {"$contains": "sea"}},
        {"topic": {"$contains": "ide"}},
        {"year": {"$exists": True}, "month": {"$exists": False}},
        {"year": {"$not": {"$lt": 1600}}},
        {"author.name": "Isaac"},
        {"author.born.year": {"$lt": 1700}},
        {"author": {"name": "Isaac", "born": {"year": 1643}}},
        {"a.b": "dotted"},
        {"$and": [{"topic": "tides"}, {"year": 1687}]},
        {"$or": [{"topic": "sky"}, {"year": 1687}]},
        {"$not": {"topic": "sky"}},
        {"topic": "tides", "$or": [{"year": 1}, {"$not": {"draft": True}}]},
        {"$and": []},
        lambda metadata: len(metadata["tags"]) == 2,
        # A missing field is unequal to everything.
        {"month": {"$ne": 3}},
        {"month": {"$nin": [3]}},
        {"month": {"$not": {"$gt": 3}}},
    ],
)
def test_what_passes(filter):
    assert compile_filter(filter)(PAGE)


@pytest.mark.parametrize(
    "filter",
    [
        {"topic": "sky"},
        {"topic": "tides", "year": 1},
        {"topic": []},
        {"year": {"$gt": 1687}},
        {"year": {"$gt": 1600, "$lt": 1650}},
        {"draft": 0},
        {"year": True},
        {"draft": {"$in": [0]}},
        {"draft": {"$lt": 1}},
        {"topic": {"$gt": 3}},
        {"tags": {"$gt": 3}},
        {"tags": {"$in": ["moon"]}},
        {"tags": {"$contains": "m"}},
        {"year": {"$contains": 1}},
        {"author.name.first": "Isaac"},
        {"author": {"name": "Isaac"}},
        {"$or": []},
        {"$or": [{"topic": "sky"}, {"year": 1}]},
        {"$not": {"topic": "tides"}},
        {"topic": "tides", "$and": [{"year": 1}]},
        # A missing field equals nothing and cannot be compared.
        {"month": None},
        {"month": {"$in": [None]}},
        {"month": {"$lt": 3}},
        {"month": {"$exists": True}},
        {"nothing": {"$lt": 3}},
    ],
)
def test_what_does_not_pass(filter):
    assert not compile_filter(filter)(PAGE)


@pytest.mark.parametrize(
    ("filter", "advice"),
    [
        ("topic", "a dict or a function"),
        ({"topic": {"$near": "sky"}}, r"'\$near' is not known.*\$gte"),
        ({"topic": {"$eq": "sky", "name": "x"}}, "'name' is not known"),
        ({"$gt": 3}, r"{field: {'\$gt': ...}}"),
        ({"$or": {"topic": "sky"}}, r"\$or takes a list"),
        ({"topic": {"$in": "sky"}}, r"\$in takes a list"),
        ({"topic": {"$exists": "yes"}}, "True or False"),
        ({"$not": ["sky"]}, "a dict or a function"),
        ({1: "sky"}, "field names"),
    ],
)
def test_what_has_no_meaning_is_refused_before_any_document_is_seen(filter, advice):
    with pytest.raises(InvalidFilter, match=advice):
        compile_filter(filter)
