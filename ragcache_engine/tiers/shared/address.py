"""Reads the URL of a shared store.

redis://host:6379/0?ttl=7d&prefix=ragcache&tenant_quota=20GiB   Redis or Valkey; rediss:// with TLS
s3://bucket/prefix?ttl=30d&quota=500GiB          S3 and what speaks like it; gs://, az://, file://
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from pydantic import ByteSize, TypeAdapter, ValidationError

from ragcache_engine.errors import ConfigError

PASSWORD = "RAGCACHE_SHARED_PASSWORD"
"""The environment variable with the password of a Redis server: a URL stands in logs."""

REDIS_SCHEMES = ("redis", "rediss")
OBJECT_SCHEMES = ("s3", "gs", "az", "file")

DEFAULT_TTL_S = 7 * 86_400
"""A block stays for a week, unless the URL says otherwise."""

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class StoreAddress(NamedTuple):
    """What a store's URL says.

    url: without its query. ttl_s: seconds for which a block stays. quota_bytes: how many bytes an object
    store may take; None: any. tenant_quota_bytes: how many a tenant and its users may take; None: any.
    prefix: what all keys in Redis begin with.
    """

    url: str
    scheme: str
    ttl_s: int = DEFAULT_TTL_S
    quota_bytes: int | None = None
    prefix: str = "ragcache"
    tenant_quota_bytes: int | None = None


def read_address(url: str) -> StoreAddress:
    """Read the URL of a shared store. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        has_password = parts.password is not None
    except ValueError as error:
        raise ConfigError("shared_cache is no URL") from error
    if parts.scheme not in (*REDIS_SCHEMES, *OBJECT_SCHEMES):
        known = ", ".join(f"{scheme}://" for scheme in (*REDIS_SCHEMES, *OBJECT_SCHEMES))
        raise ConfigError(f"shared_cache is a URL that begins with one of {known}")
    is_redis = parts.scheme in REDIS_SCHEMES
    if has_password:
        raise ConfigError(
            "shared_cache has a password in its URL, which logs would show: leave it out, and put it "
            + (f"into the environment variable {PASSWORD}" if is_redis else "into the environment")
        )
    if parts.scheme == "file" and (parts.netloc or not parts.path.strip("/")):
        raise ConfigError("shared_cache is file:///FOLDER, with three slashes, for a folder")
    said = dict(parse_qsl(parts.query, keep_blank_values=True))
    known_options = {"ttl", "tenant_quota", "prefix" if is_redis else "quota"}
    if unknown := said.keys() - known_options:
        raise ConfigError(
            f"shared_cache has unknown options {sorted(unknown)}: {parts.scheme}:// takes "
            f"{sorted(known_options)}"
        )
    prefix = said.get("prefix", "ragcache")
    if not re.fullmatch(r"[\w.-]{1,64}", prefix):
        raise ConfigError("the prefix of shared_cache is 1 to 64 letters, digits, '_', '.' or '-'")
    return StoreAddress(
        parts._replace(query="", fragment="").geturl(),
        parts.scheme,
        _seconds(said["ttl"]) if "ttl" in said else DEFAULT_TTL_S,
        _bytes(said, "quota"),
        prefix,
        _bytes(said, "tenant_quota"),
    )


def _seconds(said: str) -> int:
    match = re.fullmatch(r"([1-9]\d{0,8})([smhd])", said)
    if match is None:
        raise ConfigError("the ttl of shared_cache is a whole number and s, m, h or d, such as 7d")
    return int(match[1]) * _UNITS_S[match[2]]


def _bytes(said: Mapping[str, str], option: str) -> int | None:
    if option not in said:
        return None
    try:
        size = TypeAdapter(ByteSize).validate_python(said[option])
    except ValidationError as error:
        raise ConfigError(f"the {option} of shared_cache is a size, such as 500GiB") from error
    if size < 1:
        raise ConfigError(f"the {option} of shared_cache is a size above 0, such as 500GiB")
    return int(size)
