"""Copies to and from a shared store: late, on other threads, and never wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from ragcache_engine.tiers.disk.block_file import Origin, pack
from ragcache_engine.tiers.disk.key_ring import KeyRing
from ragcache_engine.tiers.disk.naming import owner_in
from ragcache_engine.tiers.disk.shared_keys import KeyAway
from ragcache_engine.tiers.disk.transfers import BlockCopy, FinishedCopy
from ragcache_engine.tiers.shared import transfers as module
from ragcache_engine.tiers.shared.forgotten import ForgottenElsewhere
from ragcache_engine.tiers.shared.store import SharedStore, StoreAway, StoredBlock, StoreFull
from ragcache_engine.tiers.shared.transfers import SharedTransfers

D1, D2 = "1" * 16, "2" * 16
ORIGIN = Origin("weights", "configuration", "bfloat16", 16, "NHD", "vllm")
SIZE, SLOTS = 1000, 40


def name_of(number: int) -> str:
    return f"{number:040x}"


def content_of(number: int) -> bytes:
    return bytes([number]) * SIZE


def key_of(number: int) -> str:
    return f"{ORIGIN.digest()}/{name_of(number)}"


def packed(number: int, marks: Sequence[str] = ()) -> bytes:
    return b"".join(pack(ORIGIN, name_of(number), marks, memoryview(content_of(number))))


class DictStore(SharedStore):
    """A store in memory that fails as a test wants. calls: how often it was asked for anything."""

    label = identity = "dict://"
    blocks_at_once, readers, look_s = 4, 2, 60.0

    def __init__(self) -> None:
        self.blocks: dict[str, bytes] = {}
        self.marks: dict[str, set[str]] = {}
        self.keys: dict[str, bytes] = {}
        self.forgotten: dict[str, str] = {}
        self.failure: Exception | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.calls = self.forgets = 0
        self.after_write: Callable[[], object] = lambda: None

    def _call(self) -> None:
        self.calls += 1
        self.may_answer.wait(20)
        if self.failure:
            raise self.failure

    def holds(self, keys: Sequence[str]) -> list[bool]:
        self._call()
        return [key in self.blocks for key in keys]

    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        self._call()
        return [self.blocks.get(key) for key in keys]

    def write(self, blocks: Sequence[StoredBlock]) -> None:
        self._call()
        for block in blocks:
            if block.content is not None:
                self.blocks[block.key] = block.content
            self.marks.setdefault(block.key, set()).update(block.marks)
        self.after_write()

    def remove(self, keys: Sequence[str]) -> None:
        self._call()
        for key in keys:
            self.blocks.pop(key, None)

    def leave_tombstones(self, marks: Sequence[str]) -> dict[str, str]:
        self.forgets += 1
        stamps = dict.fromkeys(marks, str(self.forgets))
        self.forgotten |= stamps
        return stamps

    def clear(self, marks: Sequence[str]) -> None:
        self.remove([key for key, of in self.marks.items() if of & set(marks)])

    def tombstones(self) -> Mapping[str, str]:
        self._call()
        return dict(self.forgotten)

    def stamps(self, marks: Sequence[str]) -> list[str | None]:
        if self.failure:
            raise self.failure
        return [self.forgotten.get(mark) for mark in marks]

    def read_key(self, name: str) -> bytes | None:
        self._call()
        return self.keys.get(name)

    def add_key(self, name: str, content: bytes) -> None:
        self._call()
        self.keys.setdefault(name, content)

    def remove_key(self, name: str) -> None:
        self._call()
        self.keys.pop(name, None)

    def describe_risk(self) -> str | None:
        return None

    def tidy(self) -> None:
        pass

    def close(self) -> None:
        pass


class Engine:
    """What the scheduler's process does with a store. forbidden: marks that this host has forgotten."""

    def __init__(self, store: DictStore, folder: Path, keys: KeyRing | None = None) -> None:
        self.memory = bytearray(SIZE * SLOTS)
        self.forbidden: set[str] = set()
        self.looks = 0
        self.shared = SharedTransfers(
            store,
            ORIGIN,
            self.slot,
            forbids=lambda marks: bool(self.forbidden & set(marks)),
            forgotten=ForgottenElsewhere(folder, store, keys),
            look_soon=self.look_soon,
            keys=keys,
        )

    def look_soon(self) -> None:
        self.looks += 1

    def slot(self, number: int) -> memoryview:
        return memoryview(self.memory)[number * SIZE : (number + 1) * SIZE]

    def put(self, number: int, *marks: str) -> None:
        self.slot(number)[:] = content_of(number)
        self.shared.write(BlockCopy(name_of(number), number, marks))

    def fetch(self, *numbers: int) -> None:
        for number in numbers:
            self.shared.read(BlockCopy(name_of(number), number))

    def wait(self, copies: int) -> list[FinishedCopy]:
        """Wait until so many copies have ended."""
        done: list[FinishedCopy] = []
        deadline = time.monotonic() + 20
        while len(done) < copies and time.monotonic() < deadline:
            done += self.shared.take_finished()
            time.sleep(0.002)
        assert len(done) == copies
        return done

    def ask(self, *numbers: int) -> list[bool | None]:
        names = [name_of(number) for number in numbers]
        self.shared.ask(names)
        deadline = time.monotonic() + 20
        while self.shared.is_asking and time.monotonic() < deadline:
            self.shared.take_answers()
            time.sleep(0.002)
        return [self.shared.has(name) for name in names]


@pytest.fixture
def store() -> DictStore:
    return DictStore()


@pytest.fixture
def engine(store: DictStore, tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(store, tmp_path)
    yield engine
    store.may_answer.set()
    engine.shared.close()


def test_what_is_stored_is_found_and_fetched(store: DictStore, engine: Engine, tmp_path: Path):
    for number in range(10):
        engine.put(number, D1)
    done = engine.wait(10)
    assert all(copy.failure is None and copy.size_bytes > SIZE for copy in done)
    assert store.blocks[key_of(3)] == packed(3, [D1])
    other = Engine(store, tmp_path / "other")
    assert other.ask(3, 4, 11) == [True, True, False]
    other.fetch(*range(10))
    done = other.wait(10)
    assert all(copy.is_read and copy.failure is None for copy in done)
    assert other.slot(3) == content_of(3)
    assert (other.shared.pending_reads, engine.shared.pending_writes) == (0, 0)
    other.shared.close()


def test_nothing_is_known_while_it_is_asked_for(store: DictStore, engine: Engine):
    store.may_answer.clear()
    engine.shared.ask([name_of(1)])
    assert engine.shared.has(name_of(1)) is None
    assert engine.shared.is_asking
    store.may_answer.set()
    assert engine.ask(1) == [False]


def test_an_answer_holds_for_a_while(store: DictStore, engine: Engine):
    engine.ask(1, 2)
    calls = store.calls
    assert engine.ask(1, 2) == [False, False]
    assert store.calls == calls


def test_what_the_store_has_already_is_not_sent_again(store: DictStore, engine: Engine):
    store.blocks[key_of(1)] = packed(1)
    engine.put(1)
    (done,) = engine.wait(1)
    assert (done.failure, done.size_bytes) == (None, 0)


def test_what_the_store_has_under_another_id_gets_this_one_too(store: DictStore, engine: Engine):
    store.blocks[key_of(1)] = packed(1, [D1])
    store.marks[key_of(1)] = {D1}
    engine.put(1, D2)
    engine.wait(1)
    store.clear([D2])
    assert not store.blocks


def test_what_gets_another_id_is_not_taken_as_stored(engine: Engine):
    engine.put(1, D1)
    engine.put(2, D1)
    engine.wait(2)
    engine.shared.note_marks([name_of(1), name_of(3)])
    assert [engine.shared.is_stored(name_of(number)) for number in (1, 2)] == [False, True]


def test_what_the_store_has_lost_is_stored_again(store: DictStore, engine: Engine):
    engine.put(1)
    engine.wait(1)
    assert engine.shared.is_stored(name_of(1))
    store.blocks.clear()
    engine.fetch(1)
    assert engine.wait(1)[0].failure == "missing"
    assert not engine.shared.is_stored(name_of(1))


@pytest.mark.parametrize("harm", ["cut", "flipped", "another's", "nothing"])
def test_a_harmed_block_is_refused_and_removed(store: DictStore, engine: Engine, harm: str):
    whole = packed(1)
    store.blocks[key_of(1)] = {
        "cut": whole[: len(whole) // 2],
        "flipped": whole[:400] + bytes([whole[400] ^ 1]) + whole[401:],
        "another's": packed(2),
        "nothing": b"",
    }[harm]
    engine.fetch(1)
    (done,) = engine.wait(1)
    assert done.failure == "damaged"
    engine.shared._remove_what_must_go()
    assert key_of(1) not in store.blocks
    assert engine.shared.find_lost([name_of(0), name_of(1)]) == 1
    assert engine.shared.has(name_of(1)) is False


def test_a_block_that_is_gone_is_missing(engine: Engine):
    engine.fetch(1)
    (done,) = engine.wait(1)
    assert done.failure == "missing"
    assert engine.shared.find_lost([name_of(1)]) == 0
    assert engine.shared.find_lost([name_of(2)]) is None


def test_a_read_that_has_not_begun_is_taken_back(store: DictStore, engine: Engine):
    store.may_answer.clear()
    engine.fetch(*range(20))
    assert engine.shared.cancel_read(name_of(19))
    assert not engine.shared.cancel_read(name_of(19))
    assert engine.shared.pending_reads == 19
    store.may_answer.set()
    engine.wait(19)


# -- a store that fails ----------------------------------------------------------------------------


def test_a_store_that_is_away_is_asked_again_after_a_while(
    store: DictStore, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    store.failure = StoreAway("gone")
    engine.fetch(1)
    (done,) = engine.wait(1)
    assert done.failure == "missing"
    assert not engine.shared.is_usable
    assert engine.shared.queued_reads is None
    assert engine.shared.room == 0
    engine.shared.ask([name_of(2)])
    assert engine.shared.has(name_of(2)) is False
    store.failure = None
    now_s = time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s + 10)
    assert engine.shared.is_usable
    store.blocks[key_of(1)] = packed(1)
    engine.fetch(1)
    monkeypatch.undo()
    assert engine.wait(1)[0].failure is None


def test_what_was_stored_before_the_store_was_away_is_stored_again(
    store: DictStore, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    engine.put(1)
    engine.wait(1)
    store.failure = StoreAway("gone")
    engine.fetch(2)
    engine.wait(1)
    store.failure, store.blocks = None, {}
    now_s = time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s + 10)
    engine.fetch(3)
    monkeypatch.undo()
    engine.wait(1)
    engine.shared.take_finished()
    assert not engine.shared.is_stored(name_of(1))


def test_a_store_that_hangs_holds_nobody_up(
    store: DictStore, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "STALLED_S", 0.05)
    store.may_answer.clear()
    engine.fetch(1)
    deadline = time.monotonic() + 20
    while engine.shared.is_usable and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not engine.shared.is_usable
    assert not engine.shared.is_asking
    store.may_answer.set()
    engine.wait(1)
    assert engine.shared.is_usable


def test_a_full_store_is_given_nothing_more_for_a_while_and_still_read(
    store: DictStore, engine: Engine
):
    store.failure = StoreFull("no memory")
    engine.put(1)
    (done,) = engine.wait(1)
    assert done.failure == "full"
    assert engine.shared.room == 0
    assert not engine.shared.is_stored(name_of(1))
    store.failure = None
    store.blocks[key_of(3)] = packed(3)
    engine.fetch(3)
    assert engine.wait(1)[0].failure is None


def test_a_store_that_only_lets_read_is_read(store: DictStore, engine: Engine):
    store.blocks[key_of(3)] = packed(3)
    store.failure = PermissionError("read only")
    engine.put(1)
    assert engine.wait(1)[0].failure == "unwritable"
    store.failure = None
    assert engine.shared.is_usable
    engine.fetch(3)
    assert engine.wait(1)[0].failure is None


def test_no_more_blocks_wait_than_a_slow_store_can_take(store: DictStore, engine: Engine):
    store.may_answer.clear()
    engine.slot(0)[:] = content_of(0)
    for number in range(module.MOST_PUSHES):
        assert engine.shared.room
        engine.shared.write(BlockCopy(name_of(number), 0))
    assert engine.shared.room == 0
    store.may_answer.set()
    engine.wait(module.MOST_PUSHES)


# -- forgetting ------------------------------------------------------------------------------------


def test_a_document_that_this_host_forgot_is_not_stored(store: DictStore, engine: Engine):
    engine.forbidden.add(D1)
    engine.put(1, D1)
    engine.put(2, D2)
    assert {copy.copy.slot: copy.failure for copy in engine.wait(2)} == {1: "forgotten", 2: None}
    assert set(store.blocks) == {key_of(2)}


def test_a_document_that_another_host_forgot_is_not_stored_before_this_one_has_acted(
    store: DictStore, engine: Engine
):
    store.leave_tombstones([D1])
    engine.put(1, D1)
    assert engine.wait(1)[0].failure == "forgotten"
    assert not store.blocks


def test_a_document_forgotten_while_it_was_stored_is_removed_again(
    store: DictStore, engine: Engine
):
    # Whoever forgets has listed the blocks before this one came.
    store.after_write = lambda: store.forgotten.update({D1: "7"})
    engine.put(1, D1)
    assert engine.wait(1)[0].failure == "forgotten"
    engine.shared._remove_what_must_go()
    assert not store.blocks


def test_what_waited_to_be_stored_when_its_document_was_forgotten_is_not_stored(
    store: DictStore, engine: Engine
):
    store.may_answer.clear()
    engine.put(0)  # the thread is busy with it
    engine.put(1, D1)
    engine.put(2, D2)
    # The engine has forgotten it and acted upon that: nothing forbids the document any more.
    engine.shared.withdraw([D1])
    store.may_answer.set()
    failures = {copy.copy.slot: copy.failure for copy in engine.wait(3)}
    assert failures == {0: None, 1: "forgotten", 2: None}
    assert key_of(1) not in store.blocks
    engine.put(1, D1)  # computed anew
    assert engine.wait(1)[0].failure is None
    assert key_of(1) in store.blocks


def test_what_was_on_its_way_when_its_document_was_forgotten_is_removed_again(
    store: DictStore, engine: Engine
):
    store.after_write = lambda: engine.shared.withdraw([D1])
    engine.put(1, D1)
    assert engine.wait(1)[0].failure == "forgotten"
    engine.shared._remove_what_must_go()
    assert not store.blocks


def test_a_block_that_could_not_be_checked_afterwards_is_removed(store: DictStore, engine: Engine):
    def fail() -> None:
        store.failure = StoreAway("gone in between")

    store.after_write = fail
    engine.put(1, D1)
    assert engine.wait(1)[0].failure == "unwritable"
    assert store.blocks
    store.failure = None
    engine.shared._remove_what_must_go()
    assert not store.blocks


def test_what_other_hosts_forget_is_heard_of_and_the_folder_looked_at(
    store: DictStore, tmp_path: Path
):
    store.look_s = 0.01
    engine = Engine(store, tmp_path)
    store.leave_tombstones([D1])
    deadline = time.monotonic() + 20
    while not engine.shared._forgotten.has_acted_upon([D1]) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine.looks
    engine.shared.close()


# -- encryption ------------------------------------------------------------------------------------


def ring(store: DictStore, folder: Path, master: bytes = b"m") -> KeyRing:
    return KeyRing(folder, [master * 32], store)


def encrypted_name(keys: KeyRing) -> str:
    return keys.naming.files(range(16), None, blocks=1, block_tokens=16)[0]


def test_hosts_with_one_master_key_read_what_each_of_them_encrypted(
    store: DictStore, tmp_path: Path
):
    rings = [ring(store, tmp_path / host) for host in ("one", "other")]
    assert rings[0].naming == rings[1].naming
    name = encrypted_name(rings[0])
    one, other = (
        Engine(store, tmp_path / host, keys)
        for host, keys in zip(("one", "other"), rings, strict=True)
    )
    one.slot(1)[:] = content_of(1)
    one.shared.write(BlockCopy(name, 1, [D1]))
    assert one.wait(1)[0].failure is None
    (content,) = store.blocks.values()
    assert content_of(1)[:100] not in content
    other.shared.read(BlockCopy(name, 2))
    assert other.wait(1)[0].failure is None
    assert other.slot(2) == content_of(1)
    one.shared.close()
    other.shared.close()


def test_without_the_master_key_a_block_cannot_be_read(store: DictStore, tmp_path: Path):
    one = Engine(store, tmp_path / "one", ring(store, tmp_path / "one"))
    other = Engine(store, tmp_path / "other", ring(store, tmp_path / "other", b"n"))
    one.put(1)
    one.wait(1)
    other.fetch(1)
    assert other.wait(1)[0].failure == "damaged"
    one.shared.close()
    other.shared.close()


def test_a_host_whose_folder_had_other_keys_takes_those_of_the_others(
    store: DictStore, tmp_path: Path
):
    alone = KeyRing(tmp_path / "late", [b"m" * 32])
    first = ring(store, tmp_path / "first")
    late = ring(store, tmp_path / "late")
    assert late.naming == first.naming != alone.naming
    assert late.is_new, "its files are those of nobody now"
    assert not ring(store, tmp_path / "late").is_new


def test_while_the_store_is_away_a_host_has_keys_of_its_own_and_does_not_share(
    store: DictStore, tmp_path: Path
):
    first = ring(store, tmp_path / "first")
    store.failure = StoreAway("gone")
    late = ring(store, tmp_path / "late")
    assert first.is_agreed
    assert not late.is_agreed
    assert late.naming != first.naming
    store.failure = None
    with pytest.raises(StoreAway, match="other keys"):
        ForgottenElsewhere(tmp_path / "late", store, late).forget([D1])
    assert ring(store, tmp_path / "late").naming == first.naming


def test_a_key_in_the_store_that_cannot_be_opened_is_not_replaced(store: DictStore, tmp_path: Path):
    first = ring(store, tmp_path / "first")
    store.keys = dict.fromkeys(store.keys, b"nonsense")
    again = ring(store, tmp_path / "first")
    assert again.naming == first.naming
    assert not again.is_agreed


def test_a_secret_that_the_store_lost_is_given_back(store: DictStore, tmp_path: Path):
    first = ring(store, tmp_path / "first")
    store.keys.clear()
    ForgottenElsewhere(tmp_path / "first", store, first).catch_up()
    assert ring(store, tmp_path / "second").naming == first.naming


def test_hosts_with_other_keys_do_not_forget_for_each_other(store: DictStore, tmp_path: Path):
    first = ring(store, tmp_path / "first")
    store.keys.clear()
    ring(store, tmp_path / "second")  # it found nothing, and made a secret of its own
    forgotten = ForgottenElsewhere(tmp_path / "first", store, first)
    for call in (forgotten.catch_up, lambda: forgotten.forget([D1])):
        with pytest.raises(StoreAway, match="start it anew"):
            call()


def test_hosts_share_a_tenants_key_until_one_of_them_throws_it_away_for_all(
    store: DictStore, tmp_path: Path
):
    rings = [ring(store, tmp_path / host) for host in ("one", "other", "third")]
    shop = rings[0].naming.owner("shop")
    [before] = {keys.key_of(shop).id for keys in rings}
    one, *others = (
        ForgottenElsewhere(tmp_path / host, store, keys)
        for host, keys in zip(("one", "other", "third"), rings, strict=True)
    )
    one.forget([shop], [shop])
    assert not [name for name in store.keys if shop in name]
    for each in others:
        each.catch_up()
    [after] = {keys.key_of(shop).id for keys in rings}
    assert after != before


def test_a_host_that_has_not_heard_of_it_does_not_give_a_thrown_away_key_back(
    store: DictStore, tmp_path: Path
):
    one, other = (ring(store, tmp_path / host) for host in ("one", "other"))
    shop = one.naming.owner("shop")
    before = other.key_of(shop).id
    assert one.key_of(shop).id == before
    ForgottenElsewhere(tmp_path / "one", store, one).forget([shop], [shop])
    again = ring(store, tmp_path / "other")  # started anew, before it has looked
    again._shared.find(f"tenant-{shop}")
    assert before not in {again.key_of(shop).id, one.key_of(shop).id}


def test_a_process_of_the_host_uses_a_key_no_more_that_another_one_threw_away(
    store: DictStore, tmp_path: Path
):
    front, scheduler = ring(store, tmp_path), ring(store, tmp_path)
    shop = front.naming.owner("shop")
    before = scheduler.key_of(shop).id
    ForgottenElsewhere(tmp_path, store, front).forget([shop], [shop])
    assert scheduler.key_of(shop).id == front.key_of(shop).id != before


def test_a_key_made_after_its_tenant_was_forgotten_stays_where_others_act_later(
    store: DictStore, tmp_path: Path
):
    one, other = (ring(store, tmp_path / host) for host in ("one", "other"))
    shop = one.naming.owner("shop")
    assert one.key_of(shop).id == other.key_of(shop).id
    ForgottenElsewhere(tmp_path / "one", store, one).forget([shop], [shop])
    later = one.key_of(shop)
    sealed = later.cipher.encrypt(bytes(12), b"text", b"")
    # The other one reads a new block before it has looked, and takes the new key.
    assert other.decrypt(
        shop, later.id, bytes(12), memoryview(sealed), b"", memoryview(bytearray(4))
    )
    ForgottenElsewhere(tmp_path / "other", store, other).catch_up()
    assert other.key_of(shop).id == one.key_of(shop).id == later.id


def test_a_block_encrypted_with_a_key_that_is_no_more_is_removed(store: DictStore, tmp_path: Path):
    keys = ring(store, tmp_path)
    engine = Engine(store, tmp_path, keys)
    name = keys.naming.files(range(16), "shop", blocks=1, block_tokens=16)[0]
    engine.shared.write(BlockCopy(name, 1, []))
    assert engine.wait(1)[0].failure is None
    forgotten = ForgottenElsewhere(tmp_path, store, keys)
    kept = dict(store.blocks)
    forgotten.forget([owner_in(name)], [owner_in(name)])
    store.blocks.update(kept)  # as a store may that keeps what was removed
    engine.shared.read(BlockCopy(name, 2))
    assert engine.wait(1)[0].failure == "damaged"
    assert name in engine.shared._to_remove
    engine.shared.close()


def test_hosts_agree_again_after_the_store_lost_their_keys(store: DictStore, tmp_path: Path):
    one, other = (ring(store, tmp_path / host) for host in ("one", "other"))
    first = one.key_of("shop").id
    store.keys.clear()
    second = other.key_of("shop")  # it had none, and finds none
    assert second.id != first
    sealed = second.cipher.encrypt(bytes(12), b"text", b"")
    target = bytearray(4)
    is_well = one.decrypt("shop", second.id, bytes(12), memoryview(sealed), b"", memoryview(target))
    assert (is_well, bytes(target)) == (True, b"text")
    assert one.key_of("shop").id == second.id


def test_keys_are_given_back_to_a_store_that_lost_them(store: DictStore, tmp_path: Path):
    one = ring(store, tmp_path / "one")
    known = one.key_of("shop").id
    store.keys.clear()
    ForgottenElsewhere(tmp_path / "one", store, one).catch_up()
    assert ring(store, tmp_path / "other").key_of("shop").id == known


def test_a_new_master_key_takes_over_the_keys_that_only_the_store_has(
    store: DictStore, tmp_path: Path
):
    old = ring(store, tmp_path / "one")
    known = old.key_of("shop").id
    new = KeyRing(tmp_path / "fresh", [b"n" * 32, b"m" * 32], store)
    assert new.naming == old.naming
    assert new.key_of("shop").id == known
    assert KeyRing(tmp_path / "later", [b"n" * 32], store).key_of("shop").id == known


def test_while_the_store_is_away_only_those_keys_serve_that_the_host_has(
    store: DictStore, tmp_path: Path
):
    known = ring(store, tmp_path).key_of("shop").id
    keys = ring(store, tmp_path)
    store.failure = StoreAway("gone")
    assert keys.key_of("shop").id == known
    with pytest.raises(KeyAway, match="does not answer"):
        keys.key_of("press")
    store.failure = None
    with pytest.raises(KeyAway, match="lately"):
        keys.key_of("press")  # it is not asked again at once
    keys._shared._ask_again_s.clear()
    assert keys.key_of("press").id == ring(store, tmp_path / "other").key_of("press").id


def test_a_block_that_cannot_be_encrypted_holds_up_no_other(
    store: DictStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    keys = ring(store, tmp_path)
    name = keys.naming.files(range(16), "press", blocks=1, block_tokens=16)[0]
    engine = Engine(store, tmp_path, keys)
    keys.key_of(keys.naming.owner(None))
    monkeypatch.setattr(keys, "_find", unavailable)
    engine.slot(1)[:] = content_of(1)
    engine.shared.write(BlockCopy(name, 1, []))
    engine.shared.write(BlockCopy(encrypted_name(keys), 1, []))
    failures = {one.copy.name: one.failure for one in engine.wait(2)}
    assert failures[encrypted_name(keys)] is None
    assert failures[name] == "unwritable"
    engine.shared.close()


def test_a_block_whose_key_cannot_be_had_is_not_read_and_stays(
    store: DictStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one = Engine(store, tmp_path / "one", ring(store, tmp_path / "one"))
    one.put(1)
    one.wait(1)
    keys = ring(store, tmp_path / "other")
    monkeypatch.setattr(keys, "_find", unavailable)
    other = Engine(store, tmp_path / "other", keys)
    other.fetch(1)
    assert other.wait(1)[0].failure == "unreadable"
    one.shared.close()
    other.shared.close()
    assert len(store.blocks) == 1


def unavailable(name: str) -> bytes:
    raise KeyAway(name)
