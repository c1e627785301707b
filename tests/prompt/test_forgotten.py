"""The log of forgotten documents tells what was forgotten after a moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragcache_engine.prompt import ForgetLog, forgotten

NAMES = "abcde"


@given(forgets=st.lists(st.sets(st.sampled_from(NAMES), min_size=1), max_size=6), data=st.data())
def test_what_was_forgotten_later_is_told(forgets: list[set[str]], data: st.DataObject):
    log = ForgetLog()
    for each in forgets:
        log.note(each)
    moment = data.draw(st.integers(0, len(forgets)))
    assert set(log.since(moment, NAMES)) == set().union(*forgets[moment:])
    assert log.since(log.moment, NAMES) == ()


def test_of_what_is_no_longer_remembered_older_plans_lose_too_much_and_never_too_little(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(forgotten, "MOST_REMEMBERED", 2)
    log = ForgetLog()
    for name in "abc":
        log.note([name])
    assert log.since(0, "abcd") == ("a", "b", "c", "d")
    assert log.since(1, "abcd") == ("b", "c")
