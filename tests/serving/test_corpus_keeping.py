"""A server keeps the documents of a corpus from eviction: as much as a share allows, until it is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from http_servers import PRESS, SHOP, MemoryServer, serve

from ragcache_engine.backends.memory import MemoryBackend
from ragcache_engine.corpora import KeepFor, KeptOfCorpus, Registered, ServerCorpora
from ragcache_engine.errors import CannotKeep, InvalidArgument

LINE = "Page {0} tells of the sea at depth {0}, where it is cold and dark, and of its fish. "
PAGES = [Registered(f"page {n}", LINE.format(n) * 6, vector=[1.0, n / 10]) for n in range(4)]
HOST = KeepFor("host")


@pytest.fixture(params=["exact", "anywhere"])
def server(request: pytest.FixtureRequest, keys_file: Path) -> Iterator[MemoryServer]:
    """The host holds some fifty pages behind the system text."""
    is_exact = request.param == "exact"
    backend = MemoryBackend(
        device_blocks=40,
        host_blocks=400,
        context_tokens=512,
        policy="lru",
        recompute_ratio=None if is_exact else 0.1,
    )
    reuse = {} if is_exact else {"reuse": "anywhere"}
    with serve(backend, keys_file=keys_file, reuse=reuse) as server:
        corpora_of(server).push("sea", PAGES)
        yield server


def corpora_of(server: MemoryServer, key: str = SHOP) -> ServerCorpora:
    return ServerCorpora(server.url, key)


def ask(server: MemoryServer, *texts: str) -> None:
    body = {"prompt": "Answer from these.\n\n" + "\n\n".join(texts) + "\n\nHow deep is it?"}
    headers = {"Authorization": f"Bearer {SHOP}"}
    assert httpx2.post(f"{server.url}/v1/completions", json=body, headers=headers).is_success


def ask_about_others(server: MemoryServer) -> None:
    for number in range(30):
        for _ in range(2):
            ask(server, f"Stone {number} is a stone like stone {number}, grey and old. " * 24)


def is_whole(kept: KeptOfCorpus) -> bool:
    return 0 < kept.tokens == kept.held_tokens


def test_what_is_kept_stays_whatever_others_ask(server):
    ask(server, PAGES[0].text, PAGES[1].text)
    corpora = corpora_of(server)
    warmed = corpora.warm("sea", ["page 2", "page 3"], keep=HOST)
    assert (warmed.prepared, warmed.left_out) == (2, 0)
    kept = corpora.kept("sea")
    assert {one.ids[-1] for one in kept} == {"page 2", "page 3"}
    assert {(one.tier, one.until) for one in kept} == {("host", None)}
    ask_about_others(server)
    assert all(map(is_whole, corpora.kept("sea")))
    assert corpora.warm("sea", ["page 2"], keep=HOST).cached == 1


def test_what_is_released_removed_or_changed_is_kept_no_longer(server):
    ask(server, PAGES[0].text, PAGES[1].text)
    corpora = corpora_of(server)
    corpora.warm("sea", keep=KeepFor("host", for_s=3600))
    assert len(corpora.kept("sea")) == 4
    released = corpora.release("sea", ["page 3"])
    assert released >= 1
    assert not any("page 3" in one.ids for one in corpora.kept("sea"))
    corpora.push("sea", [PAGES[0], Registered("page 1", LINE.format("one") * 6)])
    assert not any({"page 1", "page 2"} & {*one.ids} for one in corpora.kept("sea"))
    corpora.release("sea")
    assert corpora.kept("sea") == ()


def test_documents_for_which_there_is_no_room_to_keep_are_named(server):
    corpora = corpora_of(server)
    corpora.push("sea", [Registered(f"page {n}", LINE.format(n) * 6) for n in range(60)])
    ask(server, PAGES[0].text, PAGES[1].text)
    warmed = corpora.warm("sea", keep=HOST)
    assert 0 < warmed.left_out < 60
    assert "you may keep" in warmed.why[0][1]
    kept_tokens = sum(one.tokens for one in corpora.kept("sea"))
    # Half of the host may be kept, and half of that by one tenant; what sets share counts once.
    assert len(corpora.kept("sea")) + warmed.left_out == 60
    assert kept_tokens <= 0.25 * 400 * 16


def test_a_tenant_sees_and_releases_its_own(server):
    ask(server, PAGES[0].text, PAGES[1].text)
    corpora_of(server).warm("sea", keep=HOST)
    others = corpora_of(server, PRESS)
    assert others.kept("sea") == ()
    assert others.release("sea") == 0
    assert len(corpora_of(server).kept("sea")) == 4


@pytest.mark.parametrize(
    "keep", [KeepFor("device"), KeepFor("host", -1.0), KeepFor("host", 0.0), KeepFor("host", 1e300)]
)
def test_what_makes_no_sense_is_refused(server, keep: KeepFor):
    ask(server, PAGES[0].text, PAGES[1].text)
    with pytest.raises(InvalidArgument):
        corpora_of(server).warm("sea", keep=keep)
    assert corpora_of(server).kept("sea") == ()


def test_a_tier_that_the_server_has_not_is_refused(server):
    ask(server, PAGES[0].text, PAGES[1].text)
    with pytest.raises(CannotKeep, match="no disk tier"):
        corpora_of(server).warm("sea", keep=KeepFor("disk"))


def test_a_tenant_has_one_share_however_it_salts_its_prompts(server):
    corpora = corpora_of(server)
    corpora.push("sea", [Registered(f"page {n}", LINE.format(n) * 6) for n in range(60)])
    kept = []
    for salt in ("anna", "ben"):
        body = {"prompt": f"Answer.\n\n{LINE.format(0) * 6}\n\nWhy?", "cache_salt": salt}
        headers = {"Authorization": f"Bearer {SHOP}"}
        assert httpx2.post(f"{server.url}/v1/completions", json=body, headers=headers).is_success
        kept.append(60 - corpora.warm("sea", keep=HOST, cache_salt=salt).left_out)
    assert kept[0] >= 5
    assert kept[1] < kept[0] / 2
