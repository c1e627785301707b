"""A shared store in Redis (from 6.2 on) or Valkey.

    <prefix>:b:<origin>/<name>     a block; expires
    <prefix>:of:<mark>             sorted set of blocks computed from a document, by when they expire
    <prefix>:owner:<mark>:<origin> sorted set of an owner's blocks, by when they expire, if it has a quota
    <prefix>:owners                sorted set of these pairs, by when the latest block expires
    <prefix>:marks                 sorted set of those documents' marks, by when the latest block expires
    <prefix>:forgotten             hash of the tombstones' stamps by mark
    <prefix>:forgotten-at          sorted set of the same marks, by when that was
    <prefix>:version               a random number, another one after each tombstone
    <prefix>:key:<name>            the file of an encryption key

Only blocks expire by themselves, so that a server with maxmemory-policy volatile-lru makes room among
them alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar

import redis

from ragcache_engine.tiers.disk.naming import owner_with_quota
from ragcache_engine.tiers.shared.address import PASSWORD, StoreAddress
from ragcache_engine.tiers.shared.store import (
    TOMBSTONES_STAY_S,
    SharedStore,
    StoreAway,
    StoredBlock,
    StoreFull,
)

ANSWER_S = 2.0
"""A server that does not answer within so many seconds is away."""

AT_ONCE = 256
"""How many keys one command names."""

CLEARED_AT_ONCE = 4096
"""How many entries of a document's list, or of a tenant's, are read at once."""

READ_BYTES = 1 << 20
"""Bytes to ask the network for at once: a block has about so many, and 64 KiB read half as fast."""

MARGIN_S = 3600
"""A block's entry in the list of its document stays so much longer than the block."""

P = ParamSpec("P")
R = TypeVar("R")


def _tells_away(
    method: Callable[Concatenate[RedisStore, P], R],
) -> Callable[Concatenate[RedisStore, P], R]:
    """Raise StoreAway or StoreFull instead of the library's errors."""

    @wraps(method)
    def told(self: RedisStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except redis.exceptions.OutOfMemoryError as error:
            raise StoreFull(f"{self.label} has no memory left") from error
        except redis.AuthenticationError as error:
            raise StoreAway(f"{self.label}: {error} The password comes from {PASSWORD}") from error
        except (redis.RedisError, OSError) as error:
            raise StoreAway(f"{self.label}: {error}") from error

    return told


class RedisStore(SharedStore):
    """Blocks in a Redis server. password: None if the server wants none."""

    blocks_at_once = 4
    readers = 2
    look_s = 2.0

    def __init__(self, address: StoreAddress, password: str | None = None) -> None:
        self.label = address.url
        self.identity = f"{address.url}?{address.prefix}"
        self._prefix, self._ttl_s = address.prefix, address.ttl_s
        self._tenant_quota_bytes = address.tenant_quota_bytes
        self._marks = f"{address.prefix}:marks"
        self._owners = f"{address.prefix}:owners"
        self._version = f"{address.prefix}:version"
        self._forgotten = f"{address.prefix}:forgotten"
        self._forgotten_at = f"{address.prefix}:forgotten-at"
        self._known: tuple[bytes | None, Mapping[str, str]] = (None, {})
        self._redis: Any = redis.Redis.from_url(
            address.url,
            password=password,
            socket_timeout=ANSWER_S,
            socket_connect_timeout=ANSWER_S,
            retry=None,
            socket_read_size=READ_BYTES,
            protocol=2,
            # Nothing but what is asked: some servers lack the command that tells a client's name.
            lib_name=None,
            lib_version=None,
        )

    def _block(self, key: str) -> str:
        return f"{self._prefix}:b:{key}"

    def _of(self, mark: str) -> str:
        return f"{self._prefix}:of:{mark}"

    @_tells_away
    def holds(self, keys: Sequence[str]) -> list[bool]:
        with self._redis.pipeline(transaction=False) as asked:
            for key in keys:
                asked.exists(self._block(key))
            return [bool(answer) for answer in asked.execute()]

    @_tells_away
    def read(self, keys: Sequence[str]) -> list[bytes | None]:
        return list(self._redis.mget(map(self._block, keys))) if keys else []

    @_tells_away
    def write(self, blocks: Sequence[StoredBlock]) -> None:
        until_s = self._now_s() + self._ttl_s + MARGIN_S
        by_mark: dict[str, dict[str, int]] = {}
        for block in blocks:
            for mark in block.marks:
                by_mark.setdefault(mark, {})[block.key] = until_s
        with self._redis.pipeline(transaction=False) as asked:
            for mark, keys in by_mark.items():
                asked.zadd(self._of(mark), keys, gt=True)
            if by_mark:
                asked.zadd(self._marks, dict.fromkeys(by_mark, until_s), gt=True)
            asked.execute()
            # Now `clear` finds what comes.
            for block in blocks:
                if block.content is not None:
                    asked.set(self._block(block.key), block.content, ex=self._ttl_s)
            asked.execute()
        if self._tenant_quota_bytes is not None:
            self._make_room(blocks, self._tenant_quota_bytes, until_s)

    def _make_room(self, blocks: Sequence[StoredBlock], quota_bytes: int, until_s: int) -> None:
        """Remove the oldest blocks of those owners that have more now than their quota.

        Blocks are counted. Those of one origin are of one size, so each origin is counted by itself.
        """
        size_bytes = max((len(block.content or b"") for block in blocks), default=0)
        if not size_bytes:
            return
        by_owner: dict[str, dict[str, int]] = {}
        for block in blocks:
            origin, _, name = block.key.rpartition("/")
            if block.content is not None and (owner := owner_with_quota(name)):
                by_owner.setdefault(f"{owner}:{origin}", {})[block.key] = until_s
        for owner, keys in by_owner.items():
            of = f"{self._prefix}:owner:{owner}"
            with self._redis.pipeline(transaction=False) as asked:
                asked.zremrangebyscore(of, "-inf", until_s - self._ttl_s)
                asked.zadd(of, keys, gt=True)
                asked.zadd(self._owners, {owner: until_s}, gt=True)
                asked.zcard(of)
                held = asked.execute()[-1]
            if (excess := held - quota_bytes // size_bytes) > 0:
                oldest = self._redis.zpopmin(of, excess)
                self.remove([key.decode(errors="replace") for key, _ in oldest])

    @_tells_away
    def remove(self, keys: Sequence[str]) -> None:
        for some in _pieces(keys):
            self._redis.unlink(*map(self._block, some))

    @_tells_away
    def leave_tombstones(self, marks: Sequence[str]) -> dict[str, str]:
        if not marks:
            return {}
        try:
            return self._leave(marks)
        except redis.exceptions.OutOfMemoryError:
            self.clear(marks)  # that makes room
            return self._leave(marks)

    def _leave(self, marks: Sequence[str]) -> dict[str, str]:
        stamps = {mark: secrets.token_hex(8) for mark in marks}
        self._redis.hset(self._forgotten, mapping=stamps)
        self._redis.zadd(self._forgotten_at, dict.fromkeys(marks, self._now_s()))
        # Last: whoever read it before the tombstones stood there looks again.
        self._redis.set(self._version, secrets.token_hex(8))
        return stamps

    @_tells_away
    def clear(self, marks: Sequence[str]) -> None:
        # The lists stay until they end: somebody may write a block of theirs right now.
        for mark in marks:
            # Each entry comes that stands there all the time, whatever others add.
            found = self._redis.zscan_iter(self._of(mark), count=CLEARED_AT_ONCE)
            while some := list(islice(found, CLEARED_AT_ONCE)):
                self.remove([key.decode(errors="replace") for key, _ in some])

    @_tells_away
    def tombstones(self) -> Mapping[str, str]:
        version = self._redis.get(self._version)
        if version is None or version != self._known[0]:
            found = self._redis.hgetall(self._forgotten)
            self._known = version, {_text(mark): _text(stamp) for mark, stamp in found.items()}
        return self._known[1]

    @_tells_away
    def stamps(self, marks: Sequence[str]) -> list[str | None]:
        found = self._redis.hmget(self._forgotten, list(marks)) if marks else []
        return [None if stamp is None else _text(stamp) for stamp in found]

    @_tells_away
    def tidy(self) -> None:
        """Remove the lists of documents without blocks, which must not expire, and old tombstones."""
        now_s = self._now_s()
        while ended := self._redis.zrangebyscore(self._marks, "-inf", now_s, start=0, num=AT_ONCE):
            for mark in ended:
                of = self._of(_text(mark))
                self._redis.zremrangebyscore(of, "-inf", now_s)
                latest = self._redis.zrange(of, -1, -1, withscores=True)
                if latest:  # of another host, which keeps blocks for longer
                    self._redis.zadd(self._marks, {mark: latest[0][1]})
                else:
                    self._redis.zrem(self._marks, mark)
        for owner in self._redis.zrangebyscore(self._owners, "-inf", now_s):
            self._redis.unlink(f"{self._prefix}:owner:{_text(owner)}")
            self._redis.zrem(self._owners, owner)
        oldest_s = now_s - TOMBSTONES_STAY_S
        for some in _pieces(self._redis.zrangebyscore(self._forgotten_at, "-inf", oldest_s)):
            self._redis.hdel(self._forgotten, *some)
            self._redis.zrem(self._forgotten_at, *some)

    @_tells_away
    def read_key(self, name: str) -> bytes | None:
        found: bytes | None = self._redis.get(f"{self._prefix}:key:{name}")
        return found

    @_tells_away
    def add_key(self, name: str, content: bytes) -> None:
        self._redis.set(f"{self._prefix}:key:{name}", content, nx=True)

    @_tells_away
    def remove_key(self, name: str) -> None:
        self._redis.unlink(f"{self._prefix}:key:{name}")

    @_tells_away
    def describe_risk(self) -> str | None:
        try:
            found = self._redis.config_get("maxmemory*")
        except redis.ResponseError:  # managed servers do not tell
            return None
        policy, memory = found.get("maxmemory-policy", ""), found.get("maxmemory", "0")
        if policy.startswith("allkeys"):
            return (
                f"{self.label} has maxmemory-policy {policy} and may evict the marks of forgotten "
                "documents: set it to volatile-lru"
            )
        if policy == "noeviction" and str(memory) != "0":
            return (
                f"{self.label} has maxmemory-policy noeviction: once it is full it takes nothing more. "
                "Set it to volatile-lru"
            )
        return None

    def close(self) -> None:
        self._redis.close()

    def _now_s(self) -> int:
        return int(self._redis.time()[0])


def _pieces(things: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for at in range(0, len(things), AT_ONCE):
        yield things[at : at + AT_ONCE]


def _text(said: bytes) -> str:
    return said.decode(errors="replace")
