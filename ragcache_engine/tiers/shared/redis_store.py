"""A shared store in Redis or Valkey.

    <prefix>:b:<origin>/<name>     a block; expires
    <prefix>:of:<mark>             sorted set of blocks computed from a document, by when they expire
    <prefix>:marks                 sorted set of marks, by when their latest block expires
    <prefix>:forgotten             sorted set of forgotten documents' marks, by the count of forgets
    <prefix>:forgets               that count
    <prefix>:key:<name>            the file of an encryption key

Only blocks expire, so that a server with maxmemory-policy volatile-lru makes room among them alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import redis

from ragcache_engine.tiers.shared.address import PASSWORD, StoreAddress
from ragcache_engine.tiers.shared.store import (
    SharedStore,
    StoreAway,
    StoredBlock,
    StoreFull,
)

ANSWER_S = 2.0
"""A server that does not answer within so many seconds is away."""

MOST_TOMBSTONES = 100_000
"""How many tombstones to keep. A host that was away for more than so many may serve old blocks."""

MARKS_AT_ONCE = 256

READ_BYTES = 1 << 20
"""Bytes to ask the network for at once: a block has about so many, and 64 KiB read half as fast."""

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

    def __init__(self, address: StoreAddress, password: str | None = None) -> None:
        self.label = address.url
        self._prefix, self._ttl_s = address.prefix, address.ttl_s
        self._forgets = f"{address.prefix}:forgets"
        self._forgotten = f"{address.prefix}:forgotten"
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
        return list(self._redis.mget(map(self._block, keys)))

    @_tells_away
    def write(self, blocks: Sequence[StoredBlock]) -> None:
        now_s = self._now_s()
        until_s = now_s + self._ttl_s
        by_mark: dict[str, dict[str, int]] = {}
        for block in blocks:
            for mark in block.marks:
                by_mark.setdefault(mark, {})[block.key] = until_s
        with self._redis.pipeline(transaction=False) as asked:
            for mark, keys in by_mark.items():
                asked.zadd(self._of(mark), keys)
                asked.zremrangebyscore(self._of(mark), "-inf", now_s)
            if by_mark:
                asked.zadd(f"{self._prefix}:marks", dict.fromkeys(by_mark, until_s))
            asked.execute()
            # Now `forget` finds what comes.
            for block in blocks:
                asked.set(self._block(block.key), block.content, ex=self._ttl_s)
            asked.execute()

    @_tells_away
    def remove(self, keys: Sequence[str]) -> None:
        if keys:
            self._redis.unlink(*map(self._block, keys))

    @_tells_away
    def forget(self, marks: Sequence[str]) -> dict[str, str]:
        if not marks:
            return {}
        # A server that has lost everything must not count the same numbers again.
        self._redis.set(self._forgets, secrets.randbits(48), nx=True)
        stamp = self._redis.incr(self._forgets)
        self._redis.zadd(self._forgotten, dict.fromkeys(marks, stamp))
        self._redis.zremrangebyrank(self._forgotten, 0, -MOST_TOMBSTONES - 1)
        # Counted once more: whoever counted before the marks stood there looks again.
        self._redis.incr(self._forgets)
        for mark in marks:
            found = [key.decode() for key in self._redis.zrange(self._of(mark), 0, -1)]
            for at in range(0, len(found), MARKS_AT_ONCE):
                self.remove(found[at : at + MARKS_AT_ONCE])
                self._redis.zrem(self._of(mark), *found[at : at + MARKS_AT_ONCE])
        return dict.fromkeys(marks, str(stamp))

    @_tells_away
    def tombstones(self) -> Mapping[str, str]:
        count = self._redis.get(self._forgets)
        if count != self._known[0]:
            found = self._redis.zrange(self._forgotten, 0, -1, withscores=True)
            self._known = count, {mark.decode(): str(int(stamp)) for mark, stamp in found}
        return self._known[1]

    @_tells_away
    def stamps(self, marks: Sequence[str]) -> list[str | None]:
        if not marks:
            return []
        found = self._redis.zmscore(self._forgotten, marks)
        return [None if stamp is None else str(int(stamp)) for stamp in found]

    @_tells_away
    def tidy(self) -> None:
        """Remove the sets of documents without blocks: they must not expire by themselves."""
        now_s, known = self._now_s(), f"{self._prefix}:marks"
        ended = self._redis.zrangebyscore(known, "-inf", now_s, start=0, num=MARKS_AT_ONCE)
        for mark in ended:
            of = self._of(mark.decode())
            self._redis.zremrangebyscore(of, "-inf", now_s)
            if not self._redis.zcard(of):
                self._redis.zrem(known, mark)

    @_tells_away
    def read_key(self, name: str) -> bytes | None:
        found: bytes | None = self._redis.get(f"{self._prefix}:key:{name}")
        return found

    @_tells_away
    def add_key(self, name: str, content: bytes) -> None:
        self._redis.set(f"{self._prefix}:key:{name}", content, nx=True)

    @_tells_away
    def describe_risk(self) -> str | None:
        try:
            found = self._redis.config_get("maxmemory-policy")
        except redis.ResponseError:  # managed servers do not tell
            return None
        policy = str(found.get("maxmemory-policy", ""))
        if not policy.startswith("allkeys"):
            return None
        return (
            f"{self.label} has maxmemory-policy {policy} and may evict the marks of forgotten documents: "
            "set it to volatile-lru"
        )

    def close(self) -> None:
        self._redis.close()

    def _now_s(self) -> int:
        return int(self._redis.time()[0])
