"""Where the keys of a disk cache come from, and what is no key."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from ragcache_engine import ConfigError, EngineConfig
from ragcache_engine.tiers.disk.master_keys import read_master_keys

KEY, OTHER = bytes(range(32)), bytes(range(32, 64))
WRITTEN = base64.b64encode(KEY).decode()


def test_a_key_comes_from_a_variable_a_file_or_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DISK_KEY", WRITTEN)
    path = tmp_path / "key"
    path.write_text(f"{WRITTEN}\n\n")
    for source in ("env:DISK_KEY", f"file:{path}", f"command:cat {path}"):
        assert read_master_keys(source) == [KEY]


def test_the_first_line_is_the_key_to_write_with_and_others_are_earlier_ones(tmp_path: Path):
    path = tmp_path / "keys"
    path.write_text(f"{OTHER.hex()}\n{WRITTEN}\n")
    assert read_master_keys(f"file:{path}") == [OTHER, KEY]


@pytest.mark.parametrize(
    "content", ["", " \n", "too short", KEY.hex()[:-2], WRITTEN + "AAAA", "ä" * 64]
)
def test_what_is_no_key_is_refused_and_not_quoted(tmp_path: Path, content: str):
    path = tmp_path / "key"
    path.write_text(content)
    with pytest.raises(ConfigError, match="openssl rand") as error:
        read_master_keys(f"file:{path}")
    assert not content.strip() or content.strip() not in str(error.value)


@pytest.mark.parametrize("source", ["env:NO_SUCH_VARIABLE", "file:/no/such/file", "command:false"])
def test_a_source_that_gives_nothing_is_named(source: str):
    with pytest.raises(ConfigError, match=source):
        read_master_keys(source)


def test_a_command_that_fails_does_not_tell_what_it_wrote(tmp_path: Path):
    with pytest.raises(ConfigError) as error:
        read_master_keys(f"command:echo {WRITTEN[:20]}secret; false")
    assert "returned" not in str(error.value)


def test_a_setting_says_where_the_key_is_and_is_no_key_itself():
    for said in ("env:KEY", "file:/run/key", "command:vault read key"):
        config = EngineConfig(model="m", disk_cache="1GiB", disk_cache_key=said)
        assert config.disk_cache_key == said
    for said in (os.urandom(32).hex(), "env:", "env", "vault:key"):
        with pytest.raises(ValueError, match="where the key comes from"):
            EngineConfig(model="m", disk_cache="1GiB", disk_cache_key=said)
    with pytest.raises(ValueError, match="disk_cache is 0"):
        EngineConfig(model="m", disk_cache_key="env:KEY")
