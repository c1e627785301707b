"""Names of files stand for what is in them, and with a secret tell nobody what that is."""

from __future__ import annotations

import array

import pytest

from ragcache_engine.tenants import forget_id
from ragcache_engine.tiers.disk.naming import PLAIN, Naming, is_encrypted, owner_in

SECRET, OTHER = Naming(b"a" * 32), Naming(b"b" * 32)


def test_file_names_stand_for_all_tokens_up_to_them_and_the_tenant():
    names = PLAIN.files([1, 2, 3, 4, 5, 6], None, blocks=3, block_tokens=2)
    assert len(set(names)) == 3
    assert all(len(name) == 40 and name.isalnum() for name in names)
    assert PLAIN.files([1, 2, 3, 4, 5, 6, 7], None, blocks=3, block_tokens=2) == names
    assert PLAIN.files([1, 2, 3, 4, 9, 6], None, blocks=3, block_tokens=2)[:2] == names[:2]
    for others in (
        PLAIN.files([9, 2, 3, 4, 5, 6], None, blocks=3, block_tokens=2),
        PLAIN.files([1, 2, 3, 4, 5, 6], "tenant", blocks=3, block_tokens=2),
        PLAIN.files([1, 2, 3, 4, 5, 6], "", blocks=3, block_tokens=2),
        PLAIN.files([1, 2, 3, 4, 5, 6], None, blocks=1, block_tokens=6),
    ):
        assert set(others).isdisjoint(names)


def test_file_names_outlive_the_process():
    # A name that changed would make every file of an earlier version a miss.
    assert PLAIN.files(range(32), "t", blocks=2, block_tokens=16) == [
        "0c7d166ca10bce0637d0c00f1d06ea510b74275a" + PLAIN.owner("t"),
        "4179487069259a6058d7e6f5b9838d570b8badd9" + PLAIN.owner("t"),
    ]


def test_no_tenants_name_stands_for_another_tenant_and_some_tokens():
    tokens = [100 + at % 20 for at in range(96)]
    victims = PLAIN.files(tokens, "a", blocks=3, block_tokens=32)
    crafted = "a\0" + array.array("q", tokens[:32]).tobytes()[:-1].decode()
    assert set(PLAIN.files(tokens[32:], crafted, blocks=2, block_tokens=32)).isdisjoint(victims)


def test_marks_stand_for_documents_and_do_not_name_them():
    assert PLAIN.mark("d1") == PLAIN.mark("d1") != PLAIN.mark("d2")
    assert "a secret" not in PLAIN.mark("a secret")


def test_without_the_secret_nobody_can_make_the_name_of_a_known_text_or_document():
    tokens = range(32)
    names = [one.files(tokens, "t", blocks=2, block_tokens=16) for one in (PLAIN, SECRET, OTHER)]
    assert len({name[:40] for each in names for name in each}) == 6
    assert len({one.mark("d1") for one in (PLAIN, SECRET, OTHER)}) == 3


@pytest.mark.parametrize("naming", [PLAIN, SECRET])
def test_a_name_ends_with_what_stands_for_its_owner(naming: Naming):
    for tenant in ("t", "t::anna", "", None):
        for name in naming.files(range(32), tenant, blocks=2, block_tokens=16):
            assert owner_in(name) == naming.owner(tenant)
            assert is_encrypted(name) == bool(naming.secret)
    owners = {naming.owner(tenant) for tenant in ("t", "t::anna", "t::ben", "u", "", None)}
    assert len(owners) == 4
    assert naming.owner("t") != OTHER.owner("t")


def test_a_tenant_is_forgotten_by_its_own_mark_and_by_its_owners():
    assert PLAIN.tenant("shop") == [PLAIN.owner("shop")] == [PLAIN.mark(forget_id("shop"))]
    assert PLAIN.tenant("shop::anna") == [PLAIN.owner("shop"), PLAIN.mark(forget_id("shop::anna"))]
    assert PLAIN.tenant(None) == []
    assert PLAIN.owner(None) == "", "nobody's files are not told from each other"
