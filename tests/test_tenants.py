"""Whose quota and whose key a tenant has, and by what it is forgotten."""

from __future__ import annotations

from ragcache_engine.tenants import forget_id, forget_ids_of, owner_of, tenant_of


def test_what_stands_before_the_first_two_colons_owns_what_stands_behind_it():
    assert [
        owner_of(one) for one in ("shop", "shop::anna", "shop::anna::phone", "user:42", "/a/b")
    ] == [
        "shop",
        "shop",
        "shop",
        "user:42",
        "/a/b",
    ]


def test_a_tenant_is_forgotten_by_its_owners_name_and_by_its_own():
    assert forget_ids_of("shop") == (forget_id("shop"),)
    assert forget_ids_of("shop::anna") == (forget_id("shop"), forget_id("shop::anna"))
    phone = "shop::anna::phone/1"
    assert forget_ids_of(phone) == tuple(map(forget_id, ("shop", "shop::anna", phone)))
    assert forget_ids_of(None) == ()
    assert [tenant_of(one) for one in (forget_id("shop::anna"), "shop")] == ["shop::anna", None]
