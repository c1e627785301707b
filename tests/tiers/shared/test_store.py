"""A shared store gives back what was put into it, loses what it likes, and never what was forgotten."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from shared_stores import KINDS, RedisServer, running_redis, running_store

from ragcache_engine.errors import ConfigError
from ragcache_engine.tiers.shared.address import PASSWORD
from ragcache_engine.tiers.shared.opening import open_store
from ragcache_engine.tiers.shared.store import SharedStore, StoreAway, StoredBlock, StoreFull


def forget(store: SharedStore, *marks: str) -> dict[str, str]:
    stamps = store.leave_tombstones(marks)
    store.clear(marks)
    return stamps


ORIGIN, OTHER = "0123456789abcdef", "fedcba9876543210"


def block(number: int, *marks: str, origin: str = ORIGIN, size: int = 10_000) -> StoredBlock:
    return StoredBlock(f"{origin}/{number:040x}", marks, bytes([number % 256]) * size)


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_store(request.param, tmp_path_factory.mktemp("store")) as url:
        yield url


@pytest.fixture
def store(url: str) -> Iterator[SharedStore]:
    # A prefix of its own, so that no test sees another one's blocks.
    own = os.urandom(4).hex()
    made = open_store(f"{url}?prefix={own}" if url.startswith("redis") else f"{url}/{own}")
    yield made
    made.close()


def test_what_was_stored_comes_back_to_the_byte(store: SharedStore):
    blocks = [block(number, "d1") for number in range(40)]
    store.write(blocks)
    keys = [one.key for one in blocks]
    assert store.read(keys) == [one.content for one in blocks]
    assert store.holds([*keys, block(99).key]) == [True] * 40 + [False]


def test_what_is_not_there_is_missing_and_no_error(store: SharedStore):
    assert store.read([block(1).key]) == [None]
    assert store.holds([block(1).key]) == [False]
    assert store.holds([]) == store.read([]) == []
    store.remove([block(1).key])
    store.remove([])


def test_a_block_is_removed_alone(store: SharedStore):
    store.write([block(1), block(2)])
    store.remove([block(1).key])
    assert store.holds([block(1).key, block(2).key]) == [False, True]


def test_a_forgotten_document_takes_all_its_blocks_along_whatever_model_computed_them(
    store: SharedStore,
):
    gone = [block(1, "d1"), block(2, "d1", "d2"), block(3, "d2", "d1", origin=OTHER)]
    stays = [block(4, "d2"), block(5)]
    store.write([*gone, *stays])
    forget(store, "d1")
    assert store.holds([one.key for one in gone]) == [False] * 3
    assert store.holds([one.key for one in stays]) == [True] * 2


def test_each_forgetting_leaves_a_stamp_of_its_own(store: SharedStore):
    assert store.tombstones() == {}
    first = forget(store, "d1")
    assert store.tombstones() == first
    second = forget(store, "d1", "d2")
    assert set(second) == {"d1", "d2"}
    assert second["d1"] != first["d1"]
    assert store.tombstones() == second
    assert store.stamps(["d2", "d3", "d1"]) == [second["d2"], None, second["d1"]]
    assert store.stamps([]) == []
    assert forget(store) == {}
    assert set(store.tombstones()) == {"d1", "d2"}


def test_another_host_sees_what_was_forgotten(store: SharedStore, url: str):
    other = open_store(
        store.identity.replace("?", "?prefix=") if url.startswith("redis") else store.label
    )
    try:
        assert store.tombstones() == {}
        forget(other, "d1")
        assert set(store.tombstones()) == {"d1"}
    finally:
        other.close()


def test_what_comes_after_forgetting_can_be_stored_and_forgotten_again(store: SharedStore):
    forget(store, "d1")
    store.write([block(1, "d1")])
    assert store.holds([block(1).key]) == [True]
    forget(store, "d1")
    assert store.holds([block(1).key]) == [False]


def test_a_block_that_is_there_gets_further_marks(store: SharedStore):
    store.write([block(1, "d1")])
    store.write([StoredBlock(block(1).key, ["d2"], None)])
    assert store.read([block(1).key]) == [block(1).content]
    forget(store, "d2")
    assert store.holds([block(1).key]) == [False]


def test_a_block_that_comes_while_its_document_is_forgotten_is_found_by_the_next(
    store: SharedStore,
):
    store.write([block(1, "d1")])
    store.write([StoredBlock(block(2).key, ["d1"], None)])
    forget(store, "d1")
    store.write([StoredBlock(block(2).key, [], block(2).content)])  # its name stood there already
    forget(store, "d1")
    assert store.holds([block(2).key]) == [False]


def test_hundreds_of_blocks_of_one_document_are_forgotten(store: SharedStore):
    blocks = [block(number, "long", size=10) for number in range(450)]
    for at in range(0, len(blocks), 150):
        store.write(blocks[at : at + 300])
    forget(store, "long")
    assert not any(store.holds([one.key for one in blocks]))


def test_tidying_leaves_what_is_young(store: SharedStore):
    store.write([block(1, "d1")])
    forget(store, "d2")
    store.tidy()
    assert store.holds([block(1).key]) == [True]
    assert set(store.tombstones()) == {"d2"}
    forget(store, "d1")
    assert store.holds([block(1).key]) == [False]


def test_the_first_file_of_a_key_stays(store: SharedStore):
    assert store.read_key("names") is None
    store.add_key("names", b"first")
    store.add_key("names", b"second")
    assert store.read_key("names") == b"first"
    store.tidy()
    assert store.read_key("names") == b"first"
    store.remove_key("names")
    store.remove_key("names")
    assert store.read_key("names") is None


# -- what is said of a store in its URL ------------------------------------------------------------


def test_blocks_in_a_folder_end_with_their_time_and_the_quota(tmp_path: Path):
    store = open_store(f"file://{tmp_path}?ttl=1s")
    store.write([block(1, "d1")])
    time.sleep(1.1)
    store.write([block(2, "d1")])
    store.tidy()
    store.tidy()  # another host may just have done so
    assert store.holds([block(1).key, block(2).key]) == [False, True]
    store.close()
    (tmp_path / "tidied").unlink()
    small = open_store(f"file://{tmp_path}?quota=25kB")
    for number in (3, 4):  # the oldest goes
        small.write([block(number)])
        time.sleep(0.02)
    small.tidy()
    assert small.holds([block(number).key for number in (2, 3, 4)]) == [False, True, True]
    small.close()


def test_hosts_that_come_too_soon_do_not_put_tidying_off(tmp_path: Path):
    stores = [open_store(f"file://{tmp_path}?ttl=1s") for _ in range(3)]
    for store in stores:
        store.tidy()
        time.sleep(0.02)
    oldest = (tmp_path / "tidied").stat().st_mtime_ns
    assert oldest < (tmp_path / "clock").stat().st_mtime_ns, "only the first one tidied up"
    for store in stores:
        store.close()


def of_owner(owner: str, number: int, size: int = 10_000) -> StoredBlock:
    name = f"{number:040x}{owner}"
    return StoredBlock(f"{ORIGIN}/{name}", (), bytes([number]) * size)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tenants_oldest_blocks_go_beyond_its_quota_and_no_others(kind: str, tmp_path: Path):
    shop, press = "5" * 16, "9" * 16
    with running_store(kind, tmp_path) as url:
        store = open_store(f"{url}?tenant_quota=35kB")
        blocks = [of_owner(shop, number) for number in range(5)]
        others = [of_owner(press, 7), block(8), block(9), block(10), block(11)]
        store.write(others)
        pause_s = 0.02 if url.startswith("file") else 1.05  # the others' clocks count seconds
        for one in blocks:
            store.write([one])
            time.sleep(pause_s)
        store.tidy()
        assert store.holds([one.key for one in blocks]) == [False, False, True, True, True]
        assert all(store.holds([one.key for one in others])), "nobody's have no quota"
        store.close()


def test_in_redis_blocks_of_another_model_do_not_drive_a_tenants_out():
    shop = "5" * 16
    with running_redis() as server:
        store = open_store(f"{server.url}?tenant_quota=100kB")
        small = [of_owner(shop, number, size=1_000) for number in range(50)]
        large = StoredBlock(f"{OTHER}/{1:040x}{shop}", (), bytes(60_000))
        store.write(small)
        store.write([large])
        assert all(store.holds([one.key for one in (*small, large)]))
        store.close()


def test_blocks_in_redis_end_by_themselves_and_their_lists_are_tidied_up():
    with running_redis() as server:
        store = open_store(f"{server.url}?ttl=1s")
        store.write([block(1, "d1")])
        time.sleep(2.2)
        assert store.holds([block(1).key]) == [False]
        import redis

        client = redis.Redis(port=server.port)
        assert client.keys("ragcache:b:*") == []
        client.zadd("ragcache:marks", {"d1": 1})  # as if the hour were over that lists stay for
        client.zadd("ragcache:of:d1", {block(1).key: 1})
        store.tidy()
        assert client.keys("ragcache:*") == []
        client.close()
        store.close()


def test_a_full_redis_takes_nothing_more_and_gives_what_it_has():
    with running_redis("--maxmemory", "4mb") as server:
        store = open_store(server.url)
        store.write([block(1, "d1")])
        many = [block(number, "d1", size=100_000) for number in range(2, 100)]
        with pytest.raises(StoreFull, match="no memory left"):
            store.write(many)
        assert store.read([block(1).key]) == [block(1).content]
        store.close()


def test_a_full_redis_can_still_forget():
    with running_redis("--maxmemory", "4mb") as server:
        store = open_store(server.url)
        with pytest.raises(StoreFull):
            store.write([block(number, "d1", size=100_000) for number in range(100)])
        forget(store, "d1")
        assert set(store.tombstones()) == {"d1"}
        assert not any(store.holds([block(number).key for number in range(100)]))
        store.close()


@pytest.mark.parametrize(
    ("arguments", "is_told"),
    [
        (("--maxmemory-policy", "allkeys-lru"), True),
        (("--maxmemory", "1gb"), True),
        (("--maxmemory", "1gb", "--maxmemory-policy", "volatile-lru"), False),
        ((), False),
    ],
)
def test_a_redis_that_would_lose_tombstones_or_refuse_blocks_is_told_of(
    arguments: tuple[str, ...], is_told: bool
):
    with running_redis(*arguments) as server:
        store = open_store(server.url)
        assert ("volatile-lru" in str(store.describe_risk())) == is_told
        store.close()


def test_a_redis_wants_its_password_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    with running_redis("--requirepass", "open sesame") as server:
        monkeypatch.delenv(PASSWORD, raising=False)
        store = open_store(server.url)
        with pytest.raises(StoreAway, match=f"uthentication.*{PASSWORD}"):
            store.holds([block(1).key])
        store.close()
        monkeypatch.setenv(PASSWORD, "open sesame")
        store = open_store(server.url)
        assert store.holds([block(1).key]) == [False]
        store.close()


def test_a_redis_that_is_gone_is_away_and_comes_back():
    server = RedisServer()
    store = open_store(server.url)
    store.write([block(1)])
    server.kill()
    with pytest.raises(StoreAway):
        store.read([block(1).key])
    again = RedisServer(port=server.port)
    try:
        assert store.read([block(1).key]) == [None]
        forget(store, "d1")
        assert set(store.tombstones()) == {"d1"}
    finally:
        store.close()
        again.kill()


def test_a_redis_that_lost_everything_counts_other_stamps():
    server = RedisServer()
    store = open_store(server.url)
    first = forget(store, "d1")
    server.kill()
    again = RedisServer(port=server.port)
    try:
        assert store.tombstones() == {}
        assert forget(store, "d1") != first
    finally:
        store.close()
        again.kill()


def test_an_s3_that_is_not_there_is_away(monkeypatch: pytest.MonkeyPatch):
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    store = open_store("s3://tensors/x")
    for call in (
        lambda: store.holds([block(1).key]),
        lambda: store.read([block(1).key]),
        lambda: store.write([block(1)]),
        store.tombstones,
        lambda: store.leave_tombstones(["d1"]),
        lambda: store.clear(["d1"]),
    ):
        with pytest.raises(StoreAway, match="s3://tensors"):
            call()
    store.close()


def test_a_folder_that_cannot_be_made_is_told_before_anything_starts(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be opened"):
        open_store(f"file://{tmp_path}/file/below")
