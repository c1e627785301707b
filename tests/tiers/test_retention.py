"""What is kept: no more than the shares allow, by the latest order, and nothing that was forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from thoroughness import examples

from ragcache_engine.knowledge import Tier, policy_of_tiers
from ragcache_engine.tenants import forget_id
from ragcache_engine.tiers.host_slots import HostSlots
from ragcache_engine.tiers.kept import KeepOrder, Kept, NoRoomToKeep
from ragcache_engine.tiers.manager import CacheManager
from ragcache_engine.tiers.prompts import Prompt, cut_prompt
from ragcache_engine.tiers.retention import ENDED_AT_ONCE

BLOCK_TOKENS, HOST_BLOCKS, DISK_BLOCKS = 4, 40, 60
LENGTHS = {"S": 6, "A": 8, "B": 11, "C": 3, "D": 17}
TENANTS = (None, "shop", "press")
MOST, SHARE = 0.5, 0.5


def prompt_of(documents: Sequence[str], tenant: str | None) -> Prompt:
    """A prompt's keys tell its tenant, and all tokens before the end of each block."""
    tokens = "".join(name * LENGTHS[name] for name in documents)
    segments, end = [], 0
    for name in documents:
        end += LENGTHS[name]
        segments.append((end, None if name == "S" else name))
    keys = [
        blake2b(f"{tenant}|{tokens[: (at + 1) * BLOCK_TOKENS]}".encode(), digest_size=8).digest()
        for at in range(len(tokens) // BLOCK_TOKENS)
    ]
    cuts = cut_prompt(segments, prompt_tokens=end, block_tokens=BLOCK_TOKENS, depth=None)
    return Prompt(keys, cuts, end, tenant=tenant)


def manager() -> CacheManager[int]:
    return CacheManager(
        policy=policy_of_tiers("lru"),
        block_tokens=BLOCK_TOKENS,
        block_bytes=100,
        host=HostSlots(HOST_BLOCKS),
        disk_blocks=DISK_BLOCKS,
    )


def keep(
    cache: CacheManager[int], order: KeepOrder, *documents: str, tenant: str | None = None
) -> Kept:
    [kept] = cache.keep_documents(order, [(documents, tenant, [prompt_of(documents, tenant)])])
    return kept


def test_the_text_before_a_document_is_kept_with_it_and_counts_once():
    cache = manager()
    assert keep(cache, KeepOrder(Tier.HOST), "S", "A").tokens == 12
    assert cache.tree.kept(Tier.HOST) == 3
    keep(cache, KeepOrder(Tier.HOST), "S", "D")
    assert cache.tree.kept(Tier.HOST) == 3 + 4
    cache.release_documents(("S", "A"), None)
    assert cache.tree.kept(Tier.HOST) == 5
    cache.check()


def test_the_latest_order_for_a_set_holds():
    cache = manager()
    keep(cache, KeepOrder(Tier.HOST, 1e12), "S", "A")
    keep(cache, KeepOrder(Tier.DISK), "S", "A")
    assert [(one.tier, one.until_s) for one in cache.kept_documents()] == [("disk", None)]
    assert cache.tree.kept(Tier.HOST) == 0


def test_a_prompt_that_parts_within_a_kept_document_cuts_it_and_it_stays_kept():
    cache = manager()
    keep(cache, KeepOrder(Tier.HOST), "D")
    other = prompt_of("D", None)
    keys = [*other.keys[:2], b"another way"]
    cache.add_request(
        "r", Prompt(keys, cut_prompt([], prompt_tokens=12, block_tokens=4, depth=None), 12)
    )
    cache.finish_request("r", completed=False)
    assert cache.tree.kept(Tier.HOST) == 4
    cache.check()
    cache.release_documents(("D",), None)
    assert cache.tree.kept(Tier.HOST) == 0


def test_any_number_of_sets_end_together_some_in_each_step():
    now_s = 100.0
    cache = manager()
    cache._retention._clock = lambda: now_s
    for number in range(2 * ENDED_AT_ONCE + 1):
        documents = ("S", "A")
        tenant = f"tenant {number}"
        order = KeepOrder(Tier.HOST, 110.0, most=1e3)
        cache.keep_documents(order, [(documents, tenant, [prompt_of(documents, tenant)])])
    now_s = 111.0
    assert cache.kept_documents() == []
    for _ in range(3):
        cache.step()
        cache.check()
    assert cache.tree.kept(Tier.HOST) == 0


def test_a_document_shorter_than_a_block_has_nothing_to_keep():
    cache = manager()
    assert keep(cache, KeepOrder(Tier.DISK), "C").tokens == 0
    assert cache.kept_documents() == []
    # A template with less text before it may make it so.
    cache.keep_documents(KeepOrder(Tier.HOST), [(("C",), None, [prompt_of("SC", None)])])
    assert cache.tree.kept(Tier.HOST) == 2
    assert keep(cache, KeepOrder(Tier.HOST), "C").tokens == 0
    assert (cache.tree.kept(Tier.HOST), cache.kept_documents()) == (0, [])
    cache.check()


def test_owners_that_keep_the_same_text_and_let_it_go_in_turn_have_their_whole_share_again():
    cache = manager()
    points = KeepOrder(Tier.HOST, None, MOST, SHARE, owner="points", name="point")
    with_a, with_b = prompt_of("SA", None), prompt_of("SB", None)
    for _ in range(20):  # one keeps the text before both first, and the other lets it go last
        cache.keep_documents(points, [(("S", "A", "point"), None, [with_a])])
        cache.keep_documents(KeepOrder(Tier.HOST), [(("S", "B"), None, [with_b])])
        cache.release_documents(("S", "A", "point"), None)
        cache.release_documents(("S", "B"), None)
    cache.check()
    assert not cache.tree.kept(Tier.HOST)


def test_a_share_counts_what_its_owner_keeps_still_after_another_set_of_it_is_let_go():
    cache = manager()
    order = KeepOrder(Tier.HOST, None, MOST, SHARE, owner="shop")
    keep(cache, order, "S", "A", tenant="shop")
    keep(cache, order, "S", "A", "D", tenant="shop")
    cache.release_documents(("S", "A"), "shop")
    with pytest.raises(NoRoomToKeep) as refused:
        keep(cache, order, "S", "D", tenant="shop")
    assert (refused.value.needed_tokens, refused.value.free_tokens) == (4 * 4, 3 * 4)
    cache.check()


def test_too_much_changes_nothing_and_says_what_is_free():
    cache = manager()
    keep(cache, KeepOrder(Tier.HOST, most=0.2), "S", "A")
    with pytest.raises(NoRoomToKeep) as refused:
        keep(cache, KeepOrder(Tier.DISK, most=0.04), "S", "A")
    assert (refused.value.needed_tokens, refused.value.free_tokens) == (12, 8)
    assert [one.tier for one in cache.kept_documents()] == ["host"]
    cache.check()


class AnyOrders(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cache = manager()
        self.forgotten: set[str] = set()

    documents = st.lists(st.sampled_from("ABCD"), min_size=1, max_size=3, unique=True)

    @rule(
        documents=documents,
        tenant=st.sampled_from(TENANTS),
        tier=st.sampled_from([Tier.HOST, Tier.DISK]),
    )
    def keep(self, documents: list[str], tenant: str | None, tier: Tier) -> None:
        order = KeepOrder(tier, most=MOST, share=SHARE, owner=tenant)
        before = self.cache.kept_documents()
        try:
            keep(self.cache, order, "S", *documents, tenant=tenant)
        except NoRoomToKeep:
            assert self.cache.kept_documents() == before
        self.forgotten -= {*documents}

    @rule(documents=documents, tenant=st.sampled_from(TENANTS))
    def release(self, documents: list[str], tenant: str | None) -> None:
        self.cache.release_documents(("S", *documents), tenant)

    @rule(document=st.sampled_from("ABCD"))
    def forget(self, document: str) -> None:
        self.cache.forget([document])
        self.forgotten.add(document)

    @rule(tenant=st.sampled_from(TENANTS[1:]))
    def forget_tenant(self, tenant: str) -> None:
        self.cache.forget([forget_id(tenant)])
        assert not [one for one in self.cache.kept_documents() if one.tenant == tenant]

    @invariant()
    def no_more_is_kept_than_the_shares_allow(self) -> None:
        self.cache.check()
        for tier, blocks in ((Tier.HOST, HOST_BLOCKS), (Tier.DISK, DISK_BLOCKS)):
            assert self.cache.tree.kept(tier) <= MOST * blocks
            for tenant in TENANTS[1:]:
                own = {
                    key
                    for one in self.cache.kept_documents()
                    if (one.tenant, one.tier) == (tenant, tier.value)
                    for key in prompt_of(one.documents, tenant).keys
                }
                assert len(own) <= MOST * SHARE * blocks

    @invariant()
    def nothing_forgotten_is_kept(self) -> None:
        kept = {name for one in self.cache.kept_documents() for name in one.documents}
        assert not kept & self.forgotten


AnyOrders.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=40)
TestAnyOrders = AnyOrders.TestCase
