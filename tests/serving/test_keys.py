"""Whose key is whose, and which files of keys are refused."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from ragcache_engine import ConfigError, KeyRefused, OperatorsOnly
from ragcache_engine.serving.keys import ANYBODY, Caller, Keys, read_key_file

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


def test_vllms_own_keys_are_wanted_and_stand_for_no_tenant():
    keys = Keys(open_keys=("sesame",), operator_key=ANNA)
    assert keys.caller("sesame") == ANYBODY
    assert keys.caller(ANNA).is_operator
    with pytest.raises(KeyRefused):
        keys.caller(None)


def test_a_tenant_stays_inside_itself_whatever_it_names():
    shop = Caller("shop")
    assert shop.tenant_for(None) == "shop"
    assert shop.tenant_for("anna") == "shop:anna"
    assert shop.tenant_for("press") == "shop:press"
    assert Caller(is_operator=True).tenant_for("shop") == "shop"
    assert ANYBODY.tenant_for("anna") == "anna"


def test_only_an_operator_may_what_operators_may():
    Caller(is_operator=True).require_operator("forget")
    for caller in (ANYBODY, Caller("shop")):
        with pytest.raises(OperatorsOnly, match="may forget"):
            caller.require_operator("forget")


def test_a_file_that_changes_is_read_again_and_a_broken_one_changes_nothing(file: Path):
    keys = Keys(file)
    rewrite(file, TEXT.replace(SHOP, "the shop has a new key"))
    assert keys.caller("the shop has a new key") == Caller("shop")
    with pytest.raises(KeyRefused):
        keys.caller(SHOP)
    rewrite(file, "[tenants")
    assert keys.caller(PRESS) == Caller("press")
    file.unlink()
    assert keys.caller(PRESS) == Caller("press")


def rewrite(file: Path, text: str) -> None:
    before = file.stat().st_mtime_ns
    file.write_text(text)
    os.utime(file, ns=(before + 1_000_000, before + 1_000_000))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no key"),
        ("[tenants]\nshop = []", "names no key"),
        ("[tenants]\nshop = 'a key without brackets'", r'write shop = \["its key"'),
        ("[tenants]\nshop = ['short']", "fewer than 16 characters"),
        ("[tenants]\n'shop:anna' = ['the key of the shop']", "letters, digits"),
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
