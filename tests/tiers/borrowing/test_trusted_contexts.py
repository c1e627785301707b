"""What the engine itself told of a document holds for the prompts of other clients of the same tenant."""

from __future__ import annotations

import pytest

from ragcache_engine.tiers.borrowing import trusted_contexts
from ragcache_engine.tiers.borrowing.context import Context
from ragcache_engine.tiers.borrowing.trusted_contexts import TrustedContexts
from ragcache_engine.tiers.wire import RequestMessage

TIDES = Context("tides", (1, 2, 3), 9)


def told(**contexts: Context) -> RequestMessage:
    return RequestMessage([(9, "salt")], contexts=contexts, is_trusted=True)


def asked(*names: str | None) -> RequestMessage:
    return RequestMessage([(8 * at, name) for at, name in enumerate(names, 1)])


@pytest.fixture
def known() -> TrustedContexts:
    known = TrustedContexts()
    known.complete(told(salt=TIDES), "shop")
    return known


def test_a_prompt_gets_the_contexts_of_its_documents(known):
    assert known.complete(asked(None, "salt", "bread"), "shop").contexts == {"salt": TIDES}


@pytest.mark.parametrize("tenant", ["press", None, ""])
def test_no_other_tenants_prompt_gets_them(known, tenant):
    assert known.complete(asked("salt"), tenant).contexts == {}


def test_what_a_client_tells_itself_counts_for_nothing(known):
    own = RequestMessage([(8, "salt")], contexts={"salt": Context("forged", (7,)), "x": TIDES})
    assert known.complete(own, "shop").contexts == {"salt": TIDES}
    assert known.complete(asked("x"), "shop").contexts == {}


def test_the_engines_own_message_is_left_as_it_is(known):
    message = told(salt=Context("bread", (4,)))
    assert known.complete(message, "shop") is message
    assert known.complete(asked("salt"), "shop").contexts == {"salt": Context("bread", (4,))}


@pytest.mark.parametrize("name", ["salt", "tides"])
def test_neither_a_forgotten_document_nor_one_behind_it_has_a_context(known, name):
    known.forget([name])
    assert known.complete(asked("salt"), "shop").contexts == {}


def test_the_longest_unused_contexts_go(known, monkeypatch):
    monkeypatch.setattr(trusted_contexts, "MOST_BYTES", 5_000)
    small = TrustedContexts()
    for number in range(50):
        small.complete(told(**{f"d{number}": TIDES}), None)
    assert small.complete(asked("d0"), None).contexts == {}
    assert small.complete(asked("d49"), None).contexts == {"d49": TIDES}
