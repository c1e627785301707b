"""A mapping of what was used last, bounded by bytes."""

from __future__ import annotations

import pytest

from ragcache_engine.latest_items import LatestItems


def items(most_bytes: int = 10, most: int | None = None) -> LatestItems[str, str]:
    return LatestItems(most_bytes, lambda key, value: len(value), most=most)


def test_the_longest_unused_items_leave_when_the_bytes_are_too_many():
    kept = items(10)
    kept.update(a="xxxx", b="xxxx")
    kept.touch("a")
    kept["c"] = "xxx"
    assert dict(kept) == {"a": "xxxx", "c": "xxx"}
    assert kept.size_bytes == 7


def test_the_latest_stays_whatever_its_size():
    kept = items(10)
    kept.update(a="x", b="x" * 99)
    assert list(kept) == ["b"]
    kept["c"] = "x"
    assert dict(kept) == {"c": "x"}


def test_an_item_that_is_replaced_keeps_its_place_and_counts_anew():
    kept = items(10)
    kept.update(a="xxxx", b="x")
    kept["a"] = "x"
    assert (list(kept), kept.size_bytes) == (["a", "b"], 2)


def test_there_may_be_a_bound_of_items_as_well_and_who_is_dropped_is_told():
    told: list[str] = []
    kept: LatestItems[int, str] = LatestItems(
        99, lambda _, value: len(value), most=2, on_drop=lambda _, value: told.append(value)
    )
    kept.update({1: "a", 2: "b", 3: "c", 4: "d"})
    assert told == ["a", "b"]


def test_what_is_taken_out_takes_no_bytes():
    kept = items()
    kept.update(a="xx", b="xxx", c="xxxx")
    assert kept.pop_latest() == ("c", "xxxx")
    del kept["a"]
    assert kept.pop("unknown", None) is None
    assert kept.size_bytes == 3
    kept.clear()
    assert kept.size_bytes == 0
    with pytest.raises(KeyError):
        kept.pop_latest()
