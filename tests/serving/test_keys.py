"""Whose key is whose, and which files of keys are refused."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from ragcache_engine import ConfigError, KeyRefused, OperatorsOnly
from ragcache_engine.serving import keys as keys_module
from ragcache_engine.serving.keys import ANYBODY, Caller, Keys, name_by_digest, read_key_file

SHOP, PRESS, ANNA = "the key of the shop", "the key of the press", "the operator Anna's key"
TEXT = f"""
[tenants]
shop = ["{SHOP}", "the next key of the shop"]
press = ["sha256:{sha256(PRESS.encode()).hexdigest()}"]
[operators]
anna = ["{ANNA}"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(TEXT)
    return path


def test_a_key_stands_for_its_tenant_or_for_an_operator(file: Path):
    keys = Keys(file)
    assert keys.caller(SHOP) == keys.caller("the next key of the shop") == Caller("shop")
    assert keys.caller(PRESS) == Caller("press")
    assert keys.caller(ANNA) == Caller(is_operator=True)


@pytest.mark.parametrize("key", [None, "", "another key altogether", SHOP[:-1]])
def test_any_other_key_is_refused(file: Path, key: str | None):
    with pytest.raises(KeyRefused):
        Keys(file).caller(key)


def test_a_digest_may_stand_as_sha256sum_writes_it(file: Path):
    digest = sha256(PRESS.encode()).hexdigest()
    file.write_text(f'[tenants]\npress = ["sha256:{digest}  -"]')
    assert Keys(file).caller(PRESS).tenant == "press"


def test_without_keys_everybody_may_come_and_only_the_operators_key_does_more():
    keys = Keys(operator_key=ANNA)
    assert keys.caller(None) == keys.caller("anything") == ANYBODY
    assert keys.caller(ANNA).is_operator


def test_the_operators_key_may_stand_by_its_digest():
    keys = Keys(operator_key=name_by_digest(ANNA))
    assert keys.caller(ANNA).is_operator
    assert keys.caller(name_by_digest(ANNA)) == ANYBODY, "to know the digest opens nothing"
    assert name_by_digest(name_by_digest(ANNA)) == name_by_digest(ANNA)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("x", "RAGCACHE_OPERATOR_KEY has fewer than 16 characters; draw one"),
        ("sha256:abc", "RAGCACHE_OPERATOR_KEY: behind sha256: stand the 64 hexadecimal digits"),
    ],
)
def test_an_operators_key_that_can_be_guessed_is_refused(key: str, why: str):
    for use in (name_by_digest, lambda key: Keys(operator_key=key)):
        with pytest.raises(ConfigError, match=why):
            use(key)


def test_vllms_own_keys_are_wanted_and_stand_for_no_tenant():
    keys = Keys(open_keys=("sesame",), operator_key=ANNA)
    assert keys.caller("sesame") == ANYBODY
    assert keys.caller(ANNA).is_operator
    with pytest.raises(KeyRefused):
        keys.caller(None)


def test_a_tenant_stays_inside_itself_whatever_it_names():
    shop = Caller("shop")
    assert shop.tenant_for(None) == "shop"
    assert shop.tenant_for("anna") == "shop::anna"
    assert shop.tenant_for("press") == "shop::press"
    assert Caller(is_operator=True).tenant_for("shop") == "shop"
    assert ANYBODY.tenant_for("anna") == "anna"


def test_only_an_operator_may_what_operators_may():
    Caller(is_operator=True).require_operator("forget")
    for caller in (ANYBODY, Caller("shop")):
        with pytest.raises(OperatorsOnly, match="may forget"):
            caller.require_operator("forget")


# -- a file that changes ---------------------------------------------------------------------------


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys_module, "LOOK_S", 0.01)


def opens(keys: Keys, key: str) -> bool:
    try:
        keys.caller(key)
    except KeyRefused:
        return False
    return True


def replace(file: Path, text: str) -> None:
    """Write the file as a whole, so that nobody sees a half."""
    file.with_name("new").write_text(text, encoding="latin-1")
    file.with_name("new").rename(file)


def require_soon(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        time.sleep(0.01)
    pytest.fail("it did not become so")


@pytest.mark.usefixtures("looks_often")
def test_a_file_that_changes_is_read_again(file: Path):
    keys = Keys(file)
    file.write_text(TEXT.replace(SHOP, "the shop has a new key"))
    require_soon(lambda: opens(keys, "the shop has a new key"))
    assert keys.caller("the shop has a new key") == Caller("shop")
    assert not opens(keys, SHOP)
    assert opens(keys, PRESS)


@pytest.mark.usefixtures("looks_often")
@pytest.mark.parametrize("emptied", ["", "[tenants]\nshop = []", "# all are gone", None])
def test_a_list_without_keys_opens_for_nobody(file: Path, emptied: str | None):
    keys = Keys(file, operator_key="the key of the environment")
    if emptied is None:
        file.unlink()
    else:
        file.write_text(emptied)
    require_soon(lambda: not any(opens(keys, key) for key in (SHOP, PRESS, ANNA)))
    assert opens(keys, "the key of the environment")
    file.write_text(TEXT)
    require_soon(lambda: opens(keys, SHOP))


@pytest.mark.usefixtures("looks_often")
@pytest.mark.parametrize(
    "slip", ["[tenants", "[users]", "[tenants]\nnew = ['short']", "\xff", "a = " + "[" * 9999]
)
def test_a_slip_of_the_pen_locks_nobody_out_and_keeps_no_key_that_was_taken_back(
    file: Path, slip: str
):
    keys = Keys(file)
    left = TEXT.replace(f'"{SHOP}", ', "").replace("anna = [", "# anna = [")
    replace(file, slip + left)
    require_soon(lambda: not opens(keys, SHOP))
    assert keys.caller("the next key of the shop") == Caller("shop")
    assert keys.caller(PRESS) == Caller("press")
    assert not opens(keys, ANNA)


@pytest.mark.usefixtures("looks_often")
def test_a_change_while_the_file_is_read_is_noticed(file: Path, monkeypatch: pytest.MonkeyPatch):
    parse = keys_module.tomllib.loads

    def parse_while_somebody_writes(text: str) -> dict[str, Any]:
        monkeypatch.setattr(keys_module.tomllib, "loads", parse)
        file.write_text(TEXT.replace(SHOP, "the shop has a new key"))
        return parse(text)

    monkeypatch.setattr(keys_module.tomllib, "loads", parse_while_somebody_writes)
    keys = Keys(file)
    require_soon(lambda: opens(keys, "the shop has a new key"))
    assert not opens(keys, SHOP)


@pytest.mark.usefixtures("looks_often")
def test_a_change_that_leaves_size_and_times_as_they_were_is_noticed(file: Path):
    keys = Keys(file)
    before = file.stat()
    file.write_text(TEXT.replace(SHOP, SHOP[::-1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    require_soon(lambda: opens(keys, SHOP[::-1]))
    assert not opens(keys, SHOP)


@pytest.mark.usefixtures("looks_often")
def test_nobody_waits_while_a_long_file_is_read(file: Path, monkeypatch: pytest.MonkeyPatch):
    keys = Keys(file)
    parse, begun, may_end = keys_module.tomllib.loads, threading.Event(), threading.Event()

    def parse_slowly(text: str) -> dict[str, Any]:
        begun.set()
        assert may_end.wait(10)
        return parse(text)

    monkeypatch.setattr(keys_module.tomllib, "loads", parse_slowly)
    file.write_text(TEXT.replace(SHOP, "the shop has a new key"))
    require_soon(lambda: opens(keys, SHOP) and begun.is_set())
    assert not opens(keys, "the shop has a new key")
    may_end.set()
    require_soon(lambda: opens(keys, "the shop has a new key"))


@pytest.mark.usefixtures("looks_often")
def test_keys_that_nobody_uses_any_more_are_not_looked_at(file: Path):
    before = set(threading.enumerate())
    keys = Keys(file)
    looking = [one for one in set(threading.enumerate()) - before if one.name == "ragcache-keys"]
    assert len(looking) == 1
    del keys
    require_soon(lambda: not looking[0].is_alive())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no key"),
        ("[tenants]\nshop = []", "names no key"),
        ("[tenants]\nshop = 'a key without brackets'", r'write shop = \["its key"'),
        ("[tenants]\nshop = ['short']", "fewer than 16 characters"),
        ("[tenants]\n'shop::anna' = ['the key of the shop']", "letters, digits"),
        ("[users]\nshop = ['the key of the shop']", r"\[tenants\] and \[operators\]"),
        ("[tenants]\na = ['the key of the shop']\nb = ['the key of the shop']", "two places"),
        ("[tenants", "cannot be read"),
        ("tenants = 3", r"\[tenants\] as a table"),
        ("[tenants]\nshop = ['sha256:the key of the shop']", "64 hexadecimal digits"),
    ],
)
def test_a_file_that_cannot_work_is_refused_and_says_why(tmp_path: Path, text: str, why: str):
    (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(ConfigError, match=why):
        read_key_file(tmp_path / "keys.toml")


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read"):
        Keys(tmp_path / "none.toml")
