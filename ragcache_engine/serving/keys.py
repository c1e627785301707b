"""Whose key is whose: API keys stand for tenants, or for operators. The server alone decides it."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
import tomllib
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

from ragcache_engine.errors import ConfigError, KeyRefused, OperatorsOnly
from ragcache_engine.serving.settings import OPERATOR_KEY
from ragcache_engine.tenants import BELOW

logger = logging.getLogger(__name__)

SHORTEST_KEY = 16
"""The fewest characters of a key. Shorter ones can be guessed."""

LOOK_S = 1.0
"""How often a file of keys is looked at for changes."""

SETTLED_S = 2.0
"""A file that changed so lately is read once more: a second change within one tick of its file system's
clock may leave size and times as they are."""

_DIGEST = "sha256:"
_Stamp: TypeAlias = tuple[int, ...]

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
        other: no other key reaches "shop::anna".
        """
        if self.tenant is None:
            return named
        return self.tenant if named is None else f"{self.tenant}{BELOW}{named}"

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

    file: a TOML file, read again soon after each change, so that a key can be taken back while the
      server runs; see `read_key_file`. None: keys stand for no tenants.
    operator_key: one more operator's key, or its digest as in the file. open_keys: keys whose holders
      name their tenants themselves.
    has_tenants: whether keys stand for tenants, so that every path needs one.
    Raises ConfigError for a file or an operator's key that cannot be used.
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
            digest = require_digest(operator_key, OPERATOR_KEY)
            self._fixed[digest] = Caller(is_operator=True)
        self._of_file = _FileOfKeys(file) if file else None

    @property
    def has_operators(self) -> bool:
        """Whether some key is an operator's."""
        of_file = self._of_file.callers.values() if self._of_file else ()
        return any(one.is_operator for one in (*self._fixed.values(), *of_file))

    def caller(self, key: str | None) -> Caller:
        """Return who has this key; None for a request without one. Raises KeyRefused.

        Neither waits for the file, nor tells by its time how much of a key was right: nobody can choose
        a digest, and a dict compares those of one hash only.
        """
        if key is not None:
            digest = _digest(key)
            known = self._fixed.get(digest)
            if known is None and self._of_file:
                known = self._of_file.callers.get(digest)
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


class _FileOfKeys:
    """The keys of a file. A thread looks for changes, as long as somebody has this object.

    callers: by the digests of their keys, as of the last look.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._stamp, text = self._read()
        except OSError as error:
            raise _unreadable(path, error) from error
        self.callers = _require_keys(_parse(text, path), path)
        threading.Thread(
            target=_look_for_changes, args=(weakref.ref(self),), name="ragcache-keys", daemon=True
        ).start()

    def look(self) -> None:
        """Take over what has changed. What cannot be read opens to nobody.

        Of a file with a mistake those keys stay that still stand in it: a slip of the pen locks nobody
        out, and no key outlives its deletion.
        """
        try:
            stamp, text = self._read(self._stamp)
            if stamp == self._stamp:
                return
            self._stamp, self.callers = stamp, _parse(text, self._path)
            logger.info("read %s again: %d keys", self._path, len(self.callers))
        except OSError as error:
            if self.callers:
                logger.error(
                    "%s cannot be read, and its keys open nothing now: %s", self._path, error
                )
            self._stamp, self.callers = (), {}
        except ConfigError as error:
            self._stamp, self.callers = stamp, _still_named(text, self.callers)
            logger.error("of the keys %d stay, and none is new: %s", len(self.callers), error)

    def _read(self, known: _Stamp = ()) -> tuple[_Stamp, bytes]:
        """Return the file's content, and what changes with it; no content if that is as it was."""
        with self._path.open("rb") as file:
            # Before the content: what changes while it is read is seen at the next look.
            stat = os.fstat(file.fileno())
            is_settled = time.time() - stat.st_mtime > SETTLED_S
            stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, is_settled)
            return stamp, b"" if stamp == known else file.read()


def _look_for_changes(of_file: weakref.ref[_FileOfKeys]) -> None:
    while (one := of_file()) is not None:
        one.look()
        del one
        time.sleep(LOOK_S)


def read_key_file(path: Path) -> dict[str, Caller]:
    """Return the callers of a file of keys, by the digests of their keys. Raises ConfigError.

    [tenants]
    shop = ["a key of at least 16 characters", "sha256:<its hexadecimal digest>"]
    [operators]
    anna = ["another key"]
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    return _require_keys(_parse(text, path), path)


def _unreadable(path: Path, error: Exception) -> ConfigError:
    return ConfigError(f"the file of keys {path} cannot be read: {error}")


def _require_keys(callers: dict[str, Caller], path: Path) -> dict[str, Caller]:
    if not callers:
        raise ConfigError(f"{path} names no key, so nobody could use the server")
    return callers


def _parse(text: bytes, path: Path) -> dict[str, Caller]:
    """Return the callers that a file names. Raises ConfigError."""
    try:
        said = tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
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
    return callers


def _still_named(text: bytes, callers: Mapping[str, Caller]) -> dict[str, Caller]:
    """Return those callers whose keys stand, between quotes, in a text with a mistake somewhere."""
    # A key in a comment was taken back.
    lines = (line.partition("#")[0] for line in text.decode(errors="replace").splitlines())
    found = (_digest_of(entry) for line in lines for entry in re.split("[\"']", line))
    return {digest: callers[digest] for digest in found if digest in callers}


def _keys_of(said: Mapping[str, Any], table: str, path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the digest of each key in a table."""
    listed = said.get(table, {})
    if not isinstance(listed, Mapping):
        raise ConfigError(f"{path}: write [{table}] as a table, with a line for each name")
    for name, keys in listed.items():
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise ConfigError(f'{path}: write {name} = ["its key", ...] under [{table}]')
        for key in keys:
            yield name, require_digest(key, f"{path}: a key of {name}")


def _add(callers: dict[str, Caller], digest: str, caller: Caller, path: Path) -> None:
    if callers.setdefault(digest, caller) != caller:
        raise ConfigError(f"{path}: one key stands in two places; each tenant needs its own")


def require_digest(entry: str, what: str) -> str:
    """Return the digest of a key as it is given: itself, or by its digest. what: whose key it is.

    Raises ConfigError for a key that can be guessed, and for what is no digest.
    """
    digest = _digest_of(entry)
    if not _HEXADECIMAL.fullmatch(digest):
        raise ConfigError(
            f"{what}: behind {_DIGEST} stand the 64 hexadecimal digits of a key's digest: "
            f"printf %s KEY | sha256sum"
        )
    if len(entry) < SHORTEST_KEY:
        raise ConfigError(
            f"{what} has fewer than {SHORTEST_KEY} characters; draw one with "
            f'python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    return digest


def name_by_digest(key: str) -> str:
    """Return an operator's key, as other processes may be given it: by its digest. Raises ConfigError."""
    return _DIGEST + require_digest(key, OPERATOR_KEY)


def _digest_of(entry: str) -> str:
    """Return the digest of a key as it stands in a file: itself, or by its digest."""
    if entry.startswith(_DIGEST):
        # What sha256sum writes ends with the name of its input.
        return entry.removeprefix(_DIGEST).removesuffix("-").strip().lower()
    return _digest(entry)


def _digest(key: str) -> str:
    return sha256(key.encode(errors="surrogateescape")).hexdigest()
