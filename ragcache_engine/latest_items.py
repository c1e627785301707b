"""Keeps what was used last, as much of it as fits into so many bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LatestItems(MutableMapping[K, V]):
    """A mapping that drops the longest unused items beyond `most_bytes`, and beyond `most` items.

    A new item and `touch` count as uses; reading an item and replacing it do not. The latest item stays,
    whatever its size, so that nobody misses what was just kept. Not safe to share between threads.
    size_of: returns about how many bytes an item takes. on_drop: called with each item that is dropped.
    """

    def __init__(
        self,
        most_bytes: int,
        size_of: Callable[[K, V], int],
        *,
        most: int | None = None,
        on_drop: Callable[[K, V], object] | None = None,
    ) -> None:
        self._most_bytes, self._most = most_bytes, most
        self._size_of, self._on_drop = size_of, on_drop
        self._items: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.size_bytes = 0

    def __setitem__(self, key: K, value: V) -> None:
        size_bytes = self._size_of(key, value)
        _, before_bytes = self._items.get(key, (value, 0))
        self._items[key] = value, size_bytes
        self.size_bytes += size_bytes - before_bytes
        while len(self._items) > 1 and self._is_too_much():
            oldest, (gone, size_bytes) = self._items.popitem(last=False)
            self.size_bytes -= size_bytes
            if self._on_drop:
                self._on_drop(oldest, gone)

    def _is_too_much(self) -> bool:
        return self.size_bytes > self._most_bytes or (
            self._most is not None and len(self._items) > self._most
        )

    def __getitem__(self, key: K) -> V:
        return self._items[key][0]

    def __delitem__(self, key: K) -> None:
        _, size_bytes = self._items.pop(key)
        self.size_bytes -= size_bytes

    def __iter__(self) -> Iterator[K]:
        """Yield the keys, the longest unused first."""
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def touch(self, key: K) -> None:
        """Note that this item was used."""
        self._items.move_to_end(key)

    def pop_latest(self) -> tuple[K, V]:
        """Take out the item used last. Raises KeyError if there is none."""
        key = next(reversed(self._items)) if self._items else None
        if key is None:
            raise KeyError("there is no item")
        return key, self.pop(key)
