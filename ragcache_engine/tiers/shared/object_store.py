"""A shared store in S3, Google Cloud Storage, Azure's blobs, or a folder, by obstore.

    blocks/<origin>/<name>                a block
    of/<mark>/<random number>             names of blocks computed from a document, a line each
    forgotten/<mark>                      a tombstone, with a random number in it
    keys/<name>                           the file of an encryption key

An object is seen whole or not at all, and as soon as it is written.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, ObjectStore, from_url

from ragcache_engine.errors import ConfigError
from ragcache_engine.tiers.disk.naming import owner_with_quota
from ragcache_engine.tiers.shared.address import StoreAddress
from ragcache_engine.tiers.shared.store import (
    TOMBSTONES_STAY_S,
    SharedStore,
    StoreAway,
    StoredBlock,
)

AT_ONCE = 16
"""How many objects to ask for at once: each answer takes some ten milliseconds, whatever its size."""

ANSWER_S = 10.0
"""A store that does not answer within so many seconds is away."""

BLOCKS, OF, FORGOTTEN, KEYS, TIDIED = "blocks", "of", "forgotten", "keys", "tidied"

CLOCK = "clock"
"""An object that is written to ask for the store's time."""

REMOVED_AT_ONCE = 1000

TIDY_AGAIN = timedelta(minutes=30)
"""One host tidies up for all of them, and then nobody does for so long."""


def open_object_store(address: StoreAddress) -> ObjectBlocks:
    """Return the door to the store of this address. Raises ConfigError."""
    try:
        if address.scheme == "file":
            folder = Path(unquote(urlsplit(address.url).path))
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return ObjectBlocks(LocalStore(str(folder)), address)
        options: Any = {"timeout": f"{ANSWER_S:.0f}s", "connect_timeout": "2s"}
        if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):
            options["allow_http"] = True  # who writes it so wants it so
        retries: Any = {"max_retries": 1, "retry_timeout": timedelta(seconds=ANSWER_S)}
        return ObjectBlocks(
            from_url(address.url, client_options=options, retry_config=retries), address
        )
    except (BaseError, OSError, ValueError) as error:
        raise ConfigError(f"shared_cache={address.url} cannot be opened: {error}") from error


class ObjectBlocks(SharedStore):
    """Blocks as objects of a store."""

    blocks_at_once = AT_ONCE
    readers = 2
    look_s = 5.0  # each look is paid for

    def __init__(self, store: ObjectStore, address: StoreAddress) -> None:
        self.label = self.identity = address.url
        self._store = store
        self._ttl_s, self._quota_bytes = address.ttl_s, address.quota_bytes
        self._tenant_quota_bytes = address.tenant_quota_bytes
        self._threads = ThreadPoolExecutor(AT_ONCE, "ragcache-objects")

    def holds(self, keys: Sequence[str]) -> list[bool]:
        found = self._threads.map(self._look, [f"{BLOCKS}/{key}" for key in keys])
        return [place is not None for place in found]

    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        return list(self._threads.map(self._get, [f"{BLOCKS}/{key}" for key in keys]))

    def write(self, blocks: Sequence[StoredBlock]) -> None:
        by_mark: dict[str, list[str]] = {}
        for block in blocks:
            for mark in block.marks:
                by_mark.setdefault(mark, []).append(block.key)
        named = [
            (f"{OF}/{mark}/{secrets.token_hex(8)}", "\n".join(keys).encode())
            for mark, keys in by_mark.items()
        ]
        contents = [
            (f"{BLOCKS}/{block.key}", block.content)
            for block in blocks
            if block.content is not None
        ]
        for objects in (named, contents):  # names first: `clear` finds what comes
            list(self._threads.map(self._put, *zip(*objects, strict=True)) if objects else ())

    def remove(self, keys: Sequence[str]) -> None:
        self._delete([f"{BLOCKS}/{key}" for key in keys])

    def leave_tombstones(self, marks: Sequence[str]) -> dict[str, str]:
        stamps = self._threads.map(
            lambda mark: self._put(f"{FORGOTTEN}/{mark}", os.urandom(16)), marks
        )
        return dict(zip(marks, stamps, strict=True))

    def clear(self, marks: Sequence[str]) -> None:
        # The lists of names stay until they end: somebody may write a block of theirs right now.
        for mark in marks:
            for places in self._list(f"{OF}/{mark}/"):
                paths = [str(place["path"]) for place in places]
                for content in self._threads.map(self._get, paths):
                    self.remove((content or b"").decode(errors="replace").split())

    def tombstones(self) -> Mapping[str, str]:
        return {
            str(place["path"]).rpartition("/")[2]: _stamp(place)
            for places in self._list(f"{FORGOTTEN}/")
            for place in places
        }

    def stamps(self, marks: Sequence[str]) -> list[str | None]:
        found = self._threads.map(self._look, [f"{FORGOTTEN}/{mark}" for mark in marks])
        return [None if place is None else _stamp(place) for place in found]

    def read_key(self, name: str) -> bytes | None:
        return self._get(f"{KEYS}/{name}")

    def add_key(self, name: str, content: bytes) -> None:
        with contextlib.suppress(AlreadyExistsError):
            self._put(f"{KEYS}/{name}", content, mode="create")

    def remove_key(self, name: str) -> None:
        self._delete_one(f"{KEYS}/{name}")

    def describe_risk(self) -> str | None:
        return None

    def tidy(self) -> None:
        """Remove what is older than its time, and the oldest blocks beyond the quota.

        One host does it for all: nobody does if another one has begun within half an hour.
        """
        latest = self._look(TIDIED)
        now = self._touch(CLOCK)
        if latest is not None and now - latest["last_modified"] < TIDY_AGAIN:
            return
        self._put(TIDIED, b"")
        oldest = now - timedelta(seconds=self._ttl_s)
        self._remove_older(BLOCKS, oldest)
        if self._quota_bytes is not None or self._tenant_quota_bytes is not None:
            self._remove_beyond()
        # A list of names is as old as its blocks, or older.
        self._remove_older(OF, oldest - timedelta(hours=1))
        self._remove_older(FORGOTTEN, now - timedelta(seconds=TOMBSTONES_STAY_S))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _remove_older(self, folder: str, oldest: datetime) -> None:
        for places in self._list(f"{folder}/"):
            self._delete([str(each["path"]) for each in places if each["last_modified"] < oldest])

    def _remove_beyond(self) -> None:
        """Remove the oldest blocks beyond the quota, and those of each tenant beyond its own."""
        blocks: list[tuple[datetime, int, str]] = []
        for places in self._list(f"{BLOCKS}/"):
            blocks += [(each["last_modified"], each["size"], str(each["path"])) for each in places]
        used_bytes: Counter[str | None] = Counter()
        for _, size, path in blocks:
            used_bytes[_owner_of(path)] += size
        most, most_of_one = self._quota_bytes or inf, self._tenant_quota_bytes or inf
        stay, ended = [], []
        for written, size, path in sorted(blocks):
            owner = _owner_of(path)
            if owner and used_bytes[owner] > most_of_one:
                used_bytes[owner] -= size
                ended.append(path)
            else:
                stay.append((written, size, path))
        together = sum(size for _, size, _ in stay)
        for _, size, path in stay:
            if together <= most:
                break
            together -= size
            ended.append(path)
        self._delete(ended)

    # -- objects -----------------------------------------------------------------------------------

    def _touch(self, path: str) -> datetime:
        """Write an object, and return when that was by the store's clock: this machine's may be wrong."""
        self._put(path, b"")
        place = self._look(path)
        if place is None:
            raise StoreAway(f"{self.label} lost an object within a moment")
        written: datetime = place["last_modified"]
        return written

    def _look(self, path: str) -> Any:
        """Return what the store says of an object; None if there is none."""
        try:
            return obstore.head(self._store, path)
        except (NotFoundError, FileNotFoundError):
            return None
        except (BaseError, OSError) as error:
            raise StoreAway(f"{self.label}: {error}") from error

    def _get(self, path: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._store, path).bytes())
        except (NotFoundError, FileNotFoundError):
            return None
        except (BaseError, OSError) as error:
            raise StoreAway(f"{self.label}: {error}") from error

    def _put(
        self, path: str, content: bytes, mode: Literal["create", "overwrite"] = "overwrite"
    ) -> str:
        """Write an object and return its stamp. Raises AlreadyExistsError if one is not to be created."""
        try:
            put = obstore.put(self._store, path, content, use_multipart=False, mode=mode)
            return _stamp(put)
        except AlreadyExistsError:
            raise
        except (BaseError, OSError) as error:
            raise StoreAway(f"{self.label}: {error}") from error

    def _delete(self, paths: Sequence[str]) -> None:
        try:
            for at in range(0, len(paths), REMOVED_AT_ONCE):
                obstore.delete(self._store, paths[at : at + REMOVED_AT_ONCE])
        except (NotFoundError, FileNotFoundError):  # a folder tells; the others are gone as well
            for path in paths:
                self._delete_one(path)
        except (BaseError, OSError) as error:
            raise StoreAway(f"{self.label}: {error}") from error

    def _delete_one(self, path: str) -> None:
        try:
            obstore.delete(self._store, path)
        except (NotFoundError, FileNotFoundError):
            pass
        except (BaseError, OSError) as error:
            raise StoreAway(f"{self.label}: {error}") from error

    def _list(self, prefix: str) -> Iterator[Sequence[Any]]:
        try:
            yield from obstore.list(self._store, prefix, chunk_size=REMOVED_AT_ONCE)
        except (BaseError, OSError) as error:
            raise StoreAway(f"{self.label}: {error}") from error


def _owner_of(path: str) -> str | None:
    return owner_with_quota(path.rpartition("/")[2])


def _stamp(place: Any) -> str:
    """Return a stamp for an object's content; every store has one, or tells when it was written."""
    tag = place.get("e_tag") or place.get("version") or place.get("last_modified")
    return str(tag).removeprefix("W/").strip('"')  # some stores quote it in some answers only
