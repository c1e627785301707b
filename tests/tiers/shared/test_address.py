"""The URL of a shared store says where it is and how long blocks stay, and keeps no secret."""

from __future__ import annotations

import pytest

from ragcache_engine.errors import ConfigError
from ragcache_engine.tiers.shared.address import DEFAULT_TTL_S, read_address


def test_a_plain_url_is_taken_with_defaults():
    address = read_address("redis://host:6379/0")
    assert (address.url, address.scheme) == ("redis://host:6379/0", "redis")
    assert (address.ttl_s, address.prefix) == (DEFAULT_TTL_S, "ragcache")
    assert read_address("s3://bucket/a/b").quota_bytes is None


def test_options_stand_behind_the_question_mark():
    assert read_address("rediss://host?ttl=12h&prefix=team").ttl_s == 12 * 3600
    assert read_address("rediss://host?ttl=12h&prefix=team").prefix == "team"
    address = read_address("s3://bucket/a?quota=2GiB&ttl=30d")
    assert (address.quota_bytes, address.ttl_s) == (2 << 30, 30 * 86_400)
    assert address.url == "s3://bucket/a"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("host:6379", "begins with one of redis://"),
        ("http://host", "begins with one of"),
        ("", "begins with one of"),
        ("redis://[::1", "no URL"),
        ("redis://:secret@host", "RAGCACHE_SHARED_PASSWORD"),
        ("s3://key:secret@bucket", "environment"),
        ("redis://host?quota=1GiB", "unknown options"),
        ("s3://bucket?prefix=a", "unknown options"),
        ("redis://host?ttl=soon", "ttl"),
        ("file://data/store", "three slashes"),
        ("file:///", "three slashes"),
        ("redis://host?ttl=0s", "ttl"),
        ("s3://bucket?quota=much", "quota"),
        ("s3://bucket?quota=0", "quota"),
        ("redis://host?prefix=a b", "prefix"),
    ],
)
def test_what_cannot_work_is_named_without_showing_the_secret(url: str, reason: str):
    with pytest.raises(ConfigError, match=reason) as raised:
        read_address(url)
    assert "secret" not in str(raised.value)
