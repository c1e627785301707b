"""Each tenant has a key of its own, which only the master key opens."""

from __future__ import annotations

import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from ragcache_engine import ConfigError
from ragcache_engine.tiers.disk.key_files import FOLDER, NONCE_BYTES
from ragcache_engine.tiers.disk.key_ring import KeyRing, OtherKey

MASTER, LATER = b"m" * 32, b"n" * 32
NONCE, HEAD, TEXT = bytes(NONCE_BYTES), b"head", memoryview(b"what a document says")


def seal(ring: KeyRing, owner: str = "shop") -> bytes:
    key = ring.key_of(owner)
    return key.id.encode() + key.cipher.encrypt(NONCE, TEXT, HEAD)


def opened(ring: KeyRing, sealed: bytes, owner: str = "shop", **other: bytes) -> bytes | None:
    """Return what was encrypted; None if it cannot be opened."""
    key_id, content = sealed[:16].decode(errors="replace"), sealed[16:]
    target = bytearray(max(0, len(content) - 16))
    told = {"nonce": NONCE, "head": HEAD, **other}
    try:
        is_well = ring.decrypt(
            owner, key_id, told["nonce"], memoryview(content), told["head"], memoryview(target)
        )
    except OtherKey:
        return None
    return bytes(target) if is_well else None


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / FOLDER).rglob("*") if path.is_file())


def test_what_one_process_encrypts_another_one_reads(tmp_path: Path):
    ring = KeyRing(tmp_path, [MASTER])
    sealed = seal(ring)
    again = KeyRing(tmp_path, [MASTER])
    assert (ring.is_new, again.is_new) == (True, False)
    assert (again.id, again.naming) == (ring.id, ring.naming)
    assert opened(again, sealed, "shop") == TEXT.tobytes()


def test_a_tenants_key_opens_nothing_of_another_tenant(tmp_path: Path):
    ring = KeyRing(tmp_path, [MASTER])
    sealed = seal(ring)
    assert opened(ring, sealed, "press") is None


def test_any_other_bit_of_content_head_or_nonce_is_noticed(tmp_path: Path):
    ring = KeyRing(tmp_path, [MASTER])
    sealed = seal(ring)
    for at in range(len(sealed)):
        damaged = bytearray(sealed)
        damaged[at] ^= 1
        assert opened(ring, bytes(damaged), "shop") is None
    assert opened(ring, sealed, head=b"heaD") is None
    assert opened(ring, sealed, nonce=b"\1" * NONCE_BYTES) is None
    assert opened(ring, sealed[:16], "shop") is None


def test_another_master_key_has_keys_and_names_of_its_own(tmp_path: Path):
    ring, other = KeyRing(tmp_path, [MASTER]), KeyRing(tmp_path, [LATER])
    assert other.is_new
    assert other.id != ring.id
    assert other.naming.mark("d1") != ring.naming.mark("d1")
    sealed = seal(ring)
    assert opened(other, sealed, "shop") is None
    assert opened(KeyRing(tmp_path, [MASTER]), sealed, "shop") == TEXT.tobytes()


def test_a_new_master_key_takes_over_what_the_earlier_one_opened(tmp_path: Path):
    ring = KeyRing(tmp_path, [MASTER])
    sealed = seal(ring)
    rotated = KeyRing(tmp_path, [LATER, MASTER])
    assert not rotated.is_new
    assert rotated.naming == ring.naming
    assert opened(rotated, sealed, "shop") == TEXT.tobytes()
    assert opened(KeyRing(tmp_path, [MASTER]), sealed, "shop") == TEXT.tobytes(), "it goes on"
    assert opened(KeyRing(tmp_path, [LATER]), sealed, "shop") == TEXT.tobytes()
    assert KeyRing(tmp_path, [MASTER]).is_new, "named no more, it opens nothing any more"


def test_an_engine_with_the_earlier_key_goes_on_while_others_take_the_new_one(tmp_path: Path):
    old = KeyRing(tmp_path, [MASTER])
    new = KeyRing(tmp_path, [LATER, MASTER])
    sealed = seal(old, "a tenant that comes now")
    assert opened(old, sealed, "a tenant that comes now") == TEXT.tobytes()
    assert opened(new, sealed, "a tenant that comes now") is None, "a miss, and no error"
    assert new.naming == old.naming


def test_engines_that_take_a_new_key_at_once_agree(tmp_path: Path):
    sealed = seal(KeyRing(tmp_path, [MASTER]))

    def work(number: int) -> bytes | None:
        return opened(KeyRing(tmp_path, [LATER, MASTER]), sealed)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(work, range(32))) == {TEXT.tobytes()}


def test_a_key_that_was_thrown_away_opens_nothing_and_the_next_one_is_another(tmp_path: Path):
    ring = KeyRing(tmp_path, [LATER, MASTER])
    sealed, others = (seal(ring, owner) for owner in ("shop", "press"))
    before = ring.naming
    ring.throw_away(["shop", "a mark of no tenant"])
    assert opened(ring, sealed, "shop") is None
    again = seal(ring)
    for one in (ring, KeyRing(tmp_path, [LATER])):
        assert one.naming == before
        assert opened(one, sealed, "shop") is None
        assert opened(one, again, "shop") == TEXT.tobytes()
        assert opened(one, others, "press") == TEXT.tobytes()


def test_a_key_thrown_away_after_a_rotation_is_gone_below_the_earlier_master_key_too(
    tmp_path: Path,
):
    sealed = seal(KeyRing(tmp_path, [MASTER]))
    KeyRing(tmp_path, [LATER, MASTER]).throw_away(["shop"])
    assert opened(KeyRing(tmp_path, [MASTER]), sealed, "shop") is None


def test_an_unfinished_file_of_a_key_that_is_thrown_away_goes_too(tmp_path: Path):
    ring = KeyRing(tmp_path, [MASTER])
    ring.key_of("shop")
    [key] = [path for path in files_of(tmp_path) if path.name == "tenant-shop"]
    left = key.with_name("tenant-shop.01234567.writing")
    left.write_bytes(key.read_bytes())
    ring.throw_away(["shop"])
    assert not left.exists()


def test_a_key_that_goes_while_it_is_looked_for_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ring, other = KeyRing(tmp_path, [MASTER]), KeyRing(tmp_path, [MASTER])
    before, find = other.key_of("shop").id, ring._files.find

    def lose(name: str, stamp: str = "") -> bytes:
        secret = find(name, stamp)
        monkeypatch.setattr(ring._files, "find", find)
        other.throw_away(["shop"])
        return secret

    monkeypatch.setattr(ring._files, "find", lose)
    assert ring.key_of("shop").id == other.key_of("shop").id != before


def test_an_engine_that_had_a_key_reads_what_another_one_encrypts_with_the_next(tmp_path: Path):
    ring, other = KeyRing(tmp_path, [MASTER]), KeyRing(tmp_path, [MASTER])
    sealed = seal(other)
    assert opened(ring, sealed, "shop") == TEXT.tobytes()
    other.throw_away(["shop"])
    again = seal(other)
    assert opened(ring, again, "shop") == TEXT.tobytes()
    assert opened(ring, sealed, "shop") is None


def test_a_damaged_key_is_replaced_and_what_it_opened_is_lost(tmp_path: Path):
    sealed = seal(KeyRing(tmp_path, [MASTER]))
    for path in files_of(tmp_path):
        path.write_bytes(path.read_bytes()[:-1])
    ring = KeyRing(tmp_path, [MASTER])
    assert opened(ring, sealed, "shop") is None
    again = seal(ring)
    assert opened(KeyRing(tmp_path, [MASTER]), again, "shop") == TEXT.tobytes()


def test_engines_that_begin_at_once_agree_on_the_keys(tmp_path: Path):
    def work(number: int) -> tuple[str, bytes]:
        ring = KeyRing(tmp_path, [MASTER])
        return ring.id, seal(ring)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(work, range(32)))) == 1


def test_keys_are_private_and_no_file_holds_one_that_can_be_read(tmp_path: Path):
    ring = KeyRing(tmp_path, [MASTER])
    seal(ring)
    for path in files_of(tmp_path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert MASTER not in path.read_bytes()
        assert ring.naming.secret not in path.read_bytes()
    assert len(files_of(tmp_path)) == 2, "the names' secret, and the shop's key"


def test_the_library_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    name = "cryptography.hazmat.primitives.ciphers.aead"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"ragcache-integrations\[encryption\]"):
        KeyRing(tmp_path, [os.urandom(32)])
