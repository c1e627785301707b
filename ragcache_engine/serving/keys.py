"""Whose key is whose: API keys stand for tenants, or for operators. The server alone decides it."""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from ragcache_engine.errors import ConfigError, KeyRefused, OperatorsOnly

logger = logging.getLogger(__name__)

SHORTEST_KEY = 16
"""The fewest characters of a key. Shorter ones can be guessed."""

_DIGEST = "sha256:"
_HEXADECIMAL = re.compile(r"[0-9a-f]{64}")
_TENANT = re.compile(r"[\w.-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, as its key says.

    tenant: whose tensors it may share; None for an operator, and where no keys are configured: such a
      caller names the tenant itself.
    is_operator: whether it may forget documents, clear the cache, read counters and name any tenant.
    """

    tenant: str | None = None
    is_operator: bool = False

    def tenant_for(self, named: str | None) -> str | None:
        """Return the tenant of a request in which the caller has named one.

        A caller with a tenant stays inside it. A name that it gives separates its own users from each
        other: no other key reaches "shop:anna".
        """
        if self.tenant is None:
            return named
        return self.tenant if named is None else f"{self.tenant}:{named}"

    def require_operator(self, what: str) -> None:
        """Raise OperatorsOnly unless the caller is an operator. what: what it wants to do."""
        if not self.is_operator:
            raise OperatorsOnly(
                f"only an operator may {what}: send an operator's key (RAGCACHE_OPERATOR_KEY, or one "
                f"under [operators] in the server's file of keys)"
            )


ANYBODY = Caller()


class Keys:
    """All keys of a server. Keeps digests only.

    file: a TOML file, read again whenever it changes, so that a key can be taken back while the server
      runs; see `read_key_file`. None: keys stand for no tenants.
    operator_key: one more operator's key. open_keys: keys whose holders name their tenants themselves.
    has_tenants: whether keys stand for tenants, so that every path needs one.
    Raises ConfigError for a file that cannot be used.
    """

    def __init__(
        self,
        file: Path | None = None,
        operator_key: str | None = None,
        open_keys: tuple[str, ...] = (),
    ) -> None:
        self.has_tenants = file is not None
        self._fixed = dict.fromkeys(map(_digest, open_keys), ANYBODY)
        self._is_open = file is None and not open_keys
        if operator_key:
            self._fixed[_digest(operator_key)] = Caller(is_operator=True)
        self._of_file = _FileOfKeys(file) if file else None

    def caller(self, key: str | None) -> Caller:
        """Return who has this key; None for a request without one. Raises KeyRefused."""
        if key is not None:
            digest = _digest(key)
            known = self._fixed.get(digest)
            if known is None and self._of_file:
                known = self._of_file.callers().get(digest)
            if known is not None:
                return known
        if self._is_open:
            return ANYBODY
        raise KeyRefused(
            "this server knows no such key: connect with api_key=..., or send the header "
            '"Authorization: Bearer ..."'
            if key is not None
            else "this server wants a key: connect with api_key=..., or send the header "
            '"Authorization: Bearer ..."'
        )


@dataclass(slots=True)
class _FileOfKeys:
    """The keys of a file as of its last change."""

    path: Path
    _stamp: tuple[int, int] | None = None
    _callers: Mapping[str, Caller] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._callers = read_key_file(self.path)
        self._stamp = self._look()

    def callers(self) -> Mapping[str, Caller]:
        try:
            if (stamp := self._look()) != self._stamp:
                self._stamp = stamp
                self._callers = read_key_file(self.path)
                logger.info("read %s again: %d keys", self.path, len(self._callers))
        except (OSError, ConfigError) as error:
            logger.error("the keys stay as they were: %s", error)
        return self._callers

    def _look(self) -> tuple[int, int]:
        found = self.path.stat()
        return found.st_mtime_ns, found.st_size


def read_key_file(path: Path) -> dict[str, Caller]:
    """Return the callers of a file of keys, by the digests of their keys. Raises ConfigError.

    [tenants]
    shop = ["a key of at least 16 characters", "sha256:<its hexadecimal digest>"]
    [operators]
    anna = ["another key"]
    """
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the file of keys {path} cannot be read: {error}") from error
    if unknown := set(said) - {"tenants", "operators"}:
        raise ConfigError(
            f"{path}: a file of keys has the tables [tenants] and [operators], not {sorted(unknown)}"
        )
    callers: dict[str, Caller] = {}
    for tenant, digest in _keys_of(said, "tenants", path):
        if not _TENANT.fullmatch(tenant):
            raise ConfigError(
                f"{path}: a tenant's name has 1 to 64 letters, digits, dots, dashes and underscores, "
                f"not {tenant!r}"
            )
        _add(callers, digest, Caller(tenant=tenant), path)
    for _, digest in _keys_of(said, "operators", path):
        _add(callers, digest, Caller(is_operator=True), path)
    if not callers:
        raise ConfigError(f"{path} names no key, so nobody could use the server")
    return callers


def _keys_of(said: Mapping[str, Any], table: str, path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the digest of each key in a table."""
    listed = said.get(table, {})
    if not isinstance(listed, Mapping):
        raise ConfigError(f"{path}: write [{table}] as a table, with a line for each name")
    for name, keys in listed.items():
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise ConfigError(f'{path}: write {name} = ["its key", ...] under [{table}]')
        for key in keys:
            if key.startswith(_DIGEST):
                # What sha256sum writes ends with the name of its input.
                digest = key.removeprefix(_DIGEST).removesuffix("-").strip().lower()
                if not _HEXADECIMAL.fullmatch(digest):
                    raise ConfigError(
                        f"{path}: behind {_DIGEST} a key of {name} has the 64 hexadecimal digits of its "
                        f"digest: printf %s KEY | sha256sum"
                    )
                yield name, digest
            elif len(key) < SHORTEST_KEY:
                raise ConfigError(
                    f"{path}: a key of {name} has fewer than {SHORTEST_KEY} characters; draw one with "
                    f'python -c "import secrets; print(secrets.token_urlsafe())"'
                )
            else:
                yield name, _digest(key)


def _add(callers: dict[str, Caller], digest: str, caller: Caller, path: Path) -> None:
    if callers.setdefault(digest, caller) != caller:
        raise ConfigError(f"{path}: one key stands in two places; each tenant needs its own")


def _digest(key: str) -> str:
    return sha256(key.encode()).hexdigest()
